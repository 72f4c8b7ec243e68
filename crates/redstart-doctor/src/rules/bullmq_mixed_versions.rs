//! Queues of different major versions of BullMQ.
//!
//! Queues on one server were last written by different major versions. Scripts of one version move jobs in ways the
//! other does not expect.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "bullmq-mixed-versions",
    title: "Queues of different major versions of BullMQ",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::Medium,
    about: "Queues on one server were last written by different major versions. Scripts of one version move jobs in ways the other does not expect.",
    timeline: &[
        "service A is upgraded, service B is not",
        "both add to and take from the same queues",
        "a script of B leaves a job where A never looks",
    ],
    effect: "jobs are left behind or run twice while versions are mixed",
    fix: "upgrade all producers and workers of a queue together",
    pattern: "keep BullMQ: upgrade all producers and workers of a queue together",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let major = |version: &str| {
        version
            .split(':')
            .next_back()
            .and_then(|version| version.split('.').next())
            .map(str::to_owned)
    };
    let mut majors: Vec<String> = facts
        .libraries
        .bull
        .iter()
        .filter_map(|queue| major(queue.version.as_deref()?))
        .collect();
    majors.sort();
    majors.dedup();
    if majors.len() > 1 {
        out.add(
            Subject::setting("BullMQ"),
            0.8,
            format!(
                "queues were last written by versions {}",
                majors.join(" and ")
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
            for version in ["bullmq:5.1.0", "bullmq:6.0.1"] {
                world.0.libraries.bull.push(BullQueue {
                    version: Some(version.into()),
                    ..BullQueue::default()
                });
            }
            world
        }
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        {
            let mut world = World::new();
            for version in ["bullmq:5.1.0", "bullmq:5.2.1"] {
                world.0.libraries.bull.push(BullQueue {
                    version: Some(version.into()),
                    ..BullQueue::default()
                });
            }
            world
        }
        .must_be_quiet();
    }
}
