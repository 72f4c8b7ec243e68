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
//! wait at one moment share one write and one sync.
//!
//! # When the disk fails
//!
//! A failed write (no room) is undone and tried again; until it succeeds, commands that would write
//! are refused with MISCONF. A failed sync is final for the file: the kernel may have dropped the
//! pages, and a later sync that succeeds says nothing about them. Writes are then refused until the
//! log's thread has written a fresh base from memory. A process that is killed before that, and
//! started again while the machine runs on, believes what the kernel shows it; so do Redis and
//! Valkey.
//!
//! # After a crash
//!
//! A file that the manifest names, and the folder that names it, are synced before the manifest is
//! replaced, and files are removed only after that; a file system may keep these changes in any order.
//! What is read at a start is synced before it is served. The last file may end within a command, or
//! in zeros that were never written: it is cut there, and anything else is an error. `aof/crash.rs`
//! ends the process and the power at every call to the file system and checks that every
//! acknowledged write is there.
//!
//! # Rewriting
//!
//! A rewrite starts a new increment, and then reads the older files back into an engine of its own,
//! from which the new base is written. No caller waits for it; while it runs it needs the memory of
//! a second copy of the data.

mod backup;
mod copy;
mod dump;
mod file;
mod folder;
mod load;
mod manifest;
#[cfg(feature = "sim")]
pub(crate) mod simulated;

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::{Poll, Waker},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    Compat, Engine, Fsync,
    commands::database,
    config::Config,
    dispatch,
    effect::{Effect, Health, Sink, Told},
    engine::{Inner, State},
    error::EngineError,
    rdb,
    reply::Reply,
    resp,
};

pub use backup::Backup;
pub(crate) use copy::Copy;
#[cfg(feature = "sim")]
pub(crate) use dump::write_all;
use file::LogFile;
use folder::{Folder, OsFolder};
use manifest::Manifest;

const FOLDER: &str = "appendonlydir";
/// More than this does not wait in memory for the disk.
const BUFFER_LIMIT: usize = 32 * 1024 * 1024;
/// How often the log's thread looks for work without being asked.
const ROUND: Duration = Duration::from_millis(100);
/// How long after a failed attempt a fresh log is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The log of one engine. Locks are taken in the order of the fields, after the engine's own.
pub(crate) struct Log {
    folder: Arc<dyn Folder>,
    policy: Policy,
    databases: usize,
    compat: Compat,
    script_memory: usize,
    /// Held during a sync, so that there is one at a time; when the last one ended.
    syncing: Mutex<Instant>,
    disk: Mutex<Disk>,
    buffer: Mutex<Buffer>,
    /// How many bytes were ever put into the buffer.
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
    waiters: Mutex<Vec<(u64, Waker)>>,
    work: Mutex<Work>,
    wake: Condvar,
    rewriting: AtomicBool,
    rewrites: AtomicU64,
    rewrite_failed: AtomicBool,
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

/// The settings of a log, which may change while it is written.
struct Policy {
    /// The place of the choice in [`CHOICES`].
    fsync: AtomicU8,
    /// An increment shorter than this is never reason to rewrite.
    rewrite_from: AtomicU64,
    /// By how many percent of its base the log grows before it is rewritten; 0 is never.
    rewrite_percentage: AtomicU64,
}

const CHOICES: [Fsync; 3] = [Fsync::Always, Fsync::EverySec, Fsync::No];

impl Policy {
    fn new(config: &Config) -> Policy {
        let policy = Policy {
            fsync: AtomicU8::new(0),
            rewrite_from: AtomicU64::new(0),
            rewrite_percentage: AtomicU64::new(0),
        };
        policy.follow(config);
        policy
    }

    fn follow(&self, config: &Config) {
        let choice = CHOICES.iter().position(|one| *one == config.fsync);
        self.fsync
            .store(choice.unwrap_or(1) as u8, Ordering::Relaxed);
        self.rewrite_from
            .store(config.rewrite_from, Ordering::Relaxed);
        self.rewrite_percentage
            .store(config.rewrite_percentage, Ordering::Relaxed);
    }

    fn fsync(&self) -> Fsync {
        CHOICES[usize::from(self.fsync.load(Ordering::Relaxed))]
    }

