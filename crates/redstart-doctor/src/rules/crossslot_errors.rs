//! Commands fail because their keys are in different slots.
//!
//! A Cluster refuses a command, transaction or script whose keys are in different slots. The server counts these
//! refusals. The rule is sure if they go on, or are a share of all commands.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "crossslot-errors",
    title: "Commands fail because their keys are in different slots",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::High,
    about: "A Cluster refuses a command, transaction or script whose keys are in different slots. The server counts these refusals. The rule is sure if they go on, or are a share of all commands.",
    timeline: &[
        "MGET user:1 user:2 on a Cluster",
        "CROSSSLOT Keys in request don't hash to the same slot",
        "the caller treats it as a miss, or fails",
    ],
    effect: "requests fail, or silently do without what they asked for",
    fix: "a hash tag around what belongs together: user:{1}:name, user:{1}:mail; one command per slot otherwise",
    pattern: "every pattern of Redstart: all keys of one entity share a hash tag",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts.masters() {
        let refused = node.errors.get("CROSSSLOT").copied().unwrap_or(0);
        if refused > 0 {
            out.add(
                Subject::setting("CROSSSLOT"),
                if node.errs("CROSSSLOT") { 0.9 } else { 0.6 },
                format!(
                    "{refused} requests were refused since the server started ({})",
                    node.address
                ),
            );
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
            .node(|node| {
                node.errors.insert("CROSSSLOT".into(), 17);
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .node(|node| {
                node.errors.insert("MOVED".into(), 17);
            })
            .must_be_quiet();
    }
}
