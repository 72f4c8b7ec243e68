//! A lock is released by plain DEL.
//!
//! DEL deletes whatever is there. A holder whose TTL has passed deletes the lock of its successor. The rule sees
//! SET NX and later DEL of the key outside a script; a DEL by a former holder while another one holds the lock
//! proves the damage. A key that others delete than those who set it may be a cache or an index: unless its name says
//! that it is a lock, the rule is sure only if others want it while it is held.

use crate::pattern::Role;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "lock-released-by-del",
    title: "A lock is released by plain DEL",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::High,
    about: "DEL deletes whatever is there. A holder whose TTL has passed deletes the lock of its successor. The rule sees SET NX and later DEL of the key outside a script; a DEL by a former holder while another one holds the lock proves the damage. A key that others delete than those who set it may be a cache or an index: unless its name says that it is a lock, the rule is sure only if others want it while it is held.",
    timeline: &[
        "A takes the lock for 10 s and works 12",
        "at 10 s: B takes it",
        "at 12 s: A: DEL lock",
        "C takes it while B works",
    ],
    effect: "after one slow holder, the lock protects nobody until the chain of overlaps happens to end",
    fix: "EVAL \"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0\" 1 lock token; or DELIFEQ / DELEX where the server has it",
    pattern: "mutex",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts.own_sequences() {
        let ops = &seen.ops;
        if ops.foreign_release > 0 {
            out.add(
                Subject::keys(&seen.pattern),
                0.97,
                format!(
                    "proven: {} times a former holder deleted the lock of the next one",
                    ops.foreign_release
                ),
            );
        } else if ops.plain_release > ops.get_delete && ops.takes > 0 {
            let plain = ops.plain_release - ops.get_delete;
            let confidence = match (seen.is(Role::Lock), ops.own_release) {
                (true, _) => 0.9,
                (false, 3..) if seen.acts_as_lock() => 0.8,
                _ => 0.6,
            };
            out.add(
                Subject::keys(&seen.pattern),
                confidence,
                format!("{plain} of {} takes were ended by a plain DEL", ops.takes),
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
        World::new()
            .rounds(3, &["a SET lock:r t# NX PX 5000", "a DEL lock:r"])
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .rounds(
                3,
                &[
                    "a SET lock:r t# NX PX 5000",
                    "a EVALSHA abc 1 lock:r t#",
                    "lua GET lock:r",
                    "lua DEL lock:r",
                ],
            )
            .must_be_quiet();
    }

    #[test]
    fn an_invalidation_that_revokes_the_lease_of_a_fill_is_no_release() {
        World::new()
            .rounds(
                9,
                &[
                    "lua SET product:7:lease t# NX PX 5000",
                    "w DEL product:7 product:7:lease",
                ],
            )
            .must_be_quiet();
    }

    #[test]
    fn a_fill_or_an_index_that_another_deletes_is_no_lock() {
        // A cache filled with NX and invalidated by the writer.
        World::new()
            .rounds(
                9,
                &[
                    "a SET page:7 {v# NX EX 60",
                    "w DEL page:7",
                    "b SET page:7 {w# NX EX 60",
                ],
            )
            .must_be_quiet();
        // The same, where the writer reads it first.
        World::new()
            .rounds(
                9,
                &["a SET page:7 {v# NX EX 60", "w GET page:7", "w DEL page:7"],
            )
            .must_be_quiet();
        // Names that are taken once, with a constant, and given back much later by another.
        World::new()
            .rounds(
                9,
                &[
                    "a SETNX username:ann 1",
                    "b SETNX username:ann 1",
                    "w DEL username:ann",
                ],
            )
            .must_be_quiet();
    }

    #[test]
    fn a_lock_without_the_name_of_one_is_known_by_who_deletes_it() {
        World::new()
            .rounds(
                3,
                &[
                    "a SET report:7 t# NX PX 5000",
                    "b SET report:7 u# NX PX 5000",
                    "a DEL report:7",
                ],
            )
            .must_show(RULE.id);
        World::new()
            .rounds(
                3,
                &["a SETNX report:7 1", "b SETNX report:7 1", "a DEL report:7"],
            )
            .must_show("lock-without-owner");
        World::new()
            .rounds(
                3,
                &[
                    "a SETNX report:7 t#",
                    "b SETNX report:7 u#",
                    "a DEL report:7",
                ],
            )
            .must_show("lock-without-ttl");
        World::new()
            .rounds(
                3,
                &[
                    "a SET report:7 t# NX PX 5000",
                    "b SET report:7 u# NX PX 5000",
                    "a GET report:7",
                    "a DEL report:7",
                ],
            )
            .must_show("lock-get-then-del");
    }
}
