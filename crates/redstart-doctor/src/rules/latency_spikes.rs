//! The server stood still.
//!
//! A server runs one command at a time, and waits for some of what the system does for it: a fork, a write to the disk, the
//! expiry or eviction of many keys. Its latency monitor notes what took longer than latency-monitor-threshold. The rule
//! is sure from a quarter of a second on.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "latency-spikes",
    title: "The server stood still",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::Medium,
    about: "A server runs one command at a time, and waits for some of what the system does for it: a fork, a write to the disk, the expiry or eviction of many keys. Its latency monitor notes what took longer than latency-monitor-threshold. The rule is sure from a quarter of a second on.",
    timeline: &[
        "the server forks to write a snapshot; the page tables of 40 GB are copied",
        "no client is answered for half a second",
        "leases and time-outs of half a second run out everywhere at once",
    ],
    effect: "every client waits for as long; short leases and time-outs expire meanwhile",
    fix: "LATENCY DOCTOR says what to do about each event; fork: smaller instances and no transparent huge pages; command: SLOWLOG GET; expire-cycle: spread the TTLs; aof: appendfsync everysec on a disk of its own",
    pattern: "none: it is a setting of the server",
    check,
};

/// Milliseconds from which a stop is sure, and from which it is mentioned.
const LONG: u64 = 250;
const NOTABLE: u64 = 100;

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts.masters() {
        for event in &node.latency {
            let confidence = match event.longest {
                LONG.. => 0.8,
                NOTABLE.. => 0.5,
                _ => continue,
            };
            out.add(
                Subject::setting(format!("latency event {}", event.event)),
                confidence,
                format!("the longest took {} ms ({})", event.longest, node.address),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{observation::LatencyEvent, rules::world::World};

    fn world(longest: u64) -> World {
        World::new().node(|node| {
            node.latency.push(LatencyEvent {
                event: "fork".to_owned(),
                longest,
            });
        })
    }

    #[test]
    fn it_is_found() {
        world(700).must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(90).must_be_quiet();
    }
}
