//! Postgres in a folder of its own.

use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::process::{Process, command, free_port, setpriv, temp_dir};
use crate::{find, wait_until};

const START: Duration = Duration::from_secs(60);

/// A running Postgres with an empty database `postgres`, whose user `postgres` needs no password.
///
/// `fsync` is off, so the data survives a crash of the process but not of the machine. It is killed
/// when it is dropped.
///
/// ```no_run
/// # async fn f() -> anyhow::Result<()> {
/// let postgres = redstart_testkit::Postgres::start().await?;
/// assert_eq!(postgres.sql("select 6 * 7")?, "42");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Postgres {
    bin: PathBuf,
    port: u16,
    account: Option<Account>,
    process: Mutex<Option<Process>>,
    // Last: the process must be gone before its folder is removed.
    dir: TempDir,
}

/// The user that Postgres runs as: it refuses to run as root.
#[derive(Debug, Clone)]
struct Account {
    name: String,
    uid: u32,
    gid: u32,
}

impl Postgres {
    /// Makes a database folder, starts Postgres on it and waits until it answers.
    ///
    /// # Errors
    ///
    /// If Postgres is missing (the message says how to install it) or does not start; then the
    /// message ends with its log.
    pub async fn start() -> Result<Self> {
        let bin = find::postgres_bin()?;
        let dir = temp_dir()?;
        let are_we_root = dir.path().metadata()?.uid() == 0;
        let account = are_we_root.then(account).transpose()?;
        if let Some(account) = &account {
            chown(dir.path(), Some(account.uid), Some(account.gid))?;
        }
        let postgres = Self {
            bin,
            port: 0,
            account,
            process: Mutex::new(None),
            dir,
        };
        postgres.initdb().await?;
        postgres.start_on_a_free_port().await
    }

    /// `postgres://postgres@127.0.0.1:port/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// `127.0.0.1:port`, for example for a [`Proxy`](crate::Proxy).
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs SQL by `psql` and returns what it prints: one line per row, columns separated by `|`.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached or the SQL is wrong.
    pub fn sql(&self, sql: &str) -> Result<String> {
        let output = Command::new(self.bin.join("psql"))
            .args([
                "--no-psqlrc",
                "--quiet",
                "--tuples-only",
                "--no-align",
                "--command",
                sql,
            ])
            .arg(self.url())
            .stdin(Stdio::null())
            .output()
            .context("could not run psql")?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
        Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
    }

    /// Kills the main process (SIGKILL); its children end when they notice.
    pub fn kill9(&self) {
        if let Some(process) = &*self.process.lock().unwrap_or_else(PoisonError::into_inner) {
            process.kill9();
        }
    }

    /// Starts it again on the same port and folder; kills it first if it runs.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub async fn restart(&self) -> Result<()> {
        self.kill9();
        // Children that have not yet noticed hold the shared memory, and then the start fails.
        wait_until("Postgres to start again", START, async || {
            self.launch().await.ok()
        })
        .await
    }

    async fn initdb(&self) -> Result<()> {
        let mut command = self.command("initdb");
        command
            .arg("--pgdata")
            .arg(self.data())
            .args([
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
            ])
            .args(["--no-sync", "--no-instructions"])
            .stdout(std::fs::File::create(self.log_file())?)
            .stderr(std::fs::File::create(self.dir.path().join("initdb.err"))?);
        let process = Process::spawn(command)?;
        let status = wait_until("initdb", START, async || process.ended()).await?;
        if !status.success() {
            let errors = std::fs::read_to_string(self.dir.path().join("initdb.err"))?;
            bail!("initdb failed:\n{errors}");
        }
        Ok(())
    }

    async fn start_on_a_free_port(mut self) -> Result<Self> {
        let mut failure = None;
        // Another process may take the port before it is bound.
        for _ in 0..5 {
            self.port = free_port();
            match self.launch().await {
                Ok(()) => return Ok(self),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or_else(|| bail!("no attempt was made"), Err)
    }

    async fn launch(&self) -> Result<()> {
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(self.log_file())?;
        let mut command = self.command("postgres");
        command
            .arg("-D")
            .arg(self.data())
            .arg("-k")
            .arg(self.dir.path());
        let settings = [
            "listen_addresses=127.0.0.1",
            "fsync=off",
            "full_page_writes=off",
            "shared_buffers=16MB",
            "max_connections=50",
            "dynamic_shared_memory_type=mmap",
        ];
        for setting in settings {
            command.args(["-c", setting]);
        }
        command.args(["-p", &self.port.to_string()]).stderr(log);
        let process = Process::spawn(command)?;
        // By the socket in its own folder, so that no other Postgres can answer.
        let answers = || {
            Command::new(self.bin.join("psql"))
                .args([
                    "--no-psqlrc",
                    "--tuples-only",
                    "--username=postgres",
                    "--command=select 1",
                ])
                .arg("--host")
                .arg(self.dir.path())
                .args(["--port", &self.port.to_string(), "postgres"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        };
        let up = wait_until("Postgres to answer", START, async || {
            match process.ended() {
                Some(_) => Some(false),
                None => answers().then_some(true),
            }
        })
        .await?;
        if !up {
            let log = std::fs::read_to_string(self.log_file()).unwrap_or_default();
            bail!("Postgres ended at once:\n{log}");
        }
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        Ok(())
    }

    /// A program of Postgres, run as the right user.
    fn command(&self, program: &str) -> Command {
        let program = self.bin.join(program);
        let mut command = match &self.account {
            None => command(&program),
            Some(account) if setpriv() => {
                let mut command = command(Path::new("setpriv"));
                command
                    .args([
                        "--reuid",
                        &account.uid.to_string(),
                        "--regid",
                        &account.gid.to_string(),
                    ])
                    // A change of user clears the parent-death signal, so it is set again.
                    .args(["--clear-groups", "--pdeathsig", "KILL", "--"])
                    .arg(program);
                command
            }
            Some(account) => {
                let mut command = command(Path::new("runuser"));
                command.args(["-u", &account.name, "--"]).arg(program);
                command
            }
        };
        command.current_dir(self.dir.path());
        command
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(process) = &*self.process.lock().unwrap_or_else(PoisonError::into_inner) {
            // An immediate shutdown, which frees the shared memory; a killed one cannot.
            process.end(Signal::SIGQUIT, Duration::from_secs(10));
        }
    }
}

/// The user `postgres`, which Debian's package creates, or `nobody`.
fn account() -> Result<Account> {
    let passwd = std::fs::read_to_string("/etc/passwd").context("could not read /etc/passwd")?;
    let find = |wanted: &str| {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| *name == wanted)?.to_owned();
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            Some(Account { name, uid, gid })
        })
    };
    find("postgres")
        .or_else(|| find("nobody"))
        .context("there is no user to run Postgres as")
}
