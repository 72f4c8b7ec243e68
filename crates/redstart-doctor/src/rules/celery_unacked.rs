//! Celery messages unacknowledged beyond the visibility time-out.
//!
//! Celery keeps a message in unacked while a worker has it, and gives it back after the visibility time-out of an
//! hour. Older ones mean that no worker does so, or that tasks run longer than the time-out and are run twice.

use crate::collect::library::VISIBILITY;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "celery-unacked",
    title: "Celery messages unacknowledged beyond the visibility time-out",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "Celery keeps a message in unacked while a worker has it, and gives it back after the visibility time-out of an hour. Older ones mean that no worker does so, or that tasks run longer than the time-out and are run twice.",
    timeline: &[
        "a worker takes a task of 90 minutes",
        "after 60 minutes the message is given to another",
        "the task runs twice",
    ],
    effect: "tasks are run twice, or wait for a worker that does not come",
    fix: "broker_transport_options = {\"visibility_timeout\": longer than the longest task}; acks_late with idempotent tasks",
    pattern: "keep Celery: raise visibility_timeout",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let Some(celery) = &facts.libraries.celery else {
        return;
    };
    if celery.unacked > 0 && celery.oldest > VISIBILITY {
        out.add(
            Subject::setting("Celery"),
            0.88,
            format!(
                "{} unacknowledged messages, the oldest for {:.0} minutes",
                celery.unacked,
                celery.oldest / 60.0
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Celery;
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        {
            let mut world = World::new();
            world.0.libraries.celery = Some(Celery {
                unacked: 3,
                oldest: 9000.0,
                far_eta: 0,
            });
            world
        }
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        {
            let mut world = World::new();
            world.0.libraries.celery = Some(Celery {
                unacked: 3,
                oldest: 90.0,
                far_eta: 0,
            });
            world
        }
        .must_be_quiet();
    }
}
