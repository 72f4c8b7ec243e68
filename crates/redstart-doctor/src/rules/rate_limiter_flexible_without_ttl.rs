//! rate-limiter-flexible keys without TTL.
//!
//! rate-limiter-flexible sets count and TTL in one script. A counter without TTL among others that have one was left by
//! PERSIST or by another program, or is a key that was blocked forever by `block(key, 0)`. Where no counter has one,
//! the limiter may have `duration: 0`.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "rate-limiter-flexible-without-ttl",
    title: "rate-limiter-flexible keys without TTL",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "rate-limiter-flexible sets count and TTL in one script. A counter without TTL among others that have one was left by PERSIST or by another program, or is a key that was blocked for ever by block(key, 0). Where no counter has one, the limiter may have duration: 0.",
    timeline: &[
        "rlflx:login:ann has TTL -1",
        "it counts every failed login for ever",
        "ann is locked out for good",
    ],
    effect: "the users of these keys are refused for ever, unless that is meant",
    fix: "check duration: 0 and block(key, 0) first: such keys are meant to stay; set a TTL on the others with EXPIRE key duration",
    pattern: "keep rate-limiter-flexible, or token_bucket",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts.groups.iter().filter(|group| {
        matches!(
            group.keeper(),
            Some("rate-limiter-flexible" | "express-rate-limit")
        )
    }) {
        let share = group.permanent();
        let seen = format!(
            "{} of {} counters looked at have no TTL",
            text::percent(share),
            group.facts.len()
        );
        let subject = Subject::keys(&group.pattern);
        if share >= 1.0 {
            let evidence = format!("{seen}; duration: 0 makes such counters");
            out.add_as(Severity::Low, subject, 0.5, evidence);
        } else if share > 0.0 {
            out.add(subject, 0.75, seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{KeyFact, Kind, Shape};
    use crate::rules::world::World;

    fn world(ttl: impl Fn(u64) -> Option<u64>) -> World {
        World::new()
            .keys("rlflx:*", Kind::String, |i| KeyFact {
                shape: Shape::Integer,
                size: 1,
                ttl: ttl(i),
                ..KeyFact::default()
            })
            .library("rate-limiter-flexible", "rlflx:")
    }

    #[test]
    fn it_is_found() {
        world(|i| (i != 7).then_some(900)).must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(|_| Some(900)).must_be_quiet();
    }

    #[test]
    fn a_limiter_without_duration_is_not_accused() {
        world(|_| None).must_be_quiet();
    }
}
