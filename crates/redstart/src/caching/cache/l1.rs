//! The first level: values in this process, told by the store when they change.
//!
//! Three counters keep what was invalidated out of it:
//!
//! - a **generation** a stripe of keys, raised by every change of one of them. It is sampled before a value
//!   is read from the store; under another generation the value is not taken in, because it may be from
//!   before the change. Check and insert happen under the stripe's lock, as do raise and removal.
//! - an **epoch** for everything, odd while the feed stands and even while it is down. Every entry carries
//!   the epoch it came in under and is good only in that one, so losing the line empties the level at once.
//! - a **tag epoch** for each tag shard, raised by every invalidation of one of its tags.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::envelope::STAMP;
use crate::caching::tags::{SHARDS, shard_of};

const STRIPES: usize = 256;

/// A map by name that keeps what is used most, up to a number of entries.
pub(crate) type Bounded<T> = quick_cache::sync::Cache<
    Arc<str>,
    T,
    quick_cache::UnitWeighter,
    foldhash::quality::RandomState,
>;

pub(crate) fn bounded<T: Clone>(capacity: u64) -> Bounded<T> {
    Bounded::with(
        usize::try_from(capacity.min(1 << 16)).unwrap_or_default(),
        capacity,
        quick_cache::UnitWeighter,
        foldhash::quality::RandomState::default(),
        Default::default(),
    )
}

pub(crate) struct Stored<V> {
    pub(crate) value: Option<Arc<V>>,
    pub(crate) fresh_until: Instant,
    pub(crate) load_time: Duration,
    /// How old the value was when `read_at` was.
    pub(crate) age: Duration,
    pub(crate) read_at: Instant,
    pub(crate) stamp: [u8; STAMP.end - STAMP.start],
    epoch: u64,
    tags: Option<Arc<[(usize, u64)]>>,
}

// Copied out at every hit, so that a hit counts up one reference and no more.
impl<V> Clone for Stored<V> {
    #[inline]
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            tags: self.tags.clone(),
            ..*self
        }
    }
}

/// What is handed in; the level adds its own marks.
pub(crate) struct Incoming<'a, V> {
    pub(crate) value: Option<Arc<V>>,
    pub(crate) fresh_for: Duration,
    pub(crate) load_time: Duration,
    pub(crate) age: Duration,
    pub(crate) stamp: &'a [u8],
    pub(crate) tags: Vec<usize>,
}

/// Taken before the store is asked.
#[derive(Clone)]
pub(crate) struct Ticket {
    epoch: u64,
    stripe: usize,
    generation: u64,
    tag_epochs: [u64; SHARDS],
    at: Instant,
}

pub(crate) struct Level1<V> {
    map: Bounded<Stored<V>>,
    stripes: Box<[Mutex<u64>]>,
    epoch: AtomicU64,
    tag_epochs: [AtomicU64; SHARDS],
    max_age: Duration,
}

