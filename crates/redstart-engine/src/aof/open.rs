//! Opening a folder: what is in it is loaded, and writing continues there.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::Path,
    sync::Arc,
};

use super::{
    Log, dump,
    folder::{Folder, OsFolder},
    load,
    manifest::Manifest,
    sink::LogSink,
};
use crate::{Engine, commands::database, engine::State, error::EngineError, rdb};

pub(super) const FOLDER: &str = "appendonlydir";

/// Makes the log, if there is one, that of data which was replaced as a whole. To be called before the
/// lock is released: what is written meanwhile would be kept with the previous data.
pub(crate) fn keep_replaced(state: &mut State) -> Result<(), EngineError> {
    let Some(log) = state.inner.upgrade().and_then(|inner| inner.log.get()) else {
        return Ok(());
    };
    let (position, written) = log.write_replaced(state);
    state.effects.replaced(position);
    written
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
    let state = engine.inner.state.lock();
    log.write_fresh(&state)
}

/// Makes the folder and keeps others from it.
pub(super) fn claim(dir: &Path) -> Result<(Arc<dyn Folder>, File), EngineError> {
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
pub(super) fn open_in(
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
