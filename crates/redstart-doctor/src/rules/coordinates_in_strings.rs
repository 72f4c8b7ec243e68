//! Coordinates in strings.
//!
//! Places are kept as strings of latitude and longitude. Who is near can only be answered by reading all of them.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};
use crate::{
    observation::{Kind, Shape},
    pattern, text,
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "coordinates-in-strings",
    title: "Coordinates in strings",
    family: Family::Pattern,
    stage: Stage::Sampled,
    severity: Severity::Low,
    about: "Places are kept as strings of latitude and longitude. Who is near can only be answered by reading all of them.",
    timeline: &[
        "SET driver:7:pos 48.2,16.4",
        "who is near? read every driver and compute",
        "a thousand drivers: a thousand reads per question",
    ],
    effect: "each search reads every place; it gets slower with every one that is added",
    fix: "GEOADD drivers lon lat id; GEOSEARCH drivers FROMLONLAT lon lat BYRADIUS 2 km",
    pattern: "places",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts
        .own_groups()
        .filter(|group| group.kind == Kind::String)
    {
        if group.seen >= 10 && group.shaped(&[Shape::Coordinates]) >= 0.8 {
            out.add(
                Subject::keys(&group.pattern),
                0.85,
                format!(
                    "{} strings that each hold a pair of coordinates",
                    text::count(group.seen)
                ),
            );
        }
    }
    // One key for the latitude and one for the longitude.
    for group in facts
        .own_groups()
        .filter(|group| group.kind == Kind::String && group.seen >= 10)
    {
        let (Some(at), true) = (
            pattern::words(&group.pattern)
                .iter()
                .position(|word| matches!(word.as_str(), "lat" | "latitude")),
            group.shaped(&[Shape::Decimal]) >= 0.8,
        ) else {
            continue;
        };
        let mate = facts.own_groups().any(|other| {
            let words = pattern::words(&other.pattern);
            words.len() == pattern::words(&group.pattern).len()
                && words
                    .get(at)
                    .is_some_and(|word| matches!(word.as_str(), "lon" | "lng" | "longitude"))
        });
        if mate {
            out.add(
                Subject::keys(&group.pattern),
                0.85,
                format!(
                    "{} pairs of strings for latitude and longitude",
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
            .keys("driver:*:pos", Kind::String, |_| KeyFact {
                shape: Shape::Coordinates,
                size: 15,
                ttl: Some(60_000),
                ..KeyFact::default()
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .key(
                "drivers",
                KeyFact {
                    kind: Kind::SortedSet,
                    size: 500,
                    scores: Some((3.6e15, 3.7e15)),
                    ..KeyFact::default()
                },
            )
            .must_be_quiet();
    }
}
