//! The first level: values in this process, told by the store when they change.
//!
//! Three counters keep out what was invalidated:
//!
//! - a **generation** for each stripe of keys, raised by every change of one of them. It is read before a value is
//!   read from the store. Under another generation the value is not taken, because it may be from before the change.
//!   Check and insert happen under the stripe's lock, as do raise and removal.
//! - an **epoch** for everything, odd while the feed works and even while it does not. Every entry carries the epoch
//!   under which it was inserted and is good only in that one, so losing the feed empties the level at once.
//! - a **tag clock**, raised by every invalidation of a tag. Each of 4096 buckets of tags has the time of its last
//!   invalidation; an entry is good while none of its buckets is later than its own time.

use std::{
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::entry::Stamp;
use crate::{
    caching::{
        invalidation::L1,
        tags::{BUCKETS, bucket_of},
    },
    store::Clock,
};

mod shared;

pub(crate) use shared::SharedLevel;
use shared::Tenant;

const STRIPES: usize = 256;

/// Weighs what is kept in a bounded map.
#[derive(Clone)]
pub(crate) struct Weight;

pub(crate) trait Weighs {
    fn weight(&self) -> u64;
}

impl<K, T: Weighs> quick_cache::Weighter<K, T> for Weight {
    fn weight(&self, _: &K, value: &T) -> u64 {
        value.weight()
    }
}

/// A map by name that keeps what is used most, up to a total weight.
pub(crate) type Bounded<T, K = Arc<str>> =
    quick_cache::sync::Cache<K, T, Weight, foldhash::quality::RandomState>;

pub(crate) fn bounded<T: Weighs + Clone, K: Eq + Hash>(count: u64, weight: u64) -> Bounded<T, K> {
    Bounded::with(
        usize::try_from(count.min(1 << 16)).unwrap_or_default(),
        weight,
        Weight,
        foldhash::quality::RandomState::default(),
        Default::default(),
    )
}

/// A value as the first level has it.
pub(crate) struct Stored<V: ?Sized> {
    pub(crate) value: Option<Arc<V>>,
    /// Until when it is served from here: at most the level's maximal age.
    pub(crate) served_until: Instant,
    /// Until when the store has it as fresh.
    pub(crate) fresh_until: Instant,
    pub(crate) load_time: Duration,
    /// How old the value was at `read_at`.
    pub(crate) age: Duration,
    pub(crate) read_at: Instant,
    pub(crate) stamp: Stamp,
    epoch: u64,
    weight: u64,
    tag_clock: u64,
    /// The buckets of its tags.
    tags: Option<Arc<[u16]>>,
}

// Copied at every hit, so a hit counts up one reference and no more.
impl<V: ?Sized> Clone for Stored<V> {
    #[inline]
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            tags: self.tags.clone(),
            ..*self
        }
    }
}

impl<V: ?Sized> Weighs for Stored<V> {
    fn weight(&self) -> u64 {
        self.weight
    }
}

/// A value to insert; the level adds its own marks.
pub(crate) struct Incoming<'a, V> {
    pub(crate) value: Option<Arc<V>>,
    pub(crate) fresh_for: Duration,
    pub(crate) load_time: Duration,
    pub(crate) age: Duration,
    pub(crate) stamp: Stamp,
    /// Its length in the store.
    pub(crate) bytes: usize,
    pub(crate) tags: &'a [&'a str],
}

/// The level's counters before the store is asked.
#[derive(Clone)]
pub(crate) struct ReadMark {
    epoch: u64,
    stripe: usize,
    generation: u64,
    tag_clock: u64,
    at: Instant,
    /// What the store's count of redirections was.
    pub(super) redirections: Redirections,
}

/// How often requests followed a redirection: a value that was read so is not kept, because it comes from a node whose
/// changes may not be listened to yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Redirections {
    pub(super) slot: u16,
    pub(super) of_slot: u32,
    /// Of all slots, for the tags.
    pub(super) of_all: u32,
}

/// Where the values of one cache are.
enum Map<V> {
    Own(Bounded<Stored<V>>),
    /// Beside those of the other caches of a set.
    Shared(Tenant),
}

impl<V: Send + Sync + 'static> Map<V> {
    #[inline]
    fn get(&self, name: &str) -> Option<Stored<V>> {
        match self {
            Self::Own(map) => map.get(name),
            Self::Shared(tenant) => tenant.get(name),
        }
    }

    fn insert(&self, name: &Arc<str>, stored: Stored<V>) {
        match self {
            Self::Own(map) => map.insert(name.clone(), stored),
            Self::Shared(tenant) => tenant.insert(name, stored),
        }
    }

    fn remove(&self, name: &str) {
        match self {
            Self::Own(map) => drop(map.remove(name)),
            Self::Shared(tenant) => tenant.remove(name),
        }
    }

    fn clear(&self) {
        match self {
            Self::Own(map) => map.clear(),
            Self::Shared(tenant) => tenant.clear(),
        }
    }
}

