//! A limiter or attempt counter never expires.
//!
//! A counter that limits something must start again. Without TTL it only rises, and its user is refused forever
//! once it has passed the limit. The rule looks at integers named as limits, quotas or attempts. One that is
//! only called a limit or a quota may be a setting: it must have been counted, in live traffic or between the looks.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};
use crate::{
    observation::{KeyFact, Kind, Shape},
    pattern::{self, Role},
    text,
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "counter-without-ttl",
    title: "A limiter or attempt counter never expires",
    family: Family::Pattern,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "A counter that limits something must start again. Without TTL it only rises, and its user is refused for ever once it has passed the limit. The rule looks at integers named as limits, quotas or attempts. One that is only called a limit or a quota may be a setting: it must have been counted, in live traffic or between the looks.",
    timeline: &[
        "INCR attempts:ann → 1; the process stops before EXPIRE",
        "a year of single mistakes later: INCR attempts:ann → 10",
        "ann is locked out and stays so",
    ],
    effect: "users are refused for ever after their limit is reached once; dead counters pile up",
    fix: "set the TTL in the script that increments; for those that exist: EXPIRE each",
    pattern: "fixed_window",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts
        .own_groups()
        .filter(|group| group.kind == Kind::String)
    {
        let numbers = group.shaped(&[Shape::Integer, Shape::Marker]);
        let share = group.permanent();
        // Counters per address limit somebody; so do whole numbers that are called rates.
        let named = group.is(Role::Limit)
            || (numbers >= 0.9
                && group.seen >= 3
                && pattern::words(&group.pattern)
                    .iter()
                    .any(|word| matches!(word.as_str(), "rate" | "ip")));
        if !named || numbers < 0.5 || share == 0.0 {
            continue;
        }
        let all = group.facts.len();
        // What a tenant or a card may use is a setting until somebody counts it.
        let counted = facts
            .sequence(&group.pattern)
            .is_some_and(|seen| seen.ops.increments > 0)
            || group.facts.iter().any(KeyFact::changed);
        let confidence = match (group.seen, counted) {
            (_, true) => 0.93,
            (0..2, false) => 0.6,
            _ if is_setting(&group.pattern) => 0.6,
            _ => 0.85,
        };
        let percent = text::percent(share);
        out.add(
            Subject::keys(&group.pattern),
            confidence,
            format!("{percent} of {all} counters looked at have no TTL"),
        );
    }
    for seen in facts.own_sequences() {
        let ops = &seen.ops;
        let never = ops.increments >= 3
            && ops.expires == 0
            && ops.by_script == 0
            && ops.sets == 0
            && ops.takes == 0;
        let without = facts
            .group(&seen.pattern)
            .is_none_or(|group| group.permanent() > 0.0);
        let named = seen.is(Role::Limit)
            || pattern::words(&seen.pattern)
                .iter()
                .any(|word| matches!(word.as_str(), "rate" | "ip"));
        if never && without && named {
            out.add(
                Subject::keys(&seen.pattern),
                0.8,
                format!("{} increments and not one EXPIRE", ops.increments),
            );
        }
    }
}

/// Whether the name may be that of a configured number: only a limit, quota or rate, not attempts or a rate limit.
fn is_setting(pattern: &str) -> bool {
    const SETTINGS: &[&str] = &["limit", "limits", "quota", "rate", "ip"];
    let words = pattern::words(pattern);
    let counts = |rest: String| pattern::has_role(&rest, Role::Limit);
    let rest = words
        .iter()
        .filter(|word| !SETTINGS.contains(&word.as_str()))
        .cloned()
        .collect::<Vec<_>>()
        .join(":");
    let rate_limit = words
        .windows(2)
        .any(|pair| pair[0] == "rate" && pair[1].starts_with("limit"));
    words.iter().any(|word| SETTINGS.contains(&word.as_str())) && !rate_limit && !counts(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::Later;
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .keys("ratelimit:*", Kind::String, |_| KeyFact {
                shape: Shape::Integer,
                size: 2,
                ..KeyFact::default()
            })
            .must_show(RULE.id);
    }

    #[test]
    fn a_limit_is_a_counter_when_it_counts() {
        let limits = |changed| {
            move |_| KeyFact {
                shape: Shape::Integer,
                size: 2,
                later: Some(Later {
                    exists: true,
                    size: 2,
                    changed,
                    ..Later::default()
                }),
                ..KeyFact::default()
            }
        };
        World::new()
            .keys("tenant:*:limit", Kind::String, limits(false))
            .must_be_quiet();
        World::new()
            .keys("tenant:*:limit", Kind::String, limits(true))
            .must_show(RULE.id);
        World::new()
            .keys("tenant:*:limit", Kind::String, limits(false))
            .rounds(3, &["a INCR tenant:#:limit"])
            .must_show(RULE.id);
        for (name, setting) in [
            ("tenant:*:quota", true),
            ("card:*:limit", true),
            ("rate:*", true),
            ("rate:limit:*", false),
            ("ratelimit:user:*", false),
            ("login:attempts:limit:*", false),
            ("api:throttle:*", false),
        ] {
            assert_eq!(is_setting(name), setting, "{name}");
        }
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .keys("ratelimit:*", Kind::String, |_| KeyFact {
                shape: Shape::Integer,
                size: 2,
                ttl: Some(30_000),
                ..KeyFact::default()
            })
            .keys("page:hits:*", Kind::String, |_| KeyFact {
                shape: Shape::Integer,
                size: 2,
                ..KeyFact::default()
            })
            .must_be_quiet();
    }
}
