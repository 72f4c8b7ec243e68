//! The tests notice when a check is taken out.

use redstart_testkit::child::{must_notice, without};

#[tokio::test]
async fn a_place_that_outlives_its_deadline_is_noticed() -> anyhow::Result<()> {
    let nearby = include_str!("../../src/location/places/nearby.lua");
    let broken = without(nearby, "'-inf', time, 'LIMIT'", "'-inf', '(-inf', 'LIMIT'");
    let broken = without(&broken, "'-inf', time) > 0", "'-inf', '(-inf') > 0");
    let broken = [
        include_str!("../../src/script/now.lua"),
        include_str!("../../src/script/smaller.lua"),
        &broken,
    ]
    .concat();
    let test = "places::stale_places_are_never_returned_and_leave_nothing_behind::embedded";
    must_notice(test, "places.nearby", &broken).await
}
