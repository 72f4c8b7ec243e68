//! A queue has both waiting and paused jobs.
//!
//! Pausing renames wait to paused, so only one of the two lists can have jobs. Both have: versions that treat
//! pausing differently work on one queue, or a list was written by hand.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule},
};

use super::bullmq;

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "bullmq-paused-and-waiting",
    title: "A queue has both waiting and paused jobs",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::Medium,
    about: "Pausing renames wait to paused, so only one of the two lists can have jobs. Both have: versions that treat pausing differently work on one queue, or a list was written by hand.",
    timeline: &[
        "a worker of another version adds to wait while the queue is paused",
        "resume renames paused to wait",
        "one of the two lists is overwritten",
    ],
    effect: "jobs in one of the lists are not run, or are lost at the next resume",
    fix: "resume the queue by BullQueue::resume of redstart-adopt, which merges both lists, or move the jobs first by `redstart adopt step`; then let all processes use one version",
    pattern: "keep BullMQ: let all processes use one version",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    bullmq::each(facts, out, |queue| {
        let evidence = format!("{} jobs wait and {} are paused", queue.wait, queue.paused);
        (queue.wait > 0 && queue.paused > 0).then_some((0.9, evidence))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{library::BullQueue, rules::bullmq::world};

    #[test]
    fn it_is_found() {
        world(BullQueue {
            wait: 4,
            paused: 9,
            ..BullQueue::default()
        })
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(BullQueue {
            wait: 0,
            paused: 9,
            ..BullQueue::default()
        })
        .must_be_quiet();
    }
}
