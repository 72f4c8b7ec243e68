//! docs/reliability.md: what the campaigns attacked, how often, and how that ended.
//!
//! The page is made from docs/reliability.json, which holds the last result of each campaign. Neither is written by hand.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

/// How one run of a campaign ended.
pub(crate) struct Outcome {
    pub(crate) campaign: &'static str,
    pub(crate) about: &'static str,
    pub(crate) counts: Vec<String>,
    pub(crate) took: String,
    pub(crate) passed: bool,
    pub(crate) figures: Vec<String>,
    /// The tests that ended, and whether they passed.
    pub(crate) tests: Vec<(String, bool)>,
}

/// The backends of the matrix; what runs elsewhere starts its own servers.
const BACKENDS: [&str; 4] = ["embedded", "redis", "valkey", "cluster"];
const ELSEWHERE: &str = "own servers";

pub(crate) struct Report {
    results: Map<String, Value>,
    /// All campaigns and what they attack.
    campaigns: Vec<(&'static str, &'static str)>,
    folder: PathBuf,
}

impl Report {
    /// With the results of earlier runs.
    pub(crate) fn open(campaigns: Vec<(&'static str, &'static str)>) -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        Ok(Self {
            results: read(&folder)?,
            campaigns,
            folder,
        })
    }

    /// Replaces the result of one campaign. What another run wrote in the meantime stays.
    pub(crate) fn add(&mut self, outcome: Outcome) -> Result<()> {
        let mut promises: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
        for (test, passed) in &outcome.tests {
            let (promise, backend) = promise(test);
            let place = promises.entry(promise).or_default();
            place.insert(backend.to_owned(), json!(passed));
        }
        let result = json!({
            "about": outcome.about,
            "counts": outcome.counts,
            "took": outcome.took,
            "passed": outcome.passed,
            "figures": outcome.figures,
            "promises": promises,
            "when": day()?,
            "commit": commit()?,
        });
        self.results = read(&self.folder)?;
        self.results.insert(outcome.campaign.to_owned(), result);
        Ok(())
    }

    pub(crate) fn write(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.results)?;
        std::fs::write(self.folder.join("reliability.json"), text + "\n")?;
        std::fs::write(
            self.folder.join("reliability.md"),
            page(&self.results, &self.campaigns)?,
        )?;
        Ok(())
    }
}

fn read(folder: &Path) -> Result<Map<String, Value>> {
    let file = folder.join("reliability.json");
    match std::fs::read_to_string(&file) {
        Ok(text) => serde_json::from_str(&text)
            .with_context(|| format!("{} cannot be read", file.display())),
        Err(_) => Ok(Map::new()),
    }
}

/// The claim that a test is named after, and where it was tested.
fn promise(test: &str) -> (String, &str) {
    let mut parts: Vec<&str> = test.split("::").collect();
    let backend = match parts.last() {
        Some(last) if BACKENDS.contains(last) => parts.pop().unwrap_or(ELSEWHERE),
        _ => ELSEWHERE,
    };
    let claim = parts.pop().unwrap_or(test);
    let claim = claim.strip_prefix("fault_").unwrap_or(claim);
    let claim = claim.replace('_', " ");
    match parts.is_empty() {
        true => (claim, backend),
        false => (format!("{}: {claim}", parts.join(" ")), backend),
    }
}

fn page(results: &Map<String, Value>, campaigns: &[(&str, &str)]) -> Result<String> {
    let mut page = String::from(
        "# Reliability\n\nWritten by `cargo xtask soak --report` from the last run of each campaign; not by hand.\n\n\
         Each promise is a test. A campaign runs the tests of a family with large counts, against the embedded engine and \
         real servers that are killed, stopped, cut off and failed over.\n\n\
         | campaign | what it attacks | counts | promises | last result |\n|---|---|---|---|---|\n",
    );
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value, between: &str| -> String {
        let items = value.as_array().into_iter().flatten().map(text);
        items.collect::<Vec<_>>().join(between)
    };
    for (name, result) in results {
        let promises = result["promises"].as_object().map_or(0, Map::len);
        let outcome = match result["passed"].as_bool() {
            Some(true) => "passed",
            _ => "**failed**",
        };
        writeln!(
            page,
            "| [{name}](#{name}) | {} | {} | {promises} | {outcome}, {} ({}, {}) |",
            text(&result["about"]),
            list(&result["counts"], ", "),
            text(&result["when"]),
            text(&result["took"]).trim(),
            text(&result["commit"]),
        )?;
    }
    for (name, about) in campaigns {
        if !results.contains_key(*name) {
            writeln!(page, "| {name} | {about} | | | not run for this page yet |")?;
        }
    }
    for (name, result) in results {
        writeln!(
            page,
            "\n## {name}\n\n{}.\n",
            sentence(&text(&result["about"]))
        )?;
        let figures = list(&result["figures"], "\n- ");
        if !figures.is_empty() {
            writeln!(page, "Measured:\n\n- {figures}\n")?;
        }
        let columns: Vec<&str> = BACKENDS.into_iter().chain([ELSEWHERE]).collect();
        writeln!(page, "| promise | {} |", columns.join(" | "))?;
        writeln!(page, "|---|{}", "---|".repeat(columns.len()))?;
        for (promise, places) in result["promises"].as_object().into_iter().flatten() {
            let places = columns.iter().map(|column| match places[column].as_bool() {
                Some(true) => "kept",
                Some(false) => "**broken**",
                None => "",
            });
            let places: Vec<&str> = places.collect();
            writeln!(page, "| {promise} | {} |", places.join(" | "))?;
        }
    }
    Ok(page)
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

fn day() -> Result<String> {
    output("date", &["-u", "+%Y-%m-%d"])
}

fn commit() -> Result<String> {
    output("git", &["rev-parse", "--short", "HEAD"])
}

fn output(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("could not run {program}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_each_promise_and_where_it_was_kept() -> Result<()> {
        assert_eq!(
            promise("nonce::a_reply_never_strays::cluster"),
            ("nonce: a reply never strays".to_owned(), "cluster")
        );
        assert_eq!(
            promise("down::fault_a_hung_master_is_left"),
            ("down: a hung master is left".to_owned(), ELSEWHERE)
        );
        let mut report = Report {
            results: Map::new(),
            campaigns: vec![("store", "the store"), ("queue", "the queue")],
            folder: PathBuf::new(),
        };
        report.add(Outcome {
            campaign: "store",
            about: "the store",
            counts: vec!["scale 1".to_owned()],
            took: "2 s".to_owned(),
            passed: false,
            figures: vec!["3 of 4".to_owned()],
            tests: vec![
                ("a::it_holds::redis".to_owned(), true),
                ("a::it_holds::cluster".to_owned(), false),
            ],
        })?;
        let page = page(&report.results, &report.campaigns)?;
        assert!(page.contains("| queue | the queue | | | not run"), "{page}");
        assert!(
            page.contains("| a: it holds |  | kept |  | **broken** |  |"),
            "{page}"
        );
        assert!(
            page.contains("**failed**") && page.contains("- 3 of 4"),
            "{page}"
        );
        Ok(())
    }
}