    /// Whether an increment of this length is reason to rewrite.
    fn wants_rewrite(&self, len: u64, base_len: u64) -> bool {
        let percentage = self.rewrite_percentage.load(Ordering::Relaxed);
        let growth = base_len.saturating_mul(percentage) / 100;
        percentage > 0 && len > growth.max(self.rewrite_from.load(Ordering::Relaxed))
    }
}

/// Where an engine has its log, if the data is kept. CONFIG SET appendonly exchanges it.
#[derive(Default)]
pub(crate) struct LogSlot {
    log: RwLock<Option<Arc<Log>>>,
    /// Ends the log of before.
    closing: Mutex<Option<JoinHandle<()>>>,
}

impl LogSlot {
    pub(crate) fn get(&self) -> Option<Arc<Log>> {
        self.log.read().clone()
    }

    pub(crate) fn set(&self, log: Arc<Log>) {
        *self.log.write() = Some(log);
    }

    /// Waits until the log of before has let go of its folder.
    fn wait_for_end(&self) {
        if let Some(thread) = self.closing.lock().take() {
            let _ = thread.join();
        }
    }

    /// Ends the log; what is left of it is written by another thread, since the engine's lock is held.
    fn end(&self) {
        let Some(log) = self.log.write().take() else {
            return;
        };
        self.wait_for_end();
        log.ask(|work| work.stop = true);
        let thread = std::thread::Builder::new()
            .name("redstart-log-end".into())
            .spawn(move || log.close());
        *self.closing.lock() = thread.ok();
    }
}

/// Begins or ends the log as the changed settings say, and lets it follow the others.
pub(crate) fn follow_config(state: &mut State, before: &Config) -> Result<(), String> {
    let Some(inner) = state.inner.upgrade() else {
        return Ok(());
    };
    let slot = &inner.log;
    match (before.append_only, state.config.append_only) {
        (false, true) => {
            slot.wait_for_end();
            let log = begin(state).map_err(|error| error.to_string())?;
            slot.set(log);
        }
        (true, false) => {
            state.effects.set_sink(None);
            slot.end();
        }
        (true, true) => {
            if let Some(log) = slot.get() {
                log.policy.follow(&state.config);
                state.effects.follow_sink();
            }
        }
        (false, false) => {}
    }
    Ok(())
}

/// Begins a log of what is in memory; what the folder had before is replaced.
fn begin(state: &mut State) -> Result<Arc<Log>, EngineError> {
    let (folder, lock) = claim(&state.config.dir())?;
    folder.make()?;
    let manifest = Manifest::load(&*folder)?;
    let engine = state.inner.clone();
    let log = Log::new(folder, Some(lock), manifest, state, engine)?;
    log.write_fresh(state)?;
    log.start()?;
    let sink = Box::new(LogSink(log.clone()));
    state.effects.set_sink(Some(sink));
    Ok(log)
}

/// For INFO: bytes, and how often the log was rewritten.
pub(crate) struct Sizes {
    pub(crate) base: u64,
    pub(crate) increment: u64,
    /// In memory only.
    pub(crate) buffered: u64,
    pub(crate) rewrites: u64,
}

/// Nothing is wrong.
const FINE: u8 = 0;
/// The last write failed and was undone; it is tried again.
const WRITE_FAILED: u8 = 1;
/// A sync failed, or a failed write could not be undone: the current file is not to be used again.
const FILE_LOST: u8 = 2;

struct Buffer {
    bytes: Vec<u8>,
    /// The database that the log has selected.
    db: Option<usize>,
}

struct Disk {
    file: Arc<LogFile>,
    manifest: Manifest,
    /// The length of the increment that is being written.
    len: u64,
    base_len: u64,
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

/// The log as the engine's effects see it.
struct LogSink(Arc<Log>);

impl Sink for LogSink {
    fn append(&mut self, unit: &[Effect]) -> u64 {
        self.0.append(unit)
    }

    fn health(&self) -> Health {
        Health {
            writable: self.0.trouble() == FINE,
            rewriting: self.0.rewriting.load(Ordering::Relaxed),
            rewritten: !self.0.rewrite_failed.load(Ordering::Relaxed),
        }
    }

    fn is_failing(&self) -> bool {
        self.0.trouble() != FINE
    }

