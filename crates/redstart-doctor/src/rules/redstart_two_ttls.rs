//! Processes give one cache different TTLs.
//!
//! Entries of one cache are filled by processes with clearly different TTLs. Which one a reader meets depends on
//! who filled it. The rule compares the arguments of the fill script per connection, beyond what jitter explains.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "redstart-two-ttls",
    title: "Processes give one cache different TTLs",
    family: Family::Redstart,
    stage: Stage::Observed,
    severity: Severity::Medium,
    about: "Entries of one cache are filled by processes with clearly different TTLs. Which one a reader meets depends on who filled it. The rule compares the arguments of the fill script per connection, beyond what jitter explains.",
    timeline: &[
        "api-1 runs with a TTL of 60 s",
        "api-2 was deployed with an hour",
        "prices are a minute old, or an hour",
    ],
    effect: "how old a value may be depends on which process filled it",
    fix: "deploy one setting everywhere, or use another name or schema for the cache",
    pattern: "cache_aside",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let Some(trace) = &facts.trace else { return };
    for (cache, shortest, longest) in trace.settings.two_ttls() {
        out.add(
            Subject::keys(text::printable(cache.as_bytes())),
            0.85,
            format!(
                "connections fill it with TTLs of up to {:.0} s and of {:.0} s and more",
                shortest / 1000.0,
                longest / 1000.0
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;
    use crate::rules::world::digest;
    #[test]
    fn it_is_found() {
        {
            let fill = digest("cache.fill");
            let line = |client: &str, ttl: u32| {
                format!("{client} EVALSHA {fill} 3 shop:cache.p:{{#}} l e t v {ttl}")
            };
            World::new().rounds(4, &[&line("a", 60_000), &line("b", 3_600_000)])
        }
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        {
            let fill = digest("cache.fill");
            let line = |client: &str, ttl: u32| {
                format!("{client} EVALSHA {fill} 3 shop:cache.p:{{#}} l e t v {ttl}")
            };
            World::new().rounds(4, &[&line("a", 60_000), &line("b", 63_000)])
        }
        .must_be_quiet();
    }
}
