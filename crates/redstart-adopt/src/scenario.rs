//! Scenarios for the steps of a plan: scripts for a shell that carry a step out and take it back, on a copy of the data.
//!
//! | scenario | what it shows |
//! |---|---|
//! | success | the step is done once, and its way back leaves nothing behind |
//! | failure | a step that cannot reach the server is not remembered, and is still the next one |
//! | race | of two that carry out the step at the same time, one does |

use crate::plan::{Plan, PlanItem};

/// A script for one step of one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scenario {
    /// A name for a file: `bull-mail-2-share.sh`.
    pub file: String,
    /// The script, for a POSIX shell.
    pub script: String,
}

impl Plan {
    /// One script for each step of each subject.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
    /// use redstart::Store;
    /// use redstart_adopt::{Budget, Plan, bullmq::{BullQueue, NewJob}, recognise};
    ///
    /// let store = Store::connect("memory://").await?;
    /// store.query::<()>(redis::cmd("HSET").arg("bull:mail:meta").arg("version").arg("bullmq:6.7.0")).await?;
    /// let plan = Plan::of(&recognise(&store, &Budget::default()).await?);
    /// let scenarios = plan.scenarios();
    /// assert_eq!(scenarios[1].file, "bull-mail-2-share.sh");
    /// # Ok(()) }
    /// ```
    pub fn scenarios(&self) -> Vec<Scenario> {
        let mut all: Vec<Scenario> = Vec::new();
        for item in &self.items {
            for (n, step) in item.steps.iter().enumerate() {
                let name = format!("{}-{}-{}", slug(&item.subject), n + 1, step.step);
                // Subjects that differ only in signs.
                let taken = |file: &str| all.iter().any(|one| one.file == file);
                let mut file = format!("{name}.sh");
                let mut another = 2;
                while taken(&file) {
                    file = format!("{name}-{another}.sh");
                    another += 1;
                }
                let script = script(item, n);
                all.push(Scenario { file, script });
            }
        }
        all
    }
}

fn script(item: &PlanItem, n: usize) -> String {
    let step = &item.steps[n];
    let before: Vec<&str> = item.steps[..n].iter().map(|step| step.step).collect();
    let declared = item.declare.map(|what| format!(" --as {what}"));
    TEMPLATE
        .replace("@SUBJECT@", &quoted(&item.subject))
        .replace("@BEFORE@", &before.join(" "))
        .replace("@STEP@", step.step)
        .replace("@AS@", &declared.unwrap_or_default())
        .replace("@WHAT@", step.what)
        .replace("@CHECK@", step.check)
        .replace("@BACK@", step.back)
}

const TEMPLATE: &str = include_str!("scenario/step.sh");

/// A word of a shell, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The letters and digits of a subject, with dashes between them.
fn slug(subject: &str) -> String {
    let words = subject.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let slug = words.join("-").to_ascii_lowercase();
    match slug.is_empty() {
        true => "keys".to_owned(),
        false => slug.chars().take(60).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{found::Found, found::Recognition, library::Library};

    #[test]
    fn a_subject_cannot_write_into_its_script() {
        let mut recognition = Recognition::default();
        for subject in ["bull:x'; rm -rf /; '", "bull:x; rm -rf /"] {
            let found = Found::new(Library::BullMq, subject, 0.99);
            recognition.found.push(found);
        }
        let scenarios = Plan::of(&recognition).scenarios();
        assert_eq!(scenarios.len(), 8);
        assert_eq!(scenarios[1].file, "bull-x-rm-rf-2-share.sh");
        assert_eq!(scenarios[5].file, "bull-x-rm-rf-2-share-2.sh");
        let subject = r"subject='bull:x'\''; rm -rf /; '\'''";
        assert!(
            scenarios[1].script.lines().any(|line| line == subject),
            "{}",
            scenarios[1].script
        );
        for scenario in scenarios {
            for place in [
                "@SUBJECT@",
                "@BEFORE@",
                "@STEP@",
                "@AS@",
                "@WHAT@",
                "@CHECK@",
                "@BACK@",
            ] {
                assert!(!scenario.script.contains(place), "{}", scenario.script);
            }
        }
    }
}
