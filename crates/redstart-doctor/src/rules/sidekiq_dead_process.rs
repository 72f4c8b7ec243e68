//! A Sidekiq process died with work.
//!
//! A process of Sidekiq is registered and has not beaten for 25 s or more, by the time that its key has left on two
//! looks, and its work list is not empty. Basic fetch takes jobs with BRPOP, so what it had is gone when the list
//! expires, a minute after the last beat. After that minute only the process's name is left: it did not end as it
//! should, and whether it had work cannot be seen.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "sidekiq-dead-process",
    title: "A Sidekiq process died with work",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "A process of Sidekiq is registered and has not beaten for 25 s or more, by the time that its key has left on two looks, and its work list is not empty. Basic fetch takes jobs with BRPOP, so what it had is gone when the list expires, a minute after the last beat. After that minute only the process's name is left: it did not end as it should, and whether it had work cannot be seen.",
    timeline: &[
        "process p takes 10 jobs",
        "the kernel kills it",
        "its jobs are in no queue; the list of its work expires",
    ],
    effect: "the jobs that the process had are lost",
    fix: "run the jobs again; Sidekiq Pro with super_fetch keeps jobs of killed processes; make jobs idempotent",
    pattern: "keep Sidekiq: super_fetch, or redstart queue for jobs that must not be lost",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let Some(sidekiq) = &facts.libraries.sidekiq else {
        return;
    };
    let subject = || Subject::setting("Sidekiq");
    if sidekiq.dead_with_work > 0 {
        let evidence = format!(
            "{} of {} processes no longer beat and have {} jobs",
            sidekiq.dead_with_work, sidekiq.processes, sidekiq.work
        );
        out.add(subject(), 0.88, evidence);
    } else if sidekiq.vanished > 0 {
        let evidence = format!(
            "{} of {} registered processes ended without a shutdown; what they worked on is no longer known",
            sidekiq.vanished, sidekiq.processes
        );
        out.add_as(Severity::Medium, subject(), 0.7, evidence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Sidekiq;
    use crate::rules::world::World;

    fn world(sidekiq: Sidekiq) -> World {
        let mut world = World::new();
        world.0.libraries.sidekiq = Some(sidekiq);
        world
    }

    #[test]
    fn it_is_found() {
        world(Sidekiq {
            processes: 2,
            dead_with_work: 1,
            work: 3,
            ..Sidekiq::default()
        })
        .must_show(RULE.id);
        world(Sidekiq {
            processes: 2,
            vanished: 1,
            ..Sidekiq::default()
        })
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(Sidekiq {
            processes: 2,
            ..Sidekiq::default()
        })
        .must_be_quiet();
    }
}
