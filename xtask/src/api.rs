//! The public API of the published crates, as text that a review can read.
//!
//! `docs/api/<crate>.txt` lists every public item, one per line. The check fails when the code and the list differ;
//! `cargo xtask api --bless` writes the list again.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::step::{Workspace, cargo, root, status};

/// The crates whose API is a promise, in the order in which they are published.
pub(crate) const PUBLISHED: [&str; 3] = ["redstart-engine", "redstart", "redstart-tower"];

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Write the lists instead of comparing them
    #[arg(long)]
    bless: bool,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    for name in PUBLISHED {
        let listed = list(name)?;
        let path = snapshot(name);
        if options.bless {
            std::fs::create_dir_all(path.parent().context("a snapshot has a folder")?)?;
            std::fs::write(&path, listed)?;
            println!("wrote {}", path.display());
        } else {
            compare(name, &path, &listed)?;
        }
    }
    Ok(true)
}

fn snapshot(name: &str) -> PathBuf {
    root().join("docs/api").join(format!("{name}.txt"))
}

/// Every public item of a crate with all of its features, one per line.
fn list(name: &str) -> Result<String> {
    let mut command = cargo(&["rustdoc", "--quiet", "--lib", "--all-features", "-p", name]);
    command
        .args(["--", "-Z", "unstable-options", "--output-format", "json"])
        // The JSON output of rustdoc is unstable; the version of `public-api` is the one for this toolchain.
        .env("RUSTC_BOOTSTRAP", "1");
    status(&mut command)?;
    let json = Workspace::read()?
        .target
        .join("doc")
        .join(format!("{}.json", name.replace('-', "_")));
    let api = public_api::Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .with_context(|| {
            format!(
                "could not read {}; the check needs the Rust version that Cargo.toml names",
                json.display()
            )
        })?;
    let mut text = String::new();
    for item in api.items() {
        text.push_str(&item.to_string());
        text.push('\n');
    }
    ensure!(!text.is_empty(), "{name} has no public items");
    Ok(text)
}

fn compare(name: &str, path: &Path, listed: &str) -> Result<()> {
    let kept = std::fs::read_to_string(path).with_context(|| {
        format!(
            "no list at {}; run `cargo xtask api --bless`",
            path.display()
        )
    })?;
    if kept == listed {
        println!("{name}: {} public items, as listed", listed.lines().count());
        return Ok(());
    }
    for line in kept
        .lines()
        .filter(|line| !listed.lines().any(|l| l == *line))
    {
        println!("- {line}");
    }
    for line in listed
        .lines()
        .filter(|line| !kept.lines().any(|l| l == *line))
    {
        println!("+ {line}");
    }
    bail!("the public API of {name} changed; if that is intended, run `cargo xtask api --bless`")
}
