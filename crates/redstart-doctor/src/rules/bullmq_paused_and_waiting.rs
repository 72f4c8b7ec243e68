//! A queue has both waiting and paused jobs.
//!
//! Pausing renames wait to paused, so only one of the two lists can have jobs. Both have: versions that treat
//! pausing differently work on one queue, or a list was written by hand.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

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
    fix: "let all processes use one version; move the jobs by queue.add and remove the extra list",
    pattern: "keep BullMQ: let all processes use one version",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for queue in facts
        .libraries
        .bull
        .iter()
        .filter(|queue| queue.wait > 0 && queue.paused > 0)
    {
        out.add(
            Subject::keys(format!("BullMQ queue {}", queue.name)),
            0.9,
            format!("{} jobs wait and {} are paused", queue.wait, queue.paused),
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
                wait: 4,
                paused: 9,
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
                wait: 0,
                paused: 9,
                ..BullQueue::default()
            });
            world
        }
        .must_be_quiet();
    }
}
