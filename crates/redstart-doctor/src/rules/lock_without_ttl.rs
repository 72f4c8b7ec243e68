//! A lock without TTL.
//!
//! A lock without TTL outlives a holder that was killed; nobody can take it until an operator deletes it. The rule
//! looks at small strings named as locks that have no TTL on both looks, and at SET NX without TTL on keys that
//! others want meanwhile and that are deleted by those who took them.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};
use crate::{observation::Kind, pattern::Role};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "lock-without-ttl",
    title: "A lock without TTL",
    family: Family::Pattern,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "A lock without TTL outlives a holder that was killed; nobody can take it until an operator deletes it. The rule looks at small strings named as locks that have no TTL on both looks, and at SET NX without TTL on keys that others want meanwhile and that are deleted by those who took them.",
    timeline: &[
        "worker: SETNX lock:report 1",
        "worker is killed",
        "all others: SETNX lock:report → 0, for ever",
    ],
    effect: "one crash stops the work that the lock protects until somebody deletes the key by hand",
    fix: "SET lock token NX PX 30000, renewed while the work goes on; released by a script that compares the token",
    pattern: "mutex",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts
        .own_groups()
        .filter(|group| group.kind == Kind::String && group.is(Role::Lock))
    {
        let stuck = group
            .facts
            .iter()
            .filter(|fact| fact.is_permanent() && fact.size <= 256)
            .count();
        if stuck > 0 {
            let looks = if group.facts.iter().any(|fact| fact.later.is_some()) {
                "on both looks"
            } else {
                "on one look"
            };
            let idle = group
                .facts
                .iter()
                .filter_map(|fact| fact.idle)
                .max()
                .unwrap_or(0);
            out.add(Subject::keys(&group.pattern), 0.88, format!("{stuck} of {} locks looked at had no TTL {looks}; the longest was untouched for {idle} s", group.facts.len()));
        }
    }
    for seen in facts.own_sequences() {
        let ops = &seen.ops;
        let released = ops.plain_release + ops.script_release + ops.get_delete;
        if ops.takes_without_ttl > 0
            && ops.take_then_expire == 0
            && (seen.is(Role::Lock) || released > 0)
        {
            let confidence = match (seen.is(Role::Lock), seen.acts_as_lock()) {
                (true, _) => 0.93,
                (false, true) => 0.8,
                (false, false) => 0.6,
            };
            out.add(
                Subject::keys(&seen.pattern),
                confidence,
                format!(
                    "{} times it was taken with SET NX or SETNX and without TTL",
                    ops.takes_without_ttl
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
            .key(
                "lock:report",
                KeyFact {
                    shape: Shape::Marker,
                    size: 1,
                    ..KeyFact::default()
                },
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .key(
                "lock:report",
                KeyFact {
                    shape: Shape::Token,
                    size: 36,
                    ttl: Some(20_000),
                    ..KeyFact::default()
                },
            )
            .key(
                "clock:offset",
                KeyFact {
                    shape: Shape::Integer,
                    size: 3,
                    ..KeyFact::default()
                },
            )
            .must_be_quiet();
    }
}
