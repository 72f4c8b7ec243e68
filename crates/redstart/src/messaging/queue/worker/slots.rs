//! Slots that the workers of several queues share, in proportion or in strict order.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use super::builder::MAX_CONCURRENCY;

/// Slots that the workers of several queues share; see [`WorkerBuilder::share`](super::WorkerBuilder::share) and
/// [`WorkerBuilder::share_in_order`](super::WorkerBuilder::share_in_order). Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use std::num::NonZeroU32;
/// # use redstart::{Store, messaging::{Job, JobRegistry, Payload, Queue, WorkerSlots}};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail;
/// # impl Job for Mail { const NAME: &'static str = "mail"; }
/// # let store = Store::connect("memory://").await?;
/// # let registry = JobRegistry::new(()).on(async |_: Payload<Mail>| {});
/// let (urgent, bulk) = (Queue::new(&store, "shop", "urgent")?, Queue::new(&store, "shop", "bulk")?);
/// let slots = WorkerSlots::new(32);
/// let weight = |n| NonZeroU32::new(n).unwrap();
/// let first = urgent.serve(&registry).share(&slots, weight(4)).start().await?;
/// let second = bulk.serve(&registry).share(&slots, weight(1)).start().await?;
/// # drop((first, second));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct WorkerSlots {
    semaphore: Arc<Semaphore>,
    count: usize,
    order: Arc<Order>,
}

impl WorkerSlots {
    /// So many jobs at a time in all.
    pub fn new(count: usize) -> Self {
        Self {
            semaphore: Arc::new(Semaphore::new(count.min(MAX_CONCURRENCY))),
            count,
            order: Arc::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }
}

/// How a worker shares slots.
pub(super) struct Share {
    semaphore: Arc<Semaphore>,
    weight: NonZeroU32,
    rank: Option<Rank>,
}

impl Share {
    pub(super) fn weighted(slots: &WorkerSlots, weight: NonZeroU32) -> Self {
        Self {
            semaphore: slots.semaphore.clone(),
            weight,
            rank: None,
        }
    }

    pub(super) fn ranked(slots: &WorkerSlots, rank: u32) -> Self {
        Self {
            semaphore: slots.semaphore.clone(),
            weight: NonZeroU32::MIN,
            rank: Some(Rank {
                rank,
                order: slots.order.clone(),
                wanting: AtomicBool::new(false),
            }),
        }
    }

    pub(super) fn permits(&self) -> Arc<Semaphore> {
        self.semaphore.clone()
    }

    /// How many permits it waits for at a time.
    pub(super) fn turn(&self) -> u32 {
        self.weight.get()
    }

    pub(super) fn rank(self) -> Option<Rank> {
        self.rank
    }
}

/// How many workers of each rank have jobs to take.
#[derive(Debug, Default)]
struct Order {
    wanting: Mutex<BTreeMap<u32, usize>>,
    changed: Notify,
}

/// The place of one worker in the order.
pub(super) struct Rank {
    rank: u32,
    order: Arc<Order>,
    wanting: AtomicBool,
}

impl Rank {
    /// Whether this worker has jobs to take, as far as it knows.
    pub(super) fn wants(&self, wants: bool) {
        let mut wanting = self.order.wanting.lock();
        if self.wanting.swap(wants, Ordering::Relaxed) == wants {
            return;
        }
        if wants {
            *wanting.entry(self.rank).or_default() += 1;
            return;
        }
        if let Some(count) = wanting.get_mut(&self.rank) {
            *count -= 1;
            if *count == 0 {
                wanting.remove(&self.rank);
                drop(wanting);
                self.order.changed.notify_waiters();
            }
        }
    }

    /// Whether no worker of a lower rank has jobs to take.
    pub(super) fn has_turn(&self) -> bool {
        let wanting = self.order.wanting.lock();
        wanting.range(..self.rank).next().is_none()
    }

    /// Waits until no worker of a lower rank has jobs to take.
    pub(super) async fn turn(&self) {
        loop {
            // Before the look, so that a change in between is heard.
            let changed = self.order.changed.notified();
            if self.has_turn() {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.wants(false);
    }
}