impl<V: Send + Sync + 'static> Level1<V> {
    pub(crate) fn new(capacity: u64, max_age: Duration) -> Self {
        Self {
            map: bounded(capacity),
            stripes: (0..STRIPES).map(|_| Mutex::new(0)).collect(),
            epoch: AtomicU64::new(0),
            tag_epochs: [const { AtomicU64::new(0) }; SHARDS],
            max_age,
        }
    }

    fn stripe(name: &str) -> usize {
        xxhash_rust::xxh3::xxh3_64(name.as_bytes()) as usize % STRIPES
    }

    /// A value that is fresh and has not been invalidated, as far as this process was told.
    #[inline]
    pub(crate) fn get(&self, name: &str) -> Option<Stored<V>> {
        let stored = self.map.get(name)?;
        if stored.epoch != self.epoch.load(Ordering::Acquire) {
            return None;
        }
        let retired =
            |(shard, seen): &(usize, u64)| self.tag_epochs[*shard].load(Ordering::Acquire) != *seen;
        if let Some(tags) = &stored.tags
            && tags.iter().any(retired)
        {
            return None;
        }
        Some(stored)
    }

    pub(crate) fn ticket(&self, name: &str) -> Ticket {
        let stripe = Self::stripe(name);
        Ticket {
            epoch: self.epoch.load(Ordering::Acquire),
            stripe,
            generation: *self.stripes[stripe].lock(),
            tag_epochs: std::array::from_fn(|at| self.tag_epochs[at].load(Ordering::Acquire)),
            at: Instant::now(),
        }
    }

    /// Takes a value in, unless the key changed since the ticket was taken. Says whether it did.
    pub(crate) fn insert(&self, name: &Arc<str>, ticket: &Ticket, value: Incoming<'_, V>) -> bool {
        let fresh_for = value.fresh_for.min(self.max_age);
        let Ok(stamp) = value.stamp.try_into() else {
            return false;
        };
        if fresh_for.is_zero() {
            return false;
        }
        let marks = value
            .tags
            .iter()
            .map(|shard| (*shard, ticket.tag_epochs[*shard]));
        let tags = (!value.tags.is_empty()).then(|| marks.collect());
        let stored = Stored {
            value: value.value,
            fresh_until: ticket.at + fresh_for,
            load_time: value.load_time,
            age: value.age,
            read_at: ticket.at,
            stamp,
            epoch: ticket.epoch,
            tags,
        };
        let generation = self.stripes[ticket.stripe].lock();
        // Under an even epoch the feed is down: nobody would tell us of a change.
        if ticket.epoch.is_multiple_of(2)
            || self.epoch.load(Ordering::Acquire) != ticket.epoch
            || *generation != ticket.generation
        {
            return false;
        }
        self.map.insert(name.clone(), stored);
        true
    }

    /// The key changed.
    pub(crate) fn changed(&self, name: &str) {
        let mut generation = self.stripes[Self::stripe(name)].lock();
        *generation += 1;
        self.map.remove(name);
    }

    /// A tag of this shard was invalidated.
    pub(crate) fn shard_changed(&self, shard: usize) {
        if let Some(epoch) = self.tag_epochs.get(shard) {
            epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn tag_changed(&self, tag: &str) {
        self.shard_changed(shard_of(tag));
    }

    /// The feed stands: values may come in.
    pub(crate) fn up(&self) {
        let _ = self
            .epoch
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |epoch| {
                (epoch % 2 == 0).then_some(epoch + 1)
            });
    }

    /// The feed is gone: everything here may be out of date.
    pub(crate) fn down(&self) {
        let _ = self
            .epoch
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |epoch| {
                (epoch % 2 == 1).then_some(epoch + 1)
            });
        self.map.clear();
    }

    /// Everything may have changed, and the feed stands.
    pub(crate) fn flush(&self) {
        self.epoch.fetch_add(2, Ordering::AcqRel);
        self.map.clear();
    }

    pub(crate) fn is_up(&self) -> bool {
        self.epoch.load(Ordering::Acquire) % 2 == 1
    }

    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(n: u32, tags: Vec<usize>) -> Incoming<'static, u32> {
        Incoming {
            value: Some(Arc::new(n)),
            fresh_for: Duration::from_secs(60),
            load_time: Duration::ZERO,
            age: Duration::ZERO,
            stamp: &[0; 17],
            tags,
        }
    }

    #[tokio::test]
    async fn a_value_read_before_a_change_is_not_taken_in_after_it() {
        let level = Level1::new(100, Duration::from_secs(60));
        let name: Arc<str> = "k".into();
        level.up();
        let ticket = level.ticket("k");
        level.changed("k");
        assert!(!level.insert(&name, &ticket, value(1, vec![])));
        assert!(level.insert(&name, &level.ticket("k"), value(2, vec![])));
        assert_eq!(level.get("k").unwrap().value.as_deref(), Some(&2));
        level.changed("k");
        assert!(level.get("k").is_none());
    }

    #[tokio::test]
    async fn without_its_feed_it_is_empty_and_takes_nothing() {
        let level = Level1::new(100, Duration::from_secs(60));
        let name: Arc<str> = "k".into();
        assert!(!level.insert(&name, &level.ticket("k"), value(1, vec![])));
        level.up();
        let ticket = level.ticket("k");
        assert!(level.insert(&name, &ticket, value(1, vec![])));
        level.down();
        assert!(level.get("k").is_none());
        assert!(!level.insert(&name, &ticket, value(1, vec![])));
        assert!(!level.insert(&name, &level.ticket("k"), value(1, vec![])));
        let during_the_gap = level.ticket("k");
        level.up();
        assert!(level.get("k").is_none(), "what was in it before stays out");
        assert!(!level.insert(&name, &during_the_gap, value(1, vec![])));
        assert!(level.insert(&name, &level.ticket("k"), value(3, vec![])));
        level.flush();
        assert!(level.get("k").is_none() && level.is_up());
    }

    #[tokio::test]
    async fn an_invalidated_tag_hides_what_carries_it() {
        let level = Level1::new(100, Duration::from_secs(60));
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        level.up();
        let before = level.ticket("a");
        assert!(level.insert(&a, &before, value(1, vec![3])));
        assert!(level.insert(&b, &level.ticket("b"), value(1, vec![4])));
        level.shard_changed(3);
        assert!(level.get("a").is_none());
        assert!(level.get("b").is_some());
        // Taken in late, under a ticket from before the change, it stays hidden.
        level.insert(&a, &before, value(1, vec![3]));
        assert!(level.get("a").is_none());
    }
}
