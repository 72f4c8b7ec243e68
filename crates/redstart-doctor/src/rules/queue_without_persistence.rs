//! A queue on a server without persistence.
//!
//! With neither AOF nor RDB a restart empties the queue. A young server is often a test, so the rule is sure only
//! of servers that have run for a while.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};
use crate::{observation::Kind, pattern::Role};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "queue-without-persistence",
    title: "A queue on a server without persistence",
    family: Family::Operation,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "With neither AOF nor RDB a restart empties the queue. A young server is often a test, so the rule is sure only of servers that have run for a while.",
    timeline: &[
        "save \"\" and appendonly no",
        "the host restarts",
        "all jobs that waited are gone",
    ],
    effect: "every restart loses all jobs and messages",
    fix: "CONFIG SET appendonly yes, appendfsync everysec, and the same in the configuration file",
    pattern: "job_queue",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts.masters() {
        let (Some(aof), Some(save)) = (node.setting("appendonly"), node.setting("save")) else {
            continue;
        };
        if aof != "no" || !save.is_empty() {
            continue;
        }
        let queue = facts
            .libraries
            .queue()
            .map(str::to_owned)
            .or_else(|| {
                facts
                    .own_streams()
                    .find(|stream| !stream.groups.is_empty())
                    .map(|stream| stream.name.clone())
            })
            .or_else(|| {
                facts
                    .own_sequences()
                    .find(|seen| seen.ops.pops + seen.ops.moves > 0)
                    .map(|seen| seen.pattern.clone())
            })
            .or_else(|| {
                facts
                    .own_groups()
                    .find(|group| group.kind == Kind::List && group.is(Role::Queue))
                    .map(|group| group.pattern.clone())
            });
        if let Some(queue) = queue {
            let replicas = node.number("connected_slaves").unwrap_or(0);
            let confidence = if replicas > 0 {
                0.5
            } else {
                0.9 * node.maturity(&facts.limits)
            };
            out.add(
                Subject::keys(queue),
                confidence,
                format!(
                    "appendonly no, save \"\" and {replicas} replicas ({}, up {} s)",
                    node.address,
                    node.uptime()
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::KeyFact;
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .config("appendonly", "no")
            .config("save", "")
            .key(
                "jobs",
                KeyFact {
                    kind: Kind::List,
                    size: 40,
                    ..KeyFact::default()
                },
            )
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .config("appendonly", "no")
            .config("save", "")
            .info("uptime_in_seconds", "90")
            .key(
                "jobs",
                KeyFact {
                    kind: Kind::List,
                    size: 40,
                    ..KeyFact::default()
                },
            )
            .must_be_quiet();
    }
}
