//! One key takes most of the traffic.
//!
//! A key that most commands go to is served by one core, whatever the size of the Cluster. The rule counts commands
//! per key.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "hot-key",
    title: "One key takes most of the traffic",
    family: Family::Operation,
    stage: Stage::Observed,
    severity: Severity::Low,
    about: "A key that most commands go to is served by one core, whatever the size of the Cluster. The rule counts commands per key.",
    timeline: &[
        "a flash sale: 60 % of all commands read stock:7",
        "its node is at 100 %, the others idle",
        "adding nodes changes nothing",
    ],
    effect: "one node, and one core of it, is the limit of the whole system",
    fix: "cache it in the process with a short TTL or by client tracking; split counters over several keys",
    pattern: "cache_invalidation",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let Some(trace) = &facts.trace else { return };
    if trace.keyed < facts.limits.busy {
        return;
    }
    let busy = facts.limits.busy as f64;
    for seen in facts.own_sequences() {
        let share = seen.busiest as f64 / trace.keyed as f64;
        let rate = seen.busiest as f64 / trace.seconds().max(1.0);
        // On a small server one busy key harms nobody.
        if share >= 0.3 && rate >= busy {
            let (severity, confidence) = match (facts.cluster, rate) {
                (true, _) => (Severity::Medium, 0.85),
                (false, rate) if rate >= 15.0 * busy => (Severity::Low, 0.72),
                _ => (Severity::Low, 0.5),
            };
            out.add_as(
                severity,
                Subject::keys(&seen.pattern),
                confidence,
                format!(
                    "one key of this pattern took {} of all commands, {rate:.0} a second",
                    text::percent(share)
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        {
            let mut world = World::new().rounds(2100, &["a GET stock:7"]);
            let trace = world.0.trace.as_mut().expect("traffic");
            trace.last = trace.first.expect("a line") + 1.0;
            world.0.cluster = true;
            world
        }
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .rounds(700, &["a GET user:#x", "a GET order:#y", "a GET item:#z"])
            .must_be_quiet();
    }
}
