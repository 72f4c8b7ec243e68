//! The tests notice when a check is missing from a script.

use redstart_testkit::child::{must_notice, without};

#[tokio::test]
async fn a_release_without_an_owner_check_is_noticed() -> anyhow::Result<()> {
    let test = "mutex::expired_lock_cannot_be_released_by_its_old_holder::embedded";
    let broken = "redis.call('DEL', KEYS[1]) redis.call('SPUBLISH', ARGV[2], '') return 1";
    must_notice(test, "mutex.release", broken).await
}

#[tokio::test]
async fn a_renewal_without_an_owner_check_is_noticed() -> anyhow::Result<()> {
    let test = "mutex::a_lock_that_another_owner_has_is_neither_extended_nor_released::embedded";
    must_notice(
        test,
        "mutex.extend",
        "redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1",
    )
    .await
}

#[tokio::test]
async fn a_lock_that_is_granted_twice_is_noticed() -> anyhow::Result<()> {
    let test = "mutex::one_holder_at_a_time_and_tokens_rise_from_holder_to_holder::embedded";
    let broken = "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
        return { 1, redis.call('INCR', KEYS[2]) }";
    must_notice(test, "mutex.acquire", broken).await
}

#[tokio::test]
async fn a_write_without_a_token_check_is_noticed() -> anyhow::Result<()> {
    let test = "fence::a_lower_token_is_refused_and_changes_nothing::embedded";
    must_notice(
        test,
        "fenced.write",
        "redis.call('SET', KEYS[1], ARGV[3] or '') return 1",
    )
    .await
}

#[tokio::test]
async fn a_lock_that_is_redeemed_twice_is_noticed() -> anyhow::Result<()> {
    let test =
        "hand_over::a_lock_that_is_handed_over_is_redeemed_once_with_a_higher_fence::embedded";
    let broken =
        "redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return redis.call('INCR', KEYS[2])";
    must_notice(test, "mutex.redeem", broken).await
}

#[tokio::test]
async fn a_forced_release_of_any_holder_is_noticed() -> anyhow::Result<()> {
    let test =
        "holder::the_holder_of_a_fair_mutex_is_shown_with_its_line_and_ended_by_force::embedded";
    let broken = "local held = redis.call('DEL', KEYS[1])
        local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
        if head then redis.call('SPUBLISH', ARGV[2], head) end
        return held";
    must_notice(test, "fair.force_release", broken).await
}

#[tokio::test]
async fn a_redemption_with_the_fence_of_the_giver_is_noticed() -> anyhow::Result<()> {
    let test = "hand_over::a_write_that_the_giver_sent_arrives_too_late::embedded";
    let broken = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
        redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL') return redis.call('GET', KEYS[2])";
    must_notice(test, "mutex.redeem", broken).await
}

#[tokio::test]
async fn a_quorum_lock_that_is_redeemed_twice_is_noticed() -> anyhow::Result<()> {
    let test = "hand_over::a_quorum_lock_is_handed_over_once_and_is_never_free_in_between";
    let broken =
        "redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return redis.call('INCR', KEYS[2])";
    must_notice(test, "redlock.redeem", broken).await
}

#[tokio::test]
async fn a_forced_release_of_whoever_has_a_legacy_lock_is_noticed() -> anyhow::Result<()> {
    let test = "holder::the_holder_of_a_legacy_lock_is_shown_and_ended_by_force::embedded";
    must_notice(
        test,
        "legacy.force_release",
        "return redis.call('DEL', KEYS[1], KEYS[2]) > 0 and 1 or 0",
    )
    .await
}

#[tokio::test]
async fn a_place_that_never_ends_is_noticed() -> anyhow::Result<()> {
    let all = redstart::script::all();
    let mut scripts = all.iter();
    let acquire = scripts.find(|script| script.name() == "fair.acquire");
    let source = acquire.map_or("", |script| script.source());
    let broken = without(source, "redis.call('ZREM', queue, head)", "");
    let test = "fair::places_whose_leases_were_evicted_do_not_block_the_line::embedded";
    must_notice(test, "fair.acquire", &broken).await
}
