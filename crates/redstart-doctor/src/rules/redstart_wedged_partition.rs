//! A partition of a Redstart stream does not move.
//!
//! Entries of a partition are pending for more than ten minutes with a consumer that no longer asks, so what is
//! behind them waits too.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "redstart-wedged-partition",
    title: "A partition of a Redstart stream does not move",
    family: Family::Redstart,
    stage: Stage::Free,
    severity: Severity::High,
    about: "Entries of a partition are pending for more than ten minutes with a consumer that no longer asks, so what is behind them waits too.",
    timeline: &[
        "a worker of partition 3 hangs in its handler",
        "its lease is not renewed by anybody",
        "writes of partition 3 do not reach the database",
    ],
    effect: "everything behind the pending entries of this partition waits",
    fix: "restart the worker of the partition; another takes over when its lease has ended",
    pattern: "write_behind",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for stream in facts
        .streams
        .iter()
        .filter(|stream| stream.keeper() == Some("Redstart"))
    {
        let stuck = 2 * facts.limits.idle.as_millis() as u64;
        for group in &stream.groups {
            let asleep = !group.consumers.is_empty()
                && group
                    .consumers
                    .iter()
                    .all(|consumer| consumer.idle >= stuck);
            if group.pending > 0 && group.oldest_idle >= stuck && asleep {
                out.add(Subject::keys(&stream.name), 0.85, format!("{} entries pending, the oldest for {} s, and no consumer has asked for {} s", group.pending, group.oldest_idle / 1000, stuck / 1000));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{ConsumerFacts, GroupFacts, StreamFacts};
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .stream(StreamFacts {
                name: "shop:behind:{3}".into(),
                length: 9,
                library: Some("Redstart".into()),
                groups: vec![GroupFacts {
                    name: "g".into(),
                    pending: 4,
                    oldest_idle: 900_000,
                    consumers: vec![ConsumerFacts {
                        pending: 4,
                        idle: 900_000,
                    }],
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
                name: "shop:behind:{3}".into(),
                length: 9,
                library: Some("Redstart".into()),
                groups: vec![GroupFacts {
                    name: "g".into(),
                    pending: 4,
                    oldest_idle: 900,
                    consumers: vec![ConsumerFacts {
                        pending: 4,
                        idle: 900,
                    }],
                    ..GroupFacts::default()
                }],
                ..StreamFacts::default()
            })
            .must_be_quiet();
    }
}
