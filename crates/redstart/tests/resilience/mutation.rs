//! The tests notice when a check is taken out.

use redstart_testkit::child::{must_notice, without};

#[tokio::test]
async fn more_probes_than_were_asked_for_are_noticed() -> anyhow::Result<()> {
    let circuit = include_str!("../../src/resilience/breaker/circuit.lua");
    let admit = include_str!("../../src/resilience/breaker/admit.lua");
    let broken = without(admit, "< tonumber(ARGV[4])", "< 1000");
    let test = "breaker::at_most_k_probes_are_on_their_way_over_all_instances::embedded";
    must_notice(test, "breaker.admit", &format!("{circuit}{broken}")).await
}
