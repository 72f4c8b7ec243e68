//! The lease of a job that a worker holds, and its renewal.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinHandle, time::Instant};

use super::{BullQueue, EXTEND, worker::millis};
use crate::error::Result;

/// Renews a lease until it is released, lost or dropped.
#[derive(Debug)]
pub(super) struct Hold {
    state: Arc<State>,
    renewal: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    is_lost: AtomicBool,
    /// The lease has ended by then, unless it is renewed.
    until: Mutex<Instant>,
}

impl State {
    fn until(&self) -> Instant {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

impl Hold {
    /// For a job that was taken just now.
    pub(super) fn start(queue: BullQueue, id: Vec<u8>, token: String, lease: Duration) -> Self {
        let state = Arc::new(State {
            is_lost: AtomicBool::new(false),
            until: Mutex::new(Instant::now() + lease),
        });
        let renewal = tokio::spawn(renew(queue, id, token, lease, state.clone()));
        Self { state, renewal }
    }

    /// The job has ended.
    pub(super) fn release(&self) {
        self.renewal.abort();
    }

    /// Whether the server has said that the job is not held any more.
    pub(super) fn is_lost(&self) -> bool {
        self.state.is_lost.load(Ordering::Acquire)
    }

    /// Whether the job may still be held, as far as this process knows.
    pub(super) fn may_last(&self) -> bool {
        !self.is_lost() && Instant::now() < self.state.until()
    }
}

async fn renew(queue: BullQueue, id: Vec<u8>, token: String, lease: Duration, state: Arc<State>) {
    let mut wait = lease / 3;
    // One that hangs must leave time for others.
    let store = queue.store.within(queue.store.deadline().min(lease / 4));
    loop {
        tokio::time::sleep(wait).await;
        let extended: Result<u8> = EXTEND
            .run(
                &store,
                &queue.keys,
                &[&queue.prefix, &queue.major, &id, &token, &millis(lease)],
            )
            .await;
        match extended {
            Ok(0) => {
                state.is_lost.store(true, Ordering::Release);
                return;
            }
            Ok(_) => {
                let mut until = state.until.lock().unwrap_or_else(PoisonError::into_inner);
                *until = Instant::now() + lease;
                wait = lease / 3;
            }
            Err(error) => {
                tracing::warn!(%error, "a lease could not be renewed");
                // After its end only the answer matters, which tells that it is lost.
                let has_ended = Instant::now() >= state.until();
                wait = if has_ended { lease / 3 } else { lease / 20 };
            }
        }
    }
}
