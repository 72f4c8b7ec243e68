//! Very large keys.
//!
//! A large value is copied, sent and freed as a whole; a large collection is deleted, expired and moved between
//! nodes as a whole. The rule looks at lengths and at memory estimated from a few elements, and never reads the
//! value.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};
use crate::{observation::Kind, text};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "big-key",
    title: "Very large keys",
    family: Family::Operation,
    stage: Stage::Sampled,
    severity: Severity::Medium,
    about: "A large value is copied, sent and freed as a whole; a large collection is deleted, expired and moved between nodes as a whole. The rule looks at lengths and at memory estimated from a few elements, and never reads the value.",
    timeline: &[
        "DEL feed:star with 5 million elements",
        "the server frees them for 2 seconds",
        "all clients wait; replicas disconnect",
    ],
    effect: "deleting, expiring or migrating the key stops the server; one slot is heavier than the others",
    fix: "UNLINK instead of DEL; split by hash or by time: feed:star:2026-11; compress or keep blobs elsewhere",
    pattern: "array",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts.own_groups() {
        for fact in &group.facts {
            let bytes = if group.kind == Kind::String {
                fact.size
            } else {
                fact.memory.unwrap_or(0)
            };
            let elements = if group.kind == Kind::String {
                0
            } else {
                fact.size
            };
            let (severity, confidence) = match (bytes, elements) {
                (104_857_600.., _) | (_, 5_000_000..) => (Severity::High, 0.92),
                (10_485_760.., _) | (_, 1_000_000..) => (Severity::Medium, 0.85),
                (1_048_576.., 0) => (Severity::Low, 0.75),
                _ => continue,
            };
            let size = if elements > 0 {
                format!("{} elements, ", text::count(elements))
            } else {
                String::new()
            };
            out.add_as(
                severity,
                Subject::keys(&group.pattern),
                confidence,
                match bytes {
                    // The memory of a stream with groups is not asked for.
                    0 => format!(
                        "a {} of {} elements",
                        group.kind.name(),
                        text::count(elements)
                    ),
                    _ => format!(
                        "a {} of {size}about {}",
                        group.kind.name(),
                        text::bytes(bytes)
                    ),
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{KeyFact, Shape};
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .key(
                "report",
                KeyFact {
                    size: 60_000_000,
                    shape: Shape::Binary,
                    ttl: Some(9000),
                    ..KeyFact::default()
                },
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .key(
                "report",
                KeyFact {
                    size: 60_000,
                    shape: Shape::Binary,
                    ttl: Some(9000),
                    ..KeyFact::default()
                },
            )
            .must_be_quiet();
    }
}
