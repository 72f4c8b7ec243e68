//! What an examination found, and its forms for people and programs.

use std::time::Duration;

use crate::{
    collect::Blind,
    cost::Cost,
    finding::{Finding, SURE, Severity},
    observation::Stage,
};

pub(crate) mod html;
pub(crate) mod markdown;
pub(crate) mod sarif;

/// The result of an examination.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// What was examined, without credentials.
    pub target: String,
    /// The servers: address, role and version.
    pub servers: Vec<Server>,
    /// What each stage did.
    pub stages: Vec<StageReport>,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
    /// What a suppression hid, with its reason.
    pub suppressed: Vec<(Finding, String)>,
    /// What could not be seen.
    pub blinds: Vec<Blind>,
    /// The key patterns that were seen, the most common first.
    pub patterns: Vec<PatternSummary>,
    /// Libraries that were recognised.
    pub libraries: Vec<String>,
    /// What the examination cost.
    pub cost: Cost,
    /// How long it took.
    pub took: Duration,
    /// It was ended before it was done.
    pub interrupted: bool,
    /// A server could not be asked or observed to the end, or the run was ended: what is not in the report may be there all the same.
    pub partial: bool,
    /// The names of keys, streams and channels are hidden.
    pub redacted: bool,
}

/// One server.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Server {
    /// Where it is.
    pub address: String,
    /// Master or replica.
    pub role: &'static str,
    /// Its version, as it says.
    pub version: String,
}

/// What a stage did.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct StageReport {
    /// Which.
    pub stage: Stage,
    /// Whether it ran: a server answered what it begins with.
    pub ran: bool,
    /// Whether it was asked for. What a file cannot show never is.
    pub asked: bool,
    /// What it saw, or would see.
    pub note: String,
    /// How long it worked; waiting for the second look is not in it.
    pub took: Duration,
    /// Commands that it sent.
    pub commands: u64,
}

impl StageReport {
    /// What it cost, in words; `None` if it asked no server.
    pub fn cost(&self) -> Option<String> {
        (self.ran && self.commands > 0).then(|| {
            format!(
                "{} commands in {:.1} s",
                crate::text::count(self.commands),
                self.took.as_secs_f64()
            )
        })
    }

    /// What it saw and what that cost.
    pub(crate) fn account(&self) -> String {
        match self.cost() {
            Some(cost) => format!("{} ({cost})", self.note),
            None => self.note.clone(),
        }
    }
}

/// Keys of one pattern.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct PatternSummary {
    /// The pattern.
    pub pattern: String,
    /// The type of its keys.
    pub kind: &'static str,
    /// Names seen.
    pub seen: u64,
    /// The share of keys without TTL.
    pub without_ttl: f64,
    /// The library whose keys these are.
    pub library: Option<String>,
}

#[cfg(test)]
impl StageReport {
    pub(crate) fn of(stage: Stage, ran: bool) -> Self {
        Self {
            stage,
            ran,
            asked: true,
            note: String::new(),
            took: Duration::ZERO,
            commands: 0,
        }
    }
}

impl Report {
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self {
            target: String::new(),
            servers: Vec::new(),
            stages: Vec::new(),
            findings: Vec::new(),
            suppressed: Vec::new(),
            blinds: Vec::new(),
            patterns: Vec::new(),
            libraries: Vec::new(),
            cost: Cost::default(),
            took: Duration::ZERO,
            interrupted: false,
            partial: false,
            redacted: false,
        }
    }

    /// Findings that are sure enough to count.
    pub fn sure(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.confidence >= SURE)
    }

    /// Whether a sure finding is at least this bad.
    pub fn fails(&self, from: Severity) -> bool {
        self.sure().any(|finding| finding.severity >= from)
    }

    /// Whether all that was asked for was looked at: all stages ran, and all servers were asked and observed to the end. Otherwise
    /// what is not in the report may be there all the same.
    pub fn is_complete(&self) -> bool {
        !self.partial && self.stages.iter().all(|stage| stage.ran || !stage.asked)
    }

    /// Hides the names of keys, streams and channels.
    pub fn redact(&mut self) {
        if std::mem::replace(&mut self.redacted, true) {
            return;
        }
        for finding in &mut self.findings {
            finding.redact();
        }
        for (finding, _) in &mut self.suppressed {
            finding.redact();
        }
        for blind in &mut self.blinds {
            blind.redact();
        }
        for (i, summary) in self.patterns.iter_mut().enumerate() {
            summary.pattern = format!("pattern {}", i + 1);
        }
    }

    /// One JSON object per line, one per finding.
    pub fn json(&self) -> String {
        let mut out = String::new();
        for finding in &self.findings {
            // A finding has only strings and numbers.
            out.push_str(&serde_json::to_string(finding).unwrap_or_default());
            out.push('\n');
        }
        out
    }

    /// For a pull request or a wiki.
    pub fn markdown(&self) -> String {
        markdown::render(self)
    }

    /// One file with charts, without scripts and without anything from outside.
    pub fn html(&self) -> String {
        html::render(self)
    }

    /// SARIF 2.1.0, for code scanning.
    pub fn sarif(&self) -> String {
        sarif::render(self)
    }

    /// How many sure findings there are of each severity, the worst first.
    pub fn counts(&self) -> [(Severity, usize); 3] {
        [Severity::High, Severity::Medium, Severity::Low].map(|severity| {
            (
                severity,
                self.sure()
                    .filter(|finding| finding.severity == severity)
                    .count(),
            )
        })
    }
}