    fn holds_reads(&self) -> bool {
        self.0.always()
    }

    fn durable(&self) -> u64 {
        self.0.synced.load(Ordering::Acquire)
    }

    fn rewrite(&mut self) -> bool {
        self.0.request_rewrite()
    }

    fn backup(&mut self, target: PathBuf, ready: (usize, Bytes), then: Told) -> io::Result<()> {
        let engine = self.0.engine.get().cloned();
        self.0.start_backup(target, move |result| {
            then(match result {
                Ok(backup) => Reply::Array(vec![
                    Reply::Int(backup.files as i64),
                    Reply::Int(backup.bytes as i64),
                ]),
                Err(error) => Reply::Error(format!("ERR the backup failed: {error}")),
            });
            if let Some(inner) = engine.as_ref().and_then(Weak::upgrade) {
                let mut state = inner.lock();
                state.ready.push(ready);
                dispatch::finish(&mut state, inner.clock.now_micros());
            }
        })
    }

    fn reload(&mut self, state: &mut State, now_micros: i64) -> Result<(), EngineError> {
        self.0.write()?;
        let disk = self.0.disk.lock();
        database::empty_all(state);
        let files = disk.manifest.files();
        load::load(
            &*self.0.folder,
            &files,
            state,
            now_micros,
            (load::Tail::Whole, load::Failing::LeftOut),
        )
    }
}

/// Makes the log, if there is one, that of data which was replaced as a whole. To be called before the
/// lock is let go: what is written meanwhile would be kept with the data of before.
pub(crate) fn keep_replaced(state: &State) -> Result<(), EngineError> {
    let Some(log) = state.inner.upgrade().and_then(|inner| inner.log.get()) else {
        return Ok(());
    };
    log.write_fresh(state).inspect_err(|error| log.lose(error))
}

/// Writes all data to memory, removes it, and loads it again.
pub(crate) fn reload(state: &mut State, now_micros: i64) -> Result<(), EngineError> {
    let mut bytes = Vec::new();
    dump::write_all(state, &mut bytes)?;
    let sink = state.effects.lend();
    database::empty_all(state);
    let loaded = load::load_bytes(bytes, state, now_micros);
    if let Some(sink) = sink {
        state.effects.give_back(sink);
    }
    loaded
}

/// Opens the folder, loads what is in it, and continues writing there.
pub(crate) fn open(dir: &Path, engine: &Engine) -> Result<Arc<Log>, EngineError> {
    let (folder, lock) = claim(dir)?;
    let log = open_in(folder, Some(lock), engine)?;
    take_over(&log, engine, dir)?;
    log.start()?;
    Ok(log)
}

/// The log of Redis 6 and before: one file beside the snapshot.
const PLAIN_LOG: &str = "appendonly.aof";

/// Loads what another server left if there is no log yet: a log in one file, or else a snapshot.
fn take_over(log: &Log, engine: &Engine, dir: &Path) -> Result<(), EngineError> {
    let is_empty = |name: &String| log.folder.len(name).is_ok_and(|len| len == 0);
    let is_new = {
        let manifest = &log.disk.lock().manifest;
        !manifest.has_base() && manifest.files().iter().all(is_empty)
    };
    if !is_new {
        return Ok(());
    }
    let beside = OsFolder::new(dir.to_owned());
    if beside.len(PLAIN_LOG).is_ok_and(|len| len > 0) {
        let mut state = engine.inner.state.lock();
        let sink = state.effects.lend();
        let how = (load::Tail::MayBeTorn, load::Failing::LeftOut);
        let files = [PLAIN_LOG.to_owned()];
        let loaded = load::load(&beside, &files, &mut state, engine.now_micros(), how);
        if let Some(sink) = sink {
            state.effects.give_back(sink);
        }
        loaded?;
        return log.write_fresh(&state);
    }
    let path = rdb::snapshot_path(&engine.inner.state.lock().config);
    if !path.exists() {
        return Ok(());
    }
    let file = io::BufReader::with_capacity(1024 * 1024, File::open(&path)?);
    let loaded = {
        let mut state = engine.inner.state.lock();
        load::load_rdb(file, &mut state, engine.now_micros())
    };
    loaded.map_err(|text| EngineError::Log(format!("{}: {text}", path.display())))?;
    // Until this is done, the next start does it again.
    log.start_over()
}

/// Makes the folder and keeps others from it.
fn claim(dir: &Path) -> Result<(Arc<dyn Folder>, File), EngineError> {
    fs::create_dir_all(dir)?;
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join("redstart.lock"))?;
    if lock.try_lock().is_err() {
        return Err(EngineError::Io(io::Error::new(
            io::ErrorKind::WouldBlock,
            "another process or engine writes to this folder",
        )));
    }
    Ok((Arc::new(OsFolder::new(dir.join(FOLDER))), lock))
}

/// As [`open`], without a thread.
fn open_in(
    folder: Arc<dyn Folder>,
    lock: Option<File>,
    engine: &Engine,
) -> Result<Arc<Log>, EngineError> {
    folder.make()?;
    let manifest = Manifest::load(&*folder)?;
    let mut state = engine.inner.state.lock();
    load::load(
        &*folder,
        &manifest.files(),
        &mut state,
        engine.now_micros(),
        (load::Tail::MayBeTorn, load::Failing::LeftOut),
    )?;
    // What a killed process left may be known to the kernel only: before anybody reads it, and
    // before files are removed that an older manifest names, it is made to last.
    for name in manifest.files() {
        folder.open(&name)?.0.sync()?;
    }
    folder.sync()?;
    manifest.remove_orphans(&*folder);
    let inner = Arc::downgrade(&engine.inner);
    let log = Log::new(folder, lock, manifest, &state, inner)?;
    state.effects.set_sink(Some(Box::new(LogSink(log.clone()))));
    Ok(log)
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
        if manifest.increments.is_empty() {
            manifest.add_increment();
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
            syncing: Mutex::new(Instant::now()),
            disk: Mutex::new(Disk {
                file: Arc::new(LogFile::new(file)),
                manifest,
                len,
                base_len,
                fresh_starts: 0,
            }),
            buffer: Mutex::new(Buffer {
                bytes: Vec::new(),
                db: None,
            }),
            appended: AtomicU64::new(start),
            written: AtomicU64::new(start),
            synced: AtomicU64::new(start),
            trouble: AtomicU8::new(FINE),
            reason: Mutex::new(String::new()),
            waiters: Mutex::new(Vec::new()),
            work: Mutex::new(Work::default()),
            wake: Condvar::new(),
            rewriting: AtomicBool::new(false),
            rewrites: AtomicU64::new(0),
            rewrite_failed: AtomicBool::new(false),
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
        let (base, increment) = {
            let disk = self.disk.lock();
            (disk.base_len, disk.len)
        };
        Sizes {
            base,
            increment,
            buffered: self.buffer.lock().bytes.len() as u64,
            rewrites: self.rewrites.load(Ordering::Relaxed),
        }
    }

    fn trouble(&self) -> u8 {
        self.trouble.load(Ordering::Acquire)
    }

    /// The failure that keeps the log from being written, if there is one.
    fn failure(&self) -> Option<io::Error> {
        (self.trouble() != FINE).then(|| io::Error::other(self.reason.lock().clone()))
    }

    /// The data was replaced and the log does not say so: nothing is appended to it until a fresh one
    /// is written.
    pub(crate) fn lose(&self, error: &EngineError) {
        self.fail(FILE_LOST, &io::Error::other(error.to_string()));
    }

    fn fail(&self, trouble: u8, error: &io::Error) {
        if self.trouble() == FINE {
            tracing::error!(%error, "cannot write to the append-only log");
        }
        *self.reason.lock() = error.to_string();
        self.trouble.fetch_max(trouble, Ordering::Release);
        self.wake_waiters();
    }

    /// Encodes a unit into the buffer; the position at which it ends.
    fn append(&self, unit: &[Effect]) -> u64 {
        let mut buffer = self.buffer.lock();
        let before = buffer.bytes.len();
        let word = |word: &'static str| [Bytes::from_static(word.as_bytes())];
        let atomic = unit.len() > 1;
        if atomic {
            resp::encode_command(&word("MULTI"), &mut buffer.bytes);
        }
        for effect in unit {
            if buffer.db != Some(effect.db) {
                buffer.db = Some(effect.db);
                let select = [
                    Bytes::from_static(b"SELECT"),
                    Bytes::from(effect.db.to_string()),
                ];
                resp::encode_command(&select, &mut buffer.bytes);
            }
            resp::encode_command(&effect.args, &mut buffer.bytes);
        }
        if atomic {
            resp::encode_command(&word("EXEC"), &mut buffer.bytes);
        }
        let added = (buffer.bytes.len() - before) as u64;
        let position = self.appended.fetch_add(added, Ordering::Relaxed) + added;
        let full = buffer.bytes.len() > BUFFER_LIMIT;
        drop(buffer);
        if full {
            // The disk does not keep up: the caller has to wait for it.
            let _ = self.write();
        }
        position
    }

    /// Whether a reply that depends on this position may leave.
    fn is_kept(&self, position: u64) -> bool {
        let kept = if self.always() {
            &self.synced
        } else {
            &self.written
        };
        kept.load(Ordering::Acquire) >= position
    }

    /// Returns once a reply that depends on this position may leave. Blocks the thread.
    pub(crate) fn commit(&self, position: u64) -> io::Result<()> {
        while !self.is_kept(position) {
            if self.always() {
                self.sync()?;
            } else {
                self.write()?;
            }
        }
        Ok(())
    }

    /// As [`Log::commit`] without blocking the thread for a sync: the log's own thread does it.
    pub(crate) fn poll_commit(&self, position: u64, waker: &Waker) -> Poll<io::Result<()>> {
        if self.is_kept(position) {
            return Poll::Ready(Ok(()));
        }
        if !self.always() {
            return Poll::Ready(self.commit(position));
        }
        self.waiters.lock().push((position, waker.clone()));
        // A sync may have ended before the waker was registered.
        if self.is_kept(position) {
            return Poll::Ready(Ok(()));
        }
        if let Some(failure) = self.failure() {
            return Poll::Ready(Err(failure));
        }
        self.ask(|work| work.sync = true);
        Poll::Pending
    }

    fn wake_waiters(&self) {
        let (failed, synced) = (self.trouble() != FINE, self.synced.load(Ordering::Acquire));
        self.waiters.lock().retain(|(position, waker)| {
            let over = failed || *position <= synced;
            if over {
                waker.wake_by_ref();
            }
            !over
        });
    }

    /// Hands the buffer to the kernel.
    fn write(&self) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let (bytes, position) = {
            let mut buffer = self.buffer.lock();
            let position = self.appended.load(Ordering::Relaxed);
            (std::mem::take(&mut buffer.bytes), position)
        };
        if let Err(error) = self.write_bytes(&mut disk, &bytes) {
            // Nothing is forgotten.
            let mut buffer = self.buffer.lock();
            let newer = std::mem::replace(&mut buffer.bytes, bytes);
            buffer.bytes.extend_from_slice(&newer);
            return Err(error);
        }
        self.written.fetch_max(position, Ordering::Release);
        Ok(())
    }

