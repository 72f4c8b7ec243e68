//! Locks or queues on a server that evicts.
//!
//! With an allkeys policy the server deletes any key when memory is short: caches, but also locks, queues, sessions
//! and counters. The rule looks for such keys on a server with such a policy and a memory limit.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};
use crate::{observation::Kind, pattern::Role};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "eviction-with-durable-data",
    title: "Locks or queues on a server that evicts",
    family: Family::Operation,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "With an allkeys policy the server deletes any key when memory is short: caches, but also locks, queues, sessions and counters. The rule looks for such keys on a server with such a policy and a memory limit.",
    timeline: &[
        "maxmemory-policy allkeys-lru",
        "memory is short at the peak",
        "the server evicts lock:report and half of the queue",
    ],
    effect: "locks are held twice, jobs and sessions disappear, exactly at the peak",
    fix: "a server of its own for caches; noeviction for the rest; or volatile-lru with a TTL on cache entries only",
    pattern: "cache_aside",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts.masters().filter(|node| node.evicts_all()) {
        let limited = node.maxmemory().unwrap_or(0) > 0;
        let evicted = node.number("evicted_keys").unwrap_or(0);
        let mut kept: Vec<String> = facts
            .own_groups()
            .filter(|group| {
                group.is(Role::Lock)
                    || group.is(Role::Session)
                    || group.kind == Kind::Stream
                    || (group.kind == Kind::List && group.is(Role::Queue))
            })
            .map(|group| group.pattern.clone())
            .collect();
        let locks = facts.own_sequences().filter(|seen| {
            seen.is_lock() || seen.ops.blocking_pops + seen.ops.moves + seen.ops.stream_reads > 0
        });
        kept.extend(locks.map(|seen| seen.pattern.clone()));
        kept.extend(facts.own_streams().map(|stream| stream.name.clone()));
        kept.extend(
            facts
                .libraries
                .queue()
                .filter(|name| *name != "BullMQ")
                .map(str::to_owned),
        );
        kept.sort();
        kept.dedup();
        if kept.is_empty() {
            continue;
        }
        let confidence = match (limited, evicted > 0) {
            (true, true) => 0.95,
            (true, false) => 0.88,
            _ => 0.6,
        };
        let policy = node.policy().unwrap_or_default();
        out.add(Subject::setting("maxmemory-policy"), confidence, format!("{policy}, {evicted} keys evicted, and {} key patterns that hold locks, queues, streams or sessions", kept.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{KeyFact, Shape};
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .info("maxmemory_policy", "allkeys-lru")
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
            .info("maxmemory_policy", "allkeys-lru")
            .keys("cache:*", Kind::String, |_| KeyFact {
                ttl: Some(9000),
                size: 36,
                shape: Shape::Json,
                ..KeyFact::default()
            })
            .must_be_quiet();
    }
}
