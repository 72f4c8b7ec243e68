//! From the buffer to the disk: how far a reply has to wait, and what a failure means.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Weak, atomic::Ordering},
    task::{Poll, Waker},
    time::Instant,
};

use bytes::Bytes;

use super::{Disk, Log, file::LogFile};
use crate::{effect::Effect, resp};

/// More than this does not wait in memory for the disk.
const BUFFER_LIMIT: usize = 32 * 1024 * 1024;
/// More than this does not wait for a disk that refuses it.
pub(super) const MOST: usize = 4 * BUFFER_LIMIT;

/// Nothing is wrong.
pub(super) const FINE: u8 = 0;
/// The last write failed and was undone; it is tried again.
const WRITE_FAILED: u8 = 1;
/// A sync failed, or a failed write could not be undone: the current file is not to be used again.
pub(super) const FILE_LOST: u8 = 2;

/// A task that waits for the disk.
struct Waiter {
    position: u64,
    waker: Waker,
    /// A failure does not concern it.
    patient: bool,
}

/// The tasks that wait for the disk, in the order in which they came.
#[derive(Default)]
pub(super) struct Waiters {
    arrivals: u64,
    waiting: BTreeMap<u64, Waiter>,
}

/// Where a task waits for the disk: once, however often it is polled, and no longer when this is dropped.
#[derive(Default)]
pub(crate) struct Place(Option<(Weak<Log>, u64)>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((log, number)) = self.0.take()
            && let Some(log) = log.upgrade()
        {
            // Whatever ends with the waker does so when the lock is free.
            let left = log.waiters.lock().waiting.remove(&number);
            drop(left);
        }
    }
}

impl Log {
    pub(super) fn trouble(&self) -> u8 {
        self.trouble.load(Ordering::Acquire)
    }

    /// The failure that keeps the log from being written, if there is one.
    fn failure(&self) -> Option<io::Error> {
        (self.trouble() != FINE).then(|| io::Error::other(self.reason.lock().clone()))
    }

