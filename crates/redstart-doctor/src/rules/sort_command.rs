//! SORT on large collections.
//!
//! SORT reads the whole collection, and a key per element with BY and GET, while everybody else waits. The rule
//! looks at its mean time, at SLOWLOG and at live traffic.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "sort-command",
    title: "SORT on large collections",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::Medium,
    about: "SORT reads the whole collection, and a key per element with BY and GET, while everybody else waits. The rule looks at its mean time, at SLOWLOG and at live traffic.",
    timeline: &[
        "SORT followers BY user:*->age GET user:*->name",
        "50,000 followers: 100,000 keys are read",
        "everybody waits for 80 ms",
    ],
    effect: "every client waits while the server sorts",
    fix: "a sorted set that is kept in order, or SORT … STORE once, with a TTL",
    pattern: "sorted_view",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts.masters() {
        let stat = node.commands.get("sort").copied().unwrap_or_default();
        let slow = node
            .slow
            .iter()
            .filter(|entry| entry.command == "SORT" && entry.micros >= 1000)
            .map(|entry| entry.micros)
            .max();
        if let Some(micros) = slow {
            out.add(
                Subject::setting("SORT"),
                0.85,
                format!("one took {} ms ({})", micros / 1000, node.address),
            );
        } else if stat.calls >= 5 && stat.mean_micros() > 1000.0 {
            out.add(
                Subject::setting("SORT"),
                0.8,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new().command("sort", 40, 900_000).must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new().command("sort", 40, 400).must_be_quiet();
    }
}
