//! A dead consumer keeps messages.
//!
//! A consumer that has not asked for a long time still has pending messages. Nothing gives them to others unless
//! somebody claims them. Within an hour it may be at work still: the rule is sure if entries wait meanwhile, or if nobody is
//! connected who was when it asked.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// Milliseconds without a question, after which a consumer that has messages counts as dead.
const DEAD: u64 = 300_000;
/// Milliseconds after which a message counts as left behind.
const ABANDONED: u64 = 600_000;
/// Milliseconds after which nobody will claim a message, although others work.
const FORGOTTEN: u64 = 3_600_000;

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "stream-dead-consumer",
    title: "A dead consumer keeps messages",
    family: Family::Pattern,
    stage: Stage::Free,
    severity: Severity::High,
    about: "A consumer that has not asked for a long time still has pending messages. Nothing gives them to others unless somebody claims them. Within an hour it may be at work still: the rule is sure if entries wait meanwhile, or if nobody is connected who was when it asked.",
    timeline: &[
        "consumer c1 takes 40 messages and is killed",
        "its replacement is called c2",
        "the 40 messages belong to c1 for ever",
    ],
    effect: "messages that a dead consumer had are never done",
    fix: "XAUTOCLAIM stream group me 60000 0 in a loop; XGROUP DELCONSUMER only after its entries were claimed",
    pattern: "event_stream",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for stream in facts.own_streams() {
        for group in &stream.groups {
            let dead: Vec<_> = group
                .consumers
                .iter()
                .filter(|consumer| consumer.pending > 0 && consumer.idle >= DEAD)
                .collect();
            let pending: u64 = dead.iter().map(|consumer| consumer.pending).sum();
            // A message that nobody has touched for so long was left behind, even if its consumer asks for others.
            // A job may take its time, but then no work should wait, and its worker is connected.
            let behind = group.lag.is_some_and(|lag| lag > 0);
            let works =
                |idle: u64| idle < FORGOTTEN && !behind && !facts.has_left(idle, stream.looked);
            if pending == 0 && group.oldest_idle >= ABANDONED {
                let confidence = if works(group.oldest_idle) { 0.65 } else { 0.78 };
                out.add(Subject::keys(format!("{} group {}", stream.name, group.name)), confidence, format!("{} messages are pending, the oldest was delivered {} s ago and nobody has claimed it", text::count(group.pending), group.oldest_idle / 1000));
            }
            let idle = dead.iter().map(|consumer| consumer.idle).max().unwrap_or(0);
            if pending > 0 {
                // Another one that works may be about to claim them. Before Redis 7.2 the idle time of a consumer is that since
                // it last got something, and one that finds nothing looks dead; the age of its messages does not depend on it.
                let active = group.consumers.iter().any(|consumer| consumer.idle < DEAD);
                let confidence = match idle {
                    _ if active && group.oldest_idle < FORGOTTEN => 0.65,
                    _ if works(idle) => 0.65,
                    3_600_000.. => 0.93,
                    600_000.. => 0.85,
                    _ => 0.72,
                };
                out.add(
                    Subject::keys(format!("{} group {}", stream.name, group.name)),
                    confidence,
                    format!(
                        "{} of {} consumers have not asked for up to {} s and keep {} messages",
                        dead.len(),
                        group.consumers.len(),
                        idle / 1000,
                        text::count(pending)
                    ),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::observation::{ConsumerFacts, GroupFacts, StreamFacts};
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .stream(StreamFacts {
                name: "orders".into(),
                length: 90,
                groups: vec![GroupFacts {
                    name: "g".into(),
                    pending: 7,
                    read: Some(90),
                    consumers: vec![ConsumerFacts {
                        pending: 7,
                        idle: 7_200_000,
                    }],
                    ..GroupFacts::default()
                }],
                ..StreamFacts::default()
            })
            .must_show(RULE.id);
    }

    #[test]
    fn while_another_works_only_the_age_of_a_message_makes_it_sure() {
        let world = |oldest_idle| {
            World::new().stream(StreamFacts {
                name: "orders".into(),
                length: 90,
                groups: vec![GroupFacts {
                    name: "g".into(),
                    pending: 7,
                    read: Some(90),
                    oldest_idle,
                    consumers: vec![
                        ConsumerFacts {
                            pending: 7,
                            idle: 7_200_000,
                        },
                        ConsumerFacts {
                            pending: 0,
                            idle: 2_000,
                        },
                    ],
                    ..GroupFacts::default()
                }],
                ..StreamFacts::default()
            })
        };
        world(1_200_000).must_be_quiet();
        world(7_200_000).must_show(RULE.id);
    }

    #[test]
    fn a_worker_that_is_not_connected_any_more_is_dead() {
        let world = |age| {
            let client = crate::observation::ClientFacts {
                age,
                ..Default::default()
            };
            World::new()
                .stream(StreamFacts {
                    name: "orders".into(),
                    length: 90,
                    groups: vec![GroupFacts {
                        name: "g".into(),
                        pending: 7,
                        lag: Some(0),
                        oldest_idle: 1_800_000,
                        consumers: vec![ConsumerFacts {
                            pending: 7,
                            idle: 1_800_000,
                        }],
                        ..GroupFacts::default()
                    }],
                    ..StreamFacts::default()
                })
                .node(|node| {
                    node.clients_seen = true;
                    node.clients.push(client);
                })
        };
        world(86_400).must_be_quiet();
        // All who are connected came later.
        world(60).must_show(RULE.id);
    }

    #[test]
    fn a_worker_that_connected_after_the_clients_were_listed_or_shortly_before_is_alive() {
        let listed = Instant::now();
        let world = |idle, age: Option<u64>, passed| {
            World::new()
                .stream(StreamFacts {
                    name: "orders".into(),
                    length: 90,
                    looked: Some(listed + Duration::from_secs(passed)),
                    groups: vec![GroupFacts {
                        name: "g".into(),
                        pending: 1,
                        lag: Some(0),
                        oldest_idle: idle,
                        consumers: vec![ConsumerFacts { pending: 1, idle }],
                        ..GroupFacts::default()
                    }],
                    ..StreamFacts::default()
                })
                .node(|node| {
                    node.clients_seen = true;
                    node.clients_listed = Some(listed);
                    let client = |age| crate::observation::ClientFacts {
                        age,
                        ..Default::default()
                    };
                    node.clients.extend(age.map(client));
                })
        };
        // It connected 300 s before the list, and took a job 10 s later, which was 690 s before the stream was looked at.
        world(690_000, Some(300), 400).must_be_quiet();
        // It connected after the list.
        world(690_000, None, 700).must_be_quiet();
        // An age of 300 s may be almost 301 s.
        world(700_500, Some(300), 400).must_be_quiet();
        world(1_000_000, Some(300), 400).must_show(RULE.id);
        world(1_000_000, None, 700).must_show(RULE.id);
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
                    consumers: vec![
                        ConsumerFacts {
                            pending: 1,
                            idle: 2_000,
                        },
                        ConsumerFacts {
                            pending: 0,
                            idle: 7_200_000,
                        },
                    ],
                    ..GroupFacts::default()
                }],
                ..StreamFacts::default()
            })
            .must_be_quiet();
    }
}
