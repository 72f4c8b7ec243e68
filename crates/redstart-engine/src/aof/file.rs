//! The file that the log is written to.

use std::{
    fs::File,
    io::{self, Seek, SeekFrom, Write},
};

/// An increment that is open for writing. The log's lock keeps writers apart; a sync may run beside
/// them.
pub(super) struct LogFile {
    file: File,
}

impl LogFile {
    /// A file whose cursor is at its end.
    pub(super) fn new(file: File) -> LogFile {
        LogFile { file }
    }

    pub(super) fn append(&self, bytes: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        let bytes = fault::before_write(bytes, &self.file)?;
        (&self.file).write_all(bytes)
    }

    /// Removes all after `len`.
    pub(super) fn cut(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        (&self.file).seek(SeekFrom::Start(len)).map(|_| ())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        fault::before_sync()?;
        self.file.sync_data()
    }
}

/// Failures that tests ask for. Each test runs in a process of its own.
#[cfg(test)]
pub(super) mod fault {
    use std::{
        fs::File,
        io::{self, Write},
        sync::atomic::{AtomicBool, Ordering},
    };

    /// Writes fail half-way, as on a full disk.
    pub(in crate::aof) static FULL: AtomicBool = AtomicBool::new(false);
    /// Syncs fail.
    pub(in crate::aof) static NO_SYNC: AtomicBool = AtomicBool::new(false);
    /// Syncs take until this is false again.
    pub(in crate::aof) static SLOW_SYNC: AtomicBool = AtomicBool::new(false);

    pub(super) fn before_write<'b>(bytes: &'b [u8], mut file: &File) -> io::Result<&'b [u8]> {
        if FULL.load(Ordering::SeqCst) {
            file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(bytes)
    }

    pub(super) fn before_sync() -> io::Result<()> {
        while SLOW_SYNC.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        if NO_SYNC.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk does not answer"));
        }
        Ok(())
    }
}
