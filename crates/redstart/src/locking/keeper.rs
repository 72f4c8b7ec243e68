//! Who renews the leases of a store: nobody, until the first renewal is due.
//!
//! Most locks are given back long before that, so a guard costs an entry in a schedule instead of a task. When
//! a renewal is due, the lease gets a watchdog of its own.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;

use super::lease::Watchdog;
use crate::store::Store;

/// The schedule of one store.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    task: AbortOnDropHandle<()>,
}

/// Where a lease stands in the schedule. The number keeps equal times apart.
pub(crate) type Slot = (Instant, u64);

#[derive(Default)]
struct Shared {
    schedule: Mutex<Schedule>,
    earlier: Notify,
}

#[derive(Default)]
struct Schedule {
    due: BTreeMap<Slot, Watchdog>,
    count: u64,
    /// When the task looks next. It need not be woken for what is due later.
    wakes: Option<Instant>,
}

impl Keeper {
    /// The keeper of a store; another one if the runtime of the last has ended. `None` outside a runtime.
    pub(crate) fn of(store: &Store) -> Option<Arc<Self>> {
        let runtime = store.runtime()?;
        Some(store.extension(
            |known: &Self| !known.task.is_finished(),
            || Self::new(&runtime),
        ))
    }

    fn new(runtime: &Handle) -> Self {
        let shared = Arc::new(Shared::default());
        let task = runtime.spawn(keep(shared.clone()));
        Self {
            shared,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// Lets the watchdog loose at `at`, unless it is taken out before.
    pub(crate) fn put(&self, at: Instant, watchdog: Watchdog) -> Slot {
        let mut schedule = self.shared.schedule.lock();
        schedule.count += 1;
        let slot = (at, schedule.count);
        schedule.due.insert(slot, watchdog);
        if schedule.wakes.is_none_or(|wakes| at < wakes) {
            schedule.wakes = Some(at);
            self.shared.earlier.notify_one();
        }
        slot
    }

    pub(crate) fn take(&self, slot: Slot) {
        let taken = self.shared.schedule.lock().due.remove(&slot);
        // Dropped only now: it may hold the last handle of its store.
        drop(taken);
    }
}

async fn keep(shared: Arc<Shared>) {
    loop {
        let (due, next) = {
            let mut schedule = shared.schedule.lock();
            let later = schedule.due.split_off(&(Instant::now(), u64::MAX));
            let due = std::mem::replace(&mut schedule.due, later);
            schedule.wakes = schedule.due.keys().next().map(|slot| slot.0);
            (due, schedule.wakes)
        };
        for watchdog in due.into_values() {
            tokio::spawn(watchdog.watch());
        }
        match next {
            Some(at) => tokio::select! {
                () = sleep_until(at) => {}
                () = shared.earlier.notified() => {}
            },
            None => shared.earlier.notified().await,
        }
    }
}
