//! Each cargo feature of the library builds alone, together with all others, and without any.

use anyhow::{Context as _, Result, ensure};

use crate::step::cargo;

/// Checks `redstart` with no feature, with each feature alone, and with all of them.
pub(crate) fn run() -> Result<bool> {
    check(&["--no-default-features"])?;
    for feature in features()? {
        check(&["--no-default-features", "--features", &feature])?;
    }
    check(&["--all-features"])?;
    Ok(true)
}

fn check(choice: &[&str]) -> Result<()> {
    println!("redstart {}", choice.join(" "));
    let mut command = cargo(&["check", "--quiet", "-p", "redstart", "--lib"]);
    let output = command.args(choice).output()?;
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
        .filter(|name| *name != "default")
        .cloned()
        .collect())
}
