//! A real client of another language: a program that answers lines with lines.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result};
use redstart_testkit::find;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::client::PATIENCE;

/// Ends when it is dropped.
pub(crate) struct Program {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Asks by gRPC as Envoy does.
    pub(crate) fn gateway(args: &[&str]) -> Result<Self> {
        Self::start(find::gateway()?, "gateway.py", args)
    }

    /// Asks by HTTPS.
    pub(crate) fn https(args: &[&str]) -> Result<Self> {
        Self::start(find::gateway()?, "https.py", args)
    }

    /// Receives spans.
    pub(crate) fn collector() -> Result<Self> {
        Self::start(find::collector()?, "collector.py", &[])
    }

    fn start(python: PathBuf, script: &str, args: &[&str]) -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client");
        let mut child = Command::new(python)
            .arg(folder.join(script))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Self {
            _child: child,
            input,
            output,
        })
    }

    /// The next line.
    pub(crate) async fn line(&mut self) -> Result<String> {
        let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await??;
        line.context("the program ended")
    }

    /// Sends a line and reads the answer.
    pub(crate) async fn ask(&mut self, line: &str) -> Result<Value> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(serde_json::from_str(&self.line().await?)?)
    }
}
