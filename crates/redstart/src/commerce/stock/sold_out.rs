//! What this process remembers of sales that have nothing left.

use std::{fmt, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::store::Clock;

/// How many SKUs are remembered at most.
const PLACES: usize = 1024;

/// How many units all shards together had when they were last asked. A SKU has one place in a table and pushes out
/// another one there: looking and writing cost the same at any size.
pub(super) struct Memory {
    clock: Clock,
    time: Duration,
    places: Box<[Mutex<Option<Seen>>]>,
}

struct Seen {
    sku: Box<str>,
    free: u64,
    until: Instant,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}

impl Memory {
    pub(super) fn new(clock: Clock, time: Duration) -> Self {
        Self {
            clock,
            time,
            places: (0..PLACES).map(|_| Mutex::new(None)).collect(),
        }
    }

    fn place(&self, sku: &str) -> &Mutex<Option<Seen>> {
        let hash = xxhash_rust::xxh3::xxh3_64(sku.as_bytes()) as usize;
        &self.places[hash % PLACES]
    }

    /// Whether all shards together recently had fewer units than this.
    pub(super) fn is_short_of(&self, sku: &str, units: u64) -> bool {
        match &*self.place(sku).lock() {
            Some(seen) => *seen.sku == *sku && seen.free < units && self.clock.now() < seen.until,
            None => false,
        }
    }

    /// All shards together had this many units. `asked` is from before they were asked.
    pub(super) fn put(&self, sku: &str, free: u64, asked: Instant) {
        if let Some(until) = asked.checked_add(self.time) {
            *self.place(sku).lock() = Some(Seen {
                sku: sku.into(),
                free,
                until,
            });
        }
    }

    /// Units came back.
    pub(super) fn forget(&self, sku: &str) {
        let mut place = self.place(sku).lock();
        if place.as_ref().is_some_and(|seen| *seen.sku == *sku) {
            *place = None;
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }
}
