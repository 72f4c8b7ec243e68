//! Sessions of the embedded engine that all callers share.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::{Mutex, MutexGuard};
use redstart_engine::Session;

use crate::error::Result;

/// Threads beyond this many share, or make a session for one call.
const SESSIONS: usize = 8;

/// Sessions for commands that neither wait nor change their session. A thread uses the same one each time, unless another
/// has it at the moment.
pub(super) struct Pool {
    sessions: Box<[Mutex<Session>]>,
}

impl Pool {
    pub(super) fn new(make: impl Fn() -> Result<Session>) -> Result<Self> {
        let sessions = (0..SESSIONS).map(|_| make().map(Mutex::new));
        Ok(Self {
            sessions: sessions.collect::<Result<_>>()?,
        })
    }

    /// A session that nobody uses; `None` if all are in use.
    pub(super) fn try_session(&self) -> Option<MutexGuard<'_, Session>> {
        let first = of_this_thread();
        (0..SESSIONS).find_map(|step| self.sessions[(first + step) % SESSIONS].try_lock())
    }
}

/// A number that few other threads have.
fn of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.get().unwrap_or_else(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(Some(number));
        number
    })
}
