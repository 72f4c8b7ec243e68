//! FLUSHALL or FLUSHDB in live traffic.
//!
//! FLUSHALL deletes everything that anybody keeps on the server. In live traffic it is a test, a deploy script or a
//! mistake. After the fact the statistics cannot tell it from the preparation of an empty server, so only live
//! traffic makes it sure.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "flush-command",
    title: "FLUSHALL or FLUSHDB in live traffic",
    family: Family::Operation,
    stage: Stage::Observed,
    severity: Severity::High,
    about: "FLUSHALL deletes everything that anybody keeps on the server. In live traffic it is a test, a deploy script or a mistake. After the fact the statistics cannot tell it from the preparation of an empty server, so only live traffic makes it sure.",
    timeline: &[
        "a deploy script clears the cache: FLUSHALL",
        "sessions, locks and the job queue are on the same server",
        "everybody is logged out, and the jobs are gone",
    ],
    effect: "everything that others keep on the same server is deleted",
    fix: "a namespace or database per use, UNLINK by SCAN or by tag; ACL: -@dangerous for applications; rename the commands away",
    pattern: "cache_tags",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let mut observed = 0;
    if let Some(trace) = &facts.trace {
        observed = trace.commands.get("FLUSHALL").copied().unwrap_or(0)
            + trace.commands.get("FLUSHDB").copied().unwrap_or(0);
    }
    let calls = facts.calls("flushall") + facts.calls("flushdb");
    if observed > 0 {
        out.add(
            Subject::setting("FLUSHALL"),
            0.95,
            format!("{observed} calls in the time observed"),
        );
    } else if calls > 0 {
        out.add(
            Subject::setting("FLUSHALL"),
            0.4,
            format!("{calls} calls since the server started"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new()
            .traffic(&["a SET k v", "b FLUSHALL"])
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new().command("flushall", 2, 90).must_be_quiet();
    }
}
