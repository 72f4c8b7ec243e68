//! Licences, sources and duplicate versions of all dependencies, checked by cargo-deny with `deny.toml`.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::step::{cargo, root, status};

/// Installs cargo-deny if it is missing, then checks everything that needs no download of an advisory database.
pub(crate) fn run() -> Result<bool> {
    let program = match find() {
        Some(program) => program,
        None => install()?,
    };
    let mut command = Command::new(program);
    command
        .current_dir(root())
        .args(["--all-features", "check", "licenses", "bans", "sources"]);
    status(&mut command)?;
    Ok(true)
}

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join("cargo-deny"))
        .chain([home().ok()?.join("bin/cargo-deny")])
        .find(|program| program.is_file())
}

fn install() -> Result<PathBuf> {
    let home = home()?;
    // A debug build takes a fraction of the time, and one check takes seconds either way.
    println!("installing cargo-deny into {}", home.display());
    let mut command = cargo(&["install", "--locked", "--debug", "cargo-deny", "--root"]);
    status(command.arg(&home))?;
    Ok(home.join("bin/cargo-deny"))
}

fn home() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").context("HOME is not set")?;
    Ok(PathBuf::from(home).join(".cache/redstart/tools"))
}
