//! A counter is read and set to zero.
//!
//! GETSET counter 0 takes the sum out of Redis before it is stored elsewhere. If the process stops in between, the
//! sum is lost.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "counter-drained",
    title: "A counter is read and set to zero",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::Medium,
    about: "GETSET counter 0 takes the sum out of Redis before it is stored elsewhere. If the process stops in between, the sum is lost.",
    timeline: &[
        "worker: GETSET clicks 0 → 5120",
        "the worker is killed before its INSERT",
        "5120 clicks are gone",
    ],
    effect: "a crash of the worker loses what was counted since its last run",
    fix: "RENAME clicks clicks:batch, store it, then DEL clicks:batch; look for a left-over batch on start",
    pattern: "counter",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts.own_sequences().filter(|seen| seen.ops.drains > 0) {
        out.add(
            Subject::keys(&seen.pattern),
            0.8,
            format!(
                "{} times the counter was read and set to zero in one step, {} increments",
                seen.ops.drains, seen.ops.increments
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new()
            .traffic(&["a INCR clicks", "a INCR clicks", "w GETSET clicks 0"])
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .traffic(&[
                "a INCR clicks",
                "a INCR clicks",
                "w RENAME clicks clicks:batch",
                "w DEL clicks:batch",
            ])
            .must_be_quiet();
    }
}
