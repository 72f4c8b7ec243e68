//! A collection grows and nothing removes from it.
//!
//! A list, set, sorted set or stream that is only added to grows until memory ends. The rule looks for large
//! collections without TTL that grew between two looks, for adds without removals in live traffic, and for streams
//! that were never trimmed.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};
use crate::{observation::Kind, text};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "unbounded-growth",
    title: "A collection grows and nothing removes from it",
    family: Family::Pattern,
    stage: Stage::Sampled,
    severity: Severity::Medium,
    about: "A list, set, sorted set or stream that is only added to grows until memory ends. The rule looks for large collections without TTL that grew between two looks, for adds without removals in live traffic, and for streams that were never trimmed.",
    timeline: &[
        "LPUSH log line with each request",
        "nobody calls LTRIM",
        "a year later the list holds 30 million lines",
    ],
    effect: "memory grows without end; the first sign is an outage",
    fix: "LTRIM log 0 9999 with each push, XADD … MAXLEN ~ 100000 or MINID, a TTL, or a key per day that expires",
    pattern: "event_stream",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts.own_groups() {
        if !matches!(
            group.kind,
            Kind::List | Kind::Set | Kind::SortedSet | Kind::Hash
        ) {
            continue;
        }
        for fact in group
            .facts
            .iter()
            .filter(|fact| fact.is_permanent() && fact.grew())
        {
            let seen = facts.sequence(&group.pattern).map(|seen| seen.ops);
            let removed = seen.is_some_and(|ops| {
                ops.pops
                    + ops.moves
                    + ops.list_trims
                    + ops.set_removes
                    + ops.ztrims
                    + ops.zremoves
                    + ops.by_script
                    + ops.deletes
                    > 0
            });
            let confidence = match (fact.size, seen.is_some(), removed) {
                (_, _, true) => continue,
                (10_000.., true, false) => 0.88,
                (100_000.., false, false) => 0.75,
                (1_000.., true, false) => 0.75,
                _ => continue,
            };
            let later = fact.later.map_or(0, |later| later.size);
            out.add(Subject::keys(&group.pattern), confidence, format!("a {} without TTL had {} elements and {} more {:.0} s later; nothing was removed", group.kind.name(), text::count(fact.size), text::count(later - fact.size), facts.gap));
        }
    }
    for stream in facts.own_streams() {
        let never = stream.added.is_some_and(|added| added == stream.length);
        if never && stream.length >= 10_000 {
            let confidence = if stream.length >= 100_000 { 0.85 } else { 0.75 };
            out.add(
                Subject::keys(&stream.name),
                confidence,
                format!(
                    "a stream of {} entries from which nothing was ever removed",
                    text::count(stream.length)
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{KeyFact, Later};
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .key(
                "log",
                KeyFact {
                    kind: Kind::List,
                    size: 300_000,
                    later: Some(Later {
                        exists: true,
                        ttl: None,
                        size: 300_090,
                    }),
                    ..KeyFact::default()
                },
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .key(
                "log",
                KeyFact {
                    kind: Kind::List,
                    size: 1_000,
                    later: Some(Later {
                        exists: true,
                        ttl: None,
                        size: 1_000,
                    }),
                    ..KeyFact::default()
                },
            )
            .must_be_quiet();
    }
}
