//! A lock is checked and then deleted in two steps.
//!
//! GET, compare the token in the program, DEL: the lock can expire and be taken by another between the two. The
//! rule looks for GET and then DEL of a key that was taken with SET NX, by one connection and outside a script or
//! transaction.

use crate::pattern::Role;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "lock-get-then-del",
    title: "A lock is checked and then deleted in two steps",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::High,
    about: "GET, compare the token in the program, DEL: the lock can expire and be taken by another between the two. The rule looks for GET and then DEL of a key that was taken with SET NX, by one connection and outside a script or transaction.",
    timeline: &[
        "A: GET lock → its own token",
        "the TTL ends; B takes the lock",
        "A: DEL lock: B is alone no more",
    ],
    effect: "rarely, but under load, a holder deletes the lock of the next one",
    fix: "compare and delete in one script, or DELIFEQ / DELEX where the server has it",
    pattern: "mutex",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts
        .own_sequences()
        .filter(|seen| seen.ops.get_delete > 0 && seen.ops.takes > 0)
    {
        // A cache that is filled with NX, read and invalidated by one connection looks the same, but nobody waits for it.
        let acts = seen.acts_as_lock();
        let confidence = if seen.is(Role::Lock) || (acts && seen.ops.own_get_delete >= 3) {
            0.92
        } else if acts && seen.ops.own_get_delete > 0 {
            0.75
        } else {
            0.6
        };
        out.add(
            Subject::keys(&seen.pattern),
            confidence,
            format!(
                "{} releases read the key and deleted it in a second step",
                seen.ops.get_delete
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
            .rounds(
                3,
                &["a SET lock:r t# NX PX 5000", "a GET lock:r", "a DEL lock:r"],
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .rounds(
                3,
                &[
                    "a SET lock:r t# NX PX 5000",
                    "a EVAL x 1 lock:r t#",
                    "lua GET lock:r",
                    "lua DEL lock:r",
                ],
            )
            .must_be_quiet();
    }
}
