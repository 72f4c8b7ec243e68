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
    /// How often units came back to a SKU of this place.
    returns: u64,
    sale: Option<Sale>,
}

/// How many units all shards together had when they were last asked.
struct Seen {
    sku: Box<str>,
    free: u64,
    until: Instant,
}

/// The moment before the shards are asked.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    at: Instant,
    returns: u64,
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
        if id.is_empty() {
            return;
        }
        let mut place = self.place(sku);
        if let Some(known) = place.sale.as_ref().filter(|known| *known.sku == *sku) {
            if *known.id == *id {
                return;
            }
            // What was left of the sale before says nothing about this one.
            place.forget(sku);
        }
        place.sale = Some(Sale {
            sku: sku.into(),
            id: id.into(),
        });
    }

    /// Whether all shards together recently had fewer units than this.
    pub(super) fn is_short_of(&self, sku: &str, units: u64) -> bool {
        match &self.place(sku).sold_out {
            Some(seen) => *seen.sku == *sku && seen.free < units && self.clock.now() < seen.until,
            None => false,
        }
    }

    /// To be called before the shards are asked how many units they have.
    pub(super) fn ask(&self, sku: &str) -> Asked {
        Asked {
            at: self.clock.now(),
            returns: self.place(sku).returns,
        }
    }

    /// All shards together had this many units. It is dropped if this process gave some back since they were asked: the
    /// answer may be from before.
    pub(super) fn put(&self, sku: &str, free: u64, asked: Asked) {
        let mut place = self.place(sku);
        if place.returns != asked.returns {
            return;
        }
        if let Some(until) = asked.at.checked_add(self.time) {
            place.sold_out = Some(Seen {
                sku: sku.into(),
                free,
                until,
            });
        }
    }

    /// For a call that gives units back: what was known before is forgotten now, and what others learn while it runs when it
    /// ends or is dropped, since nobody knows when the server carried it out.
    pub(super) fn give_back<'a>(&'a self, sku: &'a str) -> GiveBack<'a> {
        self.forget(sku);
        GiveBack { memory: self, sku }
    }

    fn forget(&self, sku: &str) {
        self.place(sku).forget(sku);
    }
}

impl Place {
    /// Forgets how many units there were, also for answers that are on their way.
    fn forget(&mut self, sku: &str) {
        self.returns = self.returns.wrapping_add(1);
        self.sold_out.take_if(|seen| *seen.sku == *sku);
    }
}

/// A call that gives units back is under way.
#[must_use = "it ends when it is dropped"]
pub(super) struct GiveBack<'a> {
    memory: &'a Memory,
    sku: &'a str,
}

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        self.memory.forget(self.sku);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_of_a_sale_is_not_taken_for_the_next_one() {
        let memory = Memory::new(Clock::default(), Duration::from_secs(60));
        memory.put_sale("tea", "a");
        let asked = memory.ask("tea");
        memory.put("tea", 1, asked);
        memory.put_sale("tea", "a");
        assert!(memory.is_short_of("tea", 2));
        memory.put_sale("tea", "b");
        assert!(!memory.is_short_of("tea", 2));
        // An answer of the first sale that was on its way.
        memory.put("tea", 1, asked);
        assert!(!memory.is_short_of("tea", 2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_from_before_units_came_back_is_not_remembered() {
        let memory = Memory::new(Clock::default(), Duration::from_secs(60));
        let asked = memory.ask("tea");
        memory.put("tea", 1, asked);
        assert!(memory.is_short_of("tea", 2) && !memory.is_short_of("tea", 1));
        // Asked before the call.
        let call = memory.give_back("tea");
        assert!(!memory.is_short_of("tea", 2));
        memory.put("tea", 1, asked);
        assert!(!memory.is_short_of("tea", 2));
        // Asked during the call: known until it ends.
        let during = memory.ask("tea");
        memory.put("tea", 1, during);
        assert!(memory.is_short_of("tea", 2));
        drop(call);
        assert!(!memory.is_short_of("tea", 2));
        memory.put("tea", 1, during);
        assert!(!memory.is_short_of("tea", 2));
        // Asked after it.
        memory.put("tea", 1, memory.ask("tea"));
        assert!(memory.is_short_of("tea", 2));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(!memory.is_short_of("tea", 2));
    }
}
