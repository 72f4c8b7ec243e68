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
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

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

    /// How many slots it waits for at a time.
    pub(super) fn turn(&self) -> u32 {
        self.weight.get()
    }

    /// Tells workers of a higher rank whether this one has jobs to take, as far as it knows.
    pub(super) fn wants(&self, wants: bool) {
        if let Some(rank) = &self.rank {
            rank.wants(wants);
        }
    }

    /// Whether it would get slots now, if it asked for them.
    pub(super) fn has_some(&self) -> bool {
        self.semaphore.available_permits() >= self.weight.get() as usize && self.has_turn()
    }

    fn has_turn(&self) -> bool {
        self.rank.as_ref().is_none_or(Rank::has_turn)
    }

    /// Waits for its turn; as many slots as it waits for at a time.
    async fn slots(&self) -> OwnedSemaphorePermit {
        loop {
            if let Some(rank) = &self.rank {
                rank.turn().await;
            }
            let slots = acquire(&self.semaphore, self.weight.get()).await;
            // While it waited, a job of a lower rank may have come.
            if self.has_turn() {
                return slots;
            }
        }
    }
}

async fn acquire(semaphore: &Arc<Semaphore>, count: u32) -> OwnedSemaphorePermit {
    match semaphore.clone().acquire_many_owned(count).await {
        Ok(permits) => permits,
        // Never: the semaphore is not closed.
        Err(_) => std::future::pending().await,
    }
}

/// What a worker may hold.
pub(super) struct Room {
    /// One for each job from when it is taken until its ending is written, so that only so many are ever in doubt.
    own: Arc<Semaphore>,
    /// Where slots are shared, each job has one too, while it runs and no longer: a queue whose endings cannot be written
    /// holds up no other.
    share: Option<Share>,
}

impl Room {
    /// Room for so many jobs at a time.
    pub(super) fn new(concurrency: usize) -> Self {
        Self {
            own: Arc::new(Semaphore::new(concurrency)),
            share: None,
        }
    }

    /// Room for as many jobs as there are slots, and for as many more whose endings are not written yet.
    pub(super) fn shared(slots: usize, share: Share) -> Self {
        Self {
            own: Arc::new(Semaphore::new(2 * slots)),
            share: Some(share),
        }
    }

    pub(super) fn share(&self) -> Option<&Share> {
        self.share.as_ref()
    }

    /// Whether a worker that looks for jobs could take some.
    pub(super) fn has_some(&self) -> bool {
        let turn = self.share.as_ref().map_or(1, Share::turn);
        self.own.available_permits() >= turn as usize
            && self.share.as_ref().is_none_or(Share::has_some)
    }

    /// Permits for as many jobs as there is room for, at least one.
    pub(super) async fn permits(&self, at_most: usize) -> Permits {
        let mut permits = match &self.share {
            None => Permits {
                own: acquire(&self.own, 1).await,
                slots: None,
            },
            Some(share) => {
                // Before it takes slots from others.
                let own = acquire(&self.own, share.turn()).await;
                let slots = Some(share.slots().await);
                Permits { own, slots }
            }
        };
        permits.grow(at_most);
        permits
    }

    /// One permit if there is one now, without a slot.
    pub(super) fn try_permit(&self) -> Option<Permits> {
        let own = self.own.clone().try_acquire_owned().ok()?;
        Some(Permits { own, slots: None })
    }
}

/// What jobs hold of a worker's [`Room`].
pub(super) struct Permits {
    own: OwnedSemaphorePermit,
    slots: Option<OwnedSemaphorePermit>,
}

impl Permits {
    /// For how many jobs.
    pub(super) fn count(&self) -> usize {
        self.own.num_permits()
    }

    /// Takes more, without waiting, up to so many in all.
    fn grow(&mut self, at_most: usize) {
        let free = |held: &OwnedSemaphorePermit| held.semaphore().available_permits();
        let mut more = at_most.saturating_sub(self.count()).min(free(&self.own));
        if let Some(slots) = &self.slots {
            more = more.min(free(slots));
        }
        let take = |held: &OwnedSemaphorePermit| {
            let semaphore = held.semaphore().clone();
            semaphore.try_acquire_many_owned(more as u32).ok()
        };
        if more == 0 {
            return;
        }
        let Some(own) = take(&self.own) else {
            return;
        };
        if let Some(held) = &mut self.slots {
            match take(held) {
                Some(slots) => held.merge(slots),
                // Somebody else was faster.
                None => return,
            }
        }
        self.own.merge(own);
    }

    /// The permit of one job.
    pub(super) fn split_one(&mut self) -> Option<Self> {
        let slots = match &mut self.slots {
            Some(held) => Some(held.split(1)?),
            None => None,
        };
        let own = self.own.split(1)?;
        Some(Self { own, slots })
    }

    /// The job runs no longer: others may have its slot.
    pub(super) fn free_slot(&mut self) {
        self.slots = None;
    }

    /// Gives all of them back at once, so that the next reservation is for all of them and not for the first.
    pub(super) fn release(permits: impl Iterator<Item = Self>) {
        let own = permits.map(|permit| permit.own);
        drop(own.reduce(|mut all, permit| {
            all.merge(permit);
            all
        }));
    }
}

/// How many workers of each rank have jobs to take.
#[derive(Debug, Default)]
struct Order {
    wanting: Mutex<BTreeMap<u32, usize>>,
    changed: Notify,
}

/// The place of one worker in the order.
struct Rank {
    rank: u32,
    order: Arc<Order>,
    wanting: AtomicBool,
}

impl Rank {
    /// Whether this worker has jobs to take, as far as it knows.
    fn wants(&self, wants: bool) {
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
    fn has_turn(&self) -> bool {
        let wanting = self.order.wanting.lock();
        wanting.range(..self.rank).next().is_none()
    }

    /// Waits until no worker of a lower rank has jobs to take.
    async fn turn(&self) {
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
