//! A rule: what it looks for, what it teaches, and the function that looks.

use std::fmt;

use crate::{
    finding::{Finding, Severity},
    observation::{Observations, Stage},
};

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// What people write by hand, and how it breaks.
    Pattern,
    /// How the server is run.
    Operation,
    /// Libraries that are recognised by their keys.
    Library,
    /// Redstart's own patterns.
    Redstart,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pattern => "pattern",
            Self::Operation => "operation",
            Self::Library => "library",
            Self::Redstart => "redstart",
        })
    }
}

/// One rule. The functions of all rules are pure: facts in, findings out.
pub struct Rule {
    /// Its name in reports, options and suppressions.
    pub id: &'static str,
    /// What is wrong, in a line.
    pub title: &'static str,
    /// What it is about.
    pub family: Family,
    /// The first stage that can see it.
    pub stage: Stage,
    /// How bad it is, unless the evidence says otherwise.
    pub severity: Severity,
    /// How it comes about, and how it is recognised.
    pub about: &'static str,
    /// The sequence of events that does the damage.
    pub timeline: &'static [&'static str],
    /// What happens because of it.
    pub effect: &'static str,
    /// The way out in plain commands.
    pub fix: &'static str,
    /// The pattern of `redstart guide` that closes it, or how to keep the library.
    pub pattern: &'static str,
    pub(crate) check: fn(&Observations, &mut Findings<'_>),
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// What a finding speaks of.
pub(crate) enum Subject {
    /// A key pattern, stream, channel or queue: names of the server's data.
    Keys(String),
    /// A setting, a command, a server.
    Setting(String),
}

impl Subject {
    pub(crate) fn keys(pattern: impl Into<String>) -> Self {
        Self::Keys(pattern.into())
    }

    pub(crate) fn setting(name: impl Into<String>) -> Self {
        Self::Setting(name.into())
    }
}

/// Where a rule puts what it finds.
pub(crate) struct Findings<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) list: &'a mut Vec<Finding>,
}

impl Findings<'_> {
    pub(crate) fn add(&mut self, subject: Subject, confidence: f64, evidence: impl Into<String>) {
        self.add_as(self.rule.severity, subject, confidence, evidence);
    }

    pub(crate) fn add_as(
        &mut self,
        severity: Severity,
        subject: Subject,
        confidence: f64,
        evidence: impl Into<String>,
    ) {
        let (subject, names_keys) = match subject {
            Subject::Keys(name) => (name, true),
            Subject::Setting(name) => (name, false),
        };
        let confidence = (confidence.clamp(0.0, 1.0) * 100.0).round() / 100.0;
        let finding = Finding {
            rule: self.rule.id.to_owned(),
            severity,
            confidence,
            subject,
            evidence: evidence.into(),
            effect: self.rule.effect.to_owned(),
            fix: self.rule.fix.to_owned(),
            pattern: self.rule.pattern.to_owned(),
            names_keys,
        };
        // One finding per subject: the surest.
        match self
            .list
            .iter_mut()
            .find(|known| known.identity() == finding.identity())
        {
            Some(known) if known.confidence < finding.confidence => *known = finding,
            Some(_) => {}
            None => self.list.push(finding),
        }
    }
}

/// The confidence of a general finding about keys that may be a library's.
const DOUBTFUL: f64 = 0.65;

/// Keys whose names are those of a library may be part of its protocol, and so may keys of a database whose contents were not
/// looked at: general findings about them are not sure.
fn doubt(facts: &Observations, list: &mut [Finding]) {
    for finding in list.iter_mut().filter(|finding| finding.names_keys) {
        let general = crate::rules::rule(&finding.rule)
            .is_some_and(|rule| matches!(rule.family, Family::Pattern | Family::Operation));
        if general && let Some(library) = facts.suspect(&finding.subject) {
            finding.confidence = finding.confidence.min(DOUBTFUL);
            finding.evidence += &format!("; the names are like those of {library}");
        } else if general && facts.is_elsewhere(&finding.subject) {
            finding.confidence = finding.confidence.min(DOUBTFUL);
            finding.evidence +=
                "; it is in a database that was not sampled, so whose keys these are is not known";
        }
    }
}

/// Runs all rules.
pub(crate) fn examine(facts: &Observations) -> Vec<Finding> {
    let mut list = Vec::new();
    for rule in crate::rules::RULES {
        (rule.check)(
            facts,
            &mut Findings {
                rule,
                list: &mut list,
            },
        );
    }
    doubt(facts, &mut list);
    list.sort_by(|a, b| {
        b.severity
            .cmp(&a.severity)
            .then(b.confidence.total_cmp(&a.confidence))
            .then_with(|| a.identity().cmp(&b.identity()))
    });
    list
}
