//! The tests notice when a check is taken out.

use redstart_testkit::child::{must_notice, without};

const FIXED_WINDOW: &str = "fixed_window.check";
const NOTHING_ABOVE: &str = "decision::the_limit_is_admitted_and_nothing_above_it::embedded";
const IDENTICAL: &str = "decision::a_refused_check_leaves_the_stored_bytes_identical::embedded";

fn source(name: &str) -> &'static str {
    let all = redstart::script::all();
    let script = all.into_iter().find(|script| script.name() == name);
    script.expect("a script of this name").source()
}

#[tokio::test]
async fn buckets_that_never_refuse_are_noticed() -> anyhow::Result<()> {
    for script in ["token_bucket.check_whole", "token_bucket.check_exact"] {
        must_notice(NOTHING_ABOVE, script, "return 1").await?;
    }
    Ok(())
}

#[tokio::test]
async fn windows_that_admit_one_too_many_are_noticed() -> anyhow::Result<()> {
    let limit = "used + cost - limit > 0";
    let broken = without(source(FIXED_WINDOW), limit, "used + cost - limit > 1");
    must_notice(NOTHING_ABOVE, FIXED_WINDOW, &broken).await
}

#[tokio::test]
async fn a_refusal_that_writes_is_noticed() -> anyhow::Result<()> {
    let refusal = "if wait > 0 then";
    let writes = "if wait > 0 then redis.call('APPEND', KEYS[1], ' ')";
    let broken = without(source(FIXED_WINDOW), refusal, writes);
    must_notice(IDENTICAL, FIXED_WINDOW, &broken).await
}
