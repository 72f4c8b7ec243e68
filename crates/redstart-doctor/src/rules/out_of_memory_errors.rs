//! Writes are refused because memory is full.
//!
//! At maxmemory a server with noeviction refuses writes with OOM. The server counts these refusals. The rule is
//! sure if they go on, if the memory is used up now, or if they are a share of all commands.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "out-of-memory-errors",
    title: "Writes are refused because memory is full",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::High,
    about: "At maxmemory a server with noeviction refuses writes with OOM. The server counts these refusals. The rule is sure if they go on, if the memory is used up now, or if they are a share of all commands.",
    timeline: &[
        "used_memory reaches maxmemory",
        "SET … → OOM command not allowed",
        "locks cannot be taken, jobs cannot be queued",
    ],
    effect: "writes fail until memory is freed",
    fix: "find what grows (this report), raise maxmemory, or give caches a TTL and a server of their own",
    pattern: "cache_aside",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts.masters() {
        let refused = node.errors.get("OOM").copied().unwrap_or(0);
        if refused > 0 {
            out.add(
                Subject::setting("maxmemory"),
                if node.errs("OOM") || node.is_full() {
                    0.92
                } else {
                    0.6
                },
                format!(
                    "{refused} writes were refused since the server started ({})",
                    node.address
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new()
            .node(|node| {
                node.errors.insert("OOM".into(), 3);
            })
            .must_show(RULE.id);
    }

    #[test]
    fn a_busy_server_that_is_full_now_is_found_and_one_that_was_is_not() {
        let world = |used: &str| {
            World::new()
                .command("get", 1_000_000_000, 1_000_000_000)
                .info("used_memory", used)
                .node(|node| {
                    node.errors.insert("OOM".into(), 500);
                })
        };
        world("1060000000").must_show(RULE.id);
        world("500000000").must_be_quiet();
        // At its limit a server that evicts is in order.
        world("1060000000")
            .info("maxmemory_policy", "allkeys-lru")
            .must_be_quiet();
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .node(|node| {
                node.errors.insert("ERR".into(), 3);
            })
            .must_be_quiet();
    }
}
