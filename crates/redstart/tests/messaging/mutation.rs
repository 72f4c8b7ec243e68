//! The tests notice when a check is taken out.

use anyhow::Result;
use redstart_testkit::child::{must_notice, without};

const RECORD: &str = concat!(
    include_str!("../../src/script/now.lua"),
    include_str!("../../src/messaging/queue/record.lua"),
);

#[tokio::test]
async fn an_ending_without_its_fence_is_noticed() -> Result<()> {
    let finish = include_str!("../../src/messaging/queue/finish.lua");
    let fence = "if redis.call('HEXISTS', running, '') == 0 then return 0 end";
    let broken = format!("{RECORD}{}", without(finish, fence, ""));
    let test =
        "queue::a_worker_that_lost_its_lease_hears_of_it_and_its_ending_is_refused::embedded";
    must_notice(test, "queue.finish", &broken).await
}

#[tokio::test]
async fn a_job_that_is_not_handed_back_is_noticed() -> Result<()> {
    let finish = include_str!("../../src/messaging/queue/finish.lua");
    let back = "make_ready('LPUSH', ready, ranked, boost, back)";
    let broken = format!("{RECORD}{}", without(finish, back, ""));
    let test = "queue::a_dropped_worker_hands_its_jobs_back::embedded";
    must_notice(test, "queue.finish", &broken).await
}

#[tokio::test]
async fn an_enqueue_that_does_not_look_at_the_unique_key_is_noticed() -> Result<()> {
    let enqueue = include_str!("../../src/messaging/queue/enqueue.lua");
    let broken = format!(
        "{RECORD}{}",
        without(enqueue, "if holder then", "if false then")
    );
    let test = "queue::of_many_concurrent_enqueues_with_one_unique_key_one_is_a_job::embedded";
    must_notice(test, "queue.enqueue", &broken).await
}

#[tokio::test]
async fn a_tick_that_fires_twice_is_noticed() -> Result<()> {
    let fire = include_str!("../../src/messaging/queue/cron_fire.lua");
    let broken = format!("{RECORD}{}", without(fire, "then return 0 end", "then end"));
    let test = "queue::ticks_that_passed_while_no_worker_ran_are_made_up_for_exactly_as_the_policy_says::redis";
    must_notice(test, "queue.cron_fire", &broken).await
}

#[tokio::test]
async fn a_stream_that_is_trimmed_by_length_is_noticed() -> Result<()> {
    let test = "stream::trimming_never_removes_what_a_group_has_not_acknowledged::embedded";
    must_notice(
        test,
        "stream.trim",
        "return redis.call('XTRIM', KEYS[1], 'MAXLEN', 5)",
    )
    .await
}
