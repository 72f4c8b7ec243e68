//! A queue of Redstart has work and no workers.
//!
//! Jobs of a Redstart queue or writes of a write-behind have waited for five minutes and no worker has a lease, or
//! events are unread and no consumer of their group has asked for as long. A queue that was paused is not reported.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "redstart-queue-without-workers",
    title: "A queue of Redstart has work and no workers",
    family: Family::Redstart,
    stage: Stage::Free,
    severity: Severity::Medium,
    about: "Jobs of a Redstart queue or writes of a write-behind have waited for five minutes and no worker has a lease, or events are unread and no consumer of their group has asked for as long. A queue that was paused is not reported.",
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
    let idle = facts.limits.idle.as_millis() as u64;
    for queue in &facts.libraries.waiting {
        let Some(oldest) = queue.oldest.filter(|oldest| *oldest >= idle) else {
            continue;
        };
        if queue.count > 0 && !queue.served && !queue.paused {
            out.add(
                Subject::keys(&queue.name),
                0.85,
                format!(
                    "{} wait, the oldest for {} s, and no worker has a lease",
                    queue.count,
                    oldest / 1000
                ),
            );
        }
    }
    for stream in facts
        .streams
        .iter()
        .filter(|stream| stream.keeper() == Some("Redstart"))
    {
        for group in &stream.groups {
            let lag = group.lag.unwrap_or(0);
            let alive = group.consumers.iter().any(|consumer| consumer.idle < idle);
            let oldest = stream
                .first
                .map_or(0, |(first, _)| stream.now.saturating_sub(first));
            if lag > 0 && !alive && oldest >= idle {
                out.add(
                    Subject::keys(&stream.name),
                    0.85,
                    format!(
                        "{lag} entries are unread, the oldest for {} s, and none of {} consumers has asked for {} s",
                        oldest / 1000,
                        group.consumers.len(),
                        idle / 1000
                    ),
                );
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

    #[test]
    fn jobs_that_nobody_takes_are_found_unless_the_queue_is_paused() {
        let world = |served, paused, oldest| {
            let mut world = World::new();
            world.0.libraries.waiting.push(crate::library::Waiting {
                name: "shop:queue:{mail}".to_owned(),
                count: 9,
                oldest: Some(oldest),
                served,
                paused,
            });
            world
        };
        world(false, false, 900_000).must_show(RULE.id);
        world(true, false, 900_000).must_be_quiet();
        world(false, true, 900_000).must_be_quiet();
        world(false, false, 900).must_be_quiet();
    }
}
