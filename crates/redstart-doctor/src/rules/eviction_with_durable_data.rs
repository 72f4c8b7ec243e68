//! Locks or queues on a server that evicts.
//!
//! With an allkeys policy the server deletes any key when memory is short: caches, but also locks, queues, sessions
//! and counters. With a volatile policy it deletes keys that have a TTL, as locks and sessions should. The rule looks for
//! such keys on a server with such a policy and a memory limit.

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
    about: "With an allkeys policy the server deletes any key when memory is short: caches, but also locks, queues, sessions and counters. With a volatile policy it deletes keys that have a TTL, as locks and sessions should. The rule looks for such keys on a server with such a policy and a memory limit.",
    timeline: &[
        "maxmemory-policy allkeys-lru",
        "memory is short at the peak",
        "the server evicts lock:report and half of the queue",
    ],
    effect: "locks are held twice, jobs and sessions disappear, exactly at the peak",
    fix: "a server of its own for caches, with allkeys-lru; noeviction where locks, queues and sessions are. A volatile policy keeps queues, which have no TTL, but evicts locks and sessions, which need one",
    pattern: "cache_aside",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts
        .masters()
        .filter(|node| node.evicts_all() || node.evicts_expiring())
    {
        let all = node.evicts_all();
        let limited = node.maxmemory().unwrap_or(0) > 0;
        let evicted = node.number("evicted_keys").unwrap_or(0);
        let mut kept: Vec<String> = facts
            .own_groups()
            .filter(|group| {
                let expires = group.permanent() < 1.0;
                ((group.is(Role::Lock) || group.is(Role::Session)) && (all || expires))
                    || (all
                        && (group.kind == Kind::Stream
                            || (group.kind == Kind::List && group.is(Role::Queue))))
            })
            .map(|group| group.pattern.clone())
            .collect();
        let locks = facts.own_sequences().filter(|seen| {
            let ops = &seen.ops;
            (seen.is_lock() && (all || ops.takes > ops.takes_without_ttl))
                || (all && ops.blocking_pops + ops.moves + ops.stream_reads > 0)
        });
        kept.extend(locks.map(|seen| seen.pattern.clone()));
        // Neither streams nor the lists of queues have a TTL.
        if all {
            kept.extend(facts.own_streams().map(|stream| stream.name.clone()));
            kept.extend(
                facts
                    .libraries
                    .queue()
                    .filter(|name| *name != "BullMQ")
                    .map(str::to_owned),
            );
        }
        kept.sort();
        kept.dedup();
        if kept.is_empty() {
            continue;
        }
        let policy = node.policy().unwrap_or_default();
        let confidence = match (limited, evicted > 0) {
            (true, true) => 0.95,
            // Locks end soon, and are the first to go.
            (true, false) if all || policy == "volatile-ttl" => 0.88,
            (true, false) => 0.8,
            _ => 0.6,
        };
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
