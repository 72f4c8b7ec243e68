//! What a rule found.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How bad the effect is, if the finding is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Costs memory, time or clarity.
    Low,
    /// Costs availability, or data under some conditions.
    Medium,
    /// Loses data, admits two holders, or opens the server.
    High,
}

impl Severity {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One fault, with its proof and its way out. It never holds a value of the server's data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The rule's id.
    pub rule: String,
    /// How bad it is.
    pub severity: Severity,
    /// How sure the rule is, from 0 to 1.
    pub confidence: f64,
    /// The key pattern, stream, channel, library or setting it speaks of.
    pub subject: String,
    /// What was seen.
    pub evidence: String,
    /// What happens because of it.
    pub effect: String,
    /// The way out in plain commands.
    pub fix: String,
    /// The pattern of `redstart guide` that closes it, or how to keep the library that is there.
    pub pattern: String,
    /// Whether the subject holds names of the server's keys.
    #[serde(skip)]
    pub(crate) names_keys: bool,
}

/// From this confidence on, a finding counts.
pub const SURE: f64 = 0.7;

impl Finding {
    /// What identifies it across runs.
    pub fn identity(&self) -> (&str, &str) {
        (&self.rule, &self.subject)
    }

    /// Hides the names of keys in the subject.
    pub(crate) fn redact(&mut self) {
        if self.names_keys {
            self.subject = hidden(&self.subject);
        }
    }

    /// The subject with its names hidden, for a finding of an earlier run, which does not say whether it holds any. One that
    /// is hidden already stays as it is.
    pub(crate) fn hidden_subject(&self) -> String {
        let is_hidden = self.subject.strip_prefix("key-").is_some_and(|rest| {
            rest.len() == 8 && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        match is_hidden {
            true => self.subject.clone(),
            false => hidden(&self.subject),
        }
    }
}

/// A name that says nothing and is the same in every run.
pub(crate) fn hidden(name: &str) -> String {
    use std::hash::{BuildHasher as _, Hasher as _};
    let mut hasher = foldhash::quality::FixedState::with_seed(7).build_hasher();
    hasher.write(name.as_bytes());
    format!("key-{:08x}", hasher.finish() as u32)
}
