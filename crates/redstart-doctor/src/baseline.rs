//! An earlier run to compare with.

use crate::{
    error::{Error, Result},
    finding::Finding,
    report::Report,
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
    /// Findings that are no longer there.
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
    /// A finding that became worse counts as new. A report that is [redacted](Report::redact) can be compared with a baseline
    /// that is and with one that is not; the names of what is gone are hidden then too.
    pub fn compare(&self, report: &mut Report) -> Comparison {
        let redacted = report.redacted;
        let is = |old: &Finding, new: &Finding| {
            old.identity() == new.identity()
                || (redacted && old.rule == new.rule && old.hidden_subject() == new.subject)
        };
        let all = report.findings.len();
        let mut gone: Vec<Finding> = self
            .0
            .iter()
            .filter(|old| !report.findings.iter().any(|new| is(old, new)))
            .cloned()
            .collect();
        if redacted {
            for old in &mut gone {
                old.subject = old.hidden_subject();
            }
        }
        report.findings.retain(|new| {
            let old = self.0.iter().find(|old| is(old, new));
            old.is_none_or(|old| new.severity > old.severity)
        });
        Comparison {
            new: report.findings.len(),
            known: all - report.findings.len(),
            gone,
        }
    }
}
