//! A collection grows and nothing removes from it.
//!
//! A list, set, sorted set or stream that is only added to grows until memory ends. The rule looks for large
//! collections without TTL that grew between two looks, for adds without removals in live traffic, and for streams
//! that were never trimmed and that no add or trim seen in live traffic caps.

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
    about: "A list, set, sorted set or stream that is only added to grows until memory ends. The rule looks for large collections without TTL that grew between two looks, for adds without removals in live traffic, and for streams that were never trimmed and that no add or trim seen in live traffic caps.",
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

/// Elements by which a collection must have grown between the looks.
const STEADILY: u64 = 10;

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
                    + ops.hash_removes
                    + ops.by_script
                    + ops.deletes
                    > 0
            });
            let later = fact.later.map_or(0, |later| later.size);
            // A collection in balance is one or two larger on every other look.
            let steadily = later.saturating_sub(fact.size) >= STEADILY;
            // Records in a hash or a ranking become more because there are more of them.
            let records = matches!(group.kind, Kind::Hash | Kind::SortedSet);
            let confidence = match (fact.size, seen.is_some(), removed) {
                (_, _, true) => continue,
                (10_000.., true, false) if steadily && !records => 0.88,
                (100_000.., false, false) if steadily && !records => 0.75,
                (1_000.., true, false) if steadily && !records => 0.75,
                (1_000.., true, false) | (100_000.., false, false) => 0.6,
                _ => continue,
            };
            out.add(Subject::keys(&group.pattern), confidence, format!("a {} without TTL had {} elements and {} more {:.0} s later; nothing was removed", group.kind.name(), text::count(fact.size), text::count(later - fact.size), facts.gap));
        }
    }
    for stream in facts.own_streams() {
        let never = stream.added.is_some_and(|added| added == stream.length);
        // Its bound may be larger than it is now.
        let capped = facts.sequence(&stream.pattern).is_some_and(|seen| {
            seen.ops.stream_adds_trimming + seen.ops.stream_trims + seen.ops.by_script > 0
        });
        if never && !capped && stream.length >= 10_000 {
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
                        changed: false,
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
                        changed: false,
                    }),
                    ..KeyFact::default()
                },
            )
            .must_be_quiet();
    }

    fn growing(kind: Kind, by: u64) -> KeyFact {
        KeyFact {
            kind,
            size: 300_000,
            later: Some(Later {
                exists: true,
                ttl: None,
                size: 300_000 + by,
                changed: false,
            }),
            ..KeyFact::default()
        }
    }

    #[test]
    fn a_hash_from_which_fields_are_removed_is_not_accused() {
        World::new()
            .key("users", growing(Kind::Hash, 90))
            .rounds(9, &["a HSET users u# 1", "b HDEL users u#"])
            .must_be_quiet();
    }

    #[test]
    fn a_pop_of_several_is_a_removal() {
        for pop in [
            "LMPOP 1 log LEFT",
            "BLMPOP 0 1 log LEFT",
            "ZMPOP 1 log MIN",
            "BZMPOP 0 1 log MIN",
            "BZPOPMIN other log 0",
        ] {
            let kind = if pop.contains('Z') {
                Kind::SortedSet
            } else {
                Kind::List
            };
            let add = if pop.contains('Z') {
                "a ZADD log 1 m#"
            } else {
                "a LPUSH log m#"
            };
            let pop = format!("w {pop}");
            let seen = World::new()
                .key("log", growing(kind, 90))
                .rounds(9, &[add, pop.as_str()]);
            let found = crate::rule::examine(&seen.0);
            assert!(
                !found.iter().any(|finding| finding.rule == RULE.id),
                "{pop}: {found:#?}"
            );
        }
    }

    #[test]
    fn growth_by_one_on_two_looks_is_no_proof() {
        World::new()
            .key("members", growing(Kind::List, 1))
            .must_be_quiet();
        World::new()
            .key("members", growing(Kind::List, 90))
            .must_show(RULE.id);
    }

    #[test]
    fn a_stream_that_every_add_caps_is_not_accused() {
        let stream = || crate::observation::StreamFacts {
            name: "events".to_owned(),
            pattern: "events".to_owned(),
            length: 200_000,
            added: Some(200_000),
            ..Default::default()
        };
        World::new().stream(stream()).must_show(RULE.id);
        World::new()
            .stream(stream())
            .rounds(9, &["a XADD events * f v"])
            .must_show(RULE.id);
        for line in [
            "a XADD events MAXLEN ~ 1000000 * f v",
            "a XADD events NOMKSTREAM KEEPREF MAXLEN = 1000000 * f v",
            "a XADD events MINID ~ 1 * f v",
        ] {
            World::new()
                .stream(stream())
                .rounds(9, &[line])
                .must_be_quiet();
        }
        World::new()
            .stream(stream())
            .rounds(9, &["a XADD events * f v", "a XTRIM events MAXLEN 1000000"])
            .must_be_quiet();
        // One writer caps it and another does not: it is capped.
        World::new()
            .stream(stream())
            .rounds(
                9,
                &["a XADD events * f v", "b XADD events MAXLEN 1000000 * f v"],
            )
            .must_be_quiet();
    }
}
