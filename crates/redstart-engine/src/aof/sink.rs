//! The log as the engine's effects see it.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Weak, atomic::Ordering},
};

use bytes::Bytes;

use super::{Log, load, write::FINE};
use crate::{
    commands::database,
    dispatch,
    effect::{Effect, Health, Sink, Told},
    engine::State,
    error::EngineError,
    reply::Reply,
};

/// The log as the engine's effects see it.
pub(super) struct LogSink(pub(super) Arc<Log>);

impl Sink for LogSink {
    fn append(&mut self, unit: &[Effect]) -> u64 {
        self.0.append(unit)
    }

    fn health(&self) -> Health {
        Health {
            writable: self.0.trouble() == FINE,
            rewriting: self.0.rewriting.load(Ordering::Relaxed),
            rewritten: !self.0.rewrite_failed.load(Ordering::Relaxed),
        }
    }

    fn is_failing(&self) -> bool {
        self.0.trouble() != FINE
    }

    fn holds_reads(&self) -> bool {
        self.0.always()
    }

    fn durable(&self) -> u64 {
        self.0.synced.load(Ordering::Acquire)
    }

    fn rewrite(&mut self) -> bool {
        self.0.request_rewrite()
    }

    fn backup(&mut self, target: PathBuf, ready: (usize, Bytes), then: Told) -> io::Result<()> {
        let engine = self.0.engine.get().cloned();
        self.0.start_backup(target, move |result| {
            then(match result {
                Ok(backup) => Reply::Array(vec![
                    Reply::Int(backup.files as i64),
                    Reply::Int(backup.bytes as i64),
                ]),
                Err(error) => Reply::Error(format!("ERR the backup failed: {error}")),
            });
            if let Some(inner) = engine.as_ref().and_then(Weak::upgrade) {
                let mut state = inner.lock();
                state.ready.push(ready);
                dispatch::finish(&mut state, inner.clock.now_micros());
            }
        })
    }

    fn reload(&mut self, state: &mut State, now_micros: i64) -> Result<(), EngineError> {
        self.0.write()?;
        let disk = self.0.disk.lock();
        database::empty_all(state);
        let files = disk.manifest.files();
        load::load(
            &*self.0.folder,
            &files,
            state,
            now_micros,
            (load::Tail::Whole, load::Failing::LeftOut),
        )
    }
}
