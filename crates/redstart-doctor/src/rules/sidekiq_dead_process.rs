//! A Sidekiq process died with work.
//!
//! A process of Sidekiq is registered, has not beaten for a minute, and its work list is not empty. Basic fetch
//! takes jobs with BRPOP, so what it had is gone when the list expires.

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
    about: "A process of Sidekiq is registered, has not beaten for a minute, and its work list is not empty. Basic fetch takes jobs with BRPOP, so what it had is gone when the list expires.",
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
    if let Some(sidekiq) = facts
        .libraries
        .sidekiq
        .as_ref()
        .filter(|sidekiq| sidekiq.dead_with_work > 0)
    {
        out.add(
            Subject::setting("Sidekiq"),
            0.88,
            format!(
                "{} of {} processes no longer beat and have {} jobs",
                sidekiq.dead_with_work, sidekiq.processes, sidekiq.work
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Sidekiq;
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        {
            let mut world = World::new();
            world.0.libraries.sidekiq = Some(Sidekiq {
                processes: 2,
                dead_with_work: 1,
                work: 3,
            });
            world
        }
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        {
            let mut world = World::new();
            world.0.libraries.sidekiq = Some(Sidekiq {
                processes: 2,
                ..Sidekiq::default()
            });
            world
        }
        .must_be_quiet();
    }
}
