//! A fresh base: written from the older files in the background, or from memory.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{Disk, Log, ROUND, dump, file::LogFile, load, manifest::Manifest, write::FINE};
use crate::{Engine, engine::State, error::EngineError};

impl Log {
    /// Asks for a rewrite; false if one is under way.
    pub(super) fn request_rewrite(&self) -> bool {
        if self.rewriting.load(Ordering::Relaxed) {
            return false;
        }
        self.ask(|work| work.rewrite = true);
        true
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
        self.rewrite_failed
            .store(result.is_err(), Ordering::Relaxed);
        self.rewriting.store(false, Ordering::Relaxed);
    }

    pub(super) fn rewrite(&self) -> Result<(), EngineError> {
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
        drop(state);
        let finished = written
            .map_err(EngineError::Io)
            .and_then(|len| self.publish((&old, fresh_starts), &temporary, len));
        if finished.is_err() {
            let _ = self.folder.remove(&temporary);
        }
        finished
    }

    /// Where a base is written before it is part of the log; two may be written at once.
    fn temporary(&self, purpose: &str) -> String {
        format!("temp-rewriteaof-{purpose}-{}.aof", std::process::id())
    }

    /// Ends the current increment and begins another; returns the previous manifest.
    pub(super) fn switch_increment(&self) -> Result<(Manifest, u64), EngineError> {
        self.sync()?;
        // Callers write to the current file while the manifest that names the next is saved.
        let _saving = self.saving.lock();
        let (old, fresh_starts) = self.manifest();
        let mut new = old.clone();
        new.add_increment();
        let name = new.current().to_owned();
        let file = LogFile::new(self.folder.create(&name)?);
        // What was written meanwhile is synced before anybody has to wait for it, too.
        let saved = new.save(&*self.folder).and_then(|()| self.sync());
        if let Err(error) = saved {
            self.go_back(&old, &name);
            return Err(error.into());
        }
        let _last = self.syncing.lock();
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
            self.go_back(&old, &name);
            return Err(error.into());
        }
        buffer.bytes.clear();
        buffer.db = None;
        let position = self.appended.load(Ordering::Relaxed);
        self.written.fetch_max(position, Ordering::Release);
        self.synced.fetch_max(position, Ordering::Release);
        disk.file = Arc::new(file);
        disk.manifest = new;
        disk.len = 0;
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

    /// Makes the manifest name what it named before; if that is certain, removes the file that it
    /// may have named meanwhile. Otherwise both manifests can be loaded, and the next start cleans up.
    fn go_back(&self, old: &Manifest, name: &str) {
        if old.save(&*self.folder).is_ok() {
            let _ = self.folder.remove(name);
        }
    }

    /// Makes the new base part of the log; it replaces the files that it was made from.
    fn publish(
        &self,
        (old, fresh_starts): (&Manifest, u64),
        temporary: &str,
        len: u64,
    ) -> Result<(), EngineError> {
        let _saving = self.saving.lock();
        let (current, starts_now) = self.manifest();
        if starts_now != fresh_starts {
            return Err(EngineError::Log(
                "the log was started over meanwhile".into(),
            ));
        }
        let mut new = current.clone();
        let name = new.replace_base(old);
        self.folder.rename(temporary, &name)?;
        if let Err(error) = new.save(&*self.folder) {
            self.go_back(&current, &name);
            return Err(error.into());
        }
        let mut disk = self.disk.lock();
        disk.manifest = new;
        disk.base_len = len;
        drop(disk);
        for name in old.files() {
            let _ = self.folder.remove(&name);
        }
        Ok(())
    }

    /// Writes a fresh base from memory and begins a new increment: what the previous files hold
    /// is not certain. Everybody waits meanwhile.
    pub(crate) fn start_over(&self) -> Result<(), EngineError> {
        self.try_to_start_over().0
    }

    /// As [`Log::start_over`], and for how long everybody had to wait.
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
        let _saving = self.saving.lock();
        let mut last = self.syncing.lock();
        let old = self.replace_files(state, &mut self.disk.lock())?;
        *last = Instant::now();
        drop(last);
        self.remove_files(&old);
        Ok(())
    }

    /// As [`Log::write_fresh`], for data that was replaced as a whole. That is a change with a position of its own, which
    /// is returned: if no fresh base can be written, the position is on the disk only when one is written later.
    pub(super) fn write_replaced(&self, state: &State) -> (u64, Result<(), EngineError>) {
        let _saving = self.saving.lock();
        let mut last = self.syncing.lock();
        let mut disk = self.disk.lock();
        let position = 1 + self.appended.fetch_add(1, Ordering::Relaxed);
        let replaced = self.replace_files(state, &mut disk).inspect_err(|error| {
            // Before the disk is free: who writes to the previous file would take this position for written.
            self.lose(&error.to_string());
        });
        drop(disk);
        *last = Instant::now();
        drop(last);
        let removed = replaced.map(|old| self.remove_files(&old));
        (position, removed)
    }

    fn remove_files(&self, old: &Manifest) {
        for name in old.files() {
            let _ = self.folder.remove(&name);
        }
        self.wake_waiters();
    }

    /// Writes a fresh base and begins a new increment; the files of before, which are to be removed.
    fn replace_files(&self, state: &State, disk: &mut Disk) -> Result<Manifest, EngineError> {
        let temporary = self.temporary("fresh");
        let len = dump::write(state, &*self.folder, &temporary).inspect_err(|_| {
            let _ = self.folder.remove(&temporary);
        })?;
        let old = disk.manifest.clone();
        let mut new = old.clone();
        new.add_increment();
        let base = new.replace_base(&old);
        let file = LogFile::new(self.folder.create(new.current())?);
        // From here on nothing is removed on failure: either manifest may be on the disk, and the
        // next attempt takes the same names.
        self.folder.rename(&temporary, &base)?;
        new.save(&*self.folder)?;
        let mut buffer = self.buffer.lock();
        buffer.bytes.clear();
        buffer.db = None;
        let position = self.appended.load(Ordering::Relaxed);
        self.written.fetch_max(position, Ordering::Release);
        self.synced.fetch_max(position, Ordering::Release);
        disk.file = Arc::new(file);
        disk.manifest = new;
        disk.len = 0;
        disk.base_len = len;
        disk.fresh_starts += 1;
        self.trouble.store(FINE, Ordering::Release);
        Ok(old)
    }
}
