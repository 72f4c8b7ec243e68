//! A sliding window is never trimmed.
//!
//! A sorted set of request times stays small only if old entries are removed with each request. The rule looks at
//! sorted sets with times as scores, named as limits, that have no TTL or whose oldest entry is far older than any
//! window.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};
use crate::{observation::Kind, pattern::Role, text};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "sliding-window-untrimmed",
    title: "A sliding window is never trimmed",
    family: Family::Pattern,
    stage: Stage::Sampled,
    severity: Severity::Medium,
    about: "A sorted set of request times stays small only if old entries are removed with each request. The rule looks at sorted sets with times as scores, named as limits, that have no TTL or whose oldest entry is far older than any window.",
    timeline: &[
        "ZADD window:ann now id with each request",
        "nobody calls ZREMRANGEBYSCORE",
        "after a month the set has a million members",
    ],
    effect: "memory and the time of each count grow without end",
    fix: "in one script: ZREMRANGEBYSCORE key -inf (now - window), ZCARD, ZADD if below the limit, PEXPIRE key window",
    pattern: "sliding_window",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts
        .own_groups()
        .filter(|group| group.kind == Kind::SortedSet)
    {
        let times: Vec<_> = group
            .facts
            .iter()
            .filter_map(|fact| Some((fact, span(fact.scores?)?)))
            .collect();
        let untrimmed = times
            .iter()
            .filter(|(fact, hours)| fact.is_permanent() && (*hours > 2.0 || fact.size > 1000))
            .count();
        if untrimmed > 0 && group.is(Role::Limit) {
            let oldest = times.iter().map(|(_, hours)| *hours).fold(0.0, f64::max);
            out.add(Subject::keys(&group.pattern), 0.85, format!("{untrimmed} of {} windows looked at have no TTL; the longest spans {oldest:.0} hours and the largest has {} members", group.facts.len(), text::count(group.largest())));
        }
    }
    for seen in facts.own_sequences() {
        let ops = &seen.ops;
        let counted = ops.zcounts > 0;
        if ops.zadds_of_time >= 5
            && counted
            && ops.ztrims == 0
            && ops.zremoves == 0
            && ops.expires == 0
            && ops.by_script == 0
        {
            let confidence = if seen.is(Role::Limit) { 0.9 } else { 0.72 };
            out.add(
                Subject::keys(&seen.pattern),
                confidence,
                format!(
                    "{} requests were added and counted, and nothing was ever removed",
                    ops.zadds_of_time
                ),
            );
        }
    }
}

/// The hours between two times, if the scores are times in seconds, milliseconds or microseconds.
fn span((low, high): (f64, f64)) -> Option<f64> {
    let unit = match high {
        1e9..1e11 => 1.0,
        1e11..1e14 => 1e3,
        1e14..1e17 => 1e6,
        _ => return None,
    };
    Some((high - low).max(0.0) / unit / 3600.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::KeyFact;
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .keys("ratelimit:window:*", Kind::SortedSet, |_| KeyFact {
                size: 5000,
                scores: Some((1.6e12, 1.7e12)),
                ..KeyFact::default()
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .keys("ratelimit:window:*", Kind::SortedSet, |_| KeyFact {
                size: 5,
                ttl: Some(60_000),
                scores: Some((1.7e12, 1.7e12 + 5000.0)),
                ..KeyFact::default()
            })
            .must_be_quiet();
    }
}
