//! KEYS in live traffic.
//!
//! KEYS looks at every key of the database while everybody else waits. The rule counts its calls since the server
//! started, in SLOWLOG and in live traffic.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "keys-command",
    title: "KEYS in live traffic",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::High,
    about: "KEYS looks at every key of the database while everybody else waits. The rule counts its calls since the server started, in SLOWLOG and in live traffic.",
    timeline: &[
        "a page calls KEYS user:7:*",
        "10 million keys: the server answers nobody for 4 seconds",
        "all pools run full",
    ],
    effect: "every client waits while the server walks all keys; the time grows with the number of keys",
    fix: "SCAN with MATCH and COUNT; better an index: a set or sorted set of the keys you want",
    pattern: "cache_tags",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let observed = facts
        .trace
        .as_ref()
        .and_then(|trace| trace.commands.get("KEYS"))
        .copied()
        .unwrap_or(0);
    let calls = facts.calls("keys");
    let slow = facts
        .nodes
        .iter()
        .flat_map(|node| &node.slow)
        .filter(|entry| entry.command == "KEYS" && entry.micros >= 1000)
        .map(|entry| entry.micros)
        .max();
    let longest = slow.map_or(String::new(), |micros| {
        format!("; the longest in SLOWLOG took {} ms", micros / 1000)
    });
    if observed > 0 {
        out.add(
            Subject::setting("KEYS"),
            0.95,
            format!("{observed} calls in the time observed{longest}"),
        );
    } else if calls > 0 {
        let confidence = if calls >= 5 || slow.is_some() {
            0.85
        } else {
            0.55
        };
        out.add(
            Subject::setting("KEYS"),
            confidence,
            format!("{calls} calls since the server started{longest}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new().command("keys", 40, 900_000).must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new().command("scan", 4000, 900_000).must_be_quiet();
    }
}