    /// The log does not have what the data is: nothing is appended to it until a fresh one is written.
    pub(super) fn lose(&self, why: &str) {
        self.fail(FILE_LOST, &io::Error::other(why.to_owned()));
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
    pub(super) fn append(&self, unit: &[Effect]) -> u64 {
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
        let (len, trouble) = (buffer.bytes.len(), self.trouble());
        // A replica goes on while its log cannot be written.
        let given_up = trouble == FILE_LOST || (trouble != FINE && len + buffer.taken > MOST);
        if given_up {
            // A fresh base will have it all. Known before the buffer is free: who takes the rest of it would think that nothing
            // is missing.
            self.trouble.fetch_max(FILE_LOST, Ordering::Release);
            buffer.bytes = Vec::new();
            buffer.db = None;
        }
        drop(buffer);
        if given_up && trouble != FILE_LOST {
            self.lose("too much waits for a disk that refuses it");
        } else if trouble == FINE && len > BUFFER_LIMIT {
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
    pub(crate) fn poll_commit(
        self: &Arc<Log>,
        position: u64,
        place: &mut Place,
        waker: &Waker,
    ) -> Poll<io::Result<()>> {
        if self.is_kept(position) {
            return Poll::Ready(Ok(()));
        }
        if !self.always() {
            return Poll::Ready(self.commit(position));
        }
        self.enlist(
            place,
            Waiter {
                position,
                waker: waker.clone(),
                patient: false,
            },
        );
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

    /// Ready once everything up to a position is on the disk, however often that fails before. The log's own thread sees
    /// to it.
    pub(crate) fn poll_synced(
        self: &Arc<Log>,
        position: u64,
        place: &mut Place,
        waker: &Waker,
    ) -> Poll<()> {
        if self.is_synced(position) {
            return Poll::Ready(());
        }
        self.enlist(
            place,
            Waiter {
                position,
                waker: waker.clone(),
                patient: true,
            },
        );
        if self.is_synced(position) {
            return Poll::Ready(());
        }
        self.ask(|work| work.sync = true);
        Poll::Pending
    }

    /// Wakes a task once everything up to a position is on the disk, and does not ask for that.
    pub(crate) fn wake_when_synced(
        self: &Arc<Log>,
        position: u64,
        place: &mut Place,
        waker: &Waker,
    ) {
        if self.is_synced(position) {
            return;
        }
        self.enlist(
            place,
            Waiter {
                position,
                waker: waker.clone(),
                patient: true,
            },
        );
        // A sync may have ended before the waker was registered.
        if self.is_synced(position) {
            waker.wake_by_ref();
        }
    }

    fn enlist(self: &Arc<Log>, place: &mut Place, waiter: Waiter) {
        let number = match &place.0 {
            Some((log, number)) if std::ptr::eq(log.as_ptr(), Arc::as_ptr(self)) => *number,
            // It waits nowhere yet, or for a log that has ended.
            _ => {
                let number = {
                    let mut waiters = self.waiters.lock();
                    waiters.arrivals += 1;
                    waiters.arrivals
                };
                *place = Place(Some((Arc::downgrade(self), number)));
                number
            }
        };
        let before = self.waiters.lock().waiting.insert(number, waiter);
        drop(before);
    }

    /// How many tasks wait for the disk.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiters.lock().waiting.len()
    }

    pub(crate) fn is_synced(&self, position: u64) -> bool {
        self.synced.load(Ordering::Acquire) >= position
    }

    /// Up to where the log will be when all that was ever put into it is there.
    pub(crate) fn end(&self) -> u64 {
        self.appended.load(Ordering::Acquire)
    }

    pub(super) fn wake_waiters(&self) {
        let (failed, synced) = (self.trouble() != FINE, self.synced.load(Ordering::Acquire));
        let mut woken = Vec::new();
        self.waiters.lock().waiting.retain(|_, waiter| {
            let over = waiter.position <= synced || (failed && !waiter.patient);
            if over {
                woken.push(waiter.waker.clone());
            }
            !over
        });
        woken.into_iter().for_each(Waker::wake);
    }

    /// The log ends: nobody waits for it any more.
    pub(super) fn wake_all(&self) {
        let waiting = std::mem::take(&mut self.waiters.lock().waiting);
        waiting.into_values().for_each(|waiter| waiter.waker.wake());
    }

    /// Hands the buffer to the kernel.
    pub(super) fn write(&self) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let (bytes, position) = {
            let mut buffer = self.buffer.lock();
            let position = self.appended.load(Ordering::Relaxed);
            buffer.taken = buffer.bytes.len();
            (std::mem::take(&mut buffer.bytes), position)
        };
        let written = self.write_bytes(&mut disk, &bytes);
        let mut buffer = self.buffer.lock();
        buffer.taken = 0;
        if let Err(error) = written {
            // Nothing is forgotten.
            let newer = std::mem::replace(&mut buffer.bytes, bytes);
            buffer.bytes.extend_from_slice(&newer);
            return Err(error);
        }
        drop(buffer);
        self.written.fetch_max(position, Ordering::Release);
        Ok(())
    }

    /// Appends to the file, all or nothing.
    pub(super) fn write_bytes(&self, disk: &mut Disk, bytes: &[u8]) -> io::Result<()> {
        if self.trouble() == FILE_LOST {
            return Err(io::Error::other(self.reason.lock().clone()));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        if let Err(error) = disk.file.append(bytes) {
            let undone = disk.file.cut(self.len.load(Ordering::Relaxed));
            let trouble = if undone.is_ok() {
                WRITE_FAILED
            } else {
                FILE_LOST
            };
            self.fail(trouble, &error);
            return Err(error);
        }
        self.len.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let _ =
            self.trouble
                .compare_exchange(WRITE_FAILED, FINE, Ordering::AcqRel, Ordering::Relaxed);
        Ok(())
    }

    /// Hands the buffer to the kernel and waits until it is on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
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

    pub(super) fn sync_file(&self, file: &LogFile) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        file.sync().inspect_err(|error| self.fail(FILE_LOST, error))
    }
}
