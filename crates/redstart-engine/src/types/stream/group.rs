//! Consumer groups: what was delivered to which consumer and is not acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use super::id::Id;
use crate::types::blob::Blob;

/// An entry that was delivered to a consumer and not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// The consumer's number in its group.
    pub(crate) consumer: u32,
    /// When it was last delivered, in unix milliseconds.
    pub(crate) time: i64,
    /// How often it was delivered.
    pub(crate) count: u64,
}

#[derive(Clone)]
pub(crate) struct Consumer {
    pub(crate) name: Blob,
    /// When it last tried to do something, in unix milliseconds.
    pub(crate) seen: i64,
    pub(crate) pending: BTreeSet<Id>,
}

/// A consumer group.
#[derive(Clone, Default)]
pub(crate) struct Group {
    pub(crate) last_id: Id,
    /// How many entries it has read, counted from the stream's first ever; `None` if unknown.
    pub(crate) entries_read: Option<i64>,
    pub(crate) pending: BTreeMap<Id, Pending>,
    names: BTreeMap<Blob, u32>,
    pub(super) consumers: Vec<Option<Consumer>>,
}

impl Group {
    /// The count of read entries as ENTRIESREAD takes it: one that has wrapped around is unknown.
    pub(crate) fn entries_read_arg(&self) -> i64 {
        self.entries_read.filter(|&read| read >= 0).unwrap_or(-1)
    }

    pub(crate) fn consumer(&self, number: u32) -> Option<&Consumer> {
        self.consumers.get(number as usize)?.as_ref()
    }

    fn consumer_mut(&mut self, number: u32) -> Option<&mut Consumer> {
        self.consumers.get_mut(number as usize)?.as_mut()
    }

    /// A consumer's number by its name.
    pub(crate) fn number(&self, name: &[u8]) -> Option<u32> {
        self.names.get(name).copied()
    }

    /// The consumers in the order of their names.
    pub(crate) fn consumers(&self) -> impl Iterator<Item = &Consumer> {
        self.names
            .values()
            .filter_map(|&number| self.consumer(number))
    }

    pub(crate) fn consumer_count(&self) -> usize {
        self.names.len()
    }

    /// The number of the consumer of that name, made if need be, and whether it was made.
    pub(crate) fn see(&mut self, name: &[u8], now_ms: i64) -> (u32, bool) {
        if let Some(number) = self.number(name) {
            if let Some(consumer) = self.consumer_mut(number) {
                consumer.seen = now_ms;
            }
            return (number, false);
        }
        let free = self.consumers.iter().position(Option::is_none);
        let number = free.unwrap_or(self.consumers.len());
        let consumer = Consumer {
            name: Blob::new(name),
            seen: now_ms,
            pending: BTreeSet::new(),
        };
        if number == self.consumers.len() {
            self.consumers.push(Some(consumer));
        } else {
            self.consumers[number] = Some(consumer);
        }
        self.names.insert(Blob::new(name), number as u32);
        (number as u32, true)
    }

    /// Adds a consumer from a dump; its number, or `None` if there is one of that name.
    pub(crate) fn load_consumer(&mut self, name: &[u8], seen: i64) -> Option<u32> {
        let number = u32::try_from(self.consumers.len()).ok()?;
        if self.names.insert(Blob::new(name), number).is_some() {
            return None;
        }
        self.consumers.push(Some(Consumer {
            name: Blob::new(name),
            seen,
            pending: BTreeSet::new(),
        }));
        Some(number)
    }

    /// Removes a consumer with all that is pending for it; how many entries that were.
    pub(crate) fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let number = self.names.remove(name)?;
        let consumer = self.consumers[number as usize].take()?;
        for id in &consumer.pending {
            self.pending.remove(id);
        }
        Some(consumer.pending.len())
    }

    /// Makes an entry pending for a consumer, taking it from any other.
    pub(crate) fn assign(&mut self, id: Id, pending: Pending) {
        if let Some(before) = self.pending.insert(id, pending)
            && before.consumer != pending.consumer
            && let Some(consumer) = self.consumer_mut(before.consumer)
        {
            consumer.pending.remove(&id);
        }
        if let Some(consumer) = self.consumer_mut(pending.consumer) {
            consumer.pending.insert(id);
        }
    }

    /// An entry is no longer pending; whether it was.
    pub(crate) fn release(&mut self, id: Id) -> bool {
        let Some(pending) = self.pending.remove(&id) else {
            return false;
        };
        if let Some(consumer) = self.consumer_mut(pending.consumer) {
            consumer.pending.remove(&id);
        }
        true
    }
}
