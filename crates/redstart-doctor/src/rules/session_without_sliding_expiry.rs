//! Sessions are used and never extended.
//!
//! Sessions have a TTL, are read again and again, and their TTL is never renewed: users are logged out in the
//! middle of their work. It may be meant as an absolute limit, so the rule is not sure.

use crate::pattern::Role;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "session-without-sliding-expiry",
    title: "Sessions are used and never extended",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::Low,
    about: "Sessions have a TTL, are read again and again, and their TTL is never renewed: users are logged out in the middle of their work. It may be meant as an absolute limit, so the rule is not sure.",
    timeline: &[
        "09:00 login, TTL 30 min",
        "09:29 the user fills in a long form",
        "09:30 the session ends",
        "09:31 the form is lost",
    ],
    effect: "active users are logged out at a fixed time after their login",
    fix: "EXPIRE sess:id 1800 or GETEX sess:id EX 1800 on each use",
    pattern: "session",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts.own_sequences().filter(|seen| seen.is(Role::Session)) {
        let ops = &seen.ops;
        let reads = ops.gets + ops.hash_gets;
        let expiring = facts
            .group(&seen.pattern)
            .is_some_and(|group| group.permanent() == 0.0);
        if reads >= 10
            && reads >= seen.keys * 3
            && ops.expires == 0
            && ops.sets == 0
            && ops.by_script == 0
            && expiring
        {
            out.add(
                Subject::keys(&seen.pattern),
                0.72,
                format!("{reads} reads of {} sessions and no renewal", seen.keys),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{KeyFact, Kind};
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .keys("sess:*", Kind::String, |_| KeyFact {
                ttl: Some(900_000),
                size: 9,
                ..KeyFact::default()
            })
            .rounds(
                5,
                &[
                    "a GET sess:1",
                    "b GET sess:2",
                    "c GET sess:1",
                    "d GET sess:2",
                ],
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .keys("sess:*", Kind::String, |_| KeyFact {
                ttl: Some(900_000),
                size: 9,
                ..KeyFact::default()
            })
            .rounds(
                5,
                &[
                    "a GET sess:1",
                    "a EXPIRE sess:1 1800",
                    "b GET sess:2",
                    "b EXPIRE sess:2 1800",
                ],
            )
            .must_be_quiet();
    }

    #[test]
    fn a_read_that_renews_is_a_renewal() {
        for option in [
            "EX 1800",
            "PX 1800000",
            "EXAT 1700001800",
            "PXAT 1700001800000",
        ] {
            let lines =
                ["a GETEX sess:1 ", "b GETEX sess:2 "].map(|line| format!("{line}{option}"));
            World::new()
                .keys("sess:*", Kind::String, |_| KeyFact {
                    ttl: Some(900_000),
                    size: 9,
                    ..KeyFact::default()
                })
                .rounds(10, &[&lines[0], &lines[1]])
                .must_be_quiet();
        }
    }
}
