//! Findings that are known and accepted, with a reason and an end.

use toml_edit::{Document, Item, Value};

use crate::{
    error::{Error, Result},
    finding::Finding,
    report::Report,
    rules,
};

/// A file of suppressions:
///
/// ```toml
/// [[suppress]]
/// rule = "cache-without-ttl"
/// subject = "catalogue:*"      # optional; `*` stands for any text
/// reason = "rebuilt every night by a job"
/// until = "2027-03-31"
/// ```
///
/// A reason and an end are required: what is accepted forever is a change of the rules, not a suppression.
#[derive(Clone, Debug, Default)]
pub struct Suppressions(Vec<Suppression>);

#[derive(Clone, Debug)]
struct Suppression {
    rule: String,
    subject: Option<String>,
    reason: String,
    until: jiff::civil::Date,
}

impl Suppressions {
    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] with the place for what is not understood: an unknown rule, no reason, no end.
    pub fn parse(text: &str) -> Result<Self> {
        let document = Document::parse(text)
            .map_err(|error| Error::Usage(format!("suppressions: {error}")))?;
        let mut all = Vec::new();
        for (name, item) in document.iter() {
            if name != "suppress" {
                return Err(Error::Usage(format!(
                    "suppressions: {name:?} is not known; write [[suppress]]"
                )));
            }
            let Some(tables) = item.as_array_of_tables() else {
                return Err(Error::Usage(
                    "suppressions: write [[suppress]] with two brackets".to_owned(),
                ));
            };
            for (i, table) in tables.iter().enumerate() {
                all.push(Suppression::parse(i + 1, table)?);
            }
        }
        Ok(Self(all))
    }

    /// Moves what is suppressed out of the findings. Suppressions that have ended are named in the report and hide
    /// nothing.
    pub fn apply(&self, report: &mut Report, today: jiff::civil::Date) {
        for ended in self
            .0
            .iter()
            .filter(|suppression| suppression.until < today)
        {
            report.blinds.push(crate::collect::Blind::new(
                format!("suppression of {}", ended.rule),
                format!("ended on {}; it hides nothing any more", ended.until),
            ));
        }
        let (mut kept, mut hidden) = (Vec::new(), Vec::new());
        for finding in std::mem::take(&mut report.findings) {
            match self
                .0
                .iter()
                .find(|suppression| suppression.until >= today && suppression.covers(&finding))
            {
                Some(suppression) => hidden.push((finding, suppression.reason.clone())),
                None => kept.push(finding),
            }
        }
        report.findings = kept;
        report.suppressed.extend(hidden);
    }
}

impl Suppression {
    fn parse(number: usize, table: &toml_edit::Table) -> Result<Self> {
        let bad = |what: &str| Error::Usage(format!("suppression {number}: {what}"));
        let text = |name: &str| match table.get(name) {
            None => Ok(None),
            Some(Item::Value(Value::String(text))) => Ok(Some(text.value().clone())),
            Some(Item::Value(Value::Datetime(date))) => Ok(Some(date.value().to_string())),
            Some(_) => Err(bad(&format!("{name} must be a text"))),
        };
        for (name, _) in table.iter() {
            if !matches!(name, "rule" | "subject" | "reason" | "until") {
                return Err(bad(&format!("{name:?} is not known")));
            }
        }
        let rule = text("rule")?.ok_or_else(|| bad("it needs a rule"))?;
        if rules::rule(&rule).is_none() {
            return Err(bad(&format!(
                "there is no rule {rule:?}; `redstart doctor rules` lists them"
            )));
        }
        let until = text("until")?.ok_or_else(|| bad("it needs until = \"YYYY-MM-DD\""))?;
        Ok(Self {
            rule,
            subject: text("subject")?,
            reason: text("reason")?
                .filter(|reason| !reason.trim().is_empty())
                .ok_or_else(|| bad("it needs a reason"))?,
            until: until
                .parse()
                .map_err(|_| bad("until must be a date such as 2027-03-31"))?,
        })
    }

    fn covers(&self, finding: &Finding) -> bool {
        self.rule == finding.rule
            && self
                .subject
                .as_deref()
                .is_none_or(|subject| matches(subject, &finding.subject))
    }
}

/// `*` stands for any text, also for itself.
fn matches(pattern: &str, text: &str) -> bool {
    if pattern == text {
        return true;
    }
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suppression_without_reason_or_end_is_refused() {
        for (text, says) in [
            (
                "[[suppress]]\nrule = \"keys-command\"\nuntil = \"2030-01-01\"",
                "reason",
            ),
            (
                "[[suppress]]\nrule = \"keys-command\"\nreason = \"x\"",
                "until",
            ),
            (
                "[[suppress]]\nrule = \"nonsense\"\nreason = \"x\"\nuntil = \"2030-01-01\"",
                "no rule",
            ),
            (
                "[[suppress]]\nrule = \"keys-command\"\nreason = \"x\"\nuntil = \"soon\"",
                "date",
            ),
            ("[suppress]\nrule = \"keys-command\"", "two brackets"),
            ("what", "suppressions"),
        ] {
            let error = Suppressions::parse(text).expect_err(text).to_string();
            assert!(error.contains(says), "{error}");
        }
        let text =
            "[[suppress]]\nrule = \"keys-command\"\nreason = \"nightly\"\nuntil = 2030-01-01";
        assert_eq!(
            Suppressions::parse(text).expect("a date of TOML").0.len(),
            1
        );
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, fits) in [
            ("cache:*", "cache:product:*", true),
            ("cache:*:x", "cache:7:x", true),
            ("cache:*:x", "cache:7:y", false),
            ("cache:*", "cache:*", true),
            ("lock", "lock:a", false),
            ("*", "anything", true),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }
}
