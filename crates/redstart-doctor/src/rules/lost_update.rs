//! A value is read, changed and written back.
//!
//! GET, change in the program, SET: a change that another connection wrote in between is overwritten. The rule
//! proves it by several such writes, where most writes of the connection follow a read. Equal values written by several connections are a stampede and not reported here.

use crate::pattern::Role;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "lost-update",
    title: "A value is read, changed and written back",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::High,
    about: "GET, change in the program, SET: a change that another connection wrote in between is overwritten. The rule proves it by several such writes, where most writes of the connection follow a read. Equal values written by several connections are a stampede and not reported here.",
    timeline: &[
        "balance 100",
        "clerk 1: GET → 100",
        "clerk 2: GET → 100",
        "clerk 1: SET 90",
        "clerk 2: SET 95",
        "90 is lost",
    ],
    effect: "changes disappear without an error when two callers overlap",
    fix: "use the command that changes in place (INCRBY, HINCRBY, JSON.SET path), or WATCH, MULTI, EXEC, or a script",
    pattern: "counter",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts.own_sequences().filter(|seen| !seen.is(Role::Session)) {
        let ops = &seen.ops;
        // Where a connection is shared, a read and a write may belong to two requests.
        let paired =
            |races: u64| seen.reads_before_it_writes(ops.get_set + ops.overlaps, ops.sets, races);
        let sure = |races: u64, confidence: f64| if paired(races) { confidence } else { 0.6 };
        if ops.race_counter > 0 {
            out.add(Subject::keys(&seen.pattern), sure(ops.race_counter, 0.95), format!("proven: {} of {} read-and-write-back sequences overwrote a number that another connection had written meanwhile", ops.race_counter, ops.get_set));
        } else if ops.overlaps > 0 && ops.increments == 0 {
            out.add(Subject::keys(&seen.pattern), sure(ops.overlaps, 0.88), format!("{} times two reads were followed by two writes on one connection: tasks that share it overlapped", ops.overlaps));
        } else if ops.repeated >= 2
            && ops.changed >= 5
            && ops.crossed > 0
            && ops.gets * 10 >= ops.sets * 8
        {
            out.add(Subject::keys(&seen.pattern), 0.85, format!("{} times the same number was written twice in a row while it was counting, and {} times two writes followed two reads: increments were lost", ops.repeated, ops.crossed));
        } else if ops.race_value > 0 && ops.mostly_without_ttl() {
            out.add(Subject::keys(&seen.pattern), sure(ops.race_value, 0.9), format!("proven: {} of {} read-and-write-back sequences overwrote another connection's value", ops.race_value, ops.get_set));
        } else if ops.race_value > 2 {
            out.add(Subject::keys(&seen.pattern), sure(ops.race_value, 0.72), format!("{} of {} read-and-write-back sequences overwrote another connection's different value", ops.race_value, ops.get_set));
        } else if ops.get_set >= 5
            && ops.sets_integer * 10 >= ops.sets * 9
            && ops.get_set * 10 >= ops.sets * 9
            && ops.mostly_without_ttl()
        {
            out.add_as(Severity::Medium, Subject::keys(&seen.pattern), 0.72, format!("possible: {} numbers were read, changed by the program and written back; no overlap was seen in this time", ops.get_set));
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
                    "a GET balance:7",
                    "b GET balance:7",
                    "a SET balance:7 9#",
                    "b SET balance:7 8#",
                ],
            )
            .must_show(RULE.id);
        // Tasks that share a connection.
        World::new()
            .rounds(
                3,
                &[
                    "a GET balance:7",
                    "a GET balance:7",
                    "a SET balance:7 9#",
                    "a SET balance:7 8#",
                ],
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .traffic(&[
                "a WATCH balance:7",
                "a GET balance:7",
                "b INCRBY balance:7 5",
                "a MULTI",
                "a SET balance:7 90",
                "a EXEC",
            ])
            .must_be_quiet();
    }

    #[test]
    fn a_value_so_long_that_its_ttl_was_not_seen_is_no_lost_update() {
        // A cache filled by two connections: `EX 60` follows the value, beyond what is read of a line.
        let long = "x".repeat(5000);
        let (first, second) = (
            format!("a SET page:7 {{a{long}"),
            format!("b SET page:7 {{b{long}"),
        );
        for keep in [4096, 4108] {
            World::new()
                .cut_traffic(
                    keep,
                    &[
                        "a GET page:7",
                        "b GET page:7",
                        first.as_str(),
                        second.as_str(),
                    ],
                )
                .must_be_quiet();
        }
        // The cut falls between two words, so that no quote is left open.
        let whole = "a SET page:7 {a EX 60";
        let line = crate::trace::tests::line(0, whole);
        let keep = line.len() - " \"EX\" \"60\"".len();
        World::new()
            .cut_traffic(
                keep,
                &[
                    "a GET page:7",
                    "b GET page:7",
                    whole,
                    "b SET page:7 {b EX 60",
                ],
            )
            .must_be_quiet();
    }
}
