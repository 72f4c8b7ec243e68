//! What messages on the wake channels told this worker.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::store::{Clock, Event};

/// For how long a worker that could not decode a parked job leaves that kind to others.
const LEAVE_TO_OTHERS: Duration = Duration::from_secs(60);

pub(super) struct Signals {
    clock: Clock,
    /// The kinds of job that this worker has handlers for.
    kinds: Vec<&'static str>,
    /// There may be jobs.
    look: AtomicBool,
    /// When a delayed job will be due.
    due: Mutex<Option<Instant>>,
    /// Kinds that may have parked jobs for this worker.
    parked: Mutex<HashSet<&'static str>>,
    /// Kinds of which this worker could not decode a job, and when.
    undecodable: Mutex<HashMap<&'static str, Instant>>,
    /// The schedule has changed.
    pub(super) schedule: Notify,
}

impl Signals {
    pub(super) fn new(clock: Clock, kinds: Vec<&'static str>) -> Self {
        Self {
            clock,
            look: AtomicBool::new(false),
            due: Mutex::default(),
            parked: Mutex::new(kinds.iter().copied().collect()),
            undecodable: Mutex::default(),
            schedule: Notify::new(),
            kinds,
        }
    }

    /// Takes note of an event; whether the fetcher must know of it.
    pub(super) fn hear(&self, event: &Event) -> bool {
        let message = match event {
            Event::Message(message) => &message.payload,
            // Messages may have been missed.
            Event::Resubscribed => {
                self.look_at_all();
                self.schedule.notify_one();
                return true;
            }
            _ => return false,
        };
        let text = String::from_utf8_lossy(message);
        match text.split_once(' ').unwrap_or((&text, "")) {
            ("", _) => {
                self.look.store(true, Ordering::Release);
                true
            }
            ("look", _) => {
                self.look_at_all();
                true
            }
            ("schedule", _) => {
                self.schedule.notify_one();
                false
            }
            ("due", micros) => {
                let after = Duration::from_micros(micros.parse().unwrap_or(0));
                let at = self.clock.now().checked_add(after);
                let mut due = self.due.lock();
                *due = due.into_iter().chain(at).min();
                true
            }
            ("parked", kind) => self.hear_of_parked(kind),
            _ => false,
        }
    }

    fn look_at_all(&self) {
        self.parked.lock().extend(&self.kinds);
        self.look.store(true, Ordering::Release);
    }

    fn hear_of_parked(&self, kind: &str) -> bool {
        let Some(kind) = self.kinds.iter().find(|known| **known == kind) else {
            return false;
        };
        !self.leaves_to_others(kind) && self.parked.lock().insert(*kind)
    }

    fn leaves_to_others(&self, kind: &'static str) -> bool {
        let failed = self.undecodable.lock().get(kind).copied();
        failed.is_some_and(|at| self.clock.now() < at + LEAVE_TO_OTHERS)
    }

    /// Before the store is asked: what was heard so far is answered by that.
    pub(super) fn reset(&self) {
        self.look.store(false, Ordering::Release);
        *self.due.lock() = None;
    }

    /// Whether the store must be asked now.
    pub(super) fn must_look(&self) -> bool {
        self.look.load(Ordering::Acquire) || !self.parked.lock().is_empty()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        *self.due.lock()
    }

    /// Takes a kind that may have parked jobs for this worker. It is taken before the store is asked: a message that
    /// comes meanwhile counts.
    pub(super) fn take_parked_kind(&self) -> Option<&'static str> {
        let mut parked = self.parked.lock();
        let kind = parked.iter().next().copied()?;
        parked.remove(kind);
        Some(kind)
    }

    /// There are more parked jobs of this kind, or the store could not be asked.
    pub(super) fn more_parked(&self, kind: &'static str) {
        // Otherwise it would take and park the same jobs again and again.
        if !self.leaves_to_others(kind) {
            self.parked.lock().insert(kind);
        }
    }

    /// This worker could not decode a job of this kind.
    pub(super) fn could_not_decode(&self, kind: &str) {
        if let Some(kind) = self.kinds.iter().find(|known| **known == kind) {
            self.undecodable.lock().insert(*kind, self.clock.now());
            self.parked.lock().remove(*kind);
        }
    }
}
