//! A fresh base: written from the older files in the background, or from memory.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    Disk, Failures, Log, ROUND, dump,
    file::LogFile,
    load,
    manifest::{Manifest, Numbers, Unsaved},
    pause_between,
    write::{FILE_LOST, FINE},
};
use crate::{Engine, engine::State, error::EngineError};

/// A base that was written in the background and is not part of the log yet.
pub(super) struct Rewritten {
    /// The files that it replaces were those of this manifest.
    old: Manifest,
    fresh_starts: u64,
    temporary: String,
    len: u64,
}

impl Log {
    /// Asks for a rewrite; false if one is under way.
    pub(super) fn request_rewrite(&self) -> bool {
        if self.rewriting.load(Ordering::Relaxed) {
            return false;
        }
        self.ask(|work| work.rewrite = true);
        true
    }

    /// Whether the log's growth is reason enough for a rewrite, after those that failed.
    pub(super) fn rewrite_may_begin(&self) -> bool {
        let until = self.rewrite_failures.lock().pause_until;
        until.is_none_or(|until| until <= Instant::now())
    }

    /// Whether the last rewrite failed. It has begun another increment perhaps, whose length says nothing of the older ones.
    pub(super) fn has_to_rewrite(&self) -> bool {
        self.policy.rewrites() && self.rewrite_failures.lock().count > 0
    }

