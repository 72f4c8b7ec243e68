//! Celery tasks scheduled beyond the visibility time-out.
//!
//! A worker takes a task with an ETA at once and holds it until its time. If that is later than the visibility
//! time-out, the message is given to another worker, again and again: the task runs several times. Keys do not show the
//! time-out: the rule takes the default of an hour, or the age of the oldest message where a connected worker shows
//! that its time-out is longer.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "celery-eta-beyond-visibility",
    title: "Celery tasks scheduled beyond the visibility time-out",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "A worker takes a task with an ETA at once and holds it until its time. If that is later than the visibility time-out, the message is given to another worker, again and again: the task runs several times. Keys do not show the time-out: the rule takes the default of an hour, or the age of the oldest message where a connected worker shows that its time-out is longer.",
    timeline: &[
        "apply_async(countdown=7200)",
        "after an hour: given to a second worker",
        "at its time both run it",
    ],
    effect: "tasks run once per hour of their delay",
    fix: "visibility_timeout above the longest countdown, or a scheduler (beat, a table) for long delays",
    pattern: "keep Celery: raise visibility_timeout, or scheduled jobs of redstart queue",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let Some(celery) = &facts.libraries.celery else {
        return;
    };
    if celery.far_eta > 0 {
        out.add(
            Subject::setting("Celery"),
            0.75,
            format!(
                "{} of the messages looked at are due more than {:.0} minutes after their delivery; fine if visibility_timeout is above that",
                celery.far_eta,
                celery.visibility() / 60.0
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Celery;
    use crate::rules::world::World;

    fn world(far_eta: u64) -> World {
        let mut world = World::new();
        world.0.libraries.celery = Some(Celery {
            unacked: 3,
            oldest: 90.0,
            worker: Some(true),
            far_eta,
        });
        world
    }

    #[test]
    fn it_is_found() {
        world(2).must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(0).must_be_quiet();
    }
}
