//! SAVE and BGSAVE: a file of all data.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use super::file::{self, Values};
use crate::{Engine, config::Config, engine::State, error::EngineError};

/// The file that SAVE writes and that a folder without a log is taken over from.
pub(crate) fn snapshot_path(config: &Config) -> PathBuf {
    let name = config.remembered.get("dbfilename");
    let name = name.map_or("dump.rdb".into(), |name| String::from_utf8_lossy(name));
    config.dir().join(&*name)
}

/// What is known of the files that were saved.
#[derive(Default)]
pub(crate) struct Saves {
    outcome: Arc<Outcome>,
    /// The file that was loaded or written.
    known: Option<PathBuf>,
    thread: Option<JoinHandle<()>>,
    /// When a file was last due, in unix seconds.
    tried: i64,
    /// The file that was due was not begun.
    not_begun: bool,
}

#[derive(Default)]
struct Outcome {
    /// Unix seconds.
    last: AtomicI64,
    running: AtomicBool,
    /// The file that is being written is not wanted any more.
    cancelled: AtomicBool,
    failed: AtomicBool,
    /// How many changes there had been by then.
    changes: AtomicU64,
}

impl Saves {
    pub(crate) fn new(now_micros: i64) -> Saves {
        let saves = Saves::default();
        let last = now_micros / 1_000_000;
        saves.outcome.last.store(last, Ordering::Relaxed);
        saves
    }

    /// When a file was last saved, in unix seconds; when the engine was made, if none was.
    pub(crate) fn last(&self) -> i64 {
        self.outcome.last.load(Ordering::Relaxed)
    }

    /// Whether BGSAVE is at work.
    pub(crate) fn is_running(&self) -> bool {
        self.outcome.running.load(Ordering::Acquire)
    }

    /// Gives up the file that BGSAVE is writing; false if it writes none.
    pub(crate) fn cancel(&self) -> bool {
        let running = self.is_running();
        if running {
            self.outcome.cancelled.store(true, Ordering::Relaxed);
        }
        running
    }

    /// Whether the last file could not be written.
    pub(crate) fn has_failed(&self) -> bool {
        self.outcome.failed.load(Ordering::Relaxed)
    }

    /// Whether the last file that was due was written.
    pub(crate) fn is_well(&self) -> bool {
        !self.has_failed() && !self.not_begun
    }

    /// How many changes the last file does not have, out of all since the start.
    pub(crate) fn unsaved(&self, changes: u64) -> u64 {
        changes.saturating_sub(self.outcome.changes.load(Ordering::Relaxed))
    }
}

