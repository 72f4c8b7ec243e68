//! Active jobs that no worker holds.
//!
//! A job is in the active list and has no lock on both looks: its worker died, and no worker checks for stalled
//! jobs.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

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
    for queue in facts
        .libraries
        .bull
        .iter()
        .filter(|queue| queue.unlocked > 0)
    {
        out.add(
            Subject::keys(format!("BullMQ queue {}", queue.name)),
            0.85,
            format!(
                "{} of {} active jobs had no lock on two looks {:.0} s apart",
                queue.unlocked, queue.active, facts.gap
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
                unlocked: 1,
                active: 1,
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
                unlocked: 0,
                active: 4,
                ..BullQueue::default()
            });
            world
        }
        .must_be_quiet();
    }
}
