//! Tests of several processes: the test binary starts itself again, for one test, in another role.
//!
//! ```no_run
//! use redstart_testkit::{Child, child};
//!
//! // In tests/locking.rs:
//! // #[tokio::test]
//! async fn a_killed_holder_leaves_the_lock_to_its_ttl() -> anyhow::Result<()> {
//!     if child::role().as_deref() == Some("holder") {
//!         // … take the lock …
//!         child::say("held");
//!         child::hear(); // nothing comes: the parent kills this process
//!         return Ok(());
//!     }
//!     let mut holder = Child::of("a_killed_holder_leaves_the_lock_to_its_ttl")
//!         .role("holder")
//!         .env("URL", "redis://127.0.0.1:6379")
//!         .spawn()?;
//!     assert_eq!(holder.line().await?, "held");
//!     holder.kill9();
//!     // … the lock is free after its TTL, not before …
//!     Ok(())
//! }
//! ```
//!
//! This works under `cargo test` and under nextest, since both run tests of the same binary by
//! their names. Shared servers that the parent uses and the namespace of a
//! [`Backend`](crate::Backend) are passed on, so that a child of a matrix test uses its parent's
//! keys. The embedded engine cannot be shared between processes.

use std::io::{BufRead as _, Write as _};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;

use crate::process::{Process, command};
use crate::{shared, wait, wait_until};

const ROLE: &str = "REDSTART_TEST_ROLE";
const NAMESPACE: &str = "REDSTART_TEST_NAMESPACE";

/// The shortest that polls of a broken test may last.
const LEAST_PATIENCE: Duration = Duration::from_secs(5);

/// Distinguishes these lines from what the test runner prints.
const MARK: &str = "@redstart-child ";

/// The role in which this process was started, or `None` in the process of the test itself.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok().filter(|role| !role.is_empty())
}

/// The parent's namespace.
pub(crate) fn namespace() -> Option<String> {
    std::env::var(NAMESPACE)
        .ok()
        .filter(|namespace| !namespace.is_empty())
}

/// Sends a line to the parent, which reads it by [`Child::line`].
pub fn say(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // The runner may have printed the beginning of a line. Fails only if the parent is gone.
    let _ = writeln!(out, "\n{MARK}{line}");
    let _ = out.flush();
}

/// Waits for a line from the parent ([`Child::tell`]); `None` when it has closed the pipe.
///
/// Blocks the thread.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(n) if n > 0 => Some(line.trim_end().to_owned()),
        _ => None,
    }
}

/// Checks that a test notices a broken promise: it passes in a process of its own, and fails in one in which a script
/// of the library is replaced by `lua`, which leaves out a check.
///
/// The test must not have [`role`]s.
///
/// # Errors
///
/// If it fails with the original script, passes with the broken one, or does not end within a minute.
pub async fn must_notice(test: &str, script: &str, lua: &str) -> Result<()> {
    let run = async |broken: Option<(String, Duration)>| -> Result<ExitStatus> {
        let mut child = Child::of(test);
        // What the sound library does is shown if that fails.
        if broken.is_some() {
            child = child.silent();
        }
        // The ordinary counts, even in a soak.
        for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("REDSTART_SCALE")) {
            child = child.env(&key, "");
        }
        if let Some((broken, patience)) = &broken {
            child = child
                .env("REDSTART_BREAK_SCRIPT", broken)
                .env(wait::PATIENCE, &patience.as_millis().to_string());
        }
        child.spawn()?.wait().await
    };
    let begun = Instant::now();
    let sound = run(None).await?;
    // A test that fails ends with 101, and says why; one that could not be started with 126 or 127.
    ensure!(sound.success(), "{test} fails without any change: {sound}");
    // What the whole test needs, many times over: a poll that lasts longer waits in vain.
    let patience = (begun.elapsed() * 10).max(LEAST_PATIENCE);
    // Some faults need two tasks to collide, which is a matter of chance.
    for _ in 0..60 {
        let ended = run(Some((format!("{script}={lua}"), patience))).await?;
        ensure!(
            !matches!(ended.code(), Some(126 | 127)),
            "{test} could not be started with a broken {script}: {ended}"
        );
        if !ended.success() {
            return Ok(());
        }
    }
    bail!("{test} passes although {script} is broken")
}

