//! Scripts take longer than 5 ms.
//!
//! While a script runs, nobody else is served. The rule looks at the mean time of EVAL, EVALSHA and FCALL, and at
//! SLOWLOG.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "slow-script",
    title: "Scripts take longer than 5 ms",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::High,
    about: "While a script runs, nobody else is served. The rule looks at the mean time of EVAL, EVALSHA and FCALL, and at SLOWLOG.",
    timeline: &[
        "a script loops over all members of a set",
        "40 ms for each call",
        "everybody else waits 40 ms, at each call",
    ],
    effect: "the latency of every client is that of the slowest script",
    fix: "bound the work of a script: a batch per call, indexes instead of loops, no KEYS or SMEMBERS in it",
    pattern: "every pattern of Redstart: bounded scripts, values in ARGV",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts.masters() {
        let slow = node
            .slow
            .iter()
            .filter(|entry| entry.command.starts_with("EVAL") || entry.command.starts_with("FCALL"))
            .filter(|entry| entry.micros >= 5_000);
        let (count, longest) = slow.fold((0u64, 0), |(count, longest), entry| {
            (count + 1, longest.max(entry.micros))
        });
        if count > 0 {
            // A machine that is short of time makes any command slow once; a slow script is slow often.
            let calls = node.calls("eval") + node.calls("evalsha") + node.calls("fcall");
            let confidence = if count >= 5 && count * 100 >= calls {
                0.9
            } else {
                0.6
            };
            out.add(
                Subject::setting("EVAL"),
                confidence,
                format!(
                    "{count} scripts in SLOWLOG took 5 ms and more, the longest {} ms ({})",
                    longest / 1000,
                    node.address
                ),
            );
        }
        for name in ["eval", "evalsha", "fcall"] {
            let stat = node.commands.get(name).copied().unwrap_or_default();
            if stat.calls >= 3 && stat.mean_micros() >= 5_000.0 {
                out.add(
                    Subject::setting("EVAL"),
                    0.9,
                    format!(
                        "{} calls of {} took {:.1} ms on average ({})",
                        stat.calls,
                        name.to_ascii_uppercase(),
                        stat.mean_micros() / 1000.0,
                        node.address
                    ),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new().command("eval", 12, 240_000).must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .command("evalsha", 12_000, 240_000)
            .must_be_quiet();
    }
}
