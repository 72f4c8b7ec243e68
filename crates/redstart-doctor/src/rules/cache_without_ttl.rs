//! Cache entries without TTL.
//!
//! A cache entry that never expires stays until somebody deletes it. Entries whose rows were deleted, renamed or
//! re-keyed are never read again and never leave. The rule looks at the share of keys without TTL per pattern:
//! patterns named as caches, patterns where most keys have a TTL and some do not, and keys that are filled after a
//! read without one.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};
use crate::{
    observation::{Kind, Shape},
    pattern::Role,
    text,
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "cache-without-ttl",
    title: "Cache entries without TTL",
    family: Family::Pattern,
    stage: Stage::Sampled,
    severity: Severity::Medium,
    about: "A cache entry that never expires stays until somebody deletes it. Entries whose rows were deleted, renamed or re-keyed are never read again and never leave. The rule looks at the share of keys without TTL per pattern: patterns named as caches, patterns where most keys have a TTL and some do not, and keys that are filled after a read without one.",
    timeline: &[
        "12:00 SET cache:product:7 {…}, without EX",
        "12:05 product 7 is deleted from the database",
        "for ever: the entry takes memory, and a reader of the old id gets a row that no longer exists",
    ],
    effect: "memory grows with every key that was ever read; stale entries are served for ever; under maxmemory, useful keys are evicted or writes fail",
    fix: "SET key value EX 3600 instead of SET key value; for those that exist: SCAN with MATCH, then EXPIRE each with a random spread",
    pattern: "cache_aside",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts
        .own_groups()
        .filter(|group| group.kind == Kind::String && group.facts.len() >= 3)
    {
        let share = group.permanent();
        if group.is(Role::Lock) || group.is(Role::Limit) || group.is(Role::Session) || share == 0.0
        {
            continue;
        }
        // Counters and markers are state, not copies.
        let copies = group.shaped(&[Shape::Json, Shape::Text, Shape::Binary, Shape::Token]);
        let filled = facts.sequence(&group.pattern).is_some_and(|seen| {
            seen.ops.get_set >= 3 && seen.ops.mostly_without_ttl() && seen.ops.race_value == 0
        });
        let confidence = match (group.is(Role::Cache), filled) {
            _ if copies < 0.5 => 0.3,
            (true, _) if share >= 0.3 => 0.85,
            (true, _) => 0.75,
            (false, true) => 0.7,
            // Most keys expire and some do not: the writer forgot it in one place, or some are meant to stay.
            (false, false) if (0.05..0.5).contains(&share) && group.facts.len() >= 10 => 0.6,
            _ => continue,
        };
        let (percent, seen) = (text::percent(share), text::count(group.seen));
        out.add(
            Subject::keys(&group.pattern),
            confidence,
            format!(
                "{percent} of {} keys looked at have no TTL; {seen} keys of this pattern were seen",
                group.facts.len()
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::KeyFact;
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .keys("cache:product:*", Kind::String, |_| KeyFact {
                shape: Shape::Json,
                size: 200,
                ..KeyFact::default()
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .keys("cache:product:*", Kind::String, |_| KeyFact {
                shape: Shape::Json,
                size: 200,
                ttl: Some(60_000),
                ..KeyFact::default()
            })
            .keys("user:*", Kind::String, |_| KeyFact {
                shape: Shape::Json,
                size: 90,
                ..KeyFact::default()
            })
            .must_be_quiet();
    }
}
