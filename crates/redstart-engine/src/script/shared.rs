//! What the Lua functions share with the caller of a script: who it runs for, and its limits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{Label, Limits, function::Loading, json, raise::Raise, watchdog::Watchdog};
use crate::client::Client;

/// A script that has been running for so long gives up the worker of the runtime that it runs on.
const RELEASE_AFTER: Duration = Duration::from_millis(5);

/// What the Lua functions share with the caller of a script.
pub(super) struct Shared {
    pub(super) stage: Mutex<Stage>,
    pub(super) watchdog: Arc<Watchdog>,
    /// Of `math.random`: drand48's 48 bits.
    pub(super) chance: AtomicU64,
    /// When the running script was first seen by the hook.
    pub(super) started: Mutex<Option<Instant>>,
    /// The script runs on a worker of the listener's runtime, which has other tasks, too.
    pub(super) on_worker: AtomicBool,
    pub(super) limits: Mutex<Limits>,
    /// Of `cjson`; as at first when a script begins.
    pub(super) json: Arc<Mutex<json::Settings>>,
    /// The library whose code runs to register its functions.
    pub(super) loading: Mutex<Option<Loading>>,
}

/// What is known of the running script.
pub(super) struct Stage {
    /// On whose behalf it calls commands.
    pub(super) client: Client,
    pub(super) label: Label,
    /// The command that runs a function; of scripts nobody asks for it.
    pub(super) command: Vec<Bytes>,
    /// The error that ended the script, as its handler put it together.
    pub(super) failure: Option<String>,
}

/// Clears away what is left of a script, however it ended.
pub(super) struct Ending<'a>(pub(super) &'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        // They are parts of a read buffer, which they would keep from being freed.
        self.0.stage.lock().command.clear();
        *self.0.started.lock() = None;
        let watchdog = &self.0.watchdog;
        if watchdog.has_written() || watchdog.is_long() || watchdog.is_busy() {
            watchdog.reset();
        }
    }
}

/// Hands the other tasks of this runtime worker to another thread, and continues without them.
///
/// `block_in_place` does that for the time of its closure; if the closure takes long enough for the
/// other thread to take over, the worker stays there. So the closure waits for a task to be run.
fn release_worker() {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    // The listener's tasks never run on a runtime that cannot do it; see `server::Network`.
    if runtime.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread {
        let (ran, runs) = std::sync::mpsc::channel();
        runtime.spawn(async move { ran.send(()) });
        let _ = tokio::task::block_in_place(|| runs.recv_timeout(Duration::from_secs(1)));
    }
}

impl Shared {
    /// Ends the script if it was killed or reached the time limit.
    pub(super) fn check(&self) -> Result<(), Raise> {
        if self.watchdog.is_killed() {
            return Err(Raise::Killed("Script killed by user with SCRIPT KILL..."));
        }
        let mut started = self.started.lock();
        let Some(began) = *started else {
            *started = Some(Instant::now());
            return Ok(());
        };
        let elapsed = began.elapsed();
        if elapsed >= RELEASE_AFTER && self.on_worker.swap(false, Ordering::Relaxed) {
            drop(started);
            // Before the worker is released: if all who come would wait on their threads first, the task that ends the
            // release would stand behind them.
            self.watchdog.set_long();
            release_worker();
        }
        let limits = *self.limits.lock();
        if let Some(loading) = &*self.loading.lock() {
            return loading.check(elapsed);
        }
        if elapsed >= limits.end_after {
            return Err(Raise::Killed(
                "Script ended: it ran for longer than is allowed",
            ));
        }
        if elapsed >= limits.busy_after && !self.watchdog.is_busy() {
            tracing::warn!("a script has been running for {elapsed:?}");
            let stage = self.stage.lock();
            self.watchdog
                .set_busy(stage.label.clone(), stage.command.clone(), began);
        }
        Ok(())
    }

    /// Whether the script was ended from outside, which nothing may catch.
    pub(super) fn check_killed(&self) -> Result<(), Raise> {
        if self.watchdog.is_killed() {
            return self.check();
        }
        let started = *self.started.lock();
        match started {
            Some(began) if began.elapsed() >= self.limits.lock().end_after => self.check(),
            _ => Ok(()),
        }
    }
}
