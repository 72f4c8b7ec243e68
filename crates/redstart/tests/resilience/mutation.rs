//! The tests notice when a check is taken out.

use redstart_testkit::child::{must_notice, without};

fn source(name: &str) -> &'static str {
    let all = redstart::script::all();
    let script = all.into_iter().find(|script| script.name() == name);
    script.expect("a script of this name").source()
}

#[tokio::test]
async fn more_probes_than_were_asked_for_are_noticed() -> anyhow::Result<()> {
    let admit = source("breaker.admit");
    let broken = without(admit, "at) < tonumber(ARGV[4])", "at) < 1000");
    let test = "breaker::at_most_k_probes_are_under_way_over_all_instances::embedded";
    must_notice(test, "breaker.admit", &broken).await
}

#[tokio::test]
async fn an_unknown_outcome_that_is_taken_for_free_is_noticed() -> anyhow::Result<()> {
    let begin = source("idempotency.begin");
    let broken = without(begin, "if ARGV[5] ~= '1' then return { 'unknown' } end", "");
    let test = "idempotency::what_may_have_happened_is_unknown_and_not_free::embedded";
    must_notice(test, "idempotency.begin", &broken).await
}

#[tokio::test]
async fn a_result_that_overwrites_another_runs_is_noticed() -> anyhow::Result<()> {
    let finish = source("idempotency.finish");
    let check =
        "if token and token ~= ARGV[1] and not (over and tonumber(over) <= time) then return 0 end";
    let test = "idempotency::a_result_is_recorded_although_the_claim_is_gone_unless_another_run_has_the_key::embedded";
    must_notice(test, "idempotency.finish", &without(finish, check, "")).await
}
