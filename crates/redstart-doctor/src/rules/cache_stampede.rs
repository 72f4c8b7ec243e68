//! Many callers load the same missing entry.
//!
//! When a busy entry expires, every caller misses and loads it at once. The rule counts connections that had read a
//! key and then wrote the same value as another one had just written.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "cache-stampede",
    title: "Many callers load the same missing entry",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::Medium,
    about: "When a busy entry expires, every caller misses and loads it at once. The rule counts connections that had read a key and then wrote the same value as another one had just written.",
    timeline: &[
        "the entry of the front page expires",
        "200 callers: GET front (miss)",
        "200 callers run the same query",
        "200 callers: SET front",
    ],
    effect: "load on the database jumps by the number of callers whenever a busy entry expires",
    fix: "let one caller load: SET key:lease token NX EX 10; the others wait or serve the old value",
    pattern: "stampede_lease",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts.own_sequences() {
        let ops = &seen.ops;
        // Who writes the same value again and again, also while it is there, reports a state.
        if ops.duplicate_fill >= 2 && ops.duplicate_fill > ops.refreshed {
            let confidence = if ops.duplicate_fill >= 4 || ops.waiting >= 5 {
                0.92
            } else {
                0.75
            };
            out.add(Subject::keys(&seen.pattern), confidence, format!("{} fills wrote what another connection had just written; up to {} connections were loading at once", ops.duplicate_fill, ops.waiting.max(2)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new()
            .rounds(
                3,
                &[
                    "d DEL front",
                    "a GET front",
                    "b GET front",
                    "c GET front",
                    "a SET front {row#} EX 60",
                    "b SET front {row#} EX 60",
                    "c SET front {row#} EX 60",
                ],
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .rounds(
                3,
                &[
                    "a GET front",
                    "a SET front {row#} EX 60",
                    "b GET front",
                    "c GET front",
                ],
            )
            .must_be_quiet();
    }
}