    /// Appends to the file, all or nothing.
    fn write_bytes(&self, disk: &mut Disk, bytes: &[u8]) -> io::Result<()> {
        if self.trouble() == FILE_LOST {
            return Err(io::Error::other(self.reason.lock().clone()));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        if let Err(error) = disk.file.append(bytes) {
            let undone = disk.file.cut(disk.len);
            let trouble = if undone.is_ok() {
                WRITE_FAILED
            } else {
                FILE_LOST
            };
            self.fail(trouble, &error);
            return Err(error);
        }
        disk.len += bytes.len() as u64;
        let _ =
            self.trouble
                .compare_exchange(WRITE_FAILED, FINE, Ordering::AcqRel, Ordering::Relaxed);
        Ok(())
    }

    /// Hands the buffer to the kernel and waits until it is on the disk.
    fn sync(&self) -> io::Result<()> {
        let mut last = self.syncing.lock();
        self.write()?;
        // The file cannot be switched while `syncing` is held.
        let file = self.disk.lock().file.clone();
        let position = self.written.load(Ordering::Acquire);
        if self.synced.load(Ordering::Acquire) < position {
            self.sync_file(&file)?;
            self.synced.fetch_max(position, Ordering::Release);
            self.wake_waiters();
        }
        *last = Instant::now();
        Ok(())
    }

    fn sync_file(&self, file: &LogFile) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        file.sync().inspect_err(|error| self.fail(FILE_LOST, error))
    }

