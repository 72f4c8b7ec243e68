//! A session is read, changed and written back whole.
//!
//! A session as one JSON string is rewritten by every request. Two requests of one user overlap easily: a page and
//! its images. The later write takes the earlier change away.

use crate::pattern::Role;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "session-rewritten-whole",
    title: "A session is read, changed and written back whole",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::Medium,
    about: "A session as one JSON string is rewritten by every request. Two requests of one user overlap easily: a page and its images. The later write takes the earlier change away.",
    timeline: &[
        "tab 1: GET sess:7 → {cart: []}",
        "tab 2: GET sess:7 → {cart: []}",
        "tab 1: SET sess:7 {cart: [a]}",
        "tab 2: SET sess:7 {cart: [b]}",
        "a is gone",
    ],
    effect: "changes of overlapping requests are lost; a request that overlaps a logout brings the session back",
    fix: "a hash per session with HSET of the changed fields, or a version that the write compares in a script",
    pattern: "session",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts
        .own_sequences()
        .filter(|seen| seen.is(Role::Session) || seen.is(Role::Cart))
    {
        let ops = &seen.ops;
        let raced = ops.race_value + ops.race_counter;
        if raced > 0 {
            out.add_as(
                Severity::High,
                Subject::keys(&seen.pattern),
                0.95,
                format!(
                    "proven: {raced} of {} rewrites overwrote another request's change",
                    ops.get_set
                ),
            );
        } else if ops.stale_fill > 0 {
            out.add_as(
                Severity::High,
                Subject::keys(&seen.pattern),
                0.9,
                format!(
                    "proven: {} rewrites brought back a session that had been deleted meanwhile",
                    ops.stale_fill
                ),
            );
        } else if ops.get_set >= 3 && ops.sets_json * 2 >= ops.sets {
            out.add(Subject::keys(&seen.pattern), 0.75, format!("possible: {} sessions were read and written back whole; no overlap was seen in this time", ops.get_set));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new()
            .traffic(&[
                "a GET sess:7",
                "b GET sess:7",
                "a SET sess:7 {a} EX 60",
                "b SET sess:7 {b} EX 60",
            ])
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .rounds(
                4,
                &[
                    "a HGETALL sess:7",
                    "a HSET sess:7 cart #",
                    "a EXPIRE sess:7 1800",
                ],
            )
            .must_be_quiet();
    }
}
