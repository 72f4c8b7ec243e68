//! INCR and EXPIRE in two steps.
//!
//! INCR creates the counter, EXPIRE gives it its end. A crash, a time-out or a lost connection between the two
//! leaves a counter that never ends. A transaction or a script does both or neither.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
    trace::Ops,
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "incr-then-expire",
    title: "INCR and EXPIRE in two steps",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::Medium,
    about: "INCR creates the counter, EXPIRE gives it its end. A crash, a time-out or a lost connection between the two leaves a counter that never ends. A transaction or a script does both or neither.",
    timeline: &[
        "caller: INCR rate:7 → 1",
        "the process is killed",
        "EXPIRE rate:7 60 is never sent",
        "user 7 is refused for ever",
    ],
    effect: "now and then a counter stays without TTL and refuses its user for ever",
    fix: "MULTI, INCR, EXPIRE key 60 NX, EXEC; or one script; or SET key 0 EX 60 NX before INCR",
    pattern: "fixed_window",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts.own_sequences() {
        let ops = &seen.ops;
        if ops.incr_then_expire == 0 {
            continue;
        }
        let lost = facts
            .group(&seen.pattern)
            .map_or(0.0, |group| group.permanent());
        match lost > 0.0 {
            true => out.add_as(Severity::High, Subject::keys(&seen.pattern), 0.95, format!("proven: {} of the keys looked at have lost their EXPIRE; {} counters got theirs in a second step", text::percent(lost), ops.incr_then_expire)),
            false => out.add(Subject::keys(&seen.pattern), if heals(ops) { 0.5 } else { 0.8 }, format!("{} counters got their TTL in a second step outside a transaction", ops.incr_then_expire)),
        }
    }
}

/// Whether each increment brings the TTL along, so that the next one heals what a crash left. Of a key that was incremented once
/// that cannot be told. The observation may end between two steps.
fn heals(ops: &Ops) -> bool {
    let (expires, increments) = match ops.increments_again {
        0 => (ops.expires, ops.increments),
        again => (ops.expires_again, again),
    };
    expires * 20 >= increments * 19 || ops.expires_if_none > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new()
            .rounds(4, &["a INCR rate:#", "a EXPIRE rate:# 60", "a INCR rate:#"])
            .must_show(RULE.id);
    }

    #[test]
    fn very_many_keys_that_are_incremented_once_do_not_hide_it() {
        let mut lines = Vec::new();
        for user in 0..200 {
            lines.extend([
                format!("a INCR rate:{user}"),
                format!("a EXPIRE rate:{user} 60"),
            ]);
        }
        // The TTL comes with the first increment only.
        lines.extend(["a INCR rate:7", "a INCR rate:8", "a INCR rate:9"].map(str::to_owned));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        World::new().traffic(&lines).must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .rounds(
                4,
                &["a MULTI", "a INCR rate:#", "a EXPIRE rate:# 60", "a EXEC"],
            )
            .must_be_quiet();
        // The end of the observation falls between two steps.
        let world = World::new().rounds(40, &["a INCR hits", "a EXPIRE hits 60"]);
        world.rounds(1, &["a INCR hits"]).must_be_quiet();
    }
}
