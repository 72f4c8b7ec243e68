//! One slot or node of the Cluster takes most of the traffic.
//!
//! A Cluster spreads slots, not load. One hash tag in every key, or one busy key, puts the load on one node. The
//! rule counts commands per slot in live traffic, and compares the nodes.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "hot-slot",
    title: "One slot or node of the Cluster takes most of the traffic",
    family: Family::Operation,
    stage: Stage::Observed,
    severity: Severity::Medium,
    about: "A Cluster spreads slots, not load. One hash tag in every key, or one busy key, puts the load on one node. The rule counts commands per slot in live traffic, and compares the nodes.",
    timeline: &[
        "every key begins with {shop}",
        "all of them are in one slot",
        "one node works, the others idle",
    ],
    effect: "the Cluster is as fast as one node",
    fix: "a hash tag per entity ({order:7}), not per application; split hot counters",
    pattern: "counter",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    if !facts.cluster {
        return;
    }
    if let Some(trace) = &facts.trace
        && trace.keyed >= facts.limits.busy / 4
        && let Some((slot, commands)) = trace.slots.iter().max_by_key(|(_, commands)| **commands)
    {
        let share = *commands as f64 / trace.keyed as f64;
        if share >= 0.4 {
            out.add(
                Subject::setting(format!("slot {slot}")),
                0.85,
                format!(
                    "{} of {} commands in the time observed",
                    text::percent(share),
                    text::count(trace.keyed)
                ),
            );
        }
    }
    let rates: Vec<(&str, u64)> = facts
        .masters()
        .filter_map(|node| {
            Some((
                node.address.as_str(),
                node.number("instantaneous_ops_per_sec")?,
            ))
        })
        .collect();
    let total: u64 = rates.iter().map(|(_, rate)| rate).sum();
    if rates.len() >= 3
        && total >= 1000
        && let Some((address, rate)) = rates.iter().max_by_key(|(_, rate)| *rate)
        && *rate as f64 >= total as f64 * 0.7
    {
        out.add(
            Subject::setting(format!("node {address}")),
            0.75,
            format!(
                "{rate} of {total} commands a second, on one of {} masters",
                rates.len()
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        {
            let mut world = World::new().rounds(600, &["a INCR {shop}:n"]);
            world.0.cluster = true;
            world
        }
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        {
            let mut world = World::new().rounds(600, &["a INCR {shop-#}:n"]);
            world.0.cluster = true;
            world
        }
        .must_be_quiet();
    }
}
