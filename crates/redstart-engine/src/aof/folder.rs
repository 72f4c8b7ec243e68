//! The folder that the log lives in, as the log uses it.
//!
//! Everything that the log does on a disk passes through [`Folder`] and [`Handle`], so that a test
//! can put a disk under it that fails, tears what is written, and loses power at any call.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// A folder of files, which are named without a path.
pub(super) trait Folder: Send + Sync {
    /// Makes the folder, if it is not there, so that it survives a loss of power.
    fn make(&self) -> io::Result<()>;
    /// The files with their lengths; none if they cannot be listed.
    fn names(&self) -> Vec<(String, u64)>;
    fn len(&self, name: &str) -> io::Result<u64>;
    fn read(&self, name: &str) -> io::Result<Box<dyn Source>>;
    /// An empty file; one of that name is emptied.
    fn create(&self, name: &str) -> io::Result<Box<dyn Handle>>;
    /// A file to be continued at its end, made if it is not there; with its length.
    fn open(&self, name: &str) -> io::Result<(Box<dyn Handle>, u64)>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes what was created, renamed and removed survive a loss of power.
    fn sync(&self) -> io::Result<()>;
    /// What a person calls a file.
    fn shown(&self, name: &str) -> String;
}

/// A file that is open for reading.
pub(super) trait Source: Read + Seek + Send {}

impl<T: Read + Seek + Send> Source for T {}

/// A file that is open for writing at its end. A sync may run beside a write.
pub(super) trait Handle: Send + Sync {
    /// How many bytes were written: perhaps fewer than were given.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;
    /// Removes all after `len` and goes on writing there.
    fn cut(&self, len: u64) -> io::Result<()>;
    /// Makes what was written survive a loss of power.
    fn sync(&self) -> io::Result<()>;
}

/// A folder of the operating system.
pub(super) struct OsFolder(PathBuf);

impl OsFolder {
    pub(super) fn new(path: PathBuf) -> OsFolder {
        OsFolder(path)
    }
}

impl Folder for OsFolder {
    fn make(&self) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        // Its name is kept by its parent, and the parent's by its own.
        for parent in self.0.ancestors().skip(1).take(2) {
            let parent = if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            };
            sync_folder(parent)?;
        }
        Ok(())
    }

    fn names(&self) -> Vec<(String, u64)> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let name = |entry: fs::DirEntry| {
            let len = entry.metadata().ok()?.len();
            Some((entry.file_name().into_string().ok()?, len))
        };
        entries.filter_map(name).collect()
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        fs::metadata(self.0.join(name)).map(|file| file.len())
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(File::open(self.0.join(name))?))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Handle>> {
        Ok(Box::new(File::create(self.0.join(name))?))
    }

    fn open(&self, name: &str) -> io::Result<(Box<dyn Handle>, u64)> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.0.join(name))?;
        let len = file.seek(SeekFrom::End(0))?;
        Ok((Box::new(file), len))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        sync_folder(&self.0)
    }

    fn shown(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Handle for File {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self;
        Write::write(&mut file, bytes)
    }

    fn cut(&self, len: u64) -> io::Result<()> {
        let mut file = self;
        file.set_len(len)?;
        file.seek(SeekFrom::Start(len)).map(|_| ())
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Makes what was renamed or created in a folder survive a loss of power.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
