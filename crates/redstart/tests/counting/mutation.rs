//! The tests notice when a check is taken out.

use redstart_testkit::child::{must_notice, without};

#[tokio::test]
async fn a_batch_under_two_ids_is_noticed() -> anyhow::Result<()> {
    let drain = include_str!("../../src/counting/counter/drain.lua");
    let broken = without(drain, "if out[1] then", "if false then");
    for test in [
        "counter::a_batch_is_handed_out_until_it_is_acknowledged::embedded",
        "counter::fault_draining_under_dropped_replies_conserves_the_sum",
    ] {
        must_notice(test, "counter.drain", &broken).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_roll_up_that_forgets_is_noticed() -> anyhow::Result<()> {
    let roll_up = include_str!("../../src/counting/uniques/roll_up.lua");
    let broken = without(roll_up, "unpack(KEYS, 2)", "unpack(KEYS, 3)");
    let test = "uniques::rolling_up_is_idempotent_and_outlives_the_days::embedded";
    must_notice(test, "uniques.roll_up", &broken).await
}
