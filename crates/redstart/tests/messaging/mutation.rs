//! The tests notice when a check is taken out.

use anyhow::Result;
use redstart_testkit::child::{must_notice, without};

const NOW: &str = include_str!("../../src/script/now.lua");
const RECORD: &str = concat!(
    include_str!("../../src/script/now.lua"),
    include_str!("../../src/messaging/queue/record.lua"),
    include_str!("../../src/messaging/queue/wake.lua"),
    include_str!("../../src/messaging/queue/place.lua"),
);
/// What `finish.lua` has before it, without what is usual.
pub(crate) const FINISH: &str = concat!(
    include_str!("../../src/script/now.lua"),
    include_str!("../../src/messaging/queue/tally.lua"),
    include_str!("../../src/messaging/queue/record.lua"),
    include_str!("../../src/messaging/queue/wake.lua"),
    include_str!("../../src/messaging/queue/place.lua"),
);
/// Of scripts that move no jobs.
const SMALL: &str = concat!(
    include_str!("../../src/script/now.lua"),
    include_str!("../../src/messaging/queue/record.lua"),
);

#[tokio::test]
async fn an_ending_without_its_fence_is_noticed() -> Result<()> {
    let finish = include_str!("../../src/messaging/queue/finish.lua");
    let fence = "if redis.call('HEXISTS', running, '') == 0 then return 0 end";
    let broken = format!("{FINISH}{}", without(finish, fence, ""));
    let test =
        "queue::a_worker_that_lost_its_lease_hears_of_it_and_its_ending_is_refused::embedded";
    must_notice(test, "queue.finish", &broken).await
}

