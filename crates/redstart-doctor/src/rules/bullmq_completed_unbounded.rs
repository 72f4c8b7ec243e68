//! Completed jobs are kept forever.
//!
//! BullMQ keeps completed and failed jobs unless removeOnComplete and removeOnFail say otherwise. The rule looks
//! for sets of 5,000 and more.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule},
};

use super::bullmq;

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "bullmq-completed-unbounded",
    title: "Completed jobs are kept for ever",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::Low,
    about: "BullMQ keeps completed and failed jobs unless removeOnComplete and removeOnFail say otherwise. The rule looks for sets of 5,000 and more.",
    timeline: &[
        "defaults: every job is kept",
        "10 jobs a second: a million a day",
        "memory is full in a month",
    ],
    effect: "memory grows with every job",
    fix: "removeOnComplete: { age: 3600, count: 1000 } and removeOnFail for new jobs; queue.clean for old ones",
    pattern: "keep BullMQ: removeOnComplete: { age: 3600, count: 1000 } and removeOnFail for new jobs",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    bullmq::each(facts, out, |queue| {
        let kept = queue.completed.max(queue.failed);
        let confidence = if kept >= 50_000 { 0.9 } else { 0.75 };
        let evidence = format!(
            "{} completed and {} failed jobs are kept",
            text::count(queue.completed),
            text::count(queue.failed)
        );
        (kept >= 5_000).then_some((confidence, evidence))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{library::BullQueue, rules::bullmq::world};

    #[test]
    fn it_is_found() {
        world(BullQueue {
            completed: 90_000,
            ..BullQueue::default()
        })
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(BullQueue {
            completed: 900,
            ..BullQueue::default()
        })
        .must_be_quiet();
    }
}
