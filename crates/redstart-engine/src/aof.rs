//! The append-only log: what keeps the data in a folder.
//!
//! The folder has the layout of Redis 7's `appendonlydir/`: a manifest names a base file and one or
//! more increments, all of them plain commands. Redis and Valkey load it as it is, and what they
//! wrote is loaded here if its base is in the same format (`aof-use-rdb-preamble no`).
//!
//! Effects are encoded into a buffer while the engine's lock is held, and written by a thread of
//! the log's own; with [`Fsync::Always`] whoever made a change writes and syncs before it has its
//! reply, and all who wait at that moment share one sync.
//!
//! A rewrite starts a new increment, and then reads the older files back into an engine of its own,
//! from which the new base is written. Nobody waits for it, and it takes the memory of a second
//! copy of the data while it runs.

mod dump;
mod manifest;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use parking_lot::{Condvar, Mutex};

use crate::{
    Engine, Fsync,
    client::Client,
    context::{Ctx, Origin},
    effect::{Effect, Sink},
    engine::State,
    error::{EngineError, Stop},
    registry,
    reply::Protocol,
    resp::{self, Limits, Parser},
};

use manifest::Manifest;

const FOLDER: &str = "appendonlydir";
/// An increment smaller than this is never reason to rewrite.
const REWRITE_FROM: u64 = 64 * 1024 * 1024;
/// More than this does not wait in memory for the disk.
const BUFFER_LIMIT: usize = 32 * 1024 * 1024;

/// The log of one engine.
pub(crate) struct Log {
    folder: PathBuf,
    fsync: Fsync,
    databases: usize,
    buffer: Mutex<Buffer>,
    /// How many bytes were ever put into the buffer.
    appended: AtomicU64,
    /// How many of them are on the disk for sure.
    synced: AtomicU64,
    disk: Mutex<Disk>,
    /// The last write failed.
    failed: AtomicBool,
    /// Whether the writer has something to do.
    work: Mutex<Work>,
    wake: Condvar,
    rewriting: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Nobody else may write to the folder while this is open.
    _lock: File,
}

struct Buffer {
    bytes: Vec<u8>,
    /// The database that the log has selected.
    db: Option<usize>,
}

struct Disk {
    file: File,
    manifest: Manifest,
    /// The length of the increment that is being written.
    len: u64,
    base_len: u64,
    last_sync: Instant,
    dirty: bool,
}

#[derive(Default)]
struct Work {
    pending: bool,
    rewrite: bool,
    stop: bool,
}

/// The log as the engine's effects see it.
struct LogSink(Arc<Log>);

impl Sink for LogSink {
    fn append(&mut self, unit: &[Effect]) {
        self.0.append(unit);
    }

    fn is_failing(&self) -> bool {
        self.0.failed.load(Ordering::Relaxed)
    }

    fn rewrite(&mut self) -> bool {
        self.0.request_rewrite()
    }
}

