//! A cache entry is overwritten instead of invalidated.
//!
//! After a change of the database the writer puts the new value into the cache. Two writers can arrive in the other
//! order than their transactions, and the older value stays for a TTL. Deleting has no order to get wrong. The rule
//! looks for repeated SETs of one key that no reader had asked for since the last one, where the name is that of a cache or
//! a reader had filled it with a TTL. Whether the cache is written before the database commits cannot be seen on the server.

use crate::pattern::Role;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "cache-updated-in-place",
    title: "A cache entry is overwritten instead of invalidated",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::Medium,
    about: "After a change of the database the writer puts the new value into the cache. Two writers can arrive in the other order than their transactions, and the older value stays for a TTL. Deleting has no order to get wrong. The rule looks for repeated SETs of one key that no reader had asked for since the last one, where the name is that of a cache or a reader had filled it with a TTL. Whether a cache is written before its database commits cannot be seen on the server, and no rule reports it.",
    timeline: &[
        "writer 1 commits price 10",
        "writer 2 commits price 12",
        "writer 2: SET product:7 12",
        "writer 1: SET product:7 10, late",
        "the cache says 10 until its TTL ends",
    ],
    effect: "two writers that overlap leave the older value in the cache for a whole TTL",
    fix: "commit, then DEL the key; let the next reader fill it",
    pattern: "write_through",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts.own_sequences() {
        let ops = &seen.ops;
        let counters = ops.sets_integer * 2 > ops.sets;
        // A reader that finds nothing and writes with a TTL fills a cache, whatever its name is.
        let filled = ops.fills > 0 && ops.sets_without_ttl == 0;
        let confidence = match (seen.is(Role::Cache), filled && ops.overwritten >= 3) {
            (true, _) => 0.75,
            (false, true) => 0.72,
            (false, false) => continue,
        };
        if ops.blind_sets >= 3 && ops.deletes == 0 && ops.gets >= 3 && !counters {
            out.add(Subject::keys(&seen.pattern), confidence, format!("{} writes over a value that nobody had read since it was written, {} reads, no deletion", ops.blind_sets, ops.gets));
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
            .rounds(
                6,
                &[
                    "w SET cache:product:7 {v#} EX 60",
                    "w PING",
                    "w SET cache:product:7 {w#} EX 60",
                    "r GET cache:product:7",
                ]
                .iter()
                .flat_map(|line| std::iter::repeat_n("x PING", 60).chain([*line]))
                .collect::<Vec<_>>(),
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .rounds(
                6,
                &[
                    "r GET cache:product:7",
                    "r SET cache:product:7 {v#} EX 60",
                    "w DEL cache:product:7",
                ],
            )
            .must_be_quiet();
    }
}
