//! The tests notice when a check is taken out.

use redstart_testkit::child::{must_notice, without};

const BITS: &str = include_str!("../../src/membership/bloom/bits.lua");
const ADD: &str = include_str!("../../src/membership/bloom/add.lua");

#[tokio::test]
async fn a_filter_that_does_not_see_that_it_is_full_is_noticed() -> anyhow::Result<()> {
    let broken = BITS.to_owned() + &without(ADD, "count = count + 1", "");
    let test = "bloom::a_growing_filter_keeps_its_error_far_past_its_capacity::embedded";
    must_notice(test, "bloom.add", &broken).await
}
