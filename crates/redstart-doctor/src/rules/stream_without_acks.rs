//! A consumer group never acknowledges.
//!
//! A group reads with XREADGROUP and never calls XACK, so every entry stays pending: the list grows by each
//! message, and after a restart nobody can tell what was done. The rule compares the pending entries with those
//! that were read.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "stream-without-acks",
    title: "A consumer group never acknowledges",
    family: Family::Pattern,
    stage: Stage::Free,
    severity: Severity::High,
    about: "A group reads with XREADGROUP and never calls XACK, so every entry stays pending: the list grows by each message, and after a restart nobody can tell what was done. The rule compares the pending entries with those that were read.",
    timeline: &[
        "XREADGROUP GROUP g c STREAMS s >",
        "the work is done; no XACK",
        "100,000 messages later: 100,000 pending entries",
    ],
    effect: "memory grows with every message; redelivery after a crash cannot tell done from undone",
    fix: "XACK stream group id after each message that is done; or NOACK if messages may be lost",
    pattern: "event_stream",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for stream in facts.own_streams() {
        for group in &stream.groups {
            let read = group.read.unwrap_or(0).max(group.pending);
            let all_pending = group.pending >= 20 && group.pending * 100 >= read * 95;
            let acks = facts
                .sequence(&stream.pattern)
                .is_some_and(|seen| seen.ops.stream_acks + seen.ops.by_script > 0);
            // A burst that is being worked on is pending too; it is young, and some of it gets acknowledged.
            if all_pending && !acks && group.acked_later != Some(true) {
                let never = group.pending == read;
                let confidence = match (group.pending, group.oldest_idle) {
                    (100.., 60_000..) => 0.92,
                    (_, 60_000..) => 0.85,
                    (100.., _) if never => 0.8,
                    (_, 1_000..) if never => 0.72,
                    _ if never && group.acked_later == Some(false) => 0.72,
                    _ => 0.6,
                };
                out.add(
                    Subject::keys(format!("{} group {}", stream.name, group.name)),
                    confidence,
                    format!(
                        "{} of {} messages read are still pending",
                        text::count(group.pending),
                        text::count(read)
                    ),
                );
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
                length: 500,
                groups: vec![GroupFacts {
                    name: "g".into(),
                    pending: 500,
                    read: Some(500),
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
                length: 500,
                groups: vec![GroupFacts {
                    name: "g".into(),
                    pending: 3,
                    read: Some(500),
                    lag: Some(0),
                    deliveries: 1,
                    ..GroupFacts::default()
                }],
                ..StreamFacts::default()
            })
            .must_be_quiet();
    }
}
