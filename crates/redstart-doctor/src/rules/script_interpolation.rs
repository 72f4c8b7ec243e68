//! Values are written into the text of scripts.
//!
//! A script with its values in the text is a new script each time: it is compiled again, kept in the cache of
//! scripts, and may be changed by anyone who supplies the value. The rule counts cached scripts, and texts in live
//! traffic that differ only in their literals.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "script-interpolation",
    title: "Values are written into the text of scripts",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::Medium,
    about: "A script with its values in the text is a new script each time: it is compiled again, kept in the cache of scripts, and may be changed by whoever supplies the value. The rule counts cached scripts, and texts in live traffic that differ only in their literals.",
    timeline: &[
        "EVAL \"return redis.call('get', 'user:7')\" 0",
        "a million users: a million scripts in memory",
        "a user called x') redis.call('flushall",
    ],
    effect: "memory that eviction does not free grows with every value; injection of commands",
    fix: "EVAL text numkeys key … arg …, with KEYS and ARGV in the text; then EVALSHA",
    pattern: "every pattern of Redstart: bounded scripts, values in ARGV",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    if let Some(trace) = &facts.trace {
        let (same, bodies) = (trace.scripts.interpolated(), trace.scripts.bodies());
        if same >= 5 {
            out.add_as(
                Severity::High,
                Subject::setting("EVAL"),
                0.95,
                format!(
                    "proven: {same} of {bodies} texts differ only in numbers and quoted strings"
                ),
            );
        }
    }
    for node in facts.masters() {
        let cached = node.number("number_of_cached_scripts").unwrap_or(0);
        let evals = node.calls("eval");
        if cached >= 100 && evals >= cached / 2 {
            out.add(
                Subject::setting("EVAL"),
                if cached >= 500 { 0.88 } else { 0.75 },
                format!(
                    "{} scripts in the cache after {} calls of EVAL ({})",
                    text::count(cached),
                    text::count(evals),
                    node.address
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new()
            .info("number_of_cached_scripts", "4000")
            .command("eval", 5000, 250_000)
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .info("number_of_cached_scripts", "40")
            .command("evalsha", 5000, 250_000)
            .must_be_quiet();
    }
}
