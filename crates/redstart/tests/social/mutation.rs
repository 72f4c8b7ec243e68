//! The tests notice when a check is taken out.

use redstart_testkit::child::{must_notice, without};

const NOW: &str = include_str!("../../src/script/now.lua");
const HISTORY: &str = "graph::a_random_history_equals_the_model::embedded";

#[tokio::test]
async fn a_follow_of_one_side_is_noticed() -> anyhow::Result<()> {
    let change = include_str!("../../src/social/graph/change.lua");
    let broken = NOW.to_owned() + &without(change, "redis.call('ZADD', KEYS[5], at, a)", "");
    must_notice(HISTORY, "graph.change", &broken).await
}

#[tokio::test]
async fn a_block_that_leaves_a_follow_is_noticed() -> anyhow::Result<()> {
    let change = include_str!("../../src/social/graph/change.lua");
    let broken = NOW.to_owned() + &without(change, "redis.call('ZREM', KEYS[2], b)", "");
    must_notice(HISTORY, "graph.change", &broken).await
}
