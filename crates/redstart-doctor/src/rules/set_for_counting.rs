//! A large set that is only counted.
//!
//! A set of every visitor answers how many there were, and costs the memory of all of them. A HyperLogLog answers
//! with an error of 0.8 % in 12 KB; a Bloom filter answers whether one was seen. The rule looks at sets of 10^5
//! members and more that are named after visitors or only added to and counted, and computes the saving.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};
use crate::{observation::Kind, pattern::Role, text};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "set-for-counting",
    title: "A large set that is only counted",
    family: Family::Pattern,
    stage: Stage::Sampled,
    severity: Severity::Medium,
    about: "A set of every visitor answers how many there were, and costs the memory of all of them. A HyperLogLog answers with an error of 0.8 % in 12 KB; a Bloom filter answers whether one was seen. The rule looks at sets of 10^5 members and more that are named after visitors or only added to and counted, and computes the saving.",
    timeline: &[
        "SADD visitors:day id with each visit",
        "SCARD visitors:day in the evening",
        "10 million visitors: 600 MB for one number",
    ],
    effect: "memory grows with every visitor, for one number",
    fix: "PFADD visitors:day id; PFCOUNT visitors:day. For have we seen this: BF.ADD, or a Bloom filter in a bitmap",
    pattern: "unique_visitors",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts.own_groups().filter(|group| group.kind == Kind::Set) {
        let Some(fact) = group
            .facts
            .iter()
            .filter(|fact| fact.size >= 100_000)
            .max_by_key(|fact| fact.size)
        else {
            continue;
        };
        let memory = fact.memory.unwrap_or(fact.size * 60);
        let seen = facts.sequence(&group.pattern);
        let members_read =
            seen.is_some_and(|seen| seen.ops.whole + seen.ops.set_removes + seen.ops.set_uses > 0);
        let counted = seen.is_some_and(|seen| seen.ops.set_counts + seen.ops.set_adds > 0);
        let confidence = match (group.is(Role::Visitors), counted, members_read) {
            (_, _, true) => 0.4,
            (true, _, false) => 0.88,
            (false, true, false) => 0.82,
            // What it is for was not seen.
            (false, false, false) => 0.6,
        };
        // Ten bits per member are one false answer in a hundred.
        let bloom = fact.size * 10 / 8;
        out.add(Subject::keys(&group.pattern), confidence, format!("{} members in {}; a HyperLogLog needs 12 KB (saves {}), a Bloom filter with 1 % error {}", text::count(fact.size), text::bytes(memory), text::bytes(memory.saturating_sub(12_304)), text::bytes(bloom)));
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
            .key(
                "visitors:today",
                KeyFact {
                    kind: Kind::Set,
                    size: 400_000,
                    memory: Some(24_000_000),
                    ttl: Some(86_400_000),
                    ..KeyFact::default()
                },
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .key(
                "visitors:today",
                KeyFact {
                    kind: Kind::Set,
                    size: 4_000,
                    memory: Some(240_000),
                    ttl: Some(86_400_000),
                    ..KeyFact::default()
                },
            )
            .must_be_quiet();
    }
}
