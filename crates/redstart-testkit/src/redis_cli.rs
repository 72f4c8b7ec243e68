//! redis-cli, with arguments and piped input.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

use crate::find;

/// Runs redis-cli with these arguments and this input. Returns what it prints, errors last.
///
/// # Errors
///
/// If there is no redis-cli, or if it fails.
pub fn redis_cli(args: &[&str], input: &str) -> Result<String> {
    let mut child = Command::new(find::redis_cli()?)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("redis-cli does not start")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    ensure!(output.status.success(), "redis-cli {args:?}: {said}");
    Ok(said)
}
