//! When leases are renewed for the first time.
//!
//! Most locks are released long before their first renewal is due, so a guard costs an entry in a schedule instead of a
//! task. When a renewal is due, the lease gets a task of its own.
//!
//! A store has one schedule per runtime: a lease is renewed by the runtime that acquired it, not by the one that
//! connected the store, which may have ended.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::{runtime::Id, sync::Notify, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use super::renewal::Renewal;
use crate::store::Clock;

/// The schedules of one store.
#[derive(Default)]
struct Schedules(Mutex<HashMap<Id, Running>>);

struct Running {
    schedule: Arc<Schedule>,
    task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Schedule {
    entries: Mutex<Entries>,
    /// Told when a renewal is due before the time at which the task looks next.
    earlier: Notify,
}

/// The place of a renewal in its schedule. The number distinguishes renewals that are due at the same time.
type Entry = (Instant, u64);

#[derive(Default)]
struct Entries {
    due: BTreeMap<Entry, Renewal>,
    count: u64,
    /// When the task looks next.
    wakes: Option<Instant>,
}

/// A renewal that waits in its schedule. Dropping it takes it out.
pub(crate) struct Scheduled {
    schedule: Arc<Schedule>,
    entry: Entry,
}

impl Scheduled {
    /// Schedules a renewal on the current runtime, or on the store's outside of one; `None` if there is none either.
    pub(crate) fn new(renewal: Renewal) -> Option<Self> {
        let store = renewal.owner().store().clone();
        let runtime = store.runtime()?;
        let schedules = store.extension(|_: &Schedules| true, Schedules::default);
        let mut running = schedules.0.lock();
        let known = running
            .get(&runtime.id())
            .filter(|known| !known.task.is_finished());
        // Entries are added and empty schedules leave under the lock of the map.
        if let Some(known) = known {
            let schedule = known.schedule.clone();
            let entry = schedule.put(renewal);
            return Some(Self { schedule, entry });
        }
        let schedule = Arc::new(Schedule::default());
        let entry = schedule.put(renewal);
        let task = Task {
            schedule: schedule.clone(),
            schedules: Arc::downgrade(&schedules),
            runtime: runtime.id(),
            clock: store.clock(),
        };
        let started = Running {
            schedule: schedule.clone(),
            task: AbortOnDropHandle::new(crate::task::spawn_on(&runtime, task.run())),
        };
        let replaced = running.insert(runtime.id(), started);
        drop(running);
        // Outside the lock: its renewals may hold the last handle of the store.
        drop(replaced);
        Some(Self { schedule, entry })
    }
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        let taken = self.schedule.entries.lock().due.remove(&self.entry);
        // Outside the lock: it may hold the last handle of the store.
        drop(taken);
    }
}

impl Schedule {
    fn put(&self, renewal: Renewal) -> Entry {
        let mut entries = self.entries.lock();
        entries.count += 1;
        let entry = (renewal.due(), entries.count);
        entries.due.insert(entry, renewal);
        if entries.wakes.is_none_or(|wakes| entry.0 < wakes) {
            entries.wakes = Some(entry.0);
            self.earlier.notify_one();
        }
        entry
    }

    /// What is due at `now`, and when to look next.
    fn take_due(&self, now: Instant) -> (BTreeMap<Entry, Renewal>, Option<Instant>) {
        let mut entries = self.entries.lock();
        let later = entries.due.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut entries.due, later);
        entries.wakes = entries.due.keys().next().map(|entry| entry.0);
        (due, entries.wakes)
    }
}

/// Starts the renewals of one schedule when they are due.
struct Task {
    schedule: Arc<Schedule>,
    schedules: Weak<Schedules>,
    runtime: Id,
    clock: Clock,
}

impl Task {
    async fn run(self) {
        loop {
            let (due, next) = self.schedule.take_due(self.clock.now());
            for renewal in due.into_values() {
                crate::task::spawn(renewal.run());
            }
            match next {
                Some(at) => tokio::select! {
                    biased;
                    () = self.clock.sleep_until(at) => {}
                    () = self.schedule.earlier.notified() => {}
                },
                None if self.leave() => return,
                None => {}
            }
        }
    }

    /// Removes an empty schedule; false if it is not empty.
    fn leave(&self) -> bool {
        let Some(schedules) = self.schedules.upgrade() else {
            return true;
        };
        let mut running = schedules.0.lock();
        let empty = self.schedule.entries.lock().due.is_empty();
        let removed = empty.then(|| running.remove(&self.runtime));
        drop(running);
        removed.is_some()
    }
}