/// The Lua of a script without one of its checks; for [`must_notice`].
///
/// # Panics
///
/// If there is no such text in it.
pub fn without(lua: &str, check: &str, instead: &str) -> String {
    assert!(lua.contains(check), "there is no {check:?} in the script");
    lua.replace(check, instead)
}

/// A child to be started; made by [`Child::of`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ChildBuilder {
    test: String,
    role: String,
    env: Vec<(String, String)>,
    silent: bool,
}

impl ChildBuilder {
    /// What [`role`] returns in the child (default `child`).
    pub fn role(mut self, role: &str) -> Self {
        self.role = role.to_owned();
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Hides what it prints, for a child that is expected to fail.
    pub fn silent(mut self) -> Self {
        self.silent = true;
        self
    }

    /// Gives the child's [`Backend`](crate::Backend) this namespace.
    pub fn namespace(self, namespace: &str) -> Self {
        self.env(NAMESPACE, namespace)
    }

    /// Starts the process.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn spawn(self) -> Result<Child> {
        let program = std::env::current_exe().context("this program does not know its path")?;
        let mut command = command(&program);
        command
            .args(["--exact", &self.test, "--nocapture", "--include-ignored"])
            .env(ROLE, &self.role)
            .envs(shared::variables())
            .envs(self.env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Its panics appear in the output of the test.
            .stderr(if self.silent {
                Stdio::null()
            } else {
                Stdio::inherit()
            });
        let process = Process::spawn(command)?;
        let (stdin, stdout) = {
            let mut child = process.child();
            (child.stdin.take(), child.stdout.take())
        };
        let stdout = stdout.context("the child has no stdout")?;
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if let Some(said) = line.strip_prefix(MARK)
                    && sender.send(said.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Ok(Child {
            process,
            stdin,
            lines,
            role: self.role,
        })
    }
}

/// A process of this test binary in another role. It is killed when it is dropped.
pub struct Child {
    process: Process,
    stdin: Option<std::process::ChildStdin>,
    lines: mpsc::UnboundedReceiver<String>,
    role: String,
}

impl Child {
    /// A child that runs the test called `test`, as the test runner lists it: the function's name
    /// in a file of `tests/`, with the module's path before it elsewhere
    /// ([`Backend::test`](crate::Backend::test) in the matrix).
    pub fn of(test: &str) -> ChildBuilder {
        ChildBuilder {
            test: test.to_owned(),
            role: "child".to_owned(),
            env: Vec::new(),
            silent: false,
        }
    }

    /// The next line that the child sends.
    ///
    /// # Errors
    ///
    /// If it ends without one, or sends nothing for a minute.
    pub async fn line(&mut self) -> Result<String> {
        let wait = tokio::time::timeout(Duration::from_secs(60), self.lines.recv()).await;
        wait.with_context(|| format!("child {:?} says nothing", self.role))?
            .with_context(|| format!("child {:?} ended without another word", self.role))
    }

    /// Sends a line to the child, which reads it by [`hear`].
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the child's stdin is closed")?;
        writeln!(stdin, "{line}")
            .and_then(|()| stdin.flush())
            .context("the child does not listen")
    }

    /// Closes the child's stdin: [`hear`] returns `None`.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Stops it (SIGSTOP).
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn pause(&self) -> Result<()> {
        self.process.signal(Signal::SIGSTOP)
    }

    /// Resumes it (SIGCONT).
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn resume(&self) -> Result<()> {
        self.process.signal(Signal::SIGCONT)
    }

    /// Kills it (SIGKILL) and returns when it is gone.
    pub fn kill9(&self) {
        self.process.kill9();
    }

    /// Waits until it has ended. The status is not a success if its test failed.
    ///
    /// # Errors
    ///
    /// If it does not end within a minute.
    pub async fn wait(&mut self) -> Result<ExitStatus> {
        self.close();
        wait_until(
            "a child process to end",
            Duration::from_secs(60),
            async || self.process.ended(),
        )
        .await
    }
}

impl std::fmt::Debug for Child {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Child")
            .field("role", &self.role)
            .field("pid", &self.pid())
            .finish()
    }
}
