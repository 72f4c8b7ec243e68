//! Large collections are read whole.
//!
//! LRANGE 0 -1, SMEMBERS, HGETALL and ZRANGE 0 -1 on a large collection, or ranges of thousands of elements, take the server
//! long, fill its buffers, and make everybody wait. The rule looks at SLOWLOG, at mean times, and at whole reads of large keys in live traffic.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "whole-reads",
    title: "Large collections are read whole",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::Medium,
    about: "LRANGE 0 -1, SMEMBERS, HGETALL and ZRANGE 0 -1 on a large collection, or ranges of thousands of elements, take the server long, fill its buffers, and make everybody wait. The rule looks at SLOWLOG, at mean times, and at whole reads of large keys in live traffic.",
    timeline: &[
        "SMEMBERS followers:star",
        "2 million members: 300 ms, 90 MB in the output buffer",
        "everybody waits",
    ],
    effect: "every client waits while one large reply is built; memory jumps",
    fix: "HSCAN, SSCAN, ZSCAN or ranges in pages; read only the fields you need",
    pattern: "leaderboard",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in &facts.nodes {
        for entry in node
            .slow
            .iter()
            .filter(|entry| entry.whole && entry.micros >= 5_000)
        {
            let library = entry
                .key
                .as_ref()
                .and_then(|key| facts.libraries.owner(key.as_bytes()));
            if library.is_none() {
                let subject = entry
                    .key
                    .clone()
                    .map_or_else(|| Subject::setting(entry.command.clone()), Subject::keys);
                out.add(
                    subject,
                    0.85,
                    format!(
                        "{} of a whole collection took {} ms ({})",
                        entry.command,
                        entry.micros / 1000,
                        node.address
                    ),
                );
            }
        }
        for name in ["smembers", "hgetall", "lrange", "zrange"] {
            let stat = node.commands.get(name).copied().unwrap_or_default();
            if stat.calls >= 10 && stat.mean_micros() > 2000.0 {
                out.add(
                    Subject::setting(name.to_ascii_uppercase()),
                    0.75,
                    format!(
                        "{} calls that took {:.1} ms on average ({})",
                        stat.calls,
                        stat.mean_micros() / 1000.0,
                        node.address
                    ),
                );
            }
        }
    }
    let Some(trace) = &facts.trace else { return };
    for (pattern, reads) in &trace.whole {
        let large = facts
            .own_groups()
            .find(|group| group.pattern == *pattern && group.largest() >= 5_000);
        if let Some(group) = large {
            out.add(
                Subject::keys(pattern),
                0.85,
                format!(
                    "{reads} whole reads in the time observed, of a {} with up to {} elements",
                    group.kind.name(),
                    text::count(group.largest())
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::SlowEntry;
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .node(|node| {
                node.slow.push(SlowEntry {
                    micros: 90_000,
                    command: "SMEMBERS".into(),
                    key: Some("followers:*".into()),
                    whole: true,
                })
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .node(|node| {
                node.slow.push(SlowEntry {
                    micros: 12_000,
                    command: "ZADD".into(),
                    key: Some("board".into()),
                    whole: false,
                })
            })
            .must_be_quiet();
    }
}
