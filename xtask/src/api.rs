//! The public API of the published crates, as text that a review can read.
//!
//! `docs/api/<crate>.txt` lists every public item, one per line. The check fails when the code and the list differ;
//! `cargo xtask api --bless` writes the list again.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::step::{Workspace, cargo, root, status};
use crate::test;

/// The crates whose API is a promise, in the order in which they are published.
pub(crate) const PUBLISHED: [&str; 3] = ["redstart-engine", "redstart", "redstart-tower"];

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Write the lists instead of comparing them
    #[arg(long)]
    bless: bool,
}

pub(crate) fn run(options: &Options) -> Result<bool> {
    describe()?;
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

/// Writes what rustdoc knows of each crate with all of its features, as JSON. It is asked about the whole workspace, as in
/// the step before, so that no dependency is built again with a smaller choice of features.
fn describe() -> Result<()> {
    let mut command = cargo(&["doc", "--quiet", "--no-deps", "--lib", "--all-features"]);
    command
        .args(test::PACKAGES)
        .env("RUSTDOC", unstable_rustdoc()?)
        .env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    status(&mut command)
}

/// A rustdoc that may write JSON, which is unstable; the version of `public-api` is the one for this toolchain. The variable
/// is set for rustdoc alone: build scripts look at it, and would make cargo build most dependencies again.
fn unstable_rustdoc() -> Result<PathBuf> {
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()?;
    let sysroot = String::from_utf8(output.stdout)?;
    let path = Workspace::read()?.target.join("unstable-rustdoc");
    let script = format!(
        "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec '{}/bin/rustdoc' \"$@\"\n",
        sysroot.trim()
    );
    std::fs::write(&path, script)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Every public item of a crate, one per line.
fn list(name: &str) -> Result<String> {
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
