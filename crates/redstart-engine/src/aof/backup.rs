//! A copy of the log while it is written: a backup of one moment.
//!
//! What the files hold up to the end of the last unit that was written is the state of all data at
//! that moment, and it does not change any more. Noting which files these are, and how long, takes the
//! disk's lock for an instant; copying them takes no lock and no memory.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use super::{
    Log,
    folder::{OsFolder, Source, sync_folder},
    manifest::Manifest,
    open::FOLDER,
    write::FINE,
};
use crate::error::EngineError;

/// What a backup consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// How many files were copied.
    pub files: usize,
    /// Their size in bytes.
    pub bytes: u64,
}

/// A file of the log as it is at the moment of the backup.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) source: Box<dyn Source>,
    pub(super) len: u64,
}

impl Log {
    /// Copies the log into a folder that is absent or empty, as `appendonlydir`. The folder gets
    /// its name when everything is on the disk.
    pub(crate) fn backup(&self, target: &Path) -> Result<Backup, EngineError> {
        let partial = reserve(target)?;
        let copied = self.copy_to(&partial).and_then(|backup| {
            fs::rename(&partial, target)?;
            sync_folder(parent(target))?;
            Ok(backup)
        });
        if copied.is_err() {
            let _ = fs::remove_dir_all(&partial);
        }
        copied
    }

    fn copy_to(&self, dir: &Path) -> Result<Backup, EngineError> {
        // Everything that was acknowledged by now is part of it.
        self.write()?;
        let (manifest, parts) = self.parts()?;
        let folder = dir.join(FOLDER);
        fs::create_dir(&folder)?;
        let mut backup = Backup {
            files: parts.len(),
            bytes: 0,
        };
        for part in parts {
            let mut file = File::create(folder.join(&part.name))?;
            let copied = io::copy(&mut part.source.take(part.len), &mut file)?;
            if copied != part.len {
                return Err(EngineError::Log(format!("{} became shorter", part.name)));
            }
            file.sync_data()?;
            backup.bytes += copied;
        }
        manifest.save(&OsFolder::new(folder))?;
        sync_folder(dir)?;
        Ok(backup)
    }

    /// The files as they are now. They are open, so that a rewrite may remove them meanwhile.
    pub(super) fn parts(&self) -> Result<(Manifest, Vec<Part>), EngineError> {
        let disk = self.disk.lock();
        if self.trouble() != FINE {
            let reason = self.reason.lock().clone();
            return Err(EngineError::Log(format!(
                "the log cannot be written: {reason}"
            )));
        }
        let current = disk.manifest.current();
        let parts = disk.manifest.files().into_iter().map(|name| {
            let source = self.folder.read(&name)?;
            let len = match name == current {
                true => self.len.load(Ordering::Relaxed),
                false => self.folder.len(&name)?,
            };
            Ok(Part { name, source, len })
        });
        let parts: io::Result<Vec<Part>> = parts.collect();
        Ok((disk.manifest.clone(), parts?))
    }

    /// As [`Log::backup`] on a thread of its own, which calls `then` at the end.
    pub(crate) fn start_backup(
        self: &Arc<Log>,
        target: PathBuf,
        then: impl FnOnce(Result<Backup, EngineError>) + Send + 'static,
    ) -> io::Result<()> {
        let log = self.clone();
        let thread = std::thread::Builder::new()
            .name("redstart-backup".into())
            .spawn(move || then(log.backup(&target)))?;
        let mut threads = self.backups.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }
}

/// A folder beside the target for what is not complete. Never a folder that somebody uses.
fn reserve(target: &Path) -> Result<PathBuf, EngineError> {
    let refused =
        |text: String| EngineError::Io(io::Error::new(io::ErrorKind::AlreadyExists, text));
    let Some(name) = target.file_name() else {
        return Err(EngineError::Setting("a backup needs a folder of its own"));
    };
    match fs::read_dir(target) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                let text = format!("{} is not empty", target.display());
                return Err(refused(text));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    fs::create_dir_all(parent(target))?;
    let mut partial = std::ffi::OsString::from(".");
    partial.push(name);
    partial.push(".partial");
    let partial = parent(target).join(partial);
    match fs::create_dir(&partial) {
        Ok(()) => Ok(partial),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(refused(format!(
            "{} exists: another backup runs, or one was interrupted; remove it",
            partial.display()
        ))),
        Err(error) => Err(error.into()),
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
