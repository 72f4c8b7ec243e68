//! A sliding window counts refused requests too.
//!
//! The window adds every request and counts afterwards, so a refused request takes a place. A client that keeps
//! trying is never admitted again. The rule looks for ZADD of a time followed by ZCARD or ZCOUNT by the same
//! connection, without removal of the member.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "sliding-window-charges-refusals",
    title: "A sliding window counts refused requests too",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::Medium,
    about: "The window adds every request and counts afterwards, so a refused request takes a place. A client that keeps trying is never admitted again. The rule looks for ZADD of a time followed by ZCARD or ZCOUNT by the same connection, without removal of the member.",
    timeline: &[
        "limit 10 a minute; 10 admitted",
        "each retry: ZADD, ZCARD → 11, 12, 13 …: refused",
        "a client that retries each second is refused for ever",
    ],
    effect: "clients that retry are locked out although they would be below the limit",
    fix: "count first and add only what is admitted, in one script; or ZREM the member of a refused request",
    pattern: "sliding_window",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts.own_sequences() {
        let ops = &seen.ops;
        if ops.zadds_of_time >= 3
            && ops.zadd_then_count >= 3
            && ops.zremoves == 0
            && ops.by_script == 0
            && ops.ztrims > 0
        {
            out.add(Subject::keys(&seen.pattern), 0.82, format!("{} of {} requests were added before they were counted, and none was removed again", ops.zadd_then_count, ops.zadds_of_time));
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
            .rounds(
                5,
                &[
                    "a ZREMRANGEBYSCORE win:7 0 1600000000",
                    "a ZADD win:7 1700000000 r#",
                    "a ZCARD win:7",
                ],
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .rounds(
                5,
                &[
                    "a EVALSHA abc 1 win:7",
                    "lua ZREMRANGEBYSCORE win:7 0 1600000000",
                    "lua ZCARD win:7",
                    "lua ZADD win:7 1700000000 r#",
                ],
            )
            .must_be_quiet();
    }
}
