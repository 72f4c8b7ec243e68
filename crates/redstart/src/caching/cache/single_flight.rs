//! One load per key in this process: the first caller starts it, the others wait for it.
//!
//! ```text
//! caller ──join──> SingleFlight ──start (first caller only)──> task with a Runner
//!    │                                                             │ step, step, …
//!    └────────────── Waiter <────────────── finish ────────────────┘
//! ```
//!
//! The load runs in a task of its own, so it survives a caller that goes away. An invalidation detaches it: later
//! callers start another one, because this one may carry the old value.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::watch;

/// How far a load is. Its result was read or stored after some step of it began.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU64);

impl Progress {
    /// Begins a step in which something is read from the store or the source, or is stored.
    pub(crate) fn step(&self) -> u64 {
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

struct Running<T> {
    result: watch::Receiver<Option<T>>,
    progress: Arc<Progress>,
}

/// The loads that run in this process, by key.
pub(crate) struct SingleFlight<T>(Mutex<HashMap<Arc<str>, Running<T>>>);

/// A caller's end of a load.
pub(crate) struct Waiter<T> {
    result: watch::Receiver<Option<T>>,
    joined: u64,
    /// Whether this caller started it.
    pub(crate) first: bool,
}

impl<T: Clone> Waiter<T> {
    /// The result, or `None` if the task ended without one.
    pub(crate) async fn result(&mut self) -> Option<T> {
        self.result
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|result| result.clone())
    }

    /// Whether this caller joined before `step` began.
    pub(crate) fn joined_before(&self, step: u64) -> bool {
        self.first || self.joined < step
    }
}

/// The task's end of a load. Dropped without a result (a panic), it still frees the key.
pub(crate) struct Runner<T> {
    registered: Option<(Arc<SingleFlight<T>>, Arc<str>)>,
    result: watch::Sender<Option<T>>,
    pub(crate) progress: Arc<Progress>,
}

impl<T> Runner<T> {
    pub(crate) fn finish(mut self, result: T) {
        // First of all: a caller from now on starts another load.
        self.leave();
        self.result.send_modify(|slot| *slot = Some(result));
    }

    fn leave(&mut self) {
        if let Some((flights, name)) = self.registered.take() {
            let mut running = flights.0.lock();
            if running
                .get(&name)
                .is_some_and(|load| Arc::ptr_eq(&load.progress, &self.progress))
            {
                running.remove(&name);
            }
        }
    }
}

impl<T> Drop for Runner<T> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<T> SingleFlight<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(HashMap::new())))
    }

    /// Joins the load of a key, or starts one. `start` must only spawn.
    pub(crate) fn join(
        self: &Arc<Self>,
        name: &Arc<str>,
        start: impl FnOnce(Runner<T>),
    ) -> Waiter<T> {
        let mut running = self.0.lock();
        if let Some(load) = running.get(name) {
            return Waiter {
                result: load.result.clone(),
                joined: load.progress.now(),
                first: false,
            };
        }
        let (runner, waiter) = pair(Some((self.clone(), name.clone())));
        running.insert(
            name.clone(),
            Running {
                result: waiter.result.clone(),
                progress: runner.progress.clone(),
            },
        );
        drop(running);
        start(runner);
        waiter
    }

    /// A load that nobody else can join.
    pub(crate) fn alone(start: impl FnOnce(Runner<T>)) -> Waiter<T> {
        let (runner, waiter) = pair(None);
        start(runner);
        waiter
    }

    /// Later callers start another load.
    pub(crate) fn detach(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// The same for all keys.
    pub(crate) fn detach_all(&self) {
        self.0.lock().clear();
    }
}

fn pair<T>(registered: Option<(Arc<SingleFlight<T>>, Arc<str>)>) -> (Runner<T>, Waiter<T>) {
    let sender = watch::Sender::new(None);
    let result = sender.subscribe();
    let runner = Runner {
        registered,
        result: sender,
        progress: Arc::default(),
    };
    let waiter = Waiter {
        result,
        joined: 0,
        first: true,
    };
    (runner, waiter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callers_share_a_load_until_it_is_detached() {
        let flights = SingleFlight::<u32>::new();
        let name: Arc<str> = "k".into();
        let mut runners = Vec::new();
        let mut first = flights.join(&name, |runner| runners.push(runner));
        let mut second = flights.join(&name, |runner| runners.push(runner));
        assert!(first.first && !second.first);
        assert_eq!(runners.len(), 1);
        let step = runners[0].progress.step();
        let third = flights.join(&name, |runner| runners.push(runner));
        assert!(second.joined_before(step) && !third.joined_before(step));

        flights.detach("k");
        let mut fourth = flights.join(&name, |runner| runners.push(runner));
        assert_eq!(runners.len(), 2, "after an invalidation a new load starts");
        let (old, new) = (runners.remove(0), runners.remove(0));
        old.finish(1);
        assert_eq!(
            (first.result().await, second.result().await),
            (Some(1), Some(1))
        );
        let mut fifth = flights.join(&name, |_| panic!("the new load still runs"));
        drop(new);
        assert_eq!((fourth.result().await, fifth.result().await), (None, None));
        assert!(flights.0.lock().is_empty());
    }
}
