//! A session store that sets no TTL.
//!
//! connect-redis and Spring Session give each session a TTL unless they are told not to (disableTTL, or a cookie
//! without maxAge). Sessions without one never end.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};
use crate::{observation::Kind, text};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "session-store-without-ttl",
    title: "A session store that sets no TTL",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "connect-redis and Spring Session give each session a TTL unless they are told not to (disableTTL, or a cookie without maxAge). Sessions without one never end.",
    timeline: &[
        "new RedisStore({ disableTTL: true })",
        "every visitor leaves a session",
        "three years later the cookie still works",
    ],
    effect: "stolen ids stay valid for ever; memory grows with every visitor",
    fix: "set cookie.maxAge or ttl in the store, remove disableTTL; for those that exist: EXPIRE each",
    pattern: "keep connect-redis with a ttl, or session",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts.groups.iter().filter(|group| {
        matches!(
            group.library.as_deref(),
            Some("connect-redis" | "Spring Session")
        ) && matches!(group.kind, Kind::String | Kind::Hash)
    }) {
        let share = group.permanent();
        if share > 0.0 && group.seen >= 3 {
            out.add(
                Subject::keys(&group.pattern),
                0.88,
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
    use crate::observation::{KeyFact, Shape};
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .keys("sess:*", Kind::String, |_| KeyFact {
                shape: Shape::Json,
                size: 90,
                ..KeyFact::default()
            })
            .library("connect-redis", "sess:")
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .keys("sess:*", Kind::String, |_| KeyFact {
                shape: Shape::Json,
                size: 90,
                ttl: Some(900),
                ..KeyFact::default()
            })
            .library("connect-redis", "sess:")
            .must_be_quiet();
    }
}
