//! The tests notice when a check is taken out.

use anyhow::Result;
use redstart_testkit::child::{must_notice, without};

#[tokio::test]
async fn a_patch_that_does_not_look_whether_the_session_lives_is_noticed() -> Result<()> {
    let patch = "if ARGV[4] then redis.call('HSET', KEYS[1], unpack(ARGV, 5, 4 + 2 * ARGV[4])) end
        return { '1000' }";
    let test = "session::patches_that_race_a_logout_revive_nothing::embedded";
    must_notice(test, "session.touch", patch).await
}

#[tokio::test]
async fn a_rotation_that_escapes_a_logout_everywhere_is_noticed() -> Result<()> {
    let rotate = include_str!("../../src/sessions/session/rotate.lua");
    let broken = without(rotate, "if out and", "if false and");
    let test =
        "session::a_session_made_before_a_logout_everywhere_is_not_rotated_after_it::embedded";
    must_notice(test, "session.rotate", &broken).await
}
