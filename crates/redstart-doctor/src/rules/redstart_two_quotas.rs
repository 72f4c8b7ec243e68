//! Processes give one limiter different quotas.
//!
//! The state of a subject belongs to its quota. If two processes have different quotas for one limiter, the subject has
//! a budget with each of them, and may use both. The rule compares the keys of the limiter scripts. Quotas that one
//! connection uses beside each other are plans and are not reported.

use crate::pattern;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "redstart-two-quotas",
    title: "Processes give one limiter different quotas",
    family: Family::Redstart,
    stage: Stage::Observed,
    severity: Severity::High,
    about: "The state of a subject belongs to its quota. If two processes have different quotas for one limiter, the subject has a budget with each of them, and may use both. The rule compares the keys of the limiter scripts. Quotas that one connection uses beside each other are plans and are not reported.",
    timeline: &[
        "api-1 runs with 100 per minute",
        "api-2 was deployed with 1000 per minute",
        "a subject that api-1 refuses is admitted by api-2: 1100 per minute",
    ],
    effect: "the limit depends on which process a request reaches, and is the sum of all of them",
    fix: "deploy one setting everywhere, or use another name for the limiter with the new quota",
    pattern: "token_bucket",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let Some(trace) = &facts.trace else { return };
    let mut found: std::collections::BTreeMap<String, (u64, usize)> =
        std::collections::BTreeMap::new();
    for (key, quotas) in trace.settings.two_quotas() {
        let (keys, most) = found
            .entry(pattern::generalise(key.as_bytes()))
            .or_default();
        *keys += 1;
        *most = (*most).max(quotas);
    }
    for (subject, (keys, quotas)) in found {
        out.add(Subject::keys(subject), 0.9, format!("{keys} subjects were asked for with up to {quotas} different quotas by different connections"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;
    use crate::rules::world::digest;
    #[test]
    fn it_is_found() {
        let check = digest("fixed_window.check");
        World::new()
            .traffic(&[
                &format!("a EVALSHA {check} 1 shop:limiter.api:{{7}}:f100/60000 1 100 60000"),
                &format!("b EVALSHA {check} 1 shop:limiter.api:{{7}}:f1000/60000 1 1000 60000"),
            ])
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        let check = digest("fixed_window.check");
        World::new()
            .traffic(&[
                &format!("a EVALSHA {check} 1 shop:limiter.api:{{7}}:f100/60000 1 100 60000"),
                &format!("b EVALSHA {check} 1 shop:limiter.api:{{7}}:f100/60000 5 100 60000"),
            ])
            .must_be_quiet();
    }

    #[test]
    fn plans_with_quotas_of_their_own_are_no_mistake() {
        let check = digest("fixed_window.check");
        World::new()
            .traffic(&[
                // Subject 7 has changed its plan.
                &format!("a EVALSHA {check} 1 shop:limiter.api:{{7}}:f100/60000 1 100 60000"),
                &format!("b EVALSHA {check} 1 shop:limiter.api:{{7}}:f1000/60000 1 1000 60000"),
                &format!("a EVALSHA {check} 1 shop:limiter.api:{{8}}:f1000/60000 1 1000 60000"),
            ])
            .must_be_quiet();
    }
}
