//! One string per player instead of a sorted set.
//!
//! Scores are kept in one string each. Every question about rank or top reads all of them and sorts in the program.

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
    id: "scores-in-strings",
    title: "One string per player instead of a sorted set",
    family: Family::Pattern,
    stage: Stage::Sampled,
    severity: Severity::Medium,
    about: "Scores are kept in one string each. Every question about rank or top reads all of them and sorts in the program.",
    timeline: &[
        "SET score:ann 120, SET score:bob 95, …",
        "who leads? SCAN, MGET of a million keys, sort",
        "meanwhile the scores change",
    ],
    effect: "each rank costs a read of all players, and is out of date when it is done",
    fix: "ZADD board score player; ZREVRANK board player; ZREVRANGE board 0 9",
    pattern: "leaderboard",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts
        .own_groups()
        .filter(|group| group.kind == Kind::String && group.is(Role::Score))
    {
        let numbers = group.shaped(&[Shape::Integer, Shape::Decimal, Shape::Marker]);
        if group.seen >= 20 && numbers >= 0.9 && group.facts.iter().all(|fact| fact.ttl.is_none()) {
            let read = facts
                .sequence(&group.pattern)
                .is_some_and(|seen| seen.ops.gets > 20);
            out.add(
                Subject::keys(&group.pattern),
                if read { 0.85 } else { 0.78 },
                format!(
                    "{} strings that each hold one number",
                    text::count(group.seen)
                ),
            );
        }
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
            .keys("game:score:*", Kind::String, |_| KeyFact {
                shape: Shape::Integer,
                size: 3,
                ..KeyFact::default()
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .key(
                "game:scores",
                KeyFact {
                    kind: Kind::SortedSet,
                    size: 500,
                    scores: Some((1.0, 999.0)),
                    ..KeyFact::default()
                },
            )
            .must_be_quiet();
    }
}
