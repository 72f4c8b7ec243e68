//! The pending list of a group grows.
//!
//! More messages are handed out than acknowledged: consumers fail or are too few, or nobody claims what dead
//! consumers had. The rule compares two looks, and the age of the oldest pending entry.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "stream-pending-grows",
    title: "The pending list of a group grows",
    family: Family::Pattern,
    stage: Stage::Sampled,
    severity: Severity::Medium,
    about: "More messages are handed out than acknowledged: consumers fail or are too few, or nobody claims what dead consumers had. The rule compares two looks, and the age of the oldest pending entry.",
    timeline: &[
        "consumers take 100 messages a second",
        "they acknowledge 90",
        "after an hour 36,000 are pending and nobody looks at them",
    ],
    effect: "messages are delayed more and more; those of dead consumers are never done",
    fix: "XAUTOCLAIM stream group consumer 60000 0 in each consumer, more consumers, and a dead-letter stream for what fails again and again",
    pattern: "event_stream",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for stream in facts.own_streams() {
        for group in &stream.groups {
            let Some(later) = group.pending_later else {
                continue;
            };
            let grown = later.saturating_sub(group.pending);
            if grown >= 10 && group.pending >= 50 && group.oldest_idle >= 10_000 {
                let confidence = if group.oldest_idle >= 60_000 {
                    0.85
                } else {
                    0.72
                };
                out.add(Subject::keys(format!("{} group {}", stream.name, group.name)), confidence, format!("{} entries pending, {grown} more {:.0} s later; the oldest was delivered {} s ago", text::count(group.pending), facts.gap, group.oldest_idle / 1000));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{GroupFacts, StreamFacts};
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .stream(StreamFacts {
                name: "orders".into(),
                length: 9000,
                groups: vec![GroupFacts {
                    name: "g".into(),
                    pending: 700,
                    pending_later: Some(900),
                    read: Some(5000),
                    oldest_idle: 90_000,
                    ..GroupFacts::default()
                }],
                ..StreamFacts::default()
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .stream(StreamFacts {
                name: "orders".into(),
                length: 9000,
                groups: vec![GroupFacts {
                    name: "g".into(),
                    pending: 12,
                    pending_later: Some(9),
                    read: Some(5000),
                    oldest_idle: 50,
                    ..GroupFacts::default()
                }],
                ..StreamFacts::default()
            })
            .must_be_quiet();
    }
}
