//! The data of one moment, read back from the files of the log while it is written.
//!
//! As with a backup, noting the files and their lengths takes an instant. Reading them takes the
//! memory of a second copy of the data, and nobody waits for it.

use std::{
    io::{self, Read, Seek},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{
    Log,
    backup::Part,
    folder::{Folder, Handle, Source},
    load,
};
use crate::{Compat, Engine, error::EngineError};

/// The files of a log as they are at one moment.
pub(crate) struct Copy {
    files: Files,
    databases: usize,
    compat: Compat,
    script_memory: usize,
}

impl Log {
    /// Everything that was appended by now. Called with the engine's lock held, so that nothing is
    /// appended meanwhile.
    pub(crate) fn copy(&self) -> Result<Copy, EngineError> {
        self.write()?;
        let (_, parts) = self.parts()?;
        Ok(Copy {
            files: Files {
                parts: parts
                    .into_iter()
                    .map(|part| Mutex::new(Some(part)))
                    .collect(),
                wanted: Arc::new(|| true),
            },
            databases: self.databases,
            compat: self.compat,
            script_memory: self.script_memory,
        })
    }
}

impl Copy {
    /// An engine with the data; fails soon after it is not wanted any more.
    pub(crate) fn load(mut self, wanted: Wanted) -> Result<Engine, EngineError> {
        self.files.wanted = wanted;
        let engine = Engine::builder()
            .databases(self.databases)
            .compat(self.compat)
            .script_memory(self.script_memory)
            .build()?;
        let now = engine.now_micros();
        let names: Vec<String> = self
            .files
            .names()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        let whole = (load::Tail::Whole, load::Failing::Refused);
        let loaded = load::load(
            &self.files,
            &names,
            &mut engine.inner.state.lock(),
            now,
            whole,
        );
        loaded.map(|()| engine)
    }
}

/// Whether somebody waits for what is read.
pub(crate) type Wanted = Arc<dyn Fn() -> bool + Send + Sync>;

/// Files that are open and can each be read once.
struct Files {
    parts: Vec<Mutex<Option<Part>>>,
    wanted: Wanted,
}

/// A file that cannot be read once it is not wanted any more.
struct WhileWanted {
    source: Box<dyn Source>,
    wanted: Wanted,
}

impl Read for WhileWanted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match (self.wanted)() {
            true => self.source.read(buffer),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Seek for WhileWanted {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.source.seek(to)
    }
}

impl Files {
    fn find<T>(&self, name: &str, with: impl FnOnce(&mut Option<Part>) -> T) -> io::Result<T> {
        let mut with = Some(with);
        for slot in &self.parts {
            let mut slot = slot.lock();
            if slot.as_ref().is_some_and(|part| part.name == name)
                && let Some(with) = with.take()
            {
                return Ok(with(&mut slot));
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }
}

impl Folder for Files {
    fn make(&self) -> io::Result<()> {
        Ok(())
    }

    fn names(&self) -> Vec<(String, u64)> {
        let name = |slot: &Mutex<Option<Part>>| {
            slot.lock()
                .as_ref()
                .map(|part| (part.name.clone(), part.len))
        };
        self.parts.iter().filter_map(name).collect()
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        self.find(name, |part| part.as_ref().map_or(0, |part| part.len))
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Source>> {
        // The length is asked for after this.
        let source = self.find(name, |part| {
            let empty: Box<dyn Source> = Box::new(io::empty());
            part.as_mut()
                .map(|part| std::mem::replace(&mut part.source, empty))
        })?;
        let source = source.ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(WhileWanted {
            source,
            wanted: self.wanted.clone(),
        }))
    }

    fn create(&self, _: &str) -> io::Result<Box<dyn Handle>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn open(&self, _: &str) -> io::Result<(Box<dyn Handle>, u64)> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn shown(&self, name: &str) -> String {
        name.to_owned()
    }
}
