//! Replicas lag behind a server that holds locks.
//!
//! A lock is on the master first. If the master is lost before a replica has it, the promoted replica gives it to
//! another. The longer the lag, the more locks are lost. A fence token protects what the lock protects.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};
use crate::{pattern::Role, text};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "replica-lag-under-locks",
    title: "Replicas lag behind a server that holds locks",
    family: Family::Operation,
    stage: Stage::Sampled,
    severity: Severity::Medium,
    about: "A lock is on the master first. If the master is lost before a replica has it, the promoted replica gives it to another. The longer the lag, the more locks are lost. A fence token protects what the lock protects.",
    timeline: &[
        "A takes the lock on the master",
        "the master is lost; the replica is 3 s behind",
        "the replica is promoted; B takes the same lock",
    ],
    effect: "after a failover two holders may work at once",
    fix: "fence tokens checked by the resource; WAIT after taking the lock lowers the risk; look at the network and at the replica's load",
    pattern: "fencing",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let locks = facts.own_groups().any(|group| group.is(Role::Lock))
        || facts
            .own_sequences()
            .any(crate::observation::Sequence::is_lock);
    for node in facts.masters() {
        let Some(offset) = node.number("master_repl_offset") else {
            continue;
        };
        for i in 0..16 {
            let Some(line) = node.info.get(&format!("slave{i}")) else {
                break;
            };
            let lag = field(line, "lag").unwrap_or(0);
            // A replica acknowledges once a second, so that one look at a busy master finds every replica behind: what counts
            // is that it lacks on the second look what the master had on the first.
            let later = (facts.gap >= ACKNOWLEDGES)
                .then(|| line_of(&node.later, line))
                .flatten()
                .and_then(|line| field(line, "offset"));
            let behind = later.map_or(0, |later| offset.saturating_sub(later));
            if lag >= facts.limits.lag.as_secs() || behind >= 1 << 20 {
                let confidence = if locks { 0.85 } else { 0.5 };
                out.add(
                    Subject::setting(format!("replication of {}", node.address)),
                    confidence,
                    match behind {
                        0 => format!("a replica has acknowledged nothing for {lag} s"),
                        _ => format!(
                            "a replica lacks {} of what the master had {:.0} s before",
                            text::bytes(behind),
                            facts.gap
                        ),
                    },
                );
            }
        }
    }
}

/// The period of acknowledgements with some room, in seconds.
const ACKNOWLEDGES: f64 = 1.5;

/// A number of a line like `ip=10.0.0.2,port=6379,state=online,offset=80,lag=1`.
fn field(line: &str, name: &str) -> Option<u64> {
    line.split(',').find_map(|pair| {
        pair.strip_prefix(name)?
            .strip_prefix('=')?
            .parse::<u64>()
            .ok()
    })
}

/// The line of the same replica on the second look.
fn line_of<'a>(
    later: &'a std::collections::HashMap<String, String>,
    line: &str,
) -> Option<&'a String> {
    let place = line.split(",state=").next()?;
    (0..16)
        .filter_map(|i| later.get(&format!("slave{i}")))
        .find(|known| known.split(",state=").next() == Some(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{KeyFact, Shape};
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .info("master_repl_offset", "90000000")
            .info(
                "slave0",
                "ip=10.0.0.2,port=6379,state=online,offset=80000000,lag=7",
            )
            .key(
                "lock:report",
                KeyFact {
                    ttl: Some(9000),
                    size: 36,
                    shape: Shape::Token,
                    ..KeyFact::default()
                },
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .info("master_repl_offset", "90000000")
            .info(
                "slave0",
                "ip=10.0.0.2,port=6379,state=online,offset=89999000,lag=0",
            )
            .key(
                "lock:report",
                KeyFact {
                    ttl: Some(9000),
                    size: 36,
                    shape: Shape::Token,
                    ..KeyFact::default()
                },
            )
            .must_be_quiet();
    }

    /// A replica between two acknowledgements of a busy master.
    fn busy(later: &str) -> World {
        World::new()
            .info("master_repl_offset", "90000000")
            .info(
                "slave0",
                "ip=10.0.0.2,port=6379,state=online,offset=80000000,lag=1",
            )
            .node(|node| {
                let line = format!("ip=10.0.0.2,port=6379,state=online,offset={later},lag=0");
                node.later.insert("slave0".to_owned(), line);
            })
            .key("lock:report", KeyFact::default())
    }

    #[test]
    fn a_replica_that_follows_a_busy_master_is_not_accused() {
        let found = crate::rule::examine(&busy("95000000").0);
        assert!(!found.iter().any(|finding| finding.rule == RULE.id));
        busy("82000000").must_show(RULE.id);
    }
}