/// How entries are weighed, so that neither the number nor the bytes of them exceed their limits.
#[derive(Clone, Copy)]
struct Scale {
    /// All entries together weigh at most this.
    most: u64,
    /// What an entry weighs at least, so that the number of entries is bounded too.
    least: u64,
    by_bytes: bool,
}

impl Scale {
    fn new(settings: &L1) -> Self {
        // Each entry weighs its bytes, but at least an equal share of all bytes.
        let (most, least) = match settings.max_bytes {
            Some(bytes) => (bytes, bytes.div_ceil(settings.capacity.max(1)).max(1)),
            None => (settings.capacity, 1),
        };
        Self {
            most,
            least,
            by_bytes: settings.max_bytes.is_some(),
        }
    }

    fn weight(self, bytes: usize) -> u64 {
        match self.by_bytes {
            true => (bytes as u64).max(self.least),
            false => 1,
        }
    }
}

pub(crate) struct Level1<V> {
    map: Map<V>,
    scale: Scale,
    stripes: Box<[Mutex<u64>]>,
    epoch: AtomicU64,
    tag_clock: AtomicU64,
    tag_buckets: Box<[AtomicU64]>,
    max_age: Duration,
    clock: Clock,
}

impl<V: Send + Sync + 'static> Level1<V> {
    pub(crate) fn new(settings: &L1, clock: Clock) -> Self {
        let scale = Scale::new(settings);
        let map = Map::Own(bounded(settings.capacity, scale.most));
        Self::with(map, scale, settings, clock)
    }

    /// A level within the limits of one that several caches share.
    pub(crate) fn within(shared: &SharedLevel, settings: &L1, clock: Clock) -> Self {
        let map = Map::Shared(shared.tenant());
        Self::with(map, shared.scale(), settings, clock)
    }

    fn with(map: Map<V>, scale: Scale, settings: &L1, clock: Clock) -> Self {
        Self {
            map,
            scale,
            stripes: (0..STRIPES).map(|_| Mutex::new(0)).collect(),
            epoch: AtomicU64::new(0),
            tag_clock: AtomicU64::new(0),
            tag_buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            max_age: settings.max_age,
            clock,
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    fn stripe(name: &str) -> usize {
        xxhash_rust::xxh3::xxh3_64(name.as_bytes()) as usize % STRIPES
    }

    /// A value that has not been invalidated, as far as this process was told.
    #[inline]
    pub(crate) fn get(&self, name: &str) -> Option<Stored<V>> {
        let stored = self.map.get(name)?;
        if stored.epoch != self.epoch.load(Ordering::Acquire) {
            return None;
        }
        let retired = |bucket: &u16| {
            self.tag_buckets[usize::from(*bucket)].load(Ordering::Acquire) > stored.tag_clock
        };
        if let Some(tags) = &stored.tags
            && tags.iter().any(retired)
        {
            return None;
        }
        Some(stored)
    }

    pub(crate) fn mark(&self, name: &str) -> ReadMark {
        let stripe = Self::stripe(name);
        ReadMark {
            epoch: self.epoch.load(Ordering::Acquire),
            stripe,
            generation: *self.stripes[stripe].lock(),
            tag_clock: self.tag_clock.load(Ordering::Acquire),
            at: self.now(),
            redirections: Redirections::default(),
        }
    }

    /// Inserts a value, unless the key changed since the mark was taken. Returns whether it did.
    pub(crate) fn insert(&self, name: &Arc<str>, mark: &ReadMark, value: Incoming<'_, V>) -> bool {
        let served_for = match crate::mend::is_missing("a first level has a bound") {
            true => value.fresh_for,
            false => value.fresh_for.min(self.max_age),
        };
        if served_for.is_zero() {
            return false;
        }
        let tags = value.tags.iter().map(|tag| bucket_of(tag));
        let stored = Stored {
            value: value.value,
            served_until: mark.at + served_for,
            fresh_until: mark.at + value.fresh_for,
            load_time: value.load_time,
            age: value.age,
            read_at: mark.at,
            stamp: value.stamp,
            epoch: mark.epoch,
            weight: self.scale.weight(name.len() + value.bytes),
            tag_clock: mark.tag_clock,
            tags: (!value.tags.is_empty()).then(|| tags.collect()),
        };
        let generation = self.stripes[mark.stripe].lock();
        // Under an even epoch the feed is down: nobody would tell us of a change.
        if mark.epoch.is_multiple_of(2)
            || self.epoch.load(Ordering::Acquire) != mark.epoch
            || *generation != mark.generation
        {
            return false;
        }
        self.map.insert(name, stored);
        true
    }

    /// The key changed.
    pub(crate) fn changed(&self, name: &str) {
        let mut generation = self.stripes[Self::stripe(name)].lock();
        *generation += 1;
        self.map.remove(name);
    }

    /// A tag was invalidated.
    pub(crate) fn tag_changed(&self, tag: &str) {
        self.bucket_changed(bucket_of(tag));
    }

    /// A tag of this bucket was invalidated.
    pub(crate) fn bucket_changed(&self, bucket: u16) {
        if let Some(last) = self.tag_buckets.get(usize::from(bucket)) {
            let now = self.tag_clock.fetch_add(1, Ordering::AcqRel) + 1;
            last.fetch_max(now, Ordering::AcqRel);
        }
    }

    /// The feed works: values may be inserted.
    pub(crate) fn up(&self) {
        let _ = self
            .epoch
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |epoch| {
                (epoch % 2 == 0).then_some(epoch + 1)
            });
    }

    /// The feed is lost: everything here may be out of date.
    pub(crate) fn down(&self) {
        let _ = self
            .epoch
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |epoch| {
                (epoch % 2 == 1).then_some(epoch + 1)
            });
        self.map.clear();
    }

    /// Everything may have changed, and the feed works.
    pub(crate) fn flush(&self) {
        self.epoch.fetch_add(2, Ordering::AcqRel);
        self.map.clear();
    }

    pub(crate) fn is_up(&self) -> bool {
        self.epoch.load(Ordering::Acquire) % 2 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(settings: L1) -> Level1<u32> {
        let level = Level1::new(&settings, Clock::default());
        level.up();
        level
    }

    fn value(n: u32, tags: &'static [&'static str]) -> Incoming<'static, u32> {
        Incoming {
            value: Some(Arc::new(n)),
            fresh_for: Duration::from_secs(60),
            load_time: Duration::ZERO,
            age: Duration::ZERO,
            stamp: Stamp::default(),
            bytes: 100,
            tags,
        }
    }

    #[tokio::test]
    async fn a_value_read_before_a_change_is_not_inserted_after_it() {
        let level = level(L1::pubsub(100));
        let name: Arc<str> = "k".into();
        let mark = level.mark("k");
        level.changed("k");
        assert!(!level.insert(&name, &mark, value(1, &[])));
        assert!(level.insert(&name, &level.mark("k"), value(2, &[])));
        assert_eq!(level.get("k").unwrap().value.as_deref(), Some(&2));
        level.changed("k");
        assert!(level.get("k").is_none());
    }

    #[tokio::test]
    async fn without_its_feed_it_is_empty_and_takes_nothing() {
        let level = Level1::new(&L1::pubsub(100), Clock::default());
        let name: Arc<str> = "k".into();
        assert!(!level.insert(&name, &level.mark("k"), value(1, &[])));
        level.up();
        let mark = level.mark("k");
        assert!(level.insert(&name, &mark, value(1, &[])));
        level.down();
        assert!(level.get("k").is_none());
        assert!(!level.insert(&name, &mark, value(1, &[])));
        assert!(!level.insert(&name, &level.mark("k"), value(1, &[])));
        let during_the_gap = level.mark("k");
        level.up();
        assert!(level.get("k").is_none(), "what was in it before stays out");
        assert!(!level.insert(&name, &during_the_gap, value(1, &[])));
        assert!(level.insert(&name, &level.mark("k"), value(3, &[])));
        level.flush();
        assert!(level.get("k").is_none() && level.is_up());
    }

    #[tokio::test]
    async fn an_invalidated_tag_hides_the_entries_that_carry_it_and_few_others() {
        let level = level(L1::pubsub(10_000));
        let before = level.mark("a");
        assert!(level.insert(&"a".into(), &before, value(1, &["acme"])));
        assert!(level.insert(&"b".into(), &level.mark("b"), value(1, &["other"])));
        level.tag_changed("acme");
        assert!(level.get("a").is_none());
        assert!(level.get("b").is_some());
        // Inserted late, under a mark from before the change, it stays hidden.
        level.insert(&"a".into(), &before, value(1, &["acme"]));
        assert!(level.get("a").is_none());
        assert!(level.insert(&"a".into(), &level.mark("a"), value(2, &["acme"])));
        assert!(level.get("a").is_some());
    }

    #[tokio::test]
    async fn neither_the_number_nor_the_bytes_of_entries_exceed_their_limits() {
        for (limits, bytes, most) in [
            (L1::pubsub(50), 10_000, 50),
            (L1::pubsub(50).max_bytes(1 << 20), 100, 50),
            (L1::pubsub(5000).max_bytes(100_000), 1000, 100),
        ] {
            let level = level(limits);
            for n in 0..5000 {
                let name: Arc<str> = format!("{n}").into();
                let value = Incoming {
                    bytes,
                    ..value(n, &[])
                };
                level.insert(&name, &level.mark(&name), value);
            }
            let Map::Own(map) = &level.map else {
                panic!("it is shared")
            };
            let kept = map.len();
            assert!(kept <= most, "{kept} entries, at most {most}");
            assert!(kept > 0);
        }
    }
}
