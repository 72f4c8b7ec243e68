//! The clocks of servers are apart.
//!
//! Redstart's leases, limits and schedules follow the clock of the server that has their keys. When a replica with another
//! clock is promoted, they end early or late by as much. The rule compares every server with the first master, and leaves
//! out what the round trip may have taken.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "redstart-clocks",
    title: "The clocks of servers are apart",
    family: Family::Redstart,
    stage: Stage::Free,
    severity: Severity::Medium,
    about: "Redstart's leases, limits and schedules follow the clock of the server that has their keys. When a replica with another clock is promoted, they end early or late by as much. The rule compares every server with the first master, and leaves out what the round trip may have taken.",
    timeline: &[
        "A takes a lease of 30 s from the master",
        "the master is lost, and a replica whose clock is 40 s ahead is promoted",
        "the lease has ended there; B gets it while A works",
    ],
    effect: "after a failover leases and limits end early or late by the difference",
    fix: "run NTP (chrony) on every host of the group, and look at its offset",
    pattern: "fencing",
    check,
};

/// Seconds from which on clocks are apart.
const APART: f64 = 1.0;

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let Some(first) = facts.masters().find_map(|node| node.clock) else {
        return;
    };
    let confidence = match facts.libraries.has("Redstart") {
        true => 0.85,
        false => 0.5,
    };
    for node in &facts.nodes {
        let Some(clock) = node.clock else { continue };
        let apart = clock.ahead - first.ahead;
        if apart.abs() - clock.doubt - first.doubt >= APART {
            out.add(
                Subject::setting(format!("clock of {}", node.address)),
                confidence,
                format!("{apart:+.1} s beside the first master"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        observation::{ClockFacts, NodeFacts},
        rules::world::World,
    };

    fn world(apart: f64, doubt: f64) -> World {
        let clock = |ahead| Some(ClockFacts { ahead, doubt });
        let mut world = World::new()
            .node(|node| node.clock = clock(0.2))
            .library("Redstart", "shop:");
        world.0.nodes.push(NodeFacts {
            address: "replica:6379".to_owned(),
            replica: true,
            clock: clock(0.2 + apart),
            ..NodeFacts::default()
        });
        world
    }

    #[test]
    fn it_is_found() {
        world(30.0, 0.01).must_show(RULE.id);
        world(-30.0, 0.01).must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(0.4, 0.01).must_be_quiet();
        // The answers took a while.
        world(2.0, 0.9).must_be_quiet();
    }
}