impl Saves {
    /// Waits until a file that was begun is finished, so that it does not replace a later one.
    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Saves {
    fn drop(&mut self) {
        self.wait();
    }
}

impl Outcome {
    fn settle(&self, result: &io::Result<()>, now_micros: i64, changes: u64) {
        match result {
            Err(error) if error.kind() == CANCELLED => {
                tracing::warn!("the snapshot was cancelled");
                self.running.store(false, Ordering::Release);
                return;
            }
            _ => self.failed.store(result.is_err(), Ordering::Relaxed),
        }
        match result {
            Ok(()) => {
                self.last.store(now_micros / 1_000_000, Ordering::Relaxed);
                self.changes.store(changes, Ordering::Relaxed);
            }
            Err(error) => tracing::error!(%error, "the snapshot was not written"),
        }
        // Any reader that sees the end also sees the result.
        self.running.store(false, Ordering::Release);
    }
}

/// What a file ends with that was given up.
const CANCELLED: io::ErrorKind = io::ErrorKind::ConnectionAborted;

/// Why no file is written where one is that may hold other data.
const IN_THE_WAY: io::ErrorKind = io::ErrorKind::AlreadyExists;

/// Where the next file goes. One that may hold data which is not here is not replaced; with a log,
/// the data is in that.
fn free_path(state: &mut State) -> io::Result<PathBuf> {
    let path = snapshot_path(&state.config);
    let is_known = state.saves.known.as_ref() == Some(&path);
    if !is_known && !state.config.append_only && path.exists() {
        let text = format!("{} was not loaded and is not replaced", path.display());
        let kind = match path.is_file() {
            true => IN_THE_WAY,
            false => io::ErrorKind::IsADirectory,
        };
        return Err(io::Error::new(kind, text));
    }
    state.saves.known = Some(path.clone());
    Ok(path)
}

/// The log of these settings is switched off: it had all that their file may hold, which the next one replaces.
pub(crate) fn log_ended(state: &mut State, config: &Config) {
    state.saves.known = Some(snapshot_path(config));
}

/// Loads the file that a folder without a log holds, if there is one.
pub(crate) fn load_snapshot(engine: &Engine) -> Result<(), EngineError> {
    let path = snapshot_path(&engine.inner.state.lock().config);
    if !path.exists() {
        return Ok(());
    }
    let file = io::BufReader::with_capacity(1024 * 1024, File::open(&path)?);
    let named = |error: EngineError| EngineError::Rdb(format!("{}: {error}", path.display()));
    let summary = engine.load_rdb(file, |_| ()).map_err(named)?;
    let refused = summary.refuse_modules().map_err(EngineError::Rdb);
    refused.map_err(named)?;
    engine.inner.state.lock().saves.known = Some(path);
    Ok(())
}

/// Writes a file of all data while everybody waits.
pub(crate) fn save(state: &mut State, now_micros: i64) -> io::Result<()> {
    state.saves.wait();
    let path = free_path(state)?;
    let state = &*state;
    let result = write_whole(&path, &|| true, |out| {
        file::write(state, now_micros, Values::All, out, &mut |_| ()).map(drop)
    });
    let changes = state.dirty;
    state.saves.outcome.settle(&result, now_micros, changes);
    result
}

/// After how many seconds with how many changes a file is written, as `save` says.
fn save_points(config: &Config) -> impl Iterator<Item = (i64, u64)> {
    let text = config.remembered.get("save");
    let text = text.and_then(|text| std::str::from_utf8(text).ok());
    let words: Vec<&str> = text.unwrap_or_default().split(' ').collect();
    let points: Vec<(i64, u64)> = words
        .chunks_exact(2)
        .filter_map(|pair| Some((pair[0].parse().ok()?, pair[1].parse().ok()?)))
        .collect();
    points.into_iter()
}

/// Whether a file is written from time to time.
pub(crate) fn has_save_points(config: &Config) -> bool {
    save_points(config).next().is_some()
}

/// Whether data is kept in a folder: the one that is named, or else the current one.
pub(crate) fn uses_folder(config: &Config) -> bool {
    config.append_only || config.dir.is_some() || has_save_points(config)
}

/// As Redis says it.
pub(crate) const NOT_SAVED: &str = "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to \
     persist to disk. Commands that may modify the data set are disabled, because this instance is configured to report \
     errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs \
     for details about the RDB error.";

/// Whether writes are refused because the last file could not be written.
pub(crate) fn refuses_writes(state: &State) -> bool {
    state.saves.has_failed()
        && state.config.stop_writes_unsaved
        && state.replica.is_none()
        && has_save_points(&state.config)
}

/// Writes a file in the background if enough was changed since the last one, as `save` says.
pub(crate) fn save_if_due(state: &mut State, now_micros: i64) {
    /// After a failure, seconds until the next attempt, as in Redis.
    const AGAIN: i64 = 5;
    if !state.config.remembered.contains_key("save") || state.saves.is_running() || state.loading {
        return;
    }
    let now = now_micros / 1_000_000;
    let since = now - state.saves.last();
    let unsaved = state.saves.unsaved(state.dirty);
    let due =
        save_points(&state.config).any(|(seconds, changes)| unsaved >= changes && since > seconds);
    let failed = state.saves.has_failed() || state.saves.not_begun;
    if !due || (failed && now - state.saves.tried < AGAIN) {
        return;
    }
    state.saves.tried = now;
    let begun = save_later(state, now_micros);
    state.saves.not_begun = begun.is_err();
    if let Err(error) = begun {
        // A file that is not replaced stays there: writes would be refused for good.
        let in_the_way = error.kind() == IN_THE_WAY;
        state
            .saves
            .outcome
            .failed
            .store(!in_the_way, Ordering::Relaxed);
        tracing::error!(%error, "the snapshot was not written");
    }
}

/// Writes a file of what was changed since the last one, if SHUTDOWN asked for that; without its word,
/// if `save` says that files are written.
pub(crate) fn save_at_end(state: &mut State, now_micros: i64) {
    let asked = state.saves_at_end.take();
    if asked.unwrap_or_else(|| has_save_points(&state.config))
        && state.saves.unsaved(state.dirty) > 0
        && let Err(error) = save(state, now_micros)
    {
        tracing::error!(%error, "the snapshot was not written");
    }
}

/// Encodes all data now, and writes it while others go on.
pub(crate) fn save_later(state: &mut State, now_micros: i64) -> io::Result<()> {
    let path = free_path(state)?;
    let mut encoded = Vec::new();
    file::write(state, now_micros, Values::All, &mut encoded, &mut |_| ())?;
    let changes = state.dirty;
    let outcome = state.saves.outcome.clone();
    outcome.cancelled.store(false, Ordering::Relaxed);
    outcome.running.store(true, Ordering::Relaxed);
    let thread = std::thread::Builder::new()
        .name("redstart-save".into())
        .spawn(move || {
            let goes_on = || !outcome.cancelled.load(Ordering::Relaxed);
            let result = write_whole(&path, &goes_on, |out| {
                for piece in encoded.chunks(PIECE) {
                    if !goes_on() {
                        return Err(CANCELLED.into());
                    }
                    out.write_all(piece)?;
                }
                Ok(())
            });
            outcome.settle(&result, now_micros, changes);
        });
    match thread {
        Ok(thread) => {
            // The one before has ended, or this one would have been refused.
            state.saves.thread = Some(thread);
            Ok(())
        }
        Err(error) => {
            state.saves.outcome.running.store(false, Ordering::Relaxed);
            Err(error)
        }
    }
}

/// How much is written at once.
const PIECE: usize = 1024 * 1024;

/// Replaces a file at once, so that nobody sees half of it, if it is still wanted when it is whole.
fn write_whole(
    path: &Path,
    goes_on: &dyn Fn() -> bool,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    // Several engines of a process may write to one folder.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("temp-{}-{number}.rdb", std::process::id());
    let temporary = path.with_file_name(name);
    let written = File::create(&temporary).and_then(|file| {
        let mut out = io::BufWriter::with_capacity(PIECE, file);
        contents(&mut out)?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        if !goes_on() {
            return Err(CANCELLED.into());
        }
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
        return written;
    }
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Engine, Reply, Settings};

    #[test]
    fn shutdown_gives_up_the_file_that_is_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings::new();
        settings
            .set("dir", &dir.path().display().to_string())
            .unwrap();
        let engine = Engine::builder().settings(settings).build().unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        {
            let mut state = engine.inner.lock();
            state.listeners = 1;
            let (outcome, ended) = (state.saves.outcome.clone(), ended.clone());
            outcome.running.store(true, Ordering::Relaxed);
            // A disk that takes nothing.
            state.saves.thread = Some(std::thread::spawn(move || {
                while !outcome.cancelled.load(Ordering::Relaxed) && !ended.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                outcome.running.store(false, Ordering::Release);
            }));
        }
        let mut session = engine.session();
        let (tell, told) = std::sync::mpsc::channel();
        let asking = std::thread::spawn(move || {
            let reply = session.execute(&["SHUTDOWN", "SAVE"].map(bytes::Bytes::from));
            let _ = tell.send(reply.into_reply());
        });
        let answered = told.recv_timeout(Duration::from_secs(20));
        ended.store(true, Ordering::Relaxed);
        asking.join().unwrap();
        assert_eq!(answered, Ok(Some(Reply::OK)));
    }
}
