//! Job hashes that no state of the queue mentions.
//!
//! A job hash is in none of the lists and sets of its queue: a script of another version, a manual DEL of a list,
//! or an eviction took the id away. BullMQ never looks at it again.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule},
};

use super::bullmq;

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
    bullmq::each(facts, out, |queue| {
        let confidence = if queue.orphans >= 2 { 0.9 } else { 0.8 };
        let evidence = format!(
            "{} of {} job hashes looked at were in no state of the queue on two looks {:.0} s apart",
            queue.orphans, queue.jobs_checked, facts.gap
        );
        (queue.orphans > 0).then_some((confidence, evidence))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{library::BullQueue, rules::bullmq::world};

    #[test]
    fn it_is_found() {
        world(BullQueue {
            orphans: 3,
            jobs_checked: 20,
            ..BullQueue::default()
        })
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(BullQueue {
            orphans: 0,
            jobs_checked: 20,
            ..BullQueue::default()
        })
        .must_be_quiet();
    }
}
