//! The append-only log: what keeps the data in a folder.
//!
//! The folder has the layout of Redis 7's `appendonlydir/`: a manifest names a base file and one or
//! more increments, all of them plain commands. Redis and Valkey load it as it is, and what they
//! wrote is loaded here, with a base of either format. A folder with nothing but an `appendonly.aof`, as
//! Redis 6 has it, or a `dump.rdb` is taken over: a log is begun with what is in it.
//!
//! # From a change to the disk
//!
//! Effects are encoded into a buffer while the engine's lock is held. Three positions, counted in
//! bytes since the start, say how far they have come: `appended` (in the buffer) ≥ `written` (handed
//! to the kernel: a killed process loses nothing) ≥ `synced` (on the disk: a power failure loses
//! nothing). Before a reply leaves, its caller waits, without the engine's lock, for the position
//! that the reply depends on: `synced` with [`Fsync::Always`], `written` otherwise. All callers that
//! wait at one moment share one write and one sync. With [`Fsync::Always`], messages to other clients
//! (of PUBLISH, of keys that change, of cached keys that are invalid) and the stream of replicas wait as well:
//! nobody acts on what may yet be lost.
//!
//! # When the disk fails
//!
//! A failed write (no room) is undone and tried again; until it succeeds, commands that would write
//! are refused with MISCONF. Reads go on, but for what they would tell that is not on the disk, and for clients to which a
//! message of that is under way (`server.rs`). A replica goes on, too: it keeps what it cannot write up to a limit, and then
//! waits for room for a fresh base. A failed sync is final for the file: the kernel may have dropped the
//! pages, and a later sync that succeeds says nothing about them. Writes are then refused until the
//! log's thread has written a fresh base from memory, which is tried at growing distances, and at once
//! for BGREWRITEAOF. A process that is killed before that, and
//! started again while the machine runs on, believes what the kernel shows it; so do Redis and
//! Valkey.
//!
//! # After a crash
//!
//! A file that the manifest names, and the folder that names it, are synced before the manifest is
//! replaced, and files are removed only after that; a file system may keep these changes in any order.
//! A number is given to one file only, also if its manifest could not be saved: that one may be on the disk all the same.
//! What is read at a start is synced before it is served. The last file may end within a command, or
//! in zeros that were never written: it is cut there, and anything else is an error. `aof/crash.rs`
//! ends the process and the power at every call to the file system and checks that every
//! acknowledged write is there.
//!
//! # Rewriting
//!
//! A rewrite starts a new increment, and then reads the older files back into an engine of its own,
//! from which the new base is written. No caller waits for that, nor for the manifests that it saves; only
//! the last bytes of the old increment are synced before anybody writes to the new one. While it runs it
//! needs the memory of a second copy of the data.
//!
//! # Where to look
//!
//! | file | what it holds |
//! |---|---|
//! | `open.rs`, `load.rs` | opening a folder; reading its files |
//! | `slot.rs`, `policy.rs` | the log of an engine, which CONFIG SET exchanges; its settings |
//! | `sink.rs` | the log as the engine's effects see it |
//! | `write.rs` | from the buffer to the disk |
//! | `rewrite.rs`, `dump.rs` | a fresh base; all data as the commands that make it |
//! | `folder.rs`, `file.rs`, `manifest.rs` | the folder, its files, and the list of them |
//! | `backup.rs`, `copy.rs` | while it is written: a copy of the log, and the data of one moment |

mod backup;
mod copy;
mod dump;
mod file;
mod folder;
mod load;
mod manifest;
mod open;
mod policy;
mod rewrite;
#[cfg(feature = "sim")]
pub(crate) mod simulated;
mod sink;
mod slot;
mod write;

use std::{
    fs::File,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    Compat, Fsync,
    engine::{Inner, State},
    error::EngineError,
};

pub use backup::Backup;
pub(crate) use copy::Copy;
pub(crate) use open::{keep_replaced, open, reload};
pub(crate) use slot::{LogSlot, follow_config};
pub(crate) use write::Place;

#[cfg(feature = "sim")]
pub(crate) use dump::write_all;

use file::LogFile;
use folder::Folder;
use manifest::{Manifest, Numbers};
use policy::Policy;
use write::{FILE_LOST, FINE, Waiters};

/// How often the log's thread looks for work without being asked.
const ROUND: Duration = Duration::from_millis(100);
/// How soon after a failed attempt a fresh log is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Nobody waits longer than this for another attempt, unless one takes longer.
const LONGEST: Duration = Duration::from_secs(60);

