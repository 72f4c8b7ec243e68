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
    pattern::{self, Role},
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
            let seen = facts.sequence(&group.pattern).map(|seen| seen.ops);
            let compared = seen.is_some_and(|ops| ops.together > 0);
            let read = seen.is_some_and(|ops| ops.gets > 20);
            let words = pattern::words(&group.pattern);
            // Points may be a balance, which nobody compares with those of others.
            let balance = !words
                .iter()
                .any(|word| word != "points" && pattern::has_role(word, Role::Score));
            out.add(
                Subject::keys(&group.pattern),
                match (compared, balance) {
                    (true, _) => 0.85,
                    (false, true) => 0.6,
                    (false, false) if read => 0.85,
                    (false, false) => 0.78,
                },
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
    fn points_that_are_compared_are_scores() {
        let keys: Vec<String> = (0..15).map(|i| format!("customer:{i}:points")).collect();
        let line = format!("a MGET {}", keys.join(" "));
        World::new()
            .keys("customer:*:points", Kind::String, |_| KeyFact {
                shape: Shape::Integer,
                size: 3,
                ..KeyFact::default()
            })
            .traffic(&[&line])
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
