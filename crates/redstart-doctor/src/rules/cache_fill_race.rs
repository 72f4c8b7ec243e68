//! A cache fill overtakes an invalidation.
//!
//! A reader misses, loads the row, and stores it. If the row changes and the key is deleted in between, the reader
//! stores the old row after the deletion. MONITOR shows the three commands in this order, so the finding is proven.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "cache-fill-race",
    title: "A cache fill overtakes an invalidation",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::High,
    about: "A reader misses, loads the row, and stores it. If the row changes and the key is deleted in between, the reader stores the old row after the deletion. MONITOR shows the three commands in this order, so the finding is proven.",
    timeline: &[
        "reader: GET product:7 (miss), SELECT: price 10",
        "writer: UPDATE price 12, DEL product:7",
        "reader: SET product:7 \"10\" EX 3600",
        "stale for an hour",
    ],
    effect: "readers see the old value for a whole TTL, although it was invalidated correctly",
    fix: "make the fill conditional: SET key:lease token NX EX 10 on the miss, fill in a script only if the lease is still yours, and DEL both on invalidation",
    pattern: "cache_aside",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts
        .own_sequences()
        .filter(|seen| seen.ops.stale_fill > 0 && seen.ops.takes == 0)
    {
        let ops = &seen.ops;
        out.add(
            Subject::keys(&seen.pattern),
            0.95,
            format!(
                "{} of {} fills came after another connection's deletion that followed their read",
                ops.stale_fill, ops.get_set
            ),
        );
    }
    for seen in facts.own_sequences().filter(|seen| {
        seen.ops.late_fill >= 2 && seen.ops.takes == 0 && seen.ops.gets >= seen.ops.sets
    }) {
        out.add(Subject::keys(&seen.pattern), 0.82, format!("{} fills came after a deletion that no read followed, so their reads were before it", seen.ops.late_fill));
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
                "a GET product:7",
                "b DEL product:7",
                "a SET product:7 {old} EX 60",
            ])
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .traffic(&[
                "a GET product:7",
                "a SET product:7 {old} EX 60",
                "b DEL product:7",
                "a GET product:7",
                "a SET product:7 {new} EX 60",
            ])
            .must_be_quiet();
    }
}
