//! Job hashes that no state of the queue mentions.
//!
//! A job hash is in none of the lists and sets of its queue: a script of another version, a manual DEL of a list,
//! or an eviction took the id away. BullMQ never looks at it again.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "bullmq-orphan-jobs",
    title: "Job hashes that no state of the queue mentions",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::Medium,
    about: "A job hash is in none of the lists and sets of its queue: a script of another version, a manual DEL of a list, or an eviction took the id away. BullMQ never looks at it again.",
    timeline: &[
        "DEL bull:mail:wait to empty the queue",
        "the job hashes stay",
        "nobody ever runs or removes them",
    ],
    effect: "jobs that never run and never leave; memory grows",
    fix: "add the jobs again with queue.add and remove the hashes; use queue.drain or obliterate instead of DEL",
    pattern: "keep BullMQ: add the jobs again with queue.add and remove the hashes",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for queue in facts
        .libraries
        .bull
        .iter()
        .filter(|queue| queue.orphans > 0)
    {
        let confidence = if queue.orphans >= 2 { 0.9 } else { 0.8 };
        out.add(
            Subject::keys(format!("BullMQ queue {}", queue.name)),
            confidence,
            format!(
                "{} of {} job hashes looked at are in no state of the queue",
                queue.orphans, queue.jobs_checked
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::BullQueue;
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        {
            let mut world = World::new();
            world.0.libraries.bull.push(BullQueue {
                name: "bull:mail".into(),
                orphans: 3,
                jobs_checked: 20,
                ..BullQueue::default()
            });
            world
        }
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        {
            let mut world = World::new();
            world.0.libraries.bull.push(BullQueue {
                name: "bull:mail".into(),
                orphans: 0,
                jobs_checked: 20,
                ..BullQueue::default()
            });
            world
        }
        .must_be_quiet();
    }
}
