//! Runs commands one after another, times them, and prints a summary.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// A cargo command at the root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    // `cargo run` sets these for xtask; a cargo within must not take them for its own package's.
    for (key, _) in std::env::vars_os() {
        let key = key.to_string_lossy();
        let of_package = [
            "CARGO_PKG_",
            "CARGO_MANIFEST_",
            "CARGO_BIN_",
            "CARGO_CRATE_",
        ];
        if of_package.iter().any(|prefix| key.starts_with(prefix)) {
            command.env_remove(&*key);
        }
    }
    command
}

/// The parts of `cargo metadata` that are needed here.
pub(crate) struct Workspace {
    /// Where cargo builds.
    pub(crate) target: PathBuf,
    /// Names of the programs in `examples/`.
    pub(crate) examples: Vec<String>,
}

impl Workspace {
    pub(crate) fn read() -> Result<Self> {
        let output = cargo(&["metadata", "--format-version", "1", "--no-deps"]).output()?;
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
            .context("cargo metadata gave something that is not JSON")?;
        let target = metadata["target_directory"]
            .as_str()
            .context("no target directory")?
            .into();
        let packages = metadata["packages"].as_array().context("no packages")?;
        let mut examples: Vec<String> = packages
            .iter()
            .filter(|package| package["name"] == "redstart-examples")
            .filter_map(|package| package["targets"].as_array())
            .flatten()
            .filter(|target| target["kind"][0] == "example")
            .filter_map(|target| Some(target["name"].as_str()?.to_owned()))
            .collect();
        examples.sort();
        Ok(Self { target, examples })
    }
}

/// The steps of one run.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<(String, Duration, Option<String>)>,
}

impl Steps {
    /// Runs a step; its error is printed and kept for the summary.
    pub(crate) fn run(&mut self, name: &str, step: impl FnOnce() -> Result<()>) -> bool {
        println!("\n==> {name}");
        let start = Instant::now();
        let failure = step().err().map(|error| format!("{error:#}"));
        let took = start.elapsed();
        match &failure {
            None => println!("<== {name}: ok in {}", seconds(took)),
            Some(why) => println!("<== {name}: FAILED in {}: {why}", seconds(took)),
        }
        let fine = failure.is_none();
        self.done.push((name.to_owned(), took, failure));
        fine
    }

    /// Prints all steps with their times and outcomes; true if all passed.
    pub(crate) fn summary(&self) -> bool {
        println!("\nsummary");
        for (name, took, failure) in &self.done {
            let outcome = if failure.is_none() { "ok" } else { "FAILED" };
            println!("  {outcome:<6}  {:>8}  {name}", seconds(*took));
        }
        let total: Duration = self.done.iter().map(|(_, took, _)| *took).sum();
        let failed: Vec<&str> = self
            .done
            .iter()
            .filter(|(_, _, failure)| failure.is_some())
            .map(|(name, _, _)| name.as_str())
            .collect();
        match failed.is_empty() {
            true => println!("all {} steps passed in {}", self.done.len(), seconds(total)),
            false => println!("failed after {}: {}", seconds(total), failed.join(", ")),
        }
        failed.is_empty()
    }
}

/// Runs a command that shares our output.
pub(crate) fn status(command: &mut Command) -> Result<()> {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let status = command
        .status()
        .with_context(|| format!("could not run {}", words[0]))?;
    anyhow::ensure!(
        status.success(),
        "`{}` ended with {status}",
        words.join(" ")
    );
    Ok(())
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
