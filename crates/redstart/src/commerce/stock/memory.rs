//! What a handle remembers of sales: which one runs, and that one has nothing left.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::store::Clock;

/// How many SKUs are remembered at most.
const PLACES: usize = 1024;

/// A SKU has one place in a table and pushes out another one there: looking and writing cost the same at any size.
pub(super) struct Memory {
    clock: Clock,
    time: Duration,
    places: Box<[Mutex<Place>]>,
}

#[derive(Default)]
struct Place {
    sold_out: Option<Seen>,
    sale: Option<Sale>,
}

/// How many units all shards together had when they were last asked.
struct Seen {
    sku: Box<str>,
    free: u64,
    until: Instant,
}

/// The sale that a shard had when it was last asked.
struct Sale {
    sku: Box<str>,
    id: Arc<str>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}

impl Memory {
    /// `time`: how long "nothing left" is remembered.
    pub(super) fn new(clock: Clock, time: Duration) -> Self {
        Self {
            clock,
            time,
            places: (0..PLACES).map(|_| Mutex::default()).collect(),
        }
    }

    fn place(&self, sku: &str) -> MutexGuard<'_, Place> {
        let hash = xxhash_rust::xxh3::xxh3_64(sku.as_bytes()) as usize;
        self.places[hash % PLACES].lock()
    }

    /// The id of the sale of this SKU, if it is known.
    pub(super) fn sale(&self, sku: &str) -> Option<Arc<str>> {
        let place = self.place(sku);
        let sale = place.sale.as_ref().filter(|sale| *sale.sku == *sku);
        sale.map(|sale| sale.id.clone())
    }

    /// The sale of this SKU has this id; an empty one is none.
    pub(super) fn put_sale(&self, sku: &str, id: &str) {
        if !id.is_empty() {
            self.place(sku).sale = Some(Sale {
                sku: sku.into(),
                id: id.into(),
            });
        }
    }

    /// Whether all shards together recently had fewer units than this.
    pub(super) fn is_short_of(&self, sku: &str, units: u64) -> bool {
        match &self.place(sku).sold_out {
            Some(seen) => *seen.sku == *sku && seen.free < units && self.clock.now() < seen.until,
            None => false,
        }
    }

    /// All shards together had this many units. `asked` is from before they were asked.
    pub(super) fn put(&self, sku: &str, free: u64, asked: Instant) {
        if let Some(until) = asked.checked_add(self.time) {
            self.place(sku).sold_out = Some(Seen {
                sku: sku.into(),
                free,
                until,
            });
        }
    }

    /// Units came back.
    pub(super) fn forget(&self, sku: &str) {
        let mut place = self.place(sku);
        if place
            .sold_out
            .as_ref()
            .is_some_and(|seen| *seen.sku == *sku)
        {
            place.sold_out = None;
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }
}
