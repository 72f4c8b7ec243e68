//! An earlier run to compare with.

use crate::{
    error::{Error, Result},
    finding::{Finding, SURE},
    report::Report,
    rules::rule,
};

/// The findings of an earlier run: what `--json` printed.
#[derive(Clone, Debug, Default)]
pub struct Baseline(Vec<Finding>);

/// What changed since the baseline.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Comparison {
    /// Findings that were not there.
    pub new: usize,
    /// Findings that were there and still are.
    pub known: usize,
    /// Findings that are no longer there, although the stage of their rule ran to its end. A rule of the sampled stage may have
    /// found one in the traffic: compare runs of the same stages.
    pub gone: Vec<Finding>,
}

impl Baseline {
    /// Reads what an earlier run printed: one JSON object per line.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] with the line that is not a finding.
    pub fn parse(text: &str) -> Result<Self> {
        text.lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(i, line)| {
                serde_json::from_str(line)
                    .map_err(|error| Error::Usage(format!("baseline, line {}: {error}", i + 1)))
            })
            .collect::<Result<Vec<_>>>()
            .map(Self)
    }

    /// Leaves only what is new in the report, and says what else changed.
    ///
    /// A finding that became worse, or sure, counts as new. A report that is [redacted](Report::redact) can be compared with a baseline
    /// that is and with one that is not; the names of what is gone are hidden then too.
    pub fn compare(&self, report: &mut Report) -> Comparison {
        let redacted = report.redacted;
        let is = |old: &Finding, new: &Finding| {
            old.identity() == new.identity()
                || (redacted && old.rule == new.rule && old.hidden_subject() == new.subject)
        };
        let all = report.findings.len();
        // What a stage that did not run would have found is not gone, nor is what was not reached.
        let looked = |old: &Finding| {
            !report.partial
                && rule(&old.rule).is_none_or(|rule| {
                    let mut stages = report.stages.iter();
                    stages.any(|stage| stage.stage == rule.stage && stage.ran)
                })
        };
        let accepted = report.suppressed.iter().map(|(finding, _)| finding);
        let there: Vec<&Finding> = report.findings.iter().chain(accepted).collect();
        let mut gone: Vec<Finding> = self
            .0
            .iter()
            .filter(|old| looked(old) && !there.iter().any(|new| is(old, new)))
            .cloned()
            .collect();
        if redacted {
            for old in &mut gone {
                old.subject = old.hidden_subject();
            }
        }
        report.findings.retain(|new| {
            let old = self.0.iter().find(|old| is(old, new));
            old.is_none_or(|old| {
                new.severity > old.severity || (old.confidence < SURE && new.confidence >= SURE)
            })
        });
        Comparison {
            new: report.findings.len(),
            known: all - report.findings.len(),
            gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{finding::Severity, observation::Stage, report::StageReport};

    fn finding(rule: &str, confidence: f64, severity: Severity) -> Finding {
        Finding {
            rule: rule.to_owned(),
            severity,
            confidence,
            subject: "lock:report".to_owned(),
            evidence: String::new(),
            effect: String::new(),
            fix: String::new(),
            pattern: String::new(),
            names_keys: true,
        }
    }

    /// A report of a run of these stages.
    fn report(stages: &[Stage], findings: Vec<Finding>) -> Report {
        let mut report = Report::empty();
        report.findings = findings;
        report.stages = [Stage::Free, Stage::Sampled, Stage::Observed]
            .map(|stage| StageReport::of(stage, stages.contains(&stage)))
            .into();
        report
    }

    const ALL: [Stage; 3] = [Stage::Free, Stage::Sampled, Stage::Observed];
    const LOCK: &str = "lock-without-ttl";

    fn baseline(findings: Vec<Finding>) -> Baseline {
        Baseline::parse(&report(&ALL, findings).json()).expect("a baseline")
    }

    #[test]
    fn what_became_sure_or_worse_is_new() {
        for (old, new, is_new) in [
            ((0.6, Severity::High), (0.9, Severity::High), true),
            ((0.6, Severity::High), (0.7, Severity::High), true),
            ((0.9, Severity::Medium), (0.9, Severity::High), true),
            ((0.9, Severity::High), (0.6, Severity::High), false),
            ((0.8, Severity::High), (0.9, Severity::High), false),
            ((0.3, Severity::High), (0.6, Severity::High), false),
        ] {
            let before = baseline(vec![finding(LOCK, old.0, old.1)]);
            let mut now = report(&ALL, vec![finding(LOCK, new.0, new.1)]);
            let comparison = before.compare(&mut now);
            assert_eq!(now.findings.len(), usize::from(is_new), "{old:?} {new:?}");
            assert_eq!(comparison.new + comparison.known, 1);
            assert!(comparison.gone.is_empty());
        }
    }

    #[test]
    fn only_what_could_have_been_found_is_gone() {
        let before = || baseline(vec![finding(LOCK, 0.9, Severity::High)]);
        let gone = |mut now: Report| before().compare(&mut now).gone.len();
        assert_eq!(gone(report(&ALL, Vec::new())), 1);
        // The stage that would see it did not run.
        assert_eq!(gone(report(&[Stage::Free], Vec::new())), 0);
        // It is there, and accepted.
        let mut accepted = report(&ALL, Vec::new());
        let reason = "rebuilt every night".to_owned();
        accepted.suppressed = vec![(finding(LOCK, 0.9, Severity::High), reason)];
        assert_eq!(gone(accepted), 0);
        // Not everything was looked at.
        let mut partial = report(&ALL, Vec::new());
        partial.partial = true;
        assert_eq!(gone(partial), 0);
    }

    #[test]
    fn names_that_are_hidden_are_compared() {
        let before = baseline(vec![finding(LOCK, 0.9, Severity::High)]);
        let mut now = report(&ALL, vec![finding(LOCK, 0.9, Severity::High)]);
        now.redact();
        let comparison = before.compare(&mut now);
        assert_eq!((comparison.new, comparison.known), (0, 1));
        let mut now = report(&ALL, Vec::new());
        now.redact();
        let gone = before.compare(&mut now).gone;
        assert!(gone[0].subject.starts_with("key-"), "{gone:?}");
    }
}
