//! rate-limiter-flexible keys without TTL.
//!
//! rate-limiter-flexible sets a TTL on each counter. One without it was left by a crash between two commands, or by
//! PERSIST, and never resets.

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
    about: "rate-limiter-flexible sets a TTL on each counter. One without it was left by a crash between two commands, or by PERSIST, and never resets.",
    timeline: &[
        "rlflx:login:ann has TTL -1",
        "it counts every failed login for ever",
        "ann is locked out for good",
    ],
    effect: "the users of these keys are refused for ever",
    fix: "DEL the keys without TTL; upgrade rate-limiter-flexible, which sets both in one transaction",
    pattern: "keep rate-limiter-flexible, or token_bucket",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts.groups.iter().filter(|group| {
        matches!(
            group.library.as_deref(),
            Some("rate-limiter-flexible" | "express-rate-limit")
        )
    }) {
        let share = group.permanent();
        if share > 0.0 {
            out.add(
                Subject::keys(&group.pattern),
                0.9,
                format!(
                    "{} of {} counters looked at have no TTL",
                    text::percent(share),
                    group.facts.len()
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{KeyFact, Kind, Shape};
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .keys("rlflx:*", Kind::String, |_| KeyFact {
                shape: Shape::Integer,
                size: 1,
                ..KeyFact::default()
            })
            .library("rate-limiter-flexible", "rlflx:")
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .keys("rlflx:*", Kind::String, |_| KeyFact {
                shape: Shape::Integer,
                size: 1,
                ttl: Some(900),
                ..KeyFact::default()
            })
            .library("rate-limiter-flexible", "rlflx:")
            .must_be_quiet();
    }
}
