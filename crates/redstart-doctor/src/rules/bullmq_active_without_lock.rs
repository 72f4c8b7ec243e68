//! Active jobs that no worker holds.
//!
//! A job is in the active list and has no lock on both looks: its worker died, and no worker checks for stalled
//! jobs.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule},
};

use super::bullmq;

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "bullmq-active-without-lock",
    title: "Active jobs that no worker holds",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "A job is in the active list and has no lock on both looks: its worker died, and no worker checks for stalled jobs.",
    timeline: &[
        "a worker takes job 42 and is killed",
        "its lock expires after 30 s",
        "no other worker runs: nobody moves it back",
    ],
    effect: "the job is never done unless a worker with stalled checks runs",
    fix: "start a worker for the queue; it moves stalled jobs back to wait",
    pattern: "keep BullMQ: start a worker for the queue",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    bullmq::each(facts, out, |queue| {
        let evidence = format!(
            "{} of {} active jobs had no lock on two looks {:.0} s apart",
            queue.unlocked, queue.active, facts.gap
        );
        (queue.unlocked > 0).then_some((0.85, evidence))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{library::BullQueue, rules::bullmq::world};

    #[test]
    fn it_is_found() {
        world(BullQueue {
            unlocked: 1,
            active: 1,
            ..BullQueue::default()
        })
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(BullQueue {
            unlocked: 0,
            active: 4,
            ..BullQueue::default()
        })
        .must_be_quiet();
    }
}
