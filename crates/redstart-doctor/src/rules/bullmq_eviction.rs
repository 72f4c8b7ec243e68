//! BullMQ on a server that evicts.
//!
//! BullMQ asks for maxmemory-policy noeviction: with any other policy the server may delete parts of a queue when
//! memory is short.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "bullmq-eviction",
    title: "BullMQ on a server that evicts",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "BullMQ asks for maxmemory-policy noeviction: with any other policy the server may delete parts of a queue when memory is short.",
    timeline: &[
        "maxmemory-policy allkeys-lru",
        "memory is short",
        "the server evicts job hashes and bull:mail:wait",
    ],
    effect: "jobs disappear, and queues break, when memory is short",
    fix: "CONFIG SET maxmemory-policy noeviction and a server of its own for caches",
    pattern: "keep BullMQ: CONFIG SET maxmemory-policy noeviction and a server of its own for caches",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    if facts.libraries.bull.is_empty() {
        return;
    }
    for node in facts.masters() {
        let Some(policy) = node.policy().filter(|policy| *policy != "noeviction") else {
            continue;
        };
        let limited = node.maxmemory().unwrap_or(0) > 0;
        // volatile policies spare keys without TTL, which most of BullMQ's are.
        let confidence = match (limited, policy.starts_with("allkeys")) {
            (true, true) => 0.95,
            (true, false) => 0.8,
            (false, true) => 0.75,
            (false, false) => 0.6,
        };
        out.add(
            Subject::setting("maxmemory-policy"),
            confidence,
            format!(
                "{policy} with {} BullMQ queues ({})",
                facts.libraries.bull.len(),
                node.address
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{library::BullQueue, rules::bullmq::world};

    #[test]
    fn it_is_found() {
        world(BullQueue::default())
            .info("maxmemory_policy", "allkeys-lru")
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(BullQueue::default()).must_be_quiet();
    }
}
