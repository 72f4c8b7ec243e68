//! A counter is read, compared and then incremented.
//!
//! GET, compare in the program, INCR: two callers read the same number and both pass. The sequence by one
//! connection makes it possible; a write of another connection between the two, several times, proves that it happened.

use crate::pattern::{self, Role};
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "check-then-increment",
    title: "A counter is read, compared and then incremented",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::High,
    about: "GET, compare in the program, INCR: two callers read the same number and both pass. The sequence by one connection makes it possible; a write of another connection between the two proves that it happened.",
    timeline: &[
        "limit 10, counter 9",
        "caller 1: GET n → 9, below the limit",
        "caller 2: GET n → 9, below the limit",
        "caller 1: INCR n → 10",
        "caller 2: INCR n → 11",
    ],
    effect: "more requests, seats or units are granted than the limit allows, exactly when there is load",
    fix: "INCR first and decide by its reply, or compare and increment in one script; set the TTL in the same script",
    pattern: "token_bucket",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts.own_sequences() {
        let ops = &seen.ops;
        // Who shows a number and then counts does the same; a limiter's name says what it is for.
        let limits = seen.is(Role::Limit)
            || pattern::words(&seen.pattern)
                .iter()
                .any(|word| word == "rate");
        // Where a connection is shared, a read and an increment may belong to two requests; but a client that reads a limit checks it.
        let sure = |races: u64, confidence: f64| {
            let increments = if limits { 0 } else { ops.increments };
            let pairs = ops.get_incr + ops.overlaps;
            match seen.reads_before_it_writes(pairs, increments, races) {
                true => confidence,
                false => 0.65,
            }
        };
        if ops.race_incr > 0 {
            out.add(Subject::keys(&seen.pattern), sure(ops.race_incr, 0.96), format!("proven: {} of {} increments followed a read that another connection's write had made old", ops.race_incr, ops.get_incr));
        } else if ops.overlaps > 0 && ops.increments > 0 {
            out.add(Subject::keys(&seen.pattern), sure(ops.overlaps, 0.9), format!("{} times two reads were followed by two increments on one connection: tasks that share it overlapped", ops.overlaps));
        } else if ops.crossed >= 3
            && limits
            && ops.gets * 10 >= ops.increments * 8
            && ops.gets * 8 <= ops.increments * 10
        {
            out.add(Subject::keys(&seen.pattern), 0.85, format!("{} times two reads were followed by two increments, over a pool of connections: {} reads and {} increments in all", ops.crossed, ops.gets, ops.increments));
        } else if ops.get_incr >= 3 && ops.get_incr * 10 >= ops.increments * 8 {
            out.add_as(Severity::Medium, Subject::keys(&seen.pattern), if limits { 0.78 } else { 0.6 }, format!("possible: {} of {} increments were decided by a read before them; no overlap was seen in this time", ops.get_incr, ops.increments));
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
                3,
                &[
                    "a GET rate:7",
                    "b GET rate:7",
                    "a INCR rate:7",
                    "b INCR rate:7",
                ],
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .rounds(5, &["a INCR views:7", "b INCR views:7", "c GET views:7"])
            .must_be_quiet();
    }
}
