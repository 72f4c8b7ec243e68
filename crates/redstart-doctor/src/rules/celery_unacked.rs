//! Celery messages unacknowledged beyond the visibility time-out.
//!
//! Celery keeps a message in unacked while a worker has it, and gives it back after the visibility time-out of an hour.
//! Older ones while no worker is connected wait for a worker that does not come. While one is connected they only
//! show that its time-out is longer, because a worker gives back what is older than that.

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
    about: "Celery keeps a message in unacked while a worker has it, and gives it back after the visibility time-out of an hour. Older ones while no worker is connected wait for a worker that does not come. While one is connected they only show that its time-out is longer, because a worker gives back what is older than that.",
    timeline: &[
        "a worker takes a task",
        "the worker is killed, and no other one runs",
        "the message stays in unacked: only a worker gives it back",
    ],
    effect: "tasks wait for a worker that does not come",
    fix: "start a worker on the same broker, it gives the messages back; visibility_timeout longer than the longest task; acks_late with idempotent tasks",
    pattern: "keep Celery: start a worker",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let Some(celery) = &facts.libraries.celery else {
        return;
    };
    // An hour is the default.
    if celery.unacked == 0 || celery.oldest <= 3600.0 {
        return;
    }
    let minutes = celery.oldest / 60.0;
    let seen = format!(
        "{} unacknowledged messages, the oldest for {minutes:.0} minutes",
        celery.unacked
    );
    let (confidence, evidence) = match celery.worker {
        Some(false) => (0.88, format!("{seen}, and no client waits for messages")),
        None => (
            0.6,
            format!("{seen}; whether a worker is connected was not seen"),
        ),
        Some(true) => (
            0.4,
            format!(
                "{seen}; a client waits for messages, so if that is a worker its visibility time-out is above that"
            ),
        ),
    };
    out.add(Subject::setting("Celery"), confidence, evidence);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Celery;
    use crate::rules::world::World;

    fn world(oldest: f64, worker: Option<bool>) -> World {
        let mut world = World::new();
        world.0.libraries.celery = Some(Celery {
            unacked: 3,
            oldest,
            worker,
            far_eta: 0,
        });
        world
    }

    #[test]
    fn it_is_found() {
        world(9000.0, Some(false)).must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(90.0, Some(false)).must_be_quiet();
        world(9000.0, None).must_be_quiet();
    }

    #[test]
    fn a_longer_time_out_is_not_accused_while_a_worker_lives() {
        world(9000.0, Some(true)).must_be_quiet();
    }
}
