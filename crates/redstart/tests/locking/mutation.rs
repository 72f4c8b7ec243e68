//! The tests notice when a check is taken out.

use redstart_testkit::child::must_notice;

#[tokio::test]
async fn a_release_that_does_not_ask_whose_the_lock_is_is_noticed() -> anyhow::Result<()> {
    let test = "mutex::expired_lock_cannot_be_released_by_its_old_holder::embedded";
    let broken = "redis.call('DEL', KEYS[1]) redis.call('SPUBLISH', ARGV[2], '') return 1";
    must_notice(test, "mutex.release", broken).await
}

#[tokio::test]
async fn a_renewal_that_does_not_ask_whose_the_lock_is_is_noticed() -> anyhow::Result<()> {
    let test = "mutex::a_lock_that_another_has_by_now_is_neither_extended_nor_released::embedded";
    must_notice(
        test,
        "mutex.renew",
        "redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1",
    )
    .await
}

#[tokio::test]
async fn a_lock_that_is_granted_to_two_is_noticed() -> anyhow::Result<()> {
    let test = "mutex::one_of_many_holds_it_and_tokens_rise_from_holder_to_holder::embedded";
    let broken = "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
        return { 1, redis.call('INCR', KEYS[2]) }";
    must_notice(test, "mutex.acquire", broken).await
}

#[tokio::test]
async fn a_write_whose_token_is_not_compared_is_noticed() -> anyhow::Result<()> {
    let test = "fence::a_lower_token_is_refused_and_changes_nothing::embedded";
    must_notice(
        test,
        "fenced.write",
        "redis.call('SET', KEYS[1], ARGV[3] or '') return 1",
    )
    .await
}
