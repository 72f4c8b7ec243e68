//! Ids in a queue whose job is gone.
//!
//! A list or set of the queue names a job whose hash does not exist: it was evicted, expired or deleted. A worker
//! that takes the id fails with Missing key for job.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule},
};

use super::bullmq;

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "bullmq-missing-jobs",
    title: "Ids in a queue whose job is gone",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "A list or set of the queue names a job whose hash does not exist: it was evicted, expired or deleted. A worker that takes the id fails with Missing key for job.",
    timeline: &[
        "an evicting policy removes bull:mail:42",
        "its id stays in wait",
        "the worker: Missing key for job 42",
    ],
    effect: "jobs are lost, and workers fail on their ids",
    fix: "set maxmemory-policy noeviction and remove the ids by queue.clean or job.remove; never delete job hashes by hand",
    pattern: "keep BullMQ: set maxmemory-policy noeviction and remove the ids by queue.clean or job.remove",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    bullmq::each(facts, out, |queue| {
        let evidence = format!(
            "{} of {} ids looked at had no job on two looks {:.0} s apart",
            queue.missing, queue.checked, facts.gap
        );
        (queue.missing > 0).then_some((0.92, evidence))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{library::BullQueue, rules::bullmq::world};

    #[test]
    fn it_is_found() {
        world(BullQueue {
            missing: 2,
            checked: 20,
            ..BullQueue::default()
        })
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(BullQueue {
            missing: 0,
            checked: 20,
            ..BullQueue::default()
        })
        .must_be_quiet();
    }
}
