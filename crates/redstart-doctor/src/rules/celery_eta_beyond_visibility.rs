//! Celery tasks scheduled beyond the visibility time-out.
//!
//! A worker takes a task with an ETA at once and holds it until its time. If that is later than the visibility
//! time-out, the message is given to another worker, again and again: the task runs several times.

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
    about: "A worker takes a task with an ETA at once and holds it until its time. If that is later than the visibility time-out, the message is given to another worker, again and again: the task runs several times.",
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
            0.88,
            format!(
                "{} of the messages looked at are due after the visibility time-out of an hour",
                celery.far_eta
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
                oldest: 90.0,
                far_eta: 2,
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
