//! No memory limit.
//!
//! Without maxmemory the server grows until the system ends it. It matters on a server that holds much or grows,
//! and the rule is sure only there.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "maxmemory-unset",
    title: "No memory limit",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::Low,
    about: "Without maxmemory the server grows until the system ends it. It matters on a server that holds much or grows, and the rule is sure only there.",
    timeline: &[
        "a list grows without end",
        "the host has no memory left",
        "the kernel kills redis-server, with everything on it",
    ],
    effect: "one key that grows takes the whole server, and its host, down",
    fix: "CONFIG SET maxmemory to about 70 % of the host, with the policy that fits: noeviction for queues and locks, allkeys-lru for caches",
    pattern: "cache_aside",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts.masters() {
        if node.maxmemory() != Some(0) {
            continue;
        }
        let used = node
            .number("used_memory_rss")
            .or_else(|| node.number("used_memory"))
            .unwrap_or(0);
        // In a container the server sees the memory of the host.
        let system = facts
            .limits
            .memory
            .or_else(|| node.number("total_system_memory"))
            .unwrap_or(u64::MAX)
            .max(1);
        let share = used as f64 / system as f64;
        let (severity, confidence) = match share {
            0.75.. => (Severity::High, 0.95),
            0.4.. => (Severity::Medium, 0.85),
            0.1.. => (Severity::Low, 0.75 * node.maturity(&facts.limits)),
            _ => (Severity::Low, 0.5),
        };
        out.add_as(
            severity,
            Subject::setting("maxmemory"),
            confidence,
            format!(
                "not set; {} used, {} of the system's memory ({})",
                text::bytes(used),
                text::percent(share),
                node.address
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new()
            .info("maxmemory", "0")
            .info("used_memory_rss", "5000000000")
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .info("maxmemory", "0")
            .info("used_memory_rss", "5000000")
            .must_be_quiet();
    }
}
