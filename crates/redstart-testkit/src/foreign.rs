//! Programs of other languages that run beside a test: scripts of Node.js, Python and Ruby with the libraries that
//! `cargo xtask servers` installs.
//!
//! A program reads lines from its stdin and writes lines to its stdout, so that a test can steer it and follow it.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::sync::mpsc;

use crate::process::{Process, command};
use crate::{find, wait_until};

/// The language of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Node.js, with the libraries of npm.
    Node,
    /// Python, with the libraries of PyPI.
    Python,
    /// Ruby, with Sidekiq.
    Ruby,
}

/// A program of another language. It is killed when it is dropped.
pub struct Foreign {
    process: Process,
    stdin: Option<std::process::ChildStdin>,
    lines: mpsc::UnboundedReceiver<String>,
    name: String,
}

impl Foreign {
    /// Starts a script.
    ///
    /// # Errors
    ///
    /// If the language or its libraries are missing (the message names the command that installs them), or the program
    /// cannot be started.
    pub fn start(language: Language, script: &Path, args: &[&str]) -> Result<Self> {
        let (program, modules) = match language {
            Language::Node => {
                let (node, modules) = find::node_libraries()?;
                (node, Some(modules))
            }
            Language::Python => (find::python_libraries()?, None),
            Language::Ruby => (find::ruby_libraries()?, None),
        };
        let mut command = command(&program);
        command
            .arg(script)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            // A script must not leave compiled files beside itself.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONUNBUFFERED", "1");
        if let Some(modules) = modules {
            command.env("NODE_PATH", modules);
        }
        let process = Process::spawn(command)?;
        let (stdin, stdout) = {
            let mut child = process.child();
            (child.stdin.take(), child.stdout.take())
        };
        let stdout = stdout.context("the program has no stdout")?;
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let name = script.file_name().unwrap_or_default();
        Ok(Self {
            process,
            stdin,
            lines,
            name: name.to_string_lossy().into_owned(),
        })
    }

    /// Runs a script to its end and returns what it wrote.
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start); also if it fails, or does not end within two minutes.
    pub async fn run(language: Language, script: &Path, args: &[&str]) -> Result<Vec<String>> {
        let mut program = Self::start(language, script, args)?;
        let status = program.wait().await?;
        let mut lines = Vec::new();
        while let Some(line) = program.lines.recv().await {
            lines.push(line);
        }
        ensure!(status.success(), "{} ended with {status}", program.name);
        Ok(lines)
    }

    /// The next line that it writes.
    ///
    /// # Errors
    ///
    /// If it ends without one, or writes nothing for two minutes.
    pub async fn line(&mut self) -> Result<String> {
        let wait = tokio::time::timeout(Duration::from_secs(120), self.lines.recv()).await;
        wait.with_context(|| format!("{} writes nothing", self.name))?
            .with_context(|| format!("{} ended without another line", self.name))
    }

    /// A line, if it has written one that was not read yet.
    pub fn try_line(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Sends a line to it.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its stdin is closed")?;
        writeln!(stdin, "{line}")
            .and_then(|()| stdin.flush())
            .with_context(|| format!("{} does not listen", self.name))
    }

    /// Kills it (SIGKILL) and returns when it is gone.
    pub fn kill9(&self) {
        self.process.kill9();
    }

    /// Closes its stdin and waits until it has ended.
    ///
    /// # Errors
    ///
    /// If it does not end within two minutes.
    pub async fn wait(&mut self) -> Result<ExitStatus> {
        self.stdin = None;
        wait_until(
            "a program of another language to end",
            Duration::from_secs(120),
            async || self.process.ended(),
        )
        .await
    }
}

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Foreign").field("name", &self.name).finish()
    }
}