    fn ask(&self, what: impl FnOnce(&mut Work)) {
        what(&mut self.work.lock());
        self.wake.notify_one();
    }

    /// The life of the log's thread.
    fn work_until_stopped(self: &Arc<Log>) {
        let mut last_attempt: Option<Instant> = None;
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
                if last_attempt.is_none_or(|at| at.elapsed() >= RETRY) {
                    last_attempt = Some(Instant::now());
                    if let Err(error) = self.start_over() {
                        tracing::error!(%error, "cannot start a fresh append-only log");
                    }
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
            let grown = {
                let disk = self.disk.lock();
                self.policy.wants_rewrite(disk.len, disk.base_len)
            };
            if work.rewrite || grown {
                self.start_rewrite();
            }
        }
    }

    /// Asks for a rewrite; false if one is under way.
    fn request_rewrite(&self) -> bool {
        if self.rewriting.load(Ordering::Relaxed) {
            return false;
        }
        self.ask(|work| work.rewrite = true);
        true
    }

    fn start_rewrite(self: &Arc<Log>) {
        if self.rewriting.swap(true, Ordering::Relaxed) {
            return;
        }
        self.rewrites.fetch_add(1, Ordering::Relaxed);
        let log = self.clone();
        let thread = std::thread::Builder::new()
            .name("redstart-rewrite".into())
            .spawn(move || log.finish_rewrite(log.rewrite()));
        match thread {
            Ok(thread) => {
                let mut threads = self.threads.lock();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(error) => self.finish_rewrite(Err(error.into())),
        }
    }

    fn finish_rewrite(&self, result: Result<(), EngineError>) {
        if let Err(error) = &result {
            tracing::error!(%error, "the append-only log was not rewritten");
        }
        self.rewrite_failed
            .store(result.is_err(), Ordering::Relaxed);
        self.rewriting.store(false, Ordering::Relaxed);
    }

    fn rewrite(&self) -> Result<(), EngineError> {
        let (old, fresh_starts) = self.switch_increment()?;
        // The code of a library may depend on the version and the memory that it has.
        let scratch = Engine::builder()
            .databases(self.databases)
            .compat(self.compat)
            .script_memory(self.script_memory)
            .build()?;
        let now = scratch.now_micros();
        let mut state = scratch.inner.state.lock();
        let files = old.files();
        let whole = (load::Tail::Whole, load::Failing::Refused);
        load::load(&*self.folder, &files, &mut state, now, whole)?;
        let temporary = self.temporary("bg");
        let written = dump::write(&state, &*self.folder, &temporary);
        drop(state);
        let finished = written
            .map_err(EngineError::Io)
            .and_then(|len| self.publish((&old, fresh_starts), &temporary, len));
        if finished.is_err() {
            let _ = self.folder.remove(&temporary);
        }
        finished
    }

    /// Where a base is written before it is part of the log; two may be written at once.
    fn temporary(&self, purpose: &str) -> String {
        format!("temp-rewriteaof-{purpose}-{}.aof", std::process::id())
    }

    /// Ends the current increment and begins another; returns the manifest of before.
    fn switch_increment(&self) -> Result<(Manifest, u64), EngineError> {
        // Most of it before anybody has to wait.
        self.sync()?;
        let _last = self.syncing.lock();
        let mut disk = self.disk.lock();
        let old = disk.manifest.clone();
        let mut new = old.clone();
        new.add_increment();
        let name = new.current().to_owned();
        let file = LogFile::new(self.folder.create(&name)?);
        if let Err(error) = new.save(&*self.folder) {
            self.go_back(&old, &name);
            return Err(error.into());
        }
        // The new file knows of no selected database, so the buffer must be empty when it is used.
        let mut buffer = self.buffer.lock();
        // Others may have written while the sync above ran: that is in the kernel only.
        let unsynced = self.synced.load(Ordering::Acquire) < self.written.load(Ordering::Acquire);
        let ended = match self.write_bytes(&mut disk, &buffer.bytes) {
            Ok(()) if buffer.bytes.is_empty() && !unsynced => Ok(()),
            Ok(()) => self.sync_file(&disk.file),
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            self.go_back(&old, &name);
            return Err(error.into());
        }
        buffer.bytes.clear();
        buffer.db = None;
        let position = self.appended.load(Ordering::Relaxed);
        self.written.fetch_max(position, Ordering::Release);
        self.synced.fetch_max(position, Ordering::Release);
        disk.file = Arc::new(file);
        disk.manifest = new;
        disk.len = 0;
        let fresh_starts = disk.fresh_starts;
        drop(buffer);
        drop(disk);
        self.wake_waiters();
        Ok((old, fresh_starts))
    }

    /// Makes the manifest name what it named before; if that is certain, removes the file that it
    /// may have named meanwhile. Otherwise both manifests can be loaded, and the next start cleans up.
    fn go_back(&self, old: &Manifest, name: &str) {
        if old.save(&*self.folder).is_ok() {
            let _ = self.folder.remove(name);
        }
    }

    /// Makes the new base part of the log; it replaces the files that it was made from.
    fn publish(
        &self,
        (old, fresh_starts): (&Manifest, u64),
        temporary: &str,
        len: u64,
    ) -> Result<(), EngineError> {
        let mut disk = self.disk.lock();
        if disk.fresh_starts != fresh_starts {
            return Err(EngineError::Log(
                "the log was started over meanwhile".into(),
            ));
        }
        let mut new = disk.manifest.clone();
        let name = new.replace_base(old);
        self.folder.rename(temporary, &name)?;
        if let Err(error) = new.save(&*self.folder) {
            self.go_back(&disk.manifest, &name);
            return Err(error.into());
        }
        disk.manifest = new;
        disk.base_len = len;
        drop(disk);
        for name in old.files() {
            let _ = self.folder.remove(&name);
        }
        Ok(())
    }

    /// Writes a fresh base from memory and begins a new increment: what the files of before hold
    /// is not certain. Everybody waits meanwhile.
    pub(crate) fn start_over(&self) -> Result<(), EngineError> {
        let Some(inner) = self.engine.get().and_then(Weak::upgrade) else {
            return Ok(());
        };
        let state = loop {
            // Whoever ends the log may hold the engine's lock and wait for this thread.
            if self.work.lock().stop {
                return Ok(());
            }
            if let Some(state) = inner.state.try_lock_for(ROUND) {
                break state;
            }
        };
        self.write_fresh(&state)?;
        drop(state);
        tracing::warn!("the append-only log was started over from memory");
        Ok(())
    }

    /// Replaces the log's files by what is in memory.
    fn write_fresh(&self, state: &State) -> Result<(), EngineError> {
        let mut last = self.syncing.lock();
        let mut disk = self.disk.lock();
        let temporary = self.temporary("fresh");
        let len = dump::write(state, &*self.folder, &temporary).inspect_err(|_| {
            let _ = self.folder.remove(&temporary);
        })?;
        let old = disk.manifest.clone();
        let mut new = old.clone();
        new.add_increment();
        let base = new.replace_base(&old);
        let file = LogFile::new(self.folder.create(new.current())?);
        // From here on nothing is removed on failure: either manifest may be on the disk, and the
        // next attempt takes the same names.
        self.folder.rename(&temporary, &base)?;
        new.save(&*self.folder)?;
        let mut buffer = self.buffer.lock();
        buffer.bytes.clear();
        buffer.db = None;
        let position = self.appended.load(Ordering::Relaxed);
        self.written.fetch_max(position, Ordering::Release);
        self.synced.fetch_max(position, Ordering::Release);
        disk.file = Arc::new(file);
        disk.manifest = new;
        disk.len = 0;
        disk.base_len = len;
        disk.fresh_starts += 1;
        *last = Instant::now();
        self.trouble.store(FINE, Ordering::Release);
        drop(buffer);
        drop(disk);
        drop(last);
        for name in old.files() {
            let _ = self.folder.remove(&name);
        }
        self.wake_waiters();
        Ok(())
    }

    /// Writes what is left and ends the log's threads, but for those that copy it.
    pub(crate) fn close(&self) {
        self.ask(|work| work.stop = true);
        join(&self.threads);
        let _ = self.sync();
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
