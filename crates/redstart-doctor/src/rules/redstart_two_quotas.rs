//! Processes give one limiter different quotas.
//!
//! The quota of a limiter is part of each request. Two processes with different settings share the state of one
//! subject, and the limit is neither of the two. The rule compares the arguments of the limiter scripts per key.

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
    about: "The quota of a limiter is part of each request. Two processes with different settings share the state of one subject, and the limit is neither of the two. The rule compares the arguments of the limiter scripts per key.",
    timeline: &[
        "api-1 runs with 100 per minute",
        "api-2 was deployed with 1000 per minute",
        "the subject is refused by one and admitted by the other, at random",
    ],
    effect: "the limit depends on which process a request reaches",
    fix: "deploy one setting everywhere, or use another name for the limiter with the new quota",
    pattern: "token_bucket",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let Some(trace) = &facts.trace else { return };
    let mut found: std::collections::BTreeMap<String, (u64, usize)> =
        std::collections::BTreeMap::new();
    for (key, quotas) in trace.settings.two_quotas() {
        let (keys, most) = found.entry(pattern::generalise(key)).or_default();
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
        {
            let check = digest("fixed_window.check");
            World::new().traffic(&[
                &format!("a EVALSHA {check} 1 shop:limiter.api:{{7}} 1 100 60000"),
                &format!("b EVALSHA {check} 1 shop:limiter.api:{{7}} 1 1000 60000"),
            ])
        }
        .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        {
            let check = digest("fixed_window.check");
            World::new().traffic(&[
                &format!("a EVALSHA {check} 1 shop:limiter.api:{{7}} 1 100 60000"),
                &format!("b EVALSHA {check} 1 shop:limiter.api:{{7}} 5 100 60000"),
            ])
        }
        .must_be_quiet();
    }
}