/// Opens the folder, loads what is in it, and goes on writing there.
pub(crate) fn open(dir: &Path, fsync: Fsync, engine: &Engine) -> Result<Arc<Log>, EngineError> {
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
    let folder = dir.join(FOLDER);
    fs::create_dir_all(&folder)?;
    let mut manifest = Manifest::load(&folder)?;
    let mut state = engine.inner.state.lock();
    load(
        &folder,
        &manifest.files(),
        &mut state,
        engine.now_micros(),
        Tail::MayBeTorn,
    )?;
    let databases = state.dbs.len();
    if manifest.increments.is_empty() {
        manifest.add_increment();
        File::create(folder.join(manifest.current()))?;
        manifest.save(&folder)?;
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(folder.join(manifest.current()))?;
    let len = file.seek(SeekFrom::End(0))?;
    let base_len = manifest.base_len(&folder);
    let log = Arc::new(Log {
        folder,
        fsync,
        databases,
        buffer: Mutex::new(Buffer {
            bytes: Vec::new(),
            db: None,
        }),
        appended: AtomicU64::new(0),
        synced: AtomicU64::new(0),
        disk: Mutex::new(Disk {
            file,
            manifest,
            len,
            base_len,
            last_sync: Instant::now(),
            dirty: false,
        }),
        failed: AtomicBool::new(false),
        work: Mutex::new(Work::default()),
        wake: Condvar::new(),
        rewriting: AtomicBool::new(false),
        threads: Mutex::new(Vec::new()),
        _lock: lock,
    });
    state.effects.set_sink(Some(Box::new(LogSink(log.clone()))));
    drop(state);
    let writer = log.clone();
    let thread = std::thread::Builder::new()
        .name("redstart-log".into())
        .spawn(move || writer.write_until_stopped())?;
    log.threads.lock().push(thread);
    Ok(log)
}

impl Log {
    pub(crate) fn always(&self) -> bool {
        self.fsync == Fsync::Always
    }

    /// How many bytes were recorded so far.
    pub(crate) fn appended(&self) -> u64 {
        self.appended.load(Ordering::Relaxed)
    }

    fn append(&self, unit: &[Effect]) {
        let mut buffer = self.buffer.lock();
        let (before, idle) = (buffer.bytes.len(), buffer.bytes.is_empty());
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
        self.appended.fetch_add(added, Ordering::Relaxed);
        let full = buffer.bytes.len() > BUFFER_LIMIT;
        drop(buffer);
        if full {
            // The disk does not keep up: whoever writes now has to wait for it.
            let _ = self.flush(false);
        } else if idle && !self.always() {
            self.work.lock().pending = true;
            self.wake.notify_one();
        }
    }

    /// Returns once all that was recorded up to `position` is on the disk.
    pub(crate) fn commit(&self, position: u64) -> io::Result<()> {
        while self.synced.load(Ordering::Acquire) < position {
            self.flush(true)?;
        }
        Ok(())
    }

    /// Writes the buffer to the file, and syncs it if asked to.
    fn flush(&self, sync: bool) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let result = self.flush_into(&mut disk, sync);
        let failed = result.is_err();
        if let Err(error) = &result
            && !self.failed.load(Ordering::Relaxed)
        {
            tracing::error!(%error, "cannot write to the append-only log");
        }
        self.failed.store(failed, Ordering::Relaxed);
        result
    }

    fn flush_into(&self, disk: &mut Disk, sync: bool) -> io::Result<()> {
        let (bytes, position) = {
            let mut buffer = self.buffer.lock();
            (std::mem::take(&mut buffer.bytes), self.appended())
        };
        if !bytes.is_empty() {
            if let Err(error) = disk.file.write_all(&bytes) {
                // Nothing half-written stays, and nothing is forgotten.
                let _ = disk.file.set_len(disk.len);
                let _ = disk.file.seek(SeekFrom::Start(disk.len));
                let mut buffer = self.buffer.lock();
                let newer = std::mem::replace(&mut buffer.bytes, bytes);
                buffer.bytes.extend_from_slice(&newer);
                return Err(error);
            }
            disk.len += bytes.len() as u64;
            disk.dirty = true;
        }
        if sync && disk.dirty {
            disk.file.sync_data()?;
            disk.dirty = false;
            disk.last_sync = Instant::now();
        }
        if sync {
            self.synced.fetch_max(position, Ordering::Release);
        }
        Ok(())
    }

    /// The life of the writer's thread.
    fn write_until_stopped(self: &Arc<Log>) {
        loop {
            let (stop, rewrite) = {
                let mut work = self.work.lock();
                if !work.pending && !work.stop && !work.rewrite {
                    self.wake.wait_for(&mut work, Duration::from_millis(100));
                }
                work.pending = false;
                (work.stop, std::mem::take(&mut work.rewrite))
            };
            if stop {
                return;
            }
            let (due, grown) = {
                let disk = self.disk.lock();
                let due = disk.last_sync.elapsed() >= Duration::from_secs(1);
                (due, disk.len > REWRITE_FROM.max(disk.base_len))
            };
            // An error is told by the next write command.
            let _ = self.flush(due && self.fsync == Fsync::EverySec);
            if rewrite || grown {
                self.start_rewrite();
            }
        }
    }

    /// Asks for a rewrite; false if one is under way.
    fn request_rewrite(&self) -> bool {
        if self.rewriting.load(Ordering::Relaxed) {
            return false;
        }
        self.work.lock().rewrite = true;
        self.wake.notify_one();
        true
    }

    fn start_rewrite(self: &Arc<Log>) {
        if self.rewriting.swap(true, Ordering::Relaxed) {
            return;
        }
        let log = self.clone();
        let thread = std::thread::Builder::new()
            .name("redstart-rewrite".into())
            .spawn(move || {
                if let Err(error) = log.rewrite() {
                    tracing::error!(%error, "the append-only log was not rewritten");
                }
                log.rewriting.store(false, Ordering::Relaxed);
            });
        match thread {
            Ok(thread) => self.threads.lock().push(thread),
            Err(error) => {
                tracing::error!(%error, "the append-only log was not rewritten");
                self.rewriting.store(false, Ordering::Relaxed);
            }
        }
    }

    fn rewrite(&self) -> Result<(), EngineError> {
        let old = self.switch_increment()?;
        let scratch = Engine::builder().databases(self.databases).build()?;
        let now = scratch.now_micros();
        let mut state = scratch.inner.state.lock();
        load(&self.folder, &old.files(), &mut state, now, Tail::Whole)?;
        let temporary = self
            .folder
            .join(format!("temp-rewriteaof-{}.aof", std::process::id()));
        let written = dump::write(&state, &temporary);
        drop(state);
        let finished = written
            .map_err(EngineError::Io)
            .and_then(|len| self.publish(&old, &temporary, len));
        if finished.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        finished
    }

    /// Ends the current increment and begins another; hands back what there was before.
    fn switch_increment(&self) -> Result<Manifest, EngineError> {
        let mut disk = self.disk.lock();
        self.flush_into(&mut disk, true)?;
        let old = disk.manifest.clone();
        let mut new = old.clone();
        new.add_increment();
        let file = File::create(self.folder.join(new.current()))?;
        new.save(&self.folder)?;
        // Between the two flushes others may have recorded more: that belongs to the new file,
        // which knows of no selected database. So the buffer must be empty when it is told so.
        let mut buffer = self.buffer.lock();
        if !buffer.bytes.is_empty() {
            disk.file.write_all(&buffer.bytes)?;
            disk.file.sync_data()?;
            buffer.bytes.clear();
        }
        buffer.db = None;
        disk.file = file;
        disk.manifest = new;
        disk.len = 0;
        Ok(old)
    }

    /// Makes the new base part of the log, in the place of what it was made from.
    fn publish(&self, old: &Manifest, temporary: &Path, len: u64) -> Result<(), EngineError> {
        let mut disk = self.disk.lock();
        let mut new = disk.manifest.clone();
        let name = new.replace_base(old);
        fs::rename(temporary, self.folder.join(name))?;
        new.save(&self.folder)?;
        disk.manifest = new;
        disk.base_len = len;
        drop(disk);
        for name in old.files() {
            let _ = fs::remove_file(self.folder.join(name));
        }
        Ok(())
    }

    /// Writes what is left and ends the log's threads.
    pub(crate) fn close(&self) {
        self.work.lock().stop = true;
        self.wake.notify_one();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            let _ = thread.join();
        }
        let _ = self.flush(true);
    }
}

