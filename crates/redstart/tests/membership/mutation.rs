//! The tests notice when a check is taken out.

use redstart_testkit::child::{must_notice, without};

const BITS: &str = include_str!("../../src/membership/bloom/bits.lua");
const ADD: &str = include_str!("../../src/membership/bloom/add.lua");
const NATIVE_CREATE: &str = include_str!("../../src/membership/bloom/native_create.lua");

#[tokio::test]
async fn a_filter_that_does_not_see_that_it_is_full_is_noticed() -> anyhow::Result<()> {
    let broken = BITS.to_owned() + &without(ADD, "count = count + 1", "");
    let test = "bloom::a_growing_filter_keeps_its_error_far_past_its_capacity::embedded";
    must_notice(test, "bloom.add", &broken).await
}

#[tokio::test]
async fn a_partition_that_is_made_over_another_is_noticed() -> anyhow::Result<()> {
    let broken = without(NATIVE_CREATE, "redis.call('EXISTS', KEYS[2]) == 1", "false");
    let test = "bloom::a_partition_that_lost_its_header_is_not_taken_for_a_new_one::embedded";
    must_notice(test, "bloom.native_create", &broken).await
}
