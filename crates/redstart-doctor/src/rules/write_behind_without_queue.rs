//! Changed entries wait in a set that a crash empties.
//!
//! A write-behind cache that keeps the keys to be written in a set and takes them out before they are written loses
//! them when the process stops. The rule looks for sets or lists named as dirty or pending writes from which
//! elements are popped.

use crate::pattern;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "write-behind-without-queue",
    title: "Changed entries wait in a set that a crash empties",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::High,
    about: "A write-behind cache that keeps the keys to be written in a set and takes them out before they are written loses them when the process stops. The rule looks for sets or lists named as dirty or pending writes from which elements are popped.",
    timeline: &[
        "app: SET user:7 …, SADD dirty user:7",
        "worker: SPOP dirty → user:7",
        "worker is killed before its UPDATE",
        "the database never hears of the change",
    ],
    effect: "a crash of the worker loses acknowledged writes",
    fix: "append the change to a stream in the script that writes the value; acknowledge after the database has committed",
    pattern: "write_behind",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    const NAMES: &[&str] = &[
        "dirty",
        "writeback",
        "writebehind",
        "unsaved",
        "unflushed",
        "flush",
        "sync",
    ];
    for seen in facts.own_sequences() {
        let named = pattern::words(&seen.pattern)
            .iter()
            .any(|word| NAMES.contains(&word.as_str()));
        let removed = seen.ops.set_removes + seen.ops.pops + (seen.ops.whole.min(seen.ops.deletes));
        if named && removed > 0 && seen.ops.stream_adds == 0 {
            out.add(Subject::keys(&seen.pattern), 0.75, format!("{} elements were taken out before anything could confirm that they were written", removed));
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
            .rounds(3, &["a SADD dirty:users #", "w SPOP dirty:users"])
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .rounds(
                3,
                &[
                    "a XADD changes * k #",
                    "w XREADGROUP GROUP g w STREAMS changes >",
                    "w XACK changes g 1-#",
                ],
            )
            .must_be_quiet();
    }
}
