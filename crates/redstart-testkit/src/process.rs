//! Child processes that never outlive the test.
//!
//! A dropped [`Process`] is killed and reaped: that covers the end of a test and a panic. When the
//! test process itself is killed nothing is dropped; then the kernel kills the children, because
//! they were started through `setpriv --pdeathsig KILL` (util-linux; without it only `Drop`
//! remains). The kernel sends that signal when the *thread* that started the child ends, and a
//! runtime's worker threads end with their runtime, so one thread that lives as long as the
//! process starts them all.

use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// A running (or ended) child process.
#[derive(Debug)]
pub(crate) struct Process {
    child: Mutex<Child>,
    pid: u32,
}

impl Process {
    /// Starts `command`, which must come from [`command`].
    pub(crate) fn spawn(command: Command) -> Result<Self> {
        let program = format!("{:?}", command.get_program());
        let child = spawn(command).with_context(|| format!("could not start {program}"))?;
        let pid = child.id();
        Ok(Self {
            child: Mutex::new(child),
            pid,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The status, if the process has ended.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        self.child().try_wait().ok().flatten()
    }

    /// Sends a signal, unless the process has ended (its id may have been reused).
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let mut child = self.child();
        if let Some(status) = child.try_wait()? {
            bail!("process {} has already ended with {status}", self.pid);
        }
        // The child is not yet reaped, and the lock keeps others from reaping it.
        kill(Pid::from_raw(self.pid.cast_signed()), signal)
            .with_context(|| format!("could not send {signal} to process {}", self.pid))
    }

    /// Kills the process and waits until it is gone. A stopped process dies too.
    pub(crate) fn kill9(&self) {
        let mut child = self.child();
        // Both fail only when the process is gone already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Sends `signal`, waits up to `patience`, then kills.
    pub(crate) fn end(&self, signal: Signal, patience: Duration) {
        if self.signal(signal).is_ok() {
            let deadline = Instant::now() + patience;
            while Instant::now() < deadline {
                if self.ended().is_some() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.kill9();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// A command that will not outlive this process, with no stdin and no output.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = match setpriv() {
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--"]).arg(program);
            command
        }
        false => Command::new(program),
    };
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Whether this machine's `setpriv` can set the parent-death signal.
pub(crate) fn setpriv() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "true"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let orders = SPAWNER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Order>();
        // The sender lives in a static, so the thread ends only with the process.
        std::thread::spawn(move || {
            for (mut command, reply) in receiver {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (reply, answer) = mpsc::channel();
    let gone = || io::Error::other("the thread that starts processes is gone");
    let sent = orders
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, reply));
    sent.map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

const PREFIX: &str = "redstart-testkit-";

/// A folder for one server. Its name contains the id of this process, so that folders which a
/// killed test run left behind are recognised and removed.
pub(crate) fn temp_dir() -> Result<TempDir> {
    static SWEPT: OnceLock<()> = OnceLock::new();
    // A unix socket's path has room for about 100 bytes.
    let base = Some(std::env::temp_dir())
        .filter(|dir| dir.as_os_str().len() < 40)
        .unwrap_or_else(|| "/tmp".into());
    SWEPT.get_or_init(|| sweep(&base));
    tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}-", std::process::id()))
        .tempdir_in(&base)
        .context("could not make a folder for a server")
}

fn sweep(base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| {
            name.strip_prefix(PREFIX)?
                .split_once('-')?
                .0
                .parse::<i32>()
                .ok()
        });
        let dead = owner.is_some_and(|pid| {
            matches!(
                kill(Pid::from_raw(pid), None),
                Err(nix::errno::Errno::ESRCH)
            )
        });
        if dead {
            // Another process may be sweeping too.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A TCP port on loopback that was free a moment ago.
///
/// Taken from below the range from which the kernel picks ports for outgoing connections, so that
/// a server that was killed finds its port free when it is restarted. The caller must be ready to
/// try another one.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = rand::random_range(11_000..32_000);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Asks a process to end as Ctrl-C does.
///
/// # Errors
///
/// If there is no such process.
pub fn interrupt(pid: u32) -> Result<()> {
    signal(pid, Signal::SIGINT)
}

/// Asks a process to end.
///
/// # Errors
///
/// If there is no such process.
pub fn terminate(pid: u32) -> Result<()> {
    signal(pid, Signal::SIGTERM)
}

/// Ends this process as `kill -9` does: no destructors, no flush.
pub fn kill_self() -> ! {
    let _ = kill(Pid::this(), Signal::SIGKILL);
    loop {
        std::thread::park();
    }
}

fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).context("no process has such a number")?;
    kill(Pid::from_raw(pid), signal).with_context(|| format!("process {pid} cannot be told"))
}
