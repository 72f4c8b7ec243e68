//! One slot or node of the Cluster takes most of the traffic.
//!
//! A Cluster spreads slots, not load. One hash tag in every key, or one busy key, puts the load on one node. The
//! rule counts commands per slot in live traffic, and compares the nodes.

use crate::text;
use crate::{
    finding::Severity,
    observation::{NodeFacts, Observations, Stage},
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
    const RATE: &str = "instantaneous_ops_per_sec";
    let first = hottest(facts, |node| node.number(RATE));
    let is_again = |address: &str| {
        // Servers are asked one after the other: what has just ended may seem to be on one of them.
        let looked = facts.masters().any(|node| node.later.contains_key(RATE));
        let later = hottest(facts, |node| node.later.get(RATE)?.parse().ok());
        !looked || later.is_some_and(|later| later.address == address)
    };
    if let Some(hot) = first.filter(|hot| is_again(hot.address)) {
        out.add(
            Subject::setting(format!("node {}", hot.address)),
            0.75,
            format!(
                "{} of {} commands a second, on one of {} masters",
                hot.rate, hot.total, hot.masters
            ),
        );
    }
}

/// A master that has most of the commands.
struct Hottest<'a> {
    address: &'a str,
    rate: u64,
    total: u64,
    masters: usize,
}

fn hottest(facts: &Observations, rate: impl Fn(&NodeFacts) -> Option<u64>) -> Option<Hottest<'_>> {
    let rates = facts.masters();
    let rates = rates.filter_map(|node| Some((node.address.as_str(), rate(node)?)));
    let rates: Vec<(&str, u64)> = rates.collect();
    let total: u64 = rates.iter().map(|(_, rate)| rate).sum();
    let (address, rate) = rates.iter().copied().max_by_key(|(_, rate)| *rate)?;
    let hot = rates.len() >= 3 && total >= 1000 && rate as f64 >= total as f64 * 0.7;
    hot.then_some(Hottest {
        address,
        rate,
        total,
        masters: rates.len(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

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
    fn nodes(rates: [u64; 3], later: [u64; 3]) -> World {
        let mut world = World::new();
        world.0.cluster = true;
        let rate =
            |rate: u64| HashMap::from([("instantaneous_ops_per_sec".to_owned(), rate.to_string())]);
        let nodes = rates.into_iter().zip(later).enumerate();
        let nodes = nodes.map(|(n, (first, later))| NodeFacts {
            address: format!("10.0.0.{n}:6379"),
            info: rate(first),
            later: rate(later),
            ..NodeFacts::default()
        });
        world.0.nodes = nodes.collect();
        world
    }

    #[test]
    fn a_node_is_hot_on_both_looks() {
        nodes([900, 50, 50], [1900, 50, 50]).must_show(RULE.id);
        // The traffic ended while the servers were asked one after the other.
        nodes([900, 50, 50], [300, 350, 350]).must_be_quiet();
    }
}
