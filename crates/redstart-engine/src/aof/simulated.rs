//! A log on a simulated disk, for this repository's simulation: one that runs out of room, whose syncs fail, and that
//! keeps what was written when the process dies. No thread writes it; the simulation asks for its rounds.

use std::{
    collections::BTreeMap,
    io::{self, Cursor},
    sync::{Arc, atomic::Ordering},
};

use parking_lot::{Condvar, Mutex};

use super::{
    Log,
    folder::{Folder, Handle, Source},
    open::open_in,
    write::{FILE_LOST, FINE},
};
use crate::{Engine, Fsync, error::EngineError};

#[derive(Default)]
struct Files {
    /// The content of a file outlives its name, as that of an open file does.
    names: BTreeMap<String, Arc<Mutex<Vec<u8>>>>,
    /// How many bytes can still be written, if that is few.
    room: Option<usize>,
    syncs_fail: bool,
    /// Syncs of files take until this is false again.
    syncs_hang: bool,
    /// How many processes have died on it: what they still do reaches nothing.
    deaths: u64,
}

/// A disk; clones are the same one.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<Files>>, Arc<Condvar>);

impl Disk {
    /// From now on it takes only this many bytes more, and its syncs fail or not.
    pub fn fail(&self, room: usize, syncs_fail: bool) {
        let mut files = self.0.lock();
        (files.room, files.syncs_fail) = (Some(room), syncs_fail);
    }

    /// It works again.
    pub fn mend(&self) {
        let mut files = self.0.lock();
        (files.room, files.syncs_fail) = (None, false);
    }

    /// From now on syncs of files take until this is called with `false`.
    pub fn hang(&self, syncs_hang: bool) {
        self.0.lock().syncs_hang = syncs_hang;
        self.1.notify_all();
    }

    /// Its syncs succeed again.
    pub fn syncs_again(&self) {
        self.0.lock().syncs_fail = false;
    }

    /// Whether it does not work, or is about to fail.
    pub fn is_failing(&self) -> bool {
        let files = self.0.lock();
        files.room.is_some() || files.syncs_fail
    }

    /// The process that uses it dies: what was written stays, and nothing is added.
    pub fn process_dies(&self) {
        self.0.lock().deaths += 1;
    }
}

/// Loads what is on the disk and keeps the engine's log there.
///
/// # Errors
///
/// If the disk fails, or has no log that can be read.
pub fn keep_log(engine: &Engine, disk: &Disk) -> Result<(), EngineError> {
    let life = disk.0.lock().deaths;
    let folder = Mounted {
        disk: disk.clone(),
        life,
    };
    // What is told is on the disk: with any other choice a crash may lose what was acknowledged.
    engine.inner.state.lock().config.fsync = Fsync::Always;
    let log = open_in(Arc::new(folder), None, engine)?;
    engine.inner.log.set(log);
    Ok(())
}

/// As [`keep_log`], with a thread that writes the log as that of a folder is written.
///
/// # Errors
///
/// As [`keep_log`], and if no thread can be started.
pub fn keep_log_by_thread(engine: &Engine, disk: &Disk) -> Result<(), EngineError> {
    keep_log(engine, disk)?;
    match engine.inner.log.get() {
        Some(log) => log.start(),
        None => Ok(()),
    }
}

/// How often the log was synced.
pub fn log_syncs(engine: &Engine) -> u64 {
    let log = engine.inner.log.get();
    log.map_or(0, |log| log.syncs.load(Ordering::Relaxed))
}

/// What the log's thread does now and then. Whether the log takes writes after that.
pub fn log_round(engine: &Engine) -> bool {
    let Some(log) = engine.inner.log.get() else {
        return true;
    };
    // Those who wait are told.
    if log.trouble() == FILE_LOST {
        let _ = log.start_over();
    } else {
        let _ = Log::sync(&log);
    }
    log.trouble() == FINE
}

/// The disk as one process sees it.
#[derive(Clone)]
struct Mounted {
    disk: Disk,
    life: u64,
}

impl Mounted {
    fn with<T>(&self, work: impl FnOnce(&mut Files) -> io::Result<T>) -> io::Result<T> {
        let mut files = self.disk.0.lock();
        match files.deaths == self.life {
            true => work(&mut files),
            false => Err(io::Error::other("the process is dead")),
        }
    }

    fn find(&self, name: &str) -> io::Result<Arc<Mutex<Vec<u8>>>> {
        self.with(|files| files.names.get(name).cloned().ok_or_else(missing))
    }

    fn opened(&self, file: Arc<Mutex<Vec<u8>>>) -> Box<dyn Handle> {
        Box::new(Open {
            mounted: self.clone(),
            file,
        })
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Folder for Mounted {
    fn make(&self) -> io::Result<()> {
        Ok(())
    }

    fn names(&self) -> Vec<(String, u64)> {
        let files = self.disk.0.lock();
        let names = files.names.iter();
        names
            .map(|(name, file)| (name.clone(), file.lock().len() as u64))
            .collect()
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        Ok(self.find(name)?.lock().len() as u64)
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Source>> {
        let bytes = self.find(name)?.lock().clone();
        Ok(Box::new(Cursor::new(bytes)))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Handle>> {
        let file = self.with(|files| {
            let file = files.names.entry(name.to_owned()).or_default();
            file.lock().clear();
            Ok(file.clone())
        })?;
        Ok(self.opened(file))
    }

    fn open(&self, name: &str) -> io::Result<(Box<dyn Handle>, u64)> {
        let file =
            self.with(|files| Ok(files.names.entry(name.to_owned()).or_default().clone()))?;
        let len = file.lock().len() as u64;
        Ok((self.opened(file), len))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.with(|files| {
            let file = files.names.remove(from).ok_or_else(missing)?;
            files.names.insert(to.to_owned(), file);
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.with(|files| files.names.remove(name).map(drop).ok_or_else(missing))
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|files| synced(files))
    }

    fn shown(&self, name: &str) -> String {
        name.to_owned()
    }
}

fn synced(files: &Files) -> io::Result<()> {
    match files.syncs_fail {
        true => Err(io::Error::other("the disk does not answer")),
        false => Ok(()),
    }
}

struct Open {
    mounted: Mounted,
    file: Arc<Mutex<Vec<u8>>>,
}

impl Handle for Open {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.mounted.with(|files| {
            let count = bytes.len().min(files.room.unwrap_or(usize::MAX));
            if count == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            if let Some(room) = &mut files.room {
                *room -= count;
            }
            self.file.lock().extend_from_slice(&bytes[..count]);
            Ok(count)
        })
    }

    fn cut(&self, len: u64) -> io::Result<()> {
        self.mounted.with(|files| {
            let mut file = self.file.lock();
            let len = len as usize;
            if let Some(room) = &mut files.room {
                *room += file.len().saturating_sub(len);
            }
            file.truncate(len);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        let mut files = self.mounted.disk.0.lock();
        while files.syncs_hang {
            self.mounted.disk.1.wait(&mut files);
        }
        drop(files);
        self.mounted.with(|files| synced(files))
    }
}
