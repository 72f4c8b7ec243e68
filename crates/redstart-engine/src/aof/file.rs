//! A file that the log writes.

use std::io::{self, Write};

use super::folder::Handle;

/// A file that is open for writing. The log's lock keeps writers apart; a sync may run beside
/// them.
pub(super) struct LogFile {
    handle: Box<dyn Handle>,
}

impl LogFile {
    /// A file that is written at its end.
    pub(super) fn new(handle: Box<dyn Handle>) -> LogFile {
        LogFile { handle }
    }

    /// Writes all, or fails after some of it.
    pub(super) fn append(&self, bytes: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        let bytes = fault::before_write(bytes, self)?;
        (&mut &*self).write_all(bytes)
    }

    /// Removes all after `len`.
    pub(super) fn cut(&self, len: u64) -> io::Result<()> {
        self.handle.cut(len)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        fault::before_sync()?;
        self.handle.sync()
    }
}

impl Write for &LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.handle.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Failures that tests ask for. Each test runs in a process of its own.
#[cfg(test)]
pub(super) mod fault {
    use std::{
        io::{self, Write},
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::LogFile;

    /// Writes fail half-way, as on a full disk.
    pub(in crate::aof) static FULL: AtomicBool = AtomicBool::new(false);
    /// Syncs fail.
    pub(in crate::aof) static NO_SYNC: AtomicBool = AtomicBool::new(false);
    /// Syncs take until this is false again.
    pub(in crate::aof) static SLOW_SYNC: AtomicBool = AtomicBool::new(false);

    /// Writes take until this is false again.
    pub(in crate::aof) static SLOW_WRITE: AtomicBool = AtomicBool::new(false);

    pub(super) fn before_write<'b>(bytes: &'b [u8], mut file: &LogFile) -> io::Result<&'b [u8]> {
        while SLOW_WRITE.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
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
