//! SETNX and EXPIRE in two steps.
//!
//! A lock or marker is created by one command and gets its TTL by the next. A crash between the two leaves it for
//! ever. SET has had NX and EX in one command since Redis 2.6.12.

use crate::pattern::Role;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "setnx-then-expire",
    title: "SETNX and EXPIRE in two steps",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::High,
    about: "A lock or marker is created by one command and gets its TTL by the next. A crash between the two leaves it for ever. SET has had NX and EX in one command since Redis 2.6.12.",
    timeline: &[
        "worker: SETNX lock 1 → 1",
        "the process is killed",
        "EXPIRE lock 30 is never sent",
        "nobody can take the lock again",
    ],
    effect: "a crash at the wrong moment leaves a lock that nobody can take",
    fix: "SET lock token NX EX 30",
    pattern: "mutex",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts
        .own_sequences()
        .filter(|seen| seen.ops.take_then_expire > 0)
    {
        let confidence = if seen.ops.take_then_expire >= 2 || seen.is(Role::Lock) {
            0.93
        } else {
            0.8
        };
        out.add(
            Subject::keys(&seen.pattern),
            confidence,
            format!(
                "{} keys were created with NX and got their TTL by a second command",
                seen.ops.take_then_expire
            ),
        );
    }
    let (setnx, expire) = (
        facts.calls("setnx"),
        facts.calls("expire") + facts.calls("pexpire"),
    );
    if facts.sequences.is_empty() && setnx >= 10 && expire * 2 >= setnx && expire <= setnx * 2 {
        out.add(Subject::setting("SETNX"), 0.55, format!("{setnx} SETNX and {expire} EXPIRE since the server started; observe live traffic to be sure"));
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
                    "a SETNX lock:# t",
                    "a EXPIRE lock:# 30",
                    "a EVALSHA abc 1 lock:#",
                    "lua DEL lock:#",
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
                    "a SET lock:# t# NX EX 30",
                    "a EVALSHA abc 1 lock:#",
                    "lua DEL lock:#",
                ],
            )
            .must_be_quiet();
    }
}
