//! INCR and EXPIRE in two steps.
//!
//! INCR creates the counter, EXPIRE gives it its end. A crash, a time-out or a lost connection between the two
//! leaves a counter that never ends. A transaction or a script does both or neither.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
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
            // Where each increment brings the TTL along, the next one heals what a crash left. The observation may end between two.
            false => out.add(Subject::keys(&seen.pattern), if ops.expires * 20 >= ops.increments * 19 || ops.expires_if_none > 0 { 0.5 } else { 0.8 }, format!("{} counters got their TTL in a second step outside a transaction", ops.incr_then_expire)),
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
            .rounds(4, &["a INCR rate:#", "a EXPIRE rate:# 60", "a INCR rate:#"])
            .must_show(RULE.id);
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
