//! Sessions without TTL.
//!
//! A session that never expires can be used forever by anyone who has its id, and is never removed. The rule looks at
//! the share of session keys without TTL.

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
    id: "session-without-ttl",
    title: "Sessions without TTL",
    family: Family::Pattern,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "A session that never expires can be used for ever by anybody who has its id, and is never removed. The rule looks at the share of session keys without TTL.",
    timeline: &[
        "ann logs in; SET sess:… without EX",
        "ann closes the browser",
        "three years later the cookie still works",
    ],
    effect: "stolen ids stay valid for ever; memory grows with every visitor",
    fix: "SET sess:id value EX 1800 on each write, and EXPIRE on each use; for those that exist: EXPIRE each",
    pattern: "session",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts
        .own_groups()
        .filter(|group| group.is(Role::Session) && matches!(group.kind, Kind::String | Kind::Hash))
    {
        let share = group.permanent();
        // One key is a setting or an index; sessions are many.
        if share > 0.0 && group.seen >= 3 {
            // Numbers are counts of sessions.
            let holds = group.kind == Kind::Hash
                || group.shaped(&[Shape::Json, Shape::Binary, Shape::Text, Shape::Token]) >= 0.5;
            out.add(
                Subject::keys(&group.pattern),
                match share >= 0.2 {
                    _ if !holds => 0.6,
                    true => 0.88,
                    false => 0.78,
                },
                format!(
                    "{} of {} sessions looked at have no TTL",
                    text::percent(share),
                    group.facts.len()
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
            .keys("sess:*", Kind::String, |_| KeyFact {
                shape: Shape::Json,
                size: 300,
                ..KeyFact::default()
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .keys("sess:*", Kind::String, |_| KeyFact {
                shape: Shape::Json,
                size: 300,
                ttl: Some(1_800_000),
                ..KeyFact::default()
            })
            .must_be_quiet();
    }
}
