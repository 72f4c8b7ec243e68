//! Each cargo feature of the library builds alone, together with all others, and without any.

use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::step::{Workspace, cargo};

/// For the tests of this repository; they come with other features.
const INTERNAL: [&str; 2] = ["mutation", "sim"];

/// Checks `redstart` with no feature, with each feature alone, and with all of them.
pub(crate) fn run() -> Result<bool> {
    check(&["--no-default-features"])?;
    for feature in features()? {
        check(&["--no-default-features", "--features", &feature])?;
    }
    check(&["--all-features"])?;
    Ok(true)
}

/// The same beside other steps: most of the time one such check keeps one core busy.
pub(crate) struct Beside(JoinHandle<Result<bool>>);

impl Beside {
    pub(crate) fn start() -> Self {
        Self(thread::spawn(run))
    }

    pub(crate) fn wait(self) -> Result<()> {
        let ended = self.0.join().map_err(|_| anyhow!("the checks panicked"))?;
        ended.map(|_| ())
    }
}

fn check(choice: &[&str]) -> Result<()> {
    println!("features: redstart {}", choice.join(" "));
    // A folder of its own: cargo locks the one that it builds in.
    let target = Workspace::read()?.target.join("features");
    let mut command = cargo(&["check", "--quiet", "-p", "redstart", "--lib"]);
    command.args(choice).env("CARGO_TARGET_DIR", target);
    let output = command.output()?;
    // Not `RUSTFLAGS=-D warnings`, with which all dependencies would be built again.
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success() && !said.contains("warning"),
        "`redstart {}` does not build cleanly:\n{said}",
        choice.join(" ")
    );
    Ok(())
}

fn features() -> Result<Vec<String>> {
    let output = cargo(&["metadata", "--format-version", "1", "--no-deps"]).output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let package = metadata["packages"]
        .as_array()
        .and_then(|packages| {
            packages
                .iter()
                .find(|package| package["name"] == "redstart")
        })
        .context("no package redstart")?;
    let features = package["features"].as_object().context("no features")?;
    Ok(features
        .keys()
        .filter(|name| *name != "default" && !INTERNAL.contains(&name.as_str()))
        .cloned()
        .collect())
}
