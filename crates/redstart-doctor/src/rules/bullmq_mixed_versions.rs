//! Different versions of BullMQ work on one queue.
//!
//! A queue notes the version that wrote it last. Between two looks it changed from one major version to another, so
//! processes of both work on it. Scripts of one version move jobs in ways the other does not expect.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule},
};

use super::bullmq;

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "bullmq-mixed-versions",
    title: "Different versions of BullMQ work on one queue",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::Medium,
    about: "A queue notes the version that wrote it last. Between two looks it changed from one major version to another, so processes of both work on it. Scripts of one version move jobs in ways the other does not expect.",
    timeline: &[
        "service A is upgraded, service B is not",
        "both add to and take from the same queue",
        "a script of B leaves a job where A never looks",
    ],
    effect: "jobs are left behind or run twice while versions are mixed",
    fix: "upgrade all producers and workers of a queue together; until then pause and resume it by BullQueue::pause and BullQueue::resume of redstart-adopt",
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
    bullmq::each(facts, out, |queue| {
        let before = queue.version.as_deref().and_then(major)?;
        let after = queue.version_later.as_deref().and_then(major)?;
        let evidence = format!(
            "it was written by version {before} and {:.0} s later by version {after}",
            facts.gap
        );
        (before != after).then_some((0.88, evidence))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{library::BullQueue, rules::bullmq::world};

    #[test]
    fn it_is_found() {
        world(BullQueue {
            version: Some("bullmq:6.0.1".into()),
            version_later: Some("bullmq:5.1.0".into()),
            ..BullQueue::default()
        })
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        world(BullQueue {
            version: Some("bullmq:5.1.0".into()),
            version_later: Some("bullmq:5.2.1".into()),
            ..BullQueue::default()
        })
        .must_be_quiet();
    }
}
