//! What a cache counted since it was made.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::observe;

macro_rules! stats {
    ($( $(#[$doc:meta])* $name:ident $variant:ident $event:literal, )*) => {
        /// What a cache counted since it was made. Each count is also a metric, under the event named here.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct CacheStats { $( $(#[$doc])* #[doc = concat!("(`", $event, "`)")] pub $name: u64, )* }

        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Count { $( $variant, )* }

        const EVENTS: &[&str] = &[ $( $event, )* ];

        impl Counters {
            pub(crate) fn read(&self) -> CacheStats {
                CacheStats { $( $name: self.counts[Count::$variant as usize].load(Ordering::Relaxed), )* }
            }
        }
    };
}

stats! {
    /// Reads served by the first level, in this process.
    l1_hits L1Hit "cache.l1_hit",
    /// Reads served by the store.
    hits Hit "cache.hit",
    /// Reads that found nothing they could use.
    misses Miss "cache.miss",
    /// Reads, at either level, that learned the source has no such value.
    negative_hits NegativeHit "cache.negative_hit",
    /// Loads that began.
    loads Load "cache.load",
    /// Loads that failed, panicked or took too long.
    failed_loads LoadFailed "cache.load_failed",
    /// Times that this process waited for the load of another one.
    waits Wait "cache.wait",
    /// Refreshes that began before the value expired.
    early_refreshes Early "cache.early_refresh",
    /// Answers that were older than their TTL.
    stale_hits Stale "cache.stale_hit",
    /// Loaded values that were not stored, because the key was invalidated, fenced or taken over meanwhile.
    refused_fills FillRefused "cache.fill_refused",
    /// Loaded values that could not be stored, because the store failed.
    lost_fills FillLost "cache.fill_lost",
    /// Loads without the cache: while a write-through was under way, or while the store was down.
    bypasses Bypass "cache.bypass",
    /// Misses because of stored bytes of another type, schema or codec.
    foreign Foreign "cache.foreign",
    /// Entries whose tag had been invalidated.
    dead_tags DeadTag "cache.dead_tag",
    /// Entries that the first level did not take, because the key changed while it was read.
    refused_inserts InsertRefused "cache.insert_refused",
    /// Keys invalidated by this process.
    invalidations Invalidation "cache.invalidated",
    /// Times that the first level was emptied, because its feed was lost, or the store or the cache was cleared.
    l1_flushes Flush "cache.l1_flush",
    /// Requests that the store did not answer.
    store_failures Down "cache.store_down",
}

#[derive(Debug)]
pub(crate) struct Counters {
    counts: [AtomicU64; EVENTS.len()],
    /// First-level hits that the metrics know of. They are reported in lots, because a hit takes less time than
    /// reporting it.
    told: AtomicU64,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; EVENTS.len()],
            told: AtomicU64::new(0),
        }
    }

    pub(crate) fn add(&self, what: Count) {
        self.add_many(what, 1);
    }

    pub(crate) fn add_many(&self, what: Count, times: u64) {
        if times > 0 {
            self.counts[what as usize].fetch_add(times, Ordering::Relaxed);
            observe::events(EVENTS[what as usize], times);
        }
    }

    pub(crate) fn l1_hit(&self) {
        let before = self.counts[Count::L1Hit as usize].fetch_add(1, Ordering::Relaxed);
        if before % 1024 == 1023 {
            self.tell();
        }
    }

    /// Reports first-level hits to the metrics.
    pub(crate) fn tell(&self) {
        let now = self.counts[Count::L1Hit as usize].load(Ordering::Relaxed);
        let told = self.told.fetch_max(now, Ordering::Relaxed);
        if now > told {
            observe::events(EVENTS[Count::L1Hit as usize], now - told);
        }
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        self.tell();
    }
}
