//! The tests notice when a check is taken out.

use redstart_testkit::child::{must_notice, without};

const SUBMIT: &str = include_str!("../../src/ranking/leaderboard/submit.lua");

#[tokio::test]
async fn a_board_that_never_expires_is_noticed() -> anyhow::Result<()> {
    let broken = without(SUBMIT, "call('PEXPIREAT', board, expiry)", "");
    for test in [
        "leaderboard::no_key_of_a_period_is_without_expiry::embedded",
        "calendar::every_day_of_23_years_has_its_keys_and_their_expiries",
    ] {
        must_notice(test, "leaderboard.submit", &broken).await?;
    }
    Ok(())
}

#[tokio::test]
async fn submissions_in_the_wrong_order_are_noticed() -> anyhow::Result<()> {
    let broken = without(SUBMIT, "high and span - 1 - place or place", "place");
    let test = "leaderboard::concurrent_ties_are_in_the_order_of_their_submission::embedded";
    must_notice(test, "leaderboard.submit", &broken).await
}

#[tokio::test]
async fn a_shard_that_counts_equals_wrongly_is_noticed() -> anyhow::Result<()> {
    let smaller = include_str!("../../src/script/smaller.lua");
    let position = include_str!("../../src/script/position.lua");
    let locate = include_str!("../../src/ranking/sharded/locate.lua");
    let broken = without(position, "+ same - low, 0", "+ same, 0");
    let broken = [smaller, &broken, locate].concat();
    let test = "sharded::ranks_pages_and_neighbours_equal_one_board_with_all_members::embedded";
    must_notice(test, "sharded.locate", &broken).await
}
