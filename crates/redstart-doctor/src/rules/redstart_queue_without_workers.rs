//! A Redstart stream has entries and nobody reads them.
//!
//! A queue, event stream or write-behind of Redstart has entries that its group has not read, and no consumer has
//! asked for five minutes.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "redstart-queue-without-workers",
    title: "A Redstart stream has entries and nobody reads them",
    family: Family::Redstart,
    stage: Stage::Free,
    severity: Severity::Medium,
    about: "A queue, event stream or write-behind of Redstart has entries that its group has not read, and no consumer has asked for five minutes.",
    timeline: &[
        "the producers run",
        "the workers were not deployed",
        "the queue grows; nothing is done",
    ],
    effect: "jobs wait for ever; memory grows",
    fix: "start the workers; look at the logs of those that should run",
    pattern: "job_queue",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for stream in facts
        .streams
        .iter()
        .filter(|stream| stream.keeper() == Some("Redstart"))
    {
        for group in &stream.groups {
            let lag = group.lag.unwrap_or(0);
            let alive = group
                .consumers
                .iter()
                .any(|consumer| consumer.idle < 300_000);
            let oldest = stream
                .first
                .map_or(0, |(first, _)| stream.now.saturating_sub(first));
            if lag > 0 && !alive && oldest >= 300_000 {
                out.add(Subject::keys(&stream.name), 0.85, format!("{lag} entries are unread, the oldest for {} s, and none of {} consumers has asked for 5 minutes", oldest / 1000, group.consumers.len()));
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
                name: "shop:jobs:{mail}".into(),
                length: 9,
                first: Some((1_000_000, 0)),
                now: 2_000_000,
                library: Some("Redstart".into()),
                groups: vec![GroupFacts {
                    name: "g".into(),
                    lag: Some(9),
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
                name: "shop:jobs:{mail}".into(),
                length: 9,
                first: Some((1_000_000, 0)),
                now: 2_000_000,
                library: Some("Redstart".into()),
                groups: vec![GroupFacts {
                    name: "g".into(),
                    lag: Some(9),
                    consumers: vec![ConsumerFacts {
                        pending: 1,
                        idle: 90,
                    }],
                    ..GroupFacts::default()
                }],
                ..StreamFacts::default()
            })
            .must_be_quiet();
    }
}