/// How long after an attempt at a fresh log that failed the next one may begin. Everybody waits during an attempt, which may
/// write nearly all data before it fails: ten times as long, commands are answered, and after a long one at least as long.
fn pause_after(attempt: Duration) -> Duration {
    RETRY.max(attempt.saturating_mul(10).min(LONGEST.max(attempt)))
}

/// How long after so many rewrites that failed in a row the log's growth may be the reason for another one.
fn pause_between(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    RETRY.saturating_mul(1 << doublings).min(LONGEST)
}

/// Rewrites that failed, one after the other, and when the log's growth may be the reason for another one.
#[derive(Default)]
struct Failures {
    count: u32,
    pause_until: Option<Instant>,
}

/// The log of one engine. Locks are taken in the order of the fields, after the engine's own.
pub(crate) struct Log {
    folder: Arc<dyn Folder>,
    policy: Policy,
    databases: usize,
    compat: Compat,
    script_memory: usize,
    /// Held by who changes the manifest, while it is saved: that is slow, and nobody else waits for it.
    saving: Mutex<Numbers>,
    /// Held during a sync, so that there is one at a time; when the last one ended.
    syncing: Mutex<Instant>,
    disk: Mutex<Disk>,
    buffer: Mutex<Buffer>,
    /// The length of the increment that is being written, and that of the base. They change with `disk` held; who only tells of
    /// them does not wait for a write that takes long.
    len: AtomicU64,
    base_len: AtomicU64,
    /// How many bytes were ever put into the buffer, and how often all data was replaced.
    appended: AtomicU64,
    /// How many of them the kernel has.
    written: AtomicU64,
    /// How many of them are on the disk.
    synced: AtomicU64,
    /// One of the `Trouble` constants.
    trouble: AtomicU8,
    /// What the last failure was.
    reason: Mutex<String>,
    /// Tasks that wait for `synced` to reach a position.
    waiters: Mutex<Waiters>,
    work: Mutex<Work>,
    wake: Condvar,
    rewriting: AtomicBool,
    rewrites: AtomicU64,
    rewrite_failed: AtomicBool,
    rewrite_failures: Mutex<Failures>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Threads that copy the log: they need the engine's lock at the end, which may be held while
    /// another log waits for the end of this one.
    backups: Mutex<Vec<JoinHandle<()>>>,
    /// The engine whose log this is; unset while the log is loaded.
    engine: OnceLock<Weak<Inner>>,
    /// How often a file was synced.
    syncs: AtomicU64,
    /// Nobody else may write to the folder while this is open.
    lock: Mutex<Option<File>>,
}

/// For INFO: bytes, and how often the log was rewritten.
pub(crate) struct Sizes {
    pub(crate) base: u64,
    pub(crate) increment: u64,
    /// In memory only.
    pub(crate) buffered: u64,
    pub(crate) rewrites: u64,
}

struct Buffer {
    bytes: Vec<u8>,
    /// How many bytes a write that is under way has taken out: they come back if it fails.
    taken: usize,
    /// The database that the log has selected.
    db: Option<usize>,
}

struct Disk {
    file: Arc<LogFile>,
    manifest: Manifest,
    /// How often the log was started over: a rewrite of files from before must not be published.
    fresh_starts: u64,
}

/// What the log's thread is asked to do.
#[derive(Default)]
struct Work {
    sync: bool,
    rewrite: bool,
    stop: bool,
}

impl Log {
    /// A log that continues the last increment of a folder.
    fn new(
        folder: Arc<dyn Folder>,
        lock: Option<File>,
        mut manifest: Manifest,
        state: &State,
        engine: Weak<Inner>,
    ) -> Result<Arc<Log>, EngineError> {
        let mut numbers = Numbers::default();
        if manifest.increments.is_empty() {
            manifest.add_increment(&mut numbers);
            folder.create(manifest.current())?;
            manifest.save(&*folder)?;
        }
        let (file, len) = folder.open(manifest.current())?;
        let base_len = manifest.base_len(&*folder);
        // Positions go on rising when one log follows another: a caller may still hold an old one.
        let start = state.effects.last_position();
        let log = Arc::new(Log {
            folder,
            policy: Policy::new(&state.config),
            databases: state.dbs.len(),
            compat: state.config.compat,
            script_memory: state.scripts.limits.memory,
            saving: Mutex::new(numbers),
            syncing: Mutex::new(Instant::now()),
            disk: Mutex::new(Disk {
                file: Arc::new(LogFile::new(file)),
                manifest,
                fresh_starts: 0,
            }),
            len: AtomicU64::new(len),
            base_len: AtomicU64::new(base_len),
            buffer: Mutex::new(Buffer {
                taken: 0,
                bytes: Vec::new(),
                db: None,
            }),
            appended: AtomicU64::new(start),
            written: AtomicU64::new(start),
            synced: AtomicU64::new(start),
            trouble: AtomicU8::new(FINE),
            reason: Mutex::new(String::new()),
            waiters: Mutex::default(),
            work: Mutex::new(Work::default()),
            wake: Condvar::new(),
            rewriting: AtomicBool::new(false),
            rewrites: AtomicU64::new(0),
            rewrite_failed: AtomicBool::new(false),
            rewrite_failures: Mutex::default(),
            threads: Mutex::new(Vec::new()),
            backups: Mutex::new(Vec::new()),
            engine: OnceLock::new(),
            syncs: AtomicU64::new(0),
            lock: Mutex::new(lock),
        });
        // Set once, here.
        let _ = log.engine.set(engine);
        Ok(log)
    }