    pub(super) fn start_rewrite(self: &Arc<Log>) {
        if self.rewriting.swap(true, Ordering::Relaxed) {
            return;
        }
        self.rewrites.fetch_add(1, Ordering::Relaxed);
        let log = self.clone();
        let thread = std::thread::Builder::new()
            .name("redstart-rewrite".into())
            .spawn(move || log.finish_rewrite(log.rewrite()));
        match thread {
            Ok(thread) => {
                let mut threads = self.threads.lock();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(error) => self.finish_rewrite(Err(error.into())),
        }
    }

    pub(super) fn finish_rewrite(&self, result: Result<(), EngineError>) {
        if let Err(error) = &result {
            tracing::error!(%error, "the append-only log was not rewritten");
        }
        {
            let mut failures = self.rewrite_failures.lock();
            let count = match result.is_ok() {
                true => 0,
                false => failures.count.saturating_add(1),
            };
            let again = Instant::now().checked_add(pause_between(count));
            *failures = Failures {
                count,
                pause_until: again.filter(|_| count > 0),
            };
        }
        self.rewrite_failed
            .store(result.is_err(), Ordering::Relaxed);
        self.rewriting.store(false, Ordering::Relaxed);
    }

    pub(super) fn rewrite(&self) -> Result<(), EngineError> {
        let rewritten = self.begin_rewrite()?;
        self.end_rewrite(&rewritten)
    }

    /// Begins another increment and writes the new base of what was before it.
    pub(super) fn begin_rewrite(&self) -> Result<Rewritten, EngineError> {
        let (old, fresh_starts) = self.switch_increment()?;
        // The code of a library may depend on the version and the memory that it has.
        let scratch = Engine::builder()
            .databases(self.databases)
            .compat(self.compat)
            .script_memory(self.script_memory)
            .build()?;
        let now = scratch.now_micros();
        let mut state = scratch.inner.state.lock();
        let files = old.files();
        let whole = (load::Tail::Whole, load::Failing::Refused);
        load::load(&*self.folder, &files, &mut state, now, whole)?;
        let temporary = self.temporary("bg");
        let written = dump::write(&state, &*self.folder, &temporary);
        let len = written.inspect_err(|_| {
            let _ = self.folder.remove(&temporary);
        })?;
        Ok(Rewritten {
            old,
            fresh_starts,
            temporary,
            len,
        })
    }

    /// Makes the new base part of the log.
    pub(super) fn end_rewrite(&self, rewritten: &Rewritten) -> Result<(), EngineError> {
        self.publish(rewritten).inspect_err(|_| {
            let _ = self.folder.remove(&rewritten.temporary);
        })
    }

    /// Where a base is written before it is part of the log; two may be written at once.
    fn temporary(&self, purpose: &str) -> String {
        format!("temp-rewriteaof-{purpose}-{}.aof", std::process::id())
    }

    /// Ends the current increment and begins another; returns the previous manifest.
    pub(super) fn switch_increment(&self) -> Result<(Manifest, u64), EngineError> {
        self.sync()?;
        // Callers write to the current file while the manifest that names the next is saved.
        let mut numbers = self.saving.lock();
        let (old, fresh_starts) = self.manifest();
        if self.len.load(Ordering::Relaxed) == 0 && old.increments.len() > 1 {
            // A rewrite that failed has begun this one: what was before it has ended.
            return Ok((old.without_current(), fresh_starts));
        }
        let mut new = old.clone();
        new.add_increment(&mut numbers);
        let name = new.current().to_owned();
        let file = LogFile::new(self.folder.create(&name)?);
        // What was written meanwhile is synced before anybody has to wait for it, too.
        if let Err(unsaved) = new.save(&*self.folder) {
            self.give_up(&old, &[&name], &unsaved);
            return Err(unsaved.into());
        }
        if let Err(error) = self.sync() {
            self.go_back(&old, &[&name]);
            return Err(error.into());
        }
        let last = self.syncing.lock();
        let mut disk = self.disk.lock();
        // The new file knows of no selected database, so the buffer must be empty when it is used.
        let mut buffer = self.buffer.lock();
        // Others may have written while the sync above ran: that is in the kernel only.
        let unsynced = self.synced.load(Ordering::Acquire) < self.written.load(Ordering::Acquire);
        let ended = match self.write_bytes(&mut disk, &buffer.bytes) {
            Ok(()) if buffer.bytes.is_empty() && !unsynced => Ok(()),
            Ok(()) => self.sync_file(&disk.file),
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            // Nobody waits while the manifest is saved.
            drop(buffer);
            drop(disk);
            drop(last);
            self.go_back(&old, &[&name]);
            return Err(error.into());
        }
        buffer.bytes.clear();
        buffer.db = None;
        let position = self.appended.load(Ordering::Relaxed);
        self.written.fetch_max(position, Ordering::Release);
        self.synced.fetch_max(position, Ordering::Release);
        disk.file = Arc::new(file);
        disk.manifest = new;
        self.len.store(0, Ordering::Relaxed);
        drop(buffer);
        drop(disk);
        self.wake_waiters();
        Ok((old, fresh_starts))
    }

    /// The files as they are now, and how often the log was started over. Neither changes while `saving` is held.
    fn manifest(&self) -> (Manifest, u64) {
        let disk = self.disk.lock();
        (disk.manifest.clone(), disk.fresh_starts)
    }

    /// Makes the manifest name what it named before; if that is certain, removes the files that it may have named meanwhile.
    /// Otherwise both manifests can be loaded, and the next base or the next start cleans up: until then no other file takes the
    /// names. Whether it is certain.
    fn go_back(&self, old: &Manifest, names: &[&str]) -> bool {
        let certain = old.save(&*self.folder).is_ok();
        if certain {
            self.remove_each(names);
        }
        certain
    }

    /// As [`Log::go_back`] after a manifest that was not saved. A disk that is full has no room for another one either: the
    /// previous one is there if nothing has taken its place.
    fn give_up(&self, old: &Manifest, names: &[&str], unsaved: &Unsaved) -> bool {
        if unsaved.in_doubt {
            return self.go_back(old, names);
        }
        self.remove_each(names);
        true
    }

    fn remove_each(&self, names: &[&str]) {
        for name in names {
            let _ = self.folder.remove(name);
        }
    }

    /// Makes the new base part of the log; it replaces the files that it was made from.
    fn publish(&self, rewritten: &Rewritten) -> Result<(), EngineError> {
        let old = &rewritten.old;
        let mut numbers = self.saving.lock();
        let (current, starts_now) = self.manifest();
        if starts_now != rewritten.fresh_starts {
            return Err(EngineError::Log(
                "the log was started over meanwhile".into(),
            ));
        }
        if self.trouble() == FILE_LOST {
            return Err(EngineError::Log("the log is to be started over".into()));
        }
        let mut new = current.clone();
        let name = new.replace_base(old, &mut numbers);
        self.folder.rename(&rewritten.temporary, &name)?;
        if let Err(unsaved) = new.save(&*self.folder) {
            self.give_up(&current, &[&name], &unsaved);
            return Err(unsaved.into());
        }
        let mut disk = self.disk.lock();
        disk.manifest = new;
        self.base_len.store(rewritten.len, Ordering::Relaxed);
        drop(disk);
        self.remove_files(old);
        Ok(())
    }

    /// As [`Log::try_to_start_over`].
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn start_over(&self) -> Result<(), EngineError> {
        self.try_to_start_over().0
    }

    /// Writes a fresh base from memory and begins a new increment if the file is lost: what the previous files hold is not
    /// certain. Also for how long everybody had to wait.
    pub(super) fn try_to_start_over(&self) -> (Result<(), EngineError>, Duration) {
        let nothing = (Ok(()), Duration::ZERO);
        let Some(inner) = self.engine.get().and_then(Weak::upgrade) else {
            return nothing;
        };
        let state = loop {
            // The thread that ends the log may hold the engine's lock and wait for this thread.
            if self.work.lock().stop {
                return nothing;
            }
            if let Some(state) = inner.state.try_lock_for(ROUND) {
                break state;
            }
        };
        if self.trouble() != FILE_LOST {
            // All data was replaced while this waited, and is kept.
            return nothing;
        }
        let begun = Instant::now();
        let written = self.write_fresh(&state);
        drop(state);
        if written.is_ok() {
            tracing::warn!("the append-only log was started over from memory");
        }
        (written, begun.elapsed())
    }

    /// Replaces the log's files by what is in memory.
    pub(super) fn write_fresh(&self, state: &State) -> Result<(), EngineError> {
        let mut numbers = self.saving.lock();
        let mut last = self.syncing.lock();
        let old = self.replace_files(state, &mut self.disk.lock(), &mut numbers)?;
        *last = Instant::now();
        drop(last);
        self.remove_files(&old);
        Ok(())
    }

    /// As [`Log::write_fresh`], for data that was replaced as a whole. That is a change with a position of its own, which
    /// is returned: if no fresh base can be written, the position is on the disk only when one is written later.
    pub(super) fn write_replaced(&self, state: &State) -> (u64, Result<(), EngineError>) {
        let mut numbers = self.saving.lock();
        let mut last = self.syncing.lock();
        let mut disk = self.disk.lock();
        let position = 1 + self.appended.fetch_add(1, Ordering::Relaxed);
        let replaced = self.replace_files(state, &mut disk, &mut numbers);
        let replaced = replaced.inspect_err(|error| {
            // Before the disk is free: who writes to the previous file would take this position for written.
            self.lose(&error.to_string());
        });
        drop(disk);
        *last = Instant::now();
        drop(last);
        let removed = replaced.map(|old| self.remove_files(&old));
        (position, removed)
    }

    /// Removes the files of before, and those of attempts that failed.
    fn remove_files(&self, old: &Manifest) {
        for name in old.files() {
            let _ = self.folder.remove(&name);
        }
        let (current, _) = self.manifest();
        current.remove_others(&*self.folder);
        self.wake_waiters();
    }

    /// Writes a fresh base and begins a new increment; the files of before, which are to be removed.
    fn replace_files(
        &self,
        state: &State,
        disk: &mut Disk,
        numbers: &mut Numbers,
    ) -> Result<Manifest, EngineError> {
        let temporary = self.temporary("fresh");
        let len = dump::write(state, &*self.folder, &temporary).inspect_err(|_| {
            let _ = self.folder.remove(&temporary);
        })?;
        let old = disk.manifest.clone();
        let mut new = old.clone();
        new.add_increment(numbers);
        let base = new.replace_base(&old, numbers);
        let created = self.folder.create(new.current());
        let renamed = created.and_then(|file| {
            self.folder.rename(&temporary, &base)?;
            Ok(LogFile::new(file))
        });
        let file =
            renamed.inspect_err(|_| self.remove_each(&[&temporary, &base, new.current()]))?;
        if let Err(unsaved) = new.save(&*self.folder) {
            if !self.give_up(&old, &[&base, new.current()], &unsaved) {
                // The next start may load the new files: what is written to the previous one would be missing.
                self.lose(&unsaved.to_string());
            }
            return Err(unsaved.into());
        }
        let mut buffer = self.buffer.lock();
        buffer.bytes.clear();
        buffer.db = None;
        let position = self.appended.load(Ordering::Relaxed);
        self.written.fetch_max(position, Ordering::Release);
        self.synced.fetch_max(position, Ordering::Release);
        disk.file = Arc::new(file);
        disk.manifest = new;
        self.len.store(0, Ordering::Relaxed);
        self.base_len.store(len, Ordering::Relaxed);
        disk.fresh_starts += 1;
        self.trouble.store(FINE, Ordering::Release);
        Ok(old)
    }
}
