//! What messages on the wake channels told this worker.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::Registration;
use crate::{
    messaging::queue::JobId,
    store::{Clock, Event},
};

/// For how long a worker that could not decode a parked job leaves that kind to others.
const LEAVE_TO_OTHERS: Duration = Duration::from_secs(60);

pub(super) struct Signals {
    clock: Clock,
    /// The kinds of job that this worker has handlers for.
    kinds: Vec<Arc<str>>,
    /// There may be jobs.
    look: AtomicBool,
    /// When a delayed job will be due.
    due: Mutex<Option<Instant>>,
    /// Kinds that may have parked jobs for this worker.
    parked: Mutex<BTreeSet<Arc<str>>>,
    /// The same, but they are left to others for now.
    later: Mutex<BTreeSet<Arc<str>>>,
    /// Kinds with parked jobs that a limit keeps from running, and when to look again at the latest.
    limited: Mutex<HashMap<Arc<str>, Instant>>,
    /// Kinds of which this worker could not decode a job.
    undecodable: Mutex<HashMap<Arc<str>, Undecodable>>,
    /// The schedule has changed.
    pub(super) schedule: Notify,
    /// The registration of now, for those who want to stop a job.
    registration: Mutex<Weak<Registration>>,
}

#[derive(Clone, Copy)]
struct Undecodable {
    /// Until then the kind is left to others.
    until: Instant,
    /// How many of its parked jobs were found to be undecodable, since this worker last looked from the start. They lie
    /// in front of the others.
    skip: usize,
}

impl Signals {
    pub(super) fn new(clock: Clock, kinds: Vec<Arc<str>>) -> Self {
        Self {
            clock,
            look: AtomicBool::new(false),
            due: Mutex::default(),
            parked: Mutex::new(kinds.iter().cloned().collect()),
            later: Mutex::default(),
            limited: Mutex::default(),
            undecodable: Mutex::default(),
            schedule: Notify::new(),
            registration: Mutex::default(),
            kinds,
        }
    }

    pub(super) fn is_registered(&self, registration: &Arc<Registration>) {
        *self.registration.lock() = Arc::downgrade(registration);
    }

    fn cancel(&self, id: JobId) {
        let registration = self.registration.lock().upgrade();
        if let Some(registration) = registration {
            registration.cancel(id);
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
            ("cancel", id) => {
                if let Ok(id) = id.parse() {
                    self.cancel(id);
                }
                false
            }
            _ => false,
        }
    }

    fn look_at_all(&self) {
        self.parked.lock().extend(self.kinds.iter().cloned());
        self.look.store(true, Ordering::Release);
    }

    fn hear_of_parked(&self, kind: &str) -> bool {
        let Some(kind) = self.kinds.iter().find(|known| ***known == *kind) else {
            return false;
        };
        self.limited.lock().remove(kind);
        if self.left_until(kind).is_none() {
            return self.parked.lock().insert(kind.clone());
        }
        self.later.lock().insert(kind.clone());
        // It must know when to look.
        true
    }

    /// Until when this worker leaves a kind to others, if it does.
    fn left_until(&self, kind: &str) -> Option<Instant> {
        let until = self.undecodable.lock().get(kind)?.until;
        (self.clock.now() < until).then_some(until)
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

    /// When a delayed job will be due, a kind is no longer left to others, or a limit may let its jobs run.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = *self.due.lock();
        let limited = self.limited.lock().values().min().copied();
        let later = self.later.lock();
        let ends = later
            .iter()
            .map(|kind| self.left_until(kind).unwrap_or_else(|| self.clock.now()));
        ends.chain(due).chain(limited).min()
    }

    /// Takes a kind that may have parked jobs for this worker, and how many of them to skip. It is taken before the
    /// store is asked: a message that comes meanwhile counts.
    pub(super) fn take_parked_kind(&self) -> Option<(Arc<str>, usize)> {
        let mut parked = self.parked.lock();
        self.later.lock().retain(|kind| {
            let left = self.left_until(kind).is_some();
            if !left {
                parked.insert(kind.clone());
            }
            left
        });
        let now = self.clock.now();
        self.limited.lock().retain(|kind, until| {
            let limited = *until > now;
            if !limited {
                parked.insert(kind.clone());
            }
            limited
        });
        // Any of them, so that a kind with many jobs does not starve the others.
        let any = crate::chance::range(0..parked.len().max(1));
        let kind = parked.iter().nth(any).cloned()?;
        parked.remove(&kind);
        let skip = self.undecodable.lock().get(&kind).map_or(0, |u| u.skip);
        Some((kind, skip))
    }

    /// There are more parked jobs of this kind, or the store could not be asked.
    pub(super) fn more_parked(&self, kind: Arc<str>) {
        // Otherwise it would take and park the same jobs again and again.
        match self.left_until(&kind) {
            Some(_) => self.later.lock().insert(kind),
            None => self.parked.lock().insert(kind),
        };
    }

    /// A limit keeps the parked jobs of this kind from running; it may let them run after this time, or when a message says
    /// so.
    pub(super) fn parked_are_limited(&self, kind: Arc<str>, wait: Duration) {
        let now = self.clock.now();
        let until = now.checked_add(wait).unwrap_or(now);
        self.limited.lock().insert(kind, until);
    }

    /// There are no parked jobs of this kind behind those that were skipped. Those in front may be others by now.
    pub(super) fn look_from_the_start(&self, kind: Arc<str>) {
        self.undecodable.lock().remove(&kind);
        self.parked.lock().insert(kind);
    }

    /// This worker could not decode a job of this kind. If it `was_parked`, it goes back to its place.
    pub(super) fn could_not_decode(&self, kind: &str, was_parked: bool) {
        let Some(kind) = self.kinds.iter().find(|known| ***known == *kind) else {
            return;
        };
        let now = self.clock.now();
        {
            let mut undecodable = self.undecodable.lock();
            let entry = undecodable.entry(kind.clone()).or_insert(Undecodable {
                until: now,
                skip: 0,
            });
            entry.until = now.checked_add(LEAVE_TO_OTHERS).unwrap_or(now);
            entry.skip += usize::from(was_parked);
        }
        let heard = self.parked.lock().remove(kind);
        if heard || was_parked {
            self.later.lock().insert(kind.clone());
        }
    }
}