    /// Starts the log's thread.
    fn start(self: &Arc<Log>) -> Result<(), EngineError> {
        let writer = self.clone();
        let thread = std::thread::Builder::new()
            .name("redstart-log".into())
            .spawn(move || writer.work_until_stopped())?;
        self.threads.lock().push(thread);
        Ok(())
    }
}

impl Log {
    pub(crate) fn always(&self) -> bool {
        self.policy.fsync() == Fsync::Always
    }

    pub(crate) fn sizes(&self) -> Sizes {
        // While a file is exchanged, the buffer is held, and about this much is in it.
        let appended = self.appended.load(Ordering::Relaxed);
        let unwritten = appended.saturating_sub(self.written.load(Ordering::Relaxed));
        let buffer = self.buffer.try_lock();
        Sizes {
            base: self.base_len.load(Ordering::Relaxed),
            increment: self.len.load(Ordering::Relaxed),
            buffered: buffer.map_or(unwritten, |buffer| buffer.bytes.len() as u64),
            rewrites: self.rewrites.load(Ordering::Relaxed),
        }
    }

    fn ask(&self, what: impl FnOnce(&mut Work)) {
        what(&mut self.work.lock());
        self.wake.notify_one();
    }

    /// The life of the log's thread.
    fn work_until_stopped(self: &Arc<Log>) {
        let mut next_attempt: Option<Instant> = None;
        loop {
            let work = {
                let mut work = self.work.lock();
                if !work.sync && !work.stop && !work.rewrite {
                    self.wake.wait_for(&mut work, ROUND);
                }
                let stop = work.stop;
                std::mem::replace(
                    &mut *work,
                    Work {
                        stop,
                        ..Work::default()
                    },
                )
            };
            if work.stop {
                return;
            }
            if self.trouble() == FILE_LOST {
                // Who asks for a rewrite asks for this.
                if work.rewrite || next_attempt.is_none_or(|at| at <= Instant::now()) {
                    let (written, took) = self.try_to_start_over();
                    next_attempt = match written {
                        Ok(()) => None,
                        Err(error) => {
                            tracing::error!(%error, "cannot start a fresh append-only log");
                            Instant::now().checked_add(pause_after(took))
                        }
                    };
                }
                continue;
            }
            let due = match self.policy.fsync() {
                Fsync::Always => true,
                Fsync::EverySec => self.syncing.lock().elapsed() >= Duration::from_secs(1),
                Fsync::No => false,
            };
            // A failure is reported to the waiters and to the next command that writes.
            let _ = if work.sync || due {
                self.sync()
            } else {
                self.write()
            };
            let len = self.len.load(Ordering::Relaxed);
            let base_len = self.base_len.load(Ordering::Relaxed);
            let grown = self.policy.wants_rewrite(len, base_len);
            let wanted = grown || self.has_to_rewrite();
            if work.rewrite || (wanted && self.rewrite_may_begin()) {
                self.start_rewrite();
            }
        }
    }

    /// Writes what is left and ends the log's threads, but for those that copy it.
    pub(crate) fn close(&self) {
        self.ask(|work| work.stop = true);
        join(&self.threads);
        let _ = self.sync();
        self.wake_all();
        // Callers that still wait for this log may keep it alive for a moment.
        *self.lock.lock() = None;
    }

    /// Waits for copies that are under way. Not to be called with the engine's lock.
    pub(crate) fn wait_for_backups(&self) {
        join(&self.backups);
    }
}

fn join(threads: &Mutex<Vec<JoinHandle<()>>>) {
    let threads = std::mem::take(&mut *threads.lock());
    let this = std::thread::current().id();
    for thread in threads {
        // The log's own thread, or one that copies it, may have held the engine last.
        if thread.thread().id() != this {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod crash;
#[cfg(test)]
mod storm;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod told;
