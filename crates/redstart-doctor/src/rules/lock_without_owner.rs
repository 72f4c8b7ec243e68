//! A lock that does not say who holds it.
//!
//! A lock whose value is a constant cannot be released safely: anyone who deletes it cannot tell whether it is still
//! its own. The rule looks for locks with markers such as 1, true or locked, and for several connections that take
//! a key with the same value.

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
    id: "lock-without-owner",
    title: "A lock that does not say who holds it",
    family: Family::Pattern,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "A lock whose value is a constant cannot be released safely: a client that deletes it cannot tell whether the lock is still its own. The rule looks for locks with markers such as 1, true or locked, and for several connections that take a key with the same value.",
    timeline: &[
        "A: SET lock 1 NX PX 10000",
        "A pauses for 12 s; its lock expires",
        "B: SET lock 1 NX PX 10000",
        "A: DEL lock: B is alone no more, and does not know",
    ],
    effect: "a slow holder releases the lock of the next one; two holders work at once",
    fix: "a random token per attempt as the value; release by a script that deletes only if the value is the token",
    pattern: "mutex",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts
        .own_groups()
        .filter(|group| group.kind == Kind::String && group.is(Role::Lock))
    {
        let markers = group.shaped(&[Shape::Marker, Shape::Empty]);
        // Several locks with one value: that value names nobody.
        let mut values: Vec<u64> = group.facts.iter().map(|fact| fact.fingerprint).collect();
        values.sort_unstable();
        let all = values.len();
        values.dedup();
        let same = all >= 3 && values.len() == 1 && values[0] != 0;
        if markers > 0.0 || same {
            out.add(
                Subject::keys(&group.pattern),
                0.85,
                format!(
                    "{} of {all} locks looked at hold a constant instead of a random token",
                    text::percent(markers.max(f64::from(u8::from(same))))
                ),
            );
        }
    }
    for seen in facts.own_sequences() {
        let ops = &seen.ops;
        let released = ops.plain_release + ops.get_delete + ops.script_release;
        if ops.shared_value >= 1 && released > 0 {
            out.add(
                Subject::keys(&seen.pattern),
                match (seen.is_lock(), ops.shared_value) {
                    (true, 3..) => 0.92,
                    (true, _) => 0.8,
                    (false, _) => 0.6,
                },
                format!(
                    "{} attempts used the same value as another connection's",
                    ops.shared_value
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
            .key(
                "lock:report",
                KeyFact {
                    shape: Shape::Marker,
                    size: 1,
                    ttl: Some(9000),
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
                    ttl: Some(9000),
                    ..KeyFact::default()
                },
            )
            .must_be_quiet();
    }
}