#[tokio::test]
async fn a_job_that_is_not_handed_back_is_noticed() -> Result<()> {
    let finish = include_str!("../../src/messaging/queue/finish.lua");
    let back = "make_ready('LPUSH', reversed)";
    let broken = format!("{FINISH}{}", without(finish, back, ""));
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
async fn a_group_that_does_not_take_turns_is_noticed() -> Result<()> {
    let reserve = include_str!("../../src/messaging/queue/reserve.lua");
    let same_turn = without(reserve, "next_turn()", "0");
    let test = "queue_group::a_noisy_group_delays_the_first_job_of_another_by_one_job::embedded";
    must_notice(test, "queue.reserve", &format!("{RECORD}{same_turn}")).await
}

#[tokio::test]
async fn a_group_that_passes_those_in_the_line_of_a_kind_is_noticed() -> Result<()> {
    let reserve = include_str!("../../src/messaging/queue/reserve.lua");
    let passes = without(
        reserve,
        "line ~= from and redis.call('HEXISTS', meta, 'w:' .. line) == 1",
        "false",
    );
    let passes = without(
        &passes,
        "if waiting and not (first[2] and",
        "if waiting and not (first[2] and true or",
    );
    let test = "queue_group::groups_that_wait_for_a_kind_take_turns_and_hold_up_no_other::embedded";
    must_notice(test, "queue.reserve", &format!("{RECORD}{passes}")).await
}

#[tokio::test]
async fn a_job_of_a_group_that_takes_no_place_of_its_kind_is_noticed() -> Result<()> {
    let reserve = include_str!("../../src/messaging/queue/reserve.lua");
    let uncounted = without(reserve, "if line then count_kind() end", "");
    let test = "queue_group::a_limit_of_a_kind_holds_for_its_jobs_in_groups_too::embedded";
    must_notice(test, "queue.reserve", &format!("{RECORD}{uncounted}")).await
}

#[tokio::test]
async fn a_place_of_a_kind_that_does_not_come_back_is_noticed() -> Result<()> {
    let kept = without(
        FINISH,
        "  free_group(record)\n  free_line(record)",
        "  free_group(record)",
    );
    let finish = include_str!("../../src/messaging/queue/finish.lua");
    let test = "queue_group::a_limit_of_a_kind_holds_for_its_jobs_in_groups_too::embedded";
    must_notice(test, "queue.finish", &format!("{kept}{finish}")).await
}

#[tokio::test]
async fn a_limited_group_that_comes_back_to_the_front_is_noticed() -> Result<()> {
    let finish = include_str!("../../src/messaging/queue/finish.lua");
    let in_front = without(FINISH, "'NX', next_turn()", "'NX', 0");
    let test = "queue_group::limited_groups_take_turns_whatever_their_names::embedded";
    must_notice(test, "queue.finish", &format!("{in_front}{finish}")).await
}

#[tokio::test]
async fn a_parent_that_is_made_ready_while_jobs_are_read_is_noticed() -> Result<()> {
    let reserve = include_str!("../../src/messaging/queue/reserve.lua");
    let at_once = without(
        reserve,
        "expired[#expired + 1] = record",
        "conclude(record, 'e', '', now)",
    );
    let test = "queue_flow::a_parent_whose_child_expired_runs_whatever_its_priority::embedded";
    must_notice(test, "queue.reserve", &format!("{RECORD}{at_once}")).await
}

#[tokio::test]
async fn a_job_that_goes_with_its_worker_is_noticed() -> Result<()> {
    let finish = include_str!("../../src/messaging/queue/finish.lua");
    let gone = without(
        finish,
        "make_ready('LPUSH', reversed)",
        "for _, record in ipairs(reversed) do redis.call('HDEL', jobs, id_of(record)) end",
    );
    let test = "queue_model::random_histories_keep_every_job_in_exactly_one_place::embedded";
    must_notice(test, "queue.finish", &format!("{FINISH}{gone}")).await
}

#[tokio::test]
async fn a_worker_that_leaves_for_others_too_is_noticed() -> Result<()> {
    let (mark, all) = (
        "redis.call('ZREM', idle, ARGV[7])",
        "redis.call('DEL', idle)",
    );
    let leave = include_str!("../../src/messaging/queue/leave.lua");
    let broken = format!("{RECORD}{}", without(leave, mark, all));
    let test = "dispatcher::a_worker_that_waits_is_woken_although_another_of_its_dispatcher_settled::embedded";
    must_notice(test, "queue.leave", &broken).await?;
    let reclaim = include_str!("../../src/messaging/queue/reclaim.lua");
    let mark = mark.replace('7', "6");
    let broken = format!("{RECORD}{}", without(reclaim, &mark, all));
    let test = "dispatcher::a_worker_that_waits_is_woken_although_another_of_its_dispatcher_died::embedded";
    must_notice(test, "queue.reclaim", &broken).await
}

#[tokio::test]
async fn a_parked_job_that_passes_its_group_is_noticed() -> Result<()> {
    let finish = include_str!("../../src/messaging/queue/finish.lua");
    let waits = "        keep_or_free_place(record)
        if group_waits(record) then record = with_flag(record, 32) end";
    let broken = format!("{FINISH}{}", without(finish, waits, "free_place(record)"));
    let test = "queue_parked::a_parked_job_keeps_the_order_of_its_group::embedded";
    must_notice(test, "queue.finish", &broken).await
}

#[tokio::test]
async fn parked_jobs_that_pass_a_limit_are_noticed() -> Result<()> {
    let reserve = include_str!("../../src/messaging/queue/reserve.lua");
    let check = "starts, count_or_wait = may_start(group, flag(record, 32))";
    let broken = format!("{RECORD}{}", without(reserve, check, "group = nil"));
    let test = "queue_parked::parked_jobs_run_under_the_limits_of_their_queue_and_kind::embedded";
    must_notice(test, "queue.reserve", &broken).await
}

#[tokio::test]
async fn a_replayed_parent_that_does_not_wait_is_noticed() -> Result<()> {
    let replay = include_str!("../../src/messaging/queue/replay.lua");
    let waits = "if redis.call('HEXISTS', details, ARGV[i] .. 'w') == 1 then";
    let broken = format!("{RECORD}{}", without(replay, waits, "if false then"));
    let test = "queue_flow::a_replayed_parent_runs_after_its_children_with_their_results::embedded";
    must_notice(test, "queue.replay", &broken).await
}

#[tokio::test]
async fn a_key_that_is_freed_before_its_time_is_noticed() -> Result<()> {
    let cancel = include_str!("../../src/messaging/queue/cancel.lua");
    let freed = without(RECORD, " or uniqueness(record) == 3 then", " then");
    let test = "queue_unique::a_throttled_key_is_held_whatever_becomes_of_its_job::embedded";
    must_notice(test, "queue.cancel", &format!("{freed}{cancel}")).await
}

#[tokio::test]
async fn a_group_limit_that_is_not_looked_at_is_noticed() -> Result<()> {
    let reserve = include_str!("../../src/messaging/queue/reserve.lua");
    let no_limit = without(reserve, "busy >= limit[1]", "false");
    let no_limit = without(&no_limit, "or busy < limit[1]", "or true");
    let test = "queue_group::a_group_of_one_at_a_time_runs_in_order_through_failures::embedded";
    must_notice(test, "queue.reserve", &format!("{RECORD}{no_limit}")).await
}

#[tokio::test]
async fn an_expiry_that_is_not_looked_at_is_noticed() -> Result<()> {
    let reserve = include_str!("../../src/messaging/queue/reserve.lua");
    let broken = format!(
        "{RECORD}{}",
        without(reserve, "return expires and", "return false and")
    );
    let test = "queue_policy::an_expired_job_does_not_start::embedded";
    must_notice(test, "queue.reserve", &broken).await
}

#[tokio::test]
async fn a_parent_that_does_not_wait_for_all_is_noticed() -> Result<()> {
    let finish = include_str!("../../src/messaging/queue/finish.lua");
    let early = without(FINISH, "left <= 0", "left <= 1");
    let test = "queue_flow::a_parent_runs_once_after_all_children_with_their_results::embedded";
    must_notice(test, "queue.finish", &format!("{early}{finish}")).await
}

#[tokio::test]
async fn a_tick_that_fires_twice_is_noticed() -> Result<()> {
    let fire = include_str!("../../src/messaging/queue/cron_fire.lua");
    // Each run has an id of its own: with that of the tick, a job that is still known is not added again.
    let own_ids =
        "then end\nfor i = 9, #ARGV do ARGV[i] = digits(next_turn()) .. sub(ARGV[i], 17) end";
    let broken = format!("{RECORD}{}", without(fire, "then return 0 end", own_ids));
    let test = "queue::ticks_that_passed_while_no_worker_ran_are_made_up_for_exactly_as_the_policy_says::redis";
    must_notice(test, "queue.cron_fire", &broken).await
}

#[tokio::test]
async fn a_stream_that_is_trimmed_by_length_is_noticed() -> Result<()> {
    let test = "stream::trimming_never_removes_what_a_group_has_not_acknowledged::embedded";
    must_notice(
        test,
        "stream.trim",
        "return { redis.call('XTRIM', KEYS[1], 'MAXLEN', 5), 0 }",
    )
    .await
}

#[tokio::test]
async fn a_reservation_without_its_count_is_noticed() -> Result<()> {
    let reserve = include_str!("../../src/messaging/priority/reserve.lua");
    let put_back = include_str!("../../src/messaging/priority/put_back.lua");
    let without_count = without(reserve, "or 0) + 1)", "or 0) + 0)");
    let broken = format!("{NOW}{put_back}{without_count}");
    let test =
        "priority::a_late_reservation_neither_gives_back_nor_finishes_what_another_has::embedded";
    must_notice(test, "priority.reserve", &broken).await
}

#[tokio::test]
async fn an_enqueue_that_forgets_its_request_is_noticed() -> Result<()> {
    let enqueue = include_str!("../../src/messaging/queue/enqueue.lua");
    let mark = "if redis.call('EXISTS', mark) == 1 then return { 1 } end";
    let broken = format!("{RECORD}{}", without(enqueue, mark, ""));
    let test =
        "queue_fault::a_unique_job_whose_reply_was_lost_is_added_once_even_if_it_has_run_meanwhile";
    must_notice(test, "queue.enqueue", &broken).await
}

#[tokio::test]
async fn an_enqueue_that_wakes_everybody_is_noticed() -> Result<()> {
    let enqueue = include_str!("../../src/messaging/queue/enqueue_plain.lua");
    let wake = include_str!("../../src/messaging/queue/wake.lua");
    let all = without(wake, "then jobs = jobs - 1 end", "then end");
    let broken = format!("{NOW}{all}{enqueue}");
    let test = "queue_wake::an_enqueue_wakes_as_many_workers_as_it_added_jobs";
    must_notice(test, "queue.enqueue_plain", &broken).await
}

#[tokio::test]
async fn an_ending_that_frees_the_key_of_a_lost_delivery_is_noticed() -> Result<()> {
    let finish = include_str!("../../src/messaging/queue/finish.lua");
    let held = "if redis.call('HDEL', running, delivery) == 0 then return nil end";
    let broken = format!("{FINISH}{}", without(finish, held, ""));
    let test =
        "queue_fault::a_delivery_that_is_no_longer_held_frees_neither_key_nor_progress::embedded";
    must_notice(test, "queue.finish", &broken).await
}

#[tokio::test]
async fn a_reservation_without_its_bound_is_noticed() -> Result<()> {
    let reserve = include_str!("../../src/messaging/queue/reserve.lua");
    let broken = format!(
        "{RECORD}{}",
        without(reserve, "bytes + #record > room", "false")
    );
    let test = "queue_wake::a_reservation_of_large_jobs_is_bounded_in_bytes";
    must_notice(test, "queue.reserve", &broken).await
}

#[tokio::test]
async fn a_new_payload_that_skips_a_tick_is_noticed() -> Result<()> {
    let put = include_str!("../../src/messaging/queue/cron_put.lua");
    let broken = format!(
        "{SMALL}{}",
        without(put, "if before and tick then", "if false then")
    );
    let test = "queue_schedule::a_changed_payload_keeps_an_overdue_tick::embedded";
    must_notice(test, "queue.cron", &broken).await
}

#[tokio::test]
async fn a_parked_job_that_is_prolonged_is_noticed() -> Result<()> {
    let finish = include_str!("../../src/messaging/queue/finish.lua");
    let broken = format!(
        "{FINISH}{}",
        without(finish, "if not flag(record, 4) then", "do")
    );
    let test = "queue_parked::a_job_that_no_worker_can_run_becomes_a_dead_letter_after_the_limit::embedded";
    must_notice(test, "queue.finish", &broken).await
}

#[tokio::test]
async fn a_cancelled_take_that_keeps_its_item_is_noticed() -> Result<()> {
    let test =
        "reliable_list::a_cancelled_take_gives_its_item_back_while_the_consumer_lives::redis";
    must_notice(test, "reliable_list.give_back", "return 0").await
}

#[tokio::test]
async fn a_late_look_that_is_carried_out_is_noticed() -> Result<()> {
    let look = include_str!("../../src/messaging/reliable_list/give_back.lua");
    let broken = without(look, "if tonumber(ARGV[2]) <= last then return 0 end", "");
    let test = "reliable_list::a_look_that_arrives_late_takes_nothing_away::embedded";
    must_notice(test, "reliable_list.give_back", &broken).await
}

#[tokio::test]
async fn endings_of_others_that_are_written_with_ones_own_are_noticed() -> Result<()> {
    let finish = include_str!("../../src/messaging/queue/finish.lua");
    let broken = without(finish, "    ids = still\n", "");
    let test = "queue_batch::an_ending_of_a_delivery_that_is_no_longer_held_is_skipped_and_the_others_are_written::embedded";
    must_notice(test, "queue.finish", &format!("{FINISH}{broken}")).await?;
    // What is usual has its own fence.
    let usual = include_str!("../../src/messaging/queue/finish_plain.lua");
    let usual = without(
        usual,
        "unpack(ARGV, 11, 10 + count)) == count",
        "unpack(ARGV, 11, 10 + count)) >= 0",
    );
    let tally = include_str!("../../src/messaging/queue/tally.lua");
    let broken = format!("{NOW}{tally}{usual}{}{finish}", &RECORD[NOW.len()..]);
    must_notice(test, "queue.finish", &broken).await
}

#[tokio::test]
async fn a_free_place_that_nobody_hears_of_is_noticed() -> Result<()> {
    let reserve = include_str!("../../src/messaging/queue/reserve.lua");
    let silent = without(
        reserve,
        "wake(1) else redis.call('HSET', meta, 'hungry', 1) end",
        "wake(1) end",
    );
    let test =
        "queue_wake::each_place_that_comes_free_under_a_limit_is_taken_by_a_worker_that_waits";
    must_notice(test, "queue.reserve", &format!("{RECORD}{silent}")).await
}

#[tokio::test]
async fn a_child_of_another_queue_that_counts_twice_is_noticed() -> Result<()> {
    let hear = include_str!("../../src/messaging/queue/flow_hear.lua");
    let check = "if heard and (heard == 'counted' or heard == ARGV[9]) then return 1 end";
    let broken = format!("{RECORD}{}", without(hear, check, ""));
    let test = "queue_across::a_child_that_is_heard_of_again_counts_once::embedded";
    must_notice(test, "queue.flow_hear", &broken).await
}
