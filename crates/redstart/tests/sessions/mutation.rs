//! The tests notice when a check is removed from a script.

use anyhow::{Context as _, Result};
use redstart_testkit::child::{must_notice, without};

async fn is_noticed(script: &str, check: &str, instead: &str, test: &str) -> Result<()> {
    let scripts = redstart::script::all();
    let found = scripts.into_iter().find(|known| known.name() == script);
    let broken = without(found.context("no such script")?.source(), check, instead);
    must_notice(&format!("session::{test}::embedded"), script, &broken).await
}

#[tokio::test]
async fn a_patch_that_does_not_check_that_the_session_lives_is_noticed() -> Result<()> {
    let patch = "redis.call('HSET', KEYS[1], unpack(ARGV, 9, 8 + 2 * ARGV[8])) return 1";
    let test = "session::patches_that_race_a_logout_revive_nothing::embedded";
    must_notice(test, "session.patch", patch).await
}

#[tokio::test]
async fn an_index_that_does_not_outlive_its_longest_session_is_noticed() -> Result<()> {
    let check = "if redis.call('PTTL', index) < wanted then";
    let test = "a_logout_everywhere_finds_sessions_that_were_made_with_longer_timeouts";
    is_noticed("session.create", check, "if true then", test).await
}

#[tokio::test]
async fn an_account_that_does_not_outlive_its_longest_session_is_noticed() -> Result<()> {
    let check = "if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then";
    let test = "a_logout_everywhere_finds_sessions_that_were_made_with_longer_timeouts";
    is_noticed("session.account", check, "if true then", test).await
}

#[tokio::test]
async fn a_patch_without_a_bound_is_noticed() -> Result<()> {
    let test = "patches_never_make_a_session_too_large_to_log_in_with";
    is_noticed("session.patch", "then return 2 end", "then end", test).await
}

#[tokio::test]
async fn a_grace_that_does_not_end_is_noticed() -> Result<()> {
    let check = "if tonumber(ends) > time and";
    let test = "a_rotated_token_opens_the_session_for_the_grace_and_no_longer";
    is_noticed("session.patch", check, "if", test).await
}

#[tokio::test]
async fn a_second_rotation_with_the_old_token_is_noticed() -> Result<()> {
    let check = "if not session.current then return 2 end";
    let test = "a_rotated_token_opens_the_session_for_the_grace_and_no_longer";
    is_noticed("session.rotate", check, "", test).await
}
