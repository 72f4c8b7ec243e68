//! A message is redelivered again and again.
//!
//! A message that no consumer can handle is claimed and delivered forever. It takes a place in every round and
//! hides what else is wrong. The rule reads the delivery counts of pending entries.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "stream-no-dead-letters",
    title: "A message is redelivered again and again",
    family: Family::Pattern,
    stage: Stage::Free,
    severity: Severity::Medium,
    about: "A message that no consumer can handle is claimed and delivered for ever. It takes a place in every round and hides what else is wrong. The rule reads the delivery counts of pending entries.",
    timeline: &[
        "a malformed order enters the stream",
        "each consumer fails on it and is restarted",
        "delivery count: 37",
    ],
    effect: "consumers fail again and again on the same message; the messages behind it wait",
    fix: "after n deliveries (XPENDING shows the count): XADD stream:dead …, then XACK",
    pattern: "event_stream",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for stream in facts.own_streams() {
        for group in stream.groups.iter().filter(|group| group.deliveries > 5) {
            let confidence = if group.deliveries > 10 { 0.92 } else { 0.8 };
            out.add(
                Subject::keys(format!("{} group {}", stream.name, group.name)),
                confidence,
                format!("a pending message was delivered {} times", group.deliveries),
            );
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
                length: 90,
                groups: vec![GroupFacts {
                    name: "g".into(),
                    pending: 1,
                    read: Some(90),
                    deliveries: 37,
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
                length: 90,
                groups: vec![GroupFacts {
                    name: "g".into(),
                    pending: 1,
                    read: Some(90),
                    deliveries: 2,
                    ..GroupFacts::default()
                }],
                ..StreamFacts::default()
            })
            .must_be_quiet();
    }
}
