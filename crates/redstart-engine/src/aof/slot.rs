//! Where an engine has its log; CONFIG SET appendonly exchanges it.

use std::{sync::Arc, thread::JoinHandle};

use parking_lot::{Mutex, RwLock};

use super::{Log, manifest::Manifest, open::claim, sink::LogSink};
use crate::{config::Config, engine::State, error::EngineError, rdb};

/// Where an engine has its log, if the data is kept. CONFIG SET appendonly exchanges it.
#[derive(Default)]
pub(crate) struct LogSlot {
    pub(super) log: RwLock<Option<Arc<Log>>>,
    /// Ends the previous log.
    closing: Mutex<Option<JoinHandle<()>>>,
}

impl LogSlot {
    pub(crate) fn get(&self) -> Option<Arc<Log>> {
        self.log.read().clone()
    }

    pub(crate) fn set(&self, log: Arc<Log>) {
        *self.log.write() = Some(log);
    }

    /// Waits until the previous log has released its folder.
    fn wait_for_end(&self) {
        if let Some(thread) = self.closing.lock().take() {
            let _ = thread.join();
        }
    }

    /// Ends the log; what is left of it is written by another thread, since the engine's lock is held.
    fn end(&self) {
        let Some(log) = self.log.write().take() else {
            return;
        };
        self.wait_for_end();
        log.ask(|work| work.stop = true);
        let thread = std::thread::Builder::new()
            .name("redstart-log-end".into())
            .spawn(move || log.close());
        *self.closing.lock() = thread.ok();
    }
}

/// Begins or ends the log as the changed settings say, and lets it follow the others.
pub(crate) fn follow_config(state: &mut State, before: &Config) -> Result<(), String> {
    let Some(inner) = state.inner.upgrade() else {
        return Ok(());
    };
    let slot = &inner.log;
    match (before.append_only, state.config.append_only) {
        (false, true) => {
            slot.wait_for_end();
            let log = begin(state).map_err(|error| error.to_string())?;
            slot.set(log);
        }
        (true, false) => {
            state.effects.set_sink(None);
            slot.end();
            rdb::log_ended(state, before);
        }
        (true, true) => {
            if let Some(log) = slot.get() {
                log.policy.follow(&state.config);
                state.effects.follow_sink();
                // What waited for the disk may not have to any more.
                log.wake_all();
            }
        }
        (false, false) => {}
    }
    Ok(())
}

/// Begins a log of what is in memory; what the folder had before is replaced.
fn begin(state: &mut State) -> Result<Arc<Log>, EngineError> {
    let (folder, lock) = claim(&state.config.dir())?;
    folder.make()?;
    let manifest = Manifest::load(&*folder)?;
    let engine = state.inner.clone();
    let log = Log::new(folder, Some(lock), manifest, state, engine)?;
    log.write_fresh(state)?;
    log.start()?;
    let sink = Box::new(LogSink(log.clone()));
    state.effects.set_sink(Some(sink));
    Ok(log)
}
