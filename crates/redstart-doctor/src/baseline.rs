//! An earlier run to compare with.

use std::collections::BTreeMap;

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
    /// A finding that became worse counts as new.
    pub fn compare(&self, report: &mut Report) -> Comparison {
        let before: BTreeMap<(&str, &str), &Finding> = self
            .0
            .iter()
            .map(|finding| (finding.identity(), finding))
            .collect();
        let all = report.findings.len();
        let gone = self
            .0
            .iter()
            .filter(|old| {
                !report
                    .findings
                    .iter()
                    .any(|new| new.identity() == old.identity())
            })
            .cloned()
            .collect();
        report.findings.retain(|new| {
            before
                .get(&new.identity())
                .is_none_or(|old| new.severity > old.severity)
        });
        Comparison {
            new: report.findings.len(),
            known: all - report.findings.len(),
            gone,
        }
    }
}
