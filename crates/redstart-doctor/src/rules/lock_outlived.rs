//! Work takes longer than its lock.
//!
//! A holder came back for its lock after its TTL had passed and another had taken it. The two worked at the same
//! time, whatever the release does.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "lock-outlived",
    title: "Work takes longer than its lock",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::High,
    about: "A holder came back for its lock after its TTL had passed and another had taken it. The two worked at the same time, whatever the release does.",
    timeline: &[
        "A takes the lock for 10 s and works 12",
        "at 10 s: B takes it",
        "from 10 to 12 s both work",
    ],
    effect: "two holders worked at once; what the lock protects may be damaged already",
    fix: "renew the lock while the work goes on (PEXPIRE in a script that compares the token), and give the resource a fence token",
    pattern: "fencing",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts.own_sequences().filter(|seen| seen.ops.overrun > 0) {
        out.add(
            Subject::keys(&seen.pattern),
            0.9,
            format!(
                "proven: {} times a holder came back after its TTL while another held the lock",
                seen.ops.overrun
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
            .traffic(
                &[
                    &["a SET lock:r t1 NX PX 50"][..],
                    &["x PING"; 20],
                    &["b SET lock:r t2 NX PX 9000", "a EVALSHA abc 1 lock:r t1"],
                ]
                .concat(),
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
                    "a EVALSHA abc 1 lock:r t#",
                    "lua GET lock:r",
                    "lua DEL lock:r",
                ],
            )
            .must_be_quiet();
    }

    #[test]
    fn a_release_that_the_log_does_not_show_ends_the_hold() {
        // The log of an application has no lines of scripts.
        World::new()
            .traffic(
                &[
                    &["a SET lock:r t1 NX PX 50", "a EVALSHA abc 1 lock:r t1"][..],
                    &["x PING"; 20],
                    &[
                        "b SET lock:r t2 NX PX 9000",
                        "a SET lock:r t3 NX PX 50",
                        "b EVALSHA abc 1 lock:r t2",
                        "a SET lock:r t4 NX PX 50",
                        "a EVALSHA abc 1 lock:r t4",
                    ],
                ]
                .concat(),
            )
            .must_be_quiet();
    }

    #[test]
    fn a_release_by_a_command_that_compares_ends_the_hold() {
        for release in ["DELIFEQ lock:r t1", "DELEX lock:r IFEQ t1"] {
            let release = format!("a {release}");
            World::new()
                .traffic(
                    &[
                        &["a SET lock:r t1 NX PX 50", &release][..],
                        &["x PING"; 20],
                        &["b SET lock:r t2 NX PX 9000", &release],
                    ]
                    .concat(),
                )
                .must_be_quiet();
        }
    }

    #[test]
    fn a_client_that_never_got_the_lock_does_not_outlive_it() {
        // Another holds it since before the first line. A client that did not get it releases it all the same, as Redlock does.
        World::new()
            .traffic(
                &[
                    &[
                        "a SET lock:r t1 NX PX 50",
                        "a EVALSHA abc 1 lock:r t1",
                        "lua GET lock:r",
                    ][..],
                    &["x PING"; 20],
                    &[
                        "b SET lock:r t2 NX PX 9000",
                        "a EVALSHA abc 1 lock:r t1",
                        "lua GET lock:r",
                    ],
                ]
                .concat(),
            )
            .must_be_quiet();
        // It tries again until it gets the lock: what it had tried for before it never held.
        World::new()
            .traffic(
                &[
                    &["a SET lock:r t1 NX PX 50"][..],
                    &["x PING"; 20],
                    &[
                        "b SET lock:r t2 NX PX 9000",
                        "a SET lock:r t3 NX PX 50",
                        "a EVALSHA abc 1 lock:r t3",
                        "lua GET lock:r",
                        "lua DEL lock:r",
                    ],
                ]
                .concat(),
            )
            .must_be_quiet();
    }
}