/// What the end of the last file may look like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// The process that wrote it may have died while it did.
    MayBeTorn,
    Whole,
}

/// Repeats the commands of all files.
fn load(
    folder: &Path,
    files: &[String],
    state: &mut State,
    now_micros: i64,
    tail: Tail,
) -> Result<(), EngineError> {
    state.loading = true;
    let mut result = Ok(());
    for (at, name) in files.iter().enumerate() {
        let last = at + 1 == files.len();
        let torn = if last { tail } else { Tail::Whole };
        result = load_file(&folder.join(name), state, now_micros, torn);
        if result.is_err() {
            break;
        }
    }
    state.loading = false;
    result
}

fn load_file(
    path: &Path,
    state: &mut State,
    now_micros: i64,
    tail: Tail,
) -> Result<(), EngineError> {
    let bad = |text: String| EngineError::Log(format!("{}: {text}", path.display()));
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return Err(bad(error.to_string())),
    };
    let limits = Limits {
        bulk: i64::MAX as usize,
        authenticated: true,
    };
    let mut parser = Parser::default();
    let mut client = Client::internal(0, 0, Protocol::Resp2);
    let mut total = 0u64;
    // All before it was repeated.
    let mut good = 0u64;
    let mut multi: Option<Vec<Vec<Bytes>>> = None;
    let mut piece = vec![0; 1024 * 1024];
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            break;
        }
        if total == 0 && piece.starts_with(b"REDIS") {
            return Err(bad(
                "this base is in RDB format; let the server that wrote it rewrite it with \
                 aof-use-rdb-preamble no"
                    .into(),
            ));
        }
        total += count as u64;
        let buffer: &mut BytesMut = parser.buffer();
        buffer.extend_from_slice(&piece[..count]);
        while let Some(args) = parser
            .next(limits)
            .map_err(|error| bad(format!("{} near byte {good}", error.0)))?
        {
            let is = |word: &[u8]| args[0].eq_ignore_ascii_case(word);
            if args[0].starts_with(b"#") {
                // An annotation.
            } else if is(b"MULTI") {
                multi = Some(Vec::new());
            } else if is(b"EXEC") {
                for args in multi.take().unwrap_or_default() {
                    repeat(state, &mut client, &args, now_micros).map_err(bad)?;
                }
            } else if let Some(queue) = &mut multi {
                queue.push(args);
            } else {
                repeat(state, &mut client, &args, now_micros).map_err(bad)?;
            }
            if multi.is_none() {
                good = total - parser.len() as u64;
            }
        }
    }
    if good < total {
        if tail == Tail::Whole {
            return Err(bad(format!("ends within a command at byte {good}")));
        }
        tracing::warn!(
            file = %path.display(),
            bytes = total - good,
            "the log ends within a command: the rest is cut off"
        );
        OpenOptions::new().write(true).open(path)?.set_len(good)?;
    }
    Ok(())
}

/// Runs one command of the log.
fn repeat(
    state: &mut State,
    client: &mut Client,
    args: &[Bytes],
    now_micros: i64,
) -> Result<(), String> {
    let name = registry::printable(&args[0]);
    let spec = match registry::resolve(args) {
        Ok(spec) => spec,
        Err(Stop::Error(text)) => return Err(format!("cannot repeat {name}: {text}")),
        Err(Stop::Block(_)) => return Err(format!("cannot repeat {name}")),
    };
    let mut cx = Ctx::new(state, client, now_micros, Origin::Engine);
    if let Err(Stop::Error(text)) = cx.call(spec, args)
        && spec.name == "select"
    {
        return Err(format!("{text}: the log was written with more databases"));
    }
    state.ready.clear();
    Ok(())
}

/// Makes what was renamed or created in a folder survive a loss of power.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
