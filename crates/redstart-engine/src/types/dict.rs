//! The hash table under the keyspace, hashes, sets and sorted sets.

use std::sync::LazyLock;

use ahash::RandomState;
use hashbrown::HashTable;

use super::blob::Blob;
use crate::random::Random;

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

pub(crate) fn hash(key: &[u8]) -> u64 {
    HASHER.hash_one(key)
}

/// The place of an entry in a [`Dict`]; stable for as long as the entry is there.
pub(crate) type Slot = u32;

const NONE: Slot = Slot::MAX;

enum Cell<V> {
    Full(Blob, V),
    /// Head of the rest of the list of free cells.
    Free(Slot),
}

/// A map from byte strings to `V`: entries in a slab, and a hash table of 4-byte slots over it.
///
/// Compared with a plain hash map this wastes 5 bytes instead of a whole entry for each empty
/// bucket, picks random entries in O(1), and, since entries stay where they are, makes a scan's
/// cursor a slot number: whatever is there from the first call to the last is returned, and only
/// once. Only [`Dict::compact`] moves entries; it is counted, and a scan from before starts again.
pub(crate) struct Dict<V> {
    table: HashTable<Slot>,
    cells: Vec<Cell<V>>,
    free: Slot,
    /// How often entries were moved; part of a scan's cursor.
    moves: u16,
}

/// A cursor is a number of moves above a slot.
const CURSOR_SLOT: u32 = 48;

impl<V> Default for Dict<V> {
    fn default() -> Dict<V> {
        Dict {
            table: HashTable::new(),
            cells: Vec::new(),
            free: NONE,
            moves: 0,
        }
    }
}

impl<V> Dict<V> {
    pub(crate) fn new() -> Dict<V> {
        Dict::default()
    }

    pub(crate) fn with_capacity(capacity: usize) -> Dict<V> {
        Dict {
            table: HashTable::with_capacity(capacity),
            cells: Vec::with_capacity(capacity),
            free: NONE,
            moves: 0,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<Slot> {
        if self.table.is_empty() {
            return None;
        }
        self.table
            .find(hash(key), |&slot| self.is_at(slot, key))
            .copied()
    }

    #[inline]
    fn is_at(&self, slot: Slot, key: &[u8]) -> bool {
        matches!(&self.cells[slot as usize], Cell::Full(held, _) if held.as_slice() == key)
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.find(key).is_some()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&V> {
        self.find(key).map(|slot| self.value(slot))
    }

    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        self.find(key).map(|slot| self.value_mut(slot))
    }

    /// The key at an occupied slot.
    #[inline]
    pub(crate) fn key(&self, slot: Slot) -> &Blob {
        match &self.cells[slot as usize] {
            Cell::Full(key, _) => key,
            Cell::Free(_) => unreachable!("slots are only handed out for entries"),
        }
    }

    /// The value at an occupied slot.
    #[inline]
    pub(crate) fn value(&self, slot: Slot) -> &V {
        match &self.cells[slot as usize] {
            Cell::Full(_, value) => value,
            Cell::Free(_) => unreachable!("slots are only handed out for entries"),
        }
    }

    /// The value at an occupied slot, to be changed.
    #[inline]
    pub(crate) fn value_mut(&mut self, slot: Slot) -> &mut V {
        match &mut self.cells[slot as usize] {
            Cell::Full(_, value) => value,
            Cell::Free(_) => unreachable!("slots are only handed out for entries"),
        }
    }

    /// The entry at any slot below [`Dict::slots`], if there is one.
    pub(crate) fn at(&self, slot: Slot) -> Option<(&Blob, &V)> {
        match self.cells.get(slot as usize) {
            Some(Cell::Full(key, value)) => Some((key, value)),
            _ => None,
        }
    }

    /// How many slots there are, taken or free.
    pub(crate) fn slots(&self) -> usize {
        self.cells.len()
    }

    /// Adds an entry for a key that is known not to be there.
    pub(crate) fn insert_new(&mut self, key: &[u8], value: V) -> Slot {
        debug_assert!(!self.contains(key));
        let cell = Cell::Full(Blob::new(key), value);
        let slot = if self.free == NONE {
            let slot = self.cells.len() as Slot;
            assert!(slot != NONE, "a dictionary holds fewer than 2^32 entries");
            self.cells.push(cell);
            slot
        } else {
            let slot = self.free;
            match std::mem::replace(&mut self.cells[slot as usize], cell) {
                Cell::Free(next) => self.free = next,
                Cell::Full(..) => unreachable!("the free list holds free cells only"),
            }
            slot
        };
        let cells = &self.cells;
        self.table
            .insert_unique(hash(key), slot, |&slot| match &cells[slot as usize] {
                Cell::Full(key, _) => hash(key),
                Cell::Free(_) => unreachable!("the table points to entries only"),
            });
        slot
    }

    /// Sets a key's value and hands back the one before.
    pub(crate) fn insert(&mut self, key: &[u8], value: V) -> Option<V> {
        match self.find(key) {
            Some(slot) => Some(std::mem::replace(self.value_mut(slot), value)),
            None => {
                self.insert_new(key, value);
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<V> {
        self.remove_entry(key).map(|(_, _, value)| value)
    }

    /// Removes a key; hands back its slot, the key and the value.
    pub(crate) fn remove_entry(&mut self, key: &[u8]) -> Option<(Slot, Blob, V)> {
        if self.table.is_empty() {
            return None;
        }
        let cells = &self.cells;
        let found = self.table.find_entry(
            hash(key),
            |&slot| matches!(&cells[slot as usize], Cell::Full(held, _) if held.as_slice() == key),
        );
        let (slot, _) = found.ok()?.remove();
        let cell = std::mem::replace(&mut self.cells[slot as usize], Cell::Free(self.free));
        self.free = slot;
        if self.table.is_empty() {
            self.cells.clear();
            self.free = NONE;
            if self.cells.capacity() > 1024 {
                self.cells = Vec::new();
                self.table = HashTable::new();
            }
        }
        match cell {
            Cell::Full(key, value) => Some((slot, key, value)),
            Cell::Free(_) => unreachable!("the table points to entries only"),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Blob, &V)> {
        self.cells.iter().filter_map(|cell| match cell {
            Cell::Full(key, value) => Some((key, value)),
            Cell::Free(_) => None,
        })
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Blob> {
        self.iter().map(|(key, _)| key)
    }

    /// About how many bytes are held on the heap; what keys and values hold is judged by a few.
    pub(crate) fn heap_size(&self, value_size: impl Fn(&V) -> usize) -> usize {
        let (mut seen, mut bytes) = (0, 0);
        self.scan(0, 8, |key, value| {
            seen += 1;
            bytes += key.heap_size() + value_size(value);
        });
        let contents = (bytes * self.len()).checked_div(seen).unwrap_or(0);
        self.cells.capacity() * size_of::<Cell<V>>() + self.table.capacity() * 6 + contents
    }

    /// A slot picked at random; `None` only if there are no entries.
    pub(crate) fn random(&self, random: &mut Random) -> Option<Slot> {
        if self.is_empty() {
            return None;
        }
        let slots = self.cells.len();
        for _ in 0..64 {
            let slot = random.below(slots) as Slot;
            if self.at(slot).is_some() {
                return Some(slot);
            }
        }
        // Almost everything was deleted: take the next entry after a random place.
        let start = random.below(slots);
        (start..slots)
            .chain(0..start)
            .map(|slot| slot as Slot)
            .find(|&slot| self.at(slot).is_some())
    }

    /// Visits about `count` entries from `cursor` on; the cursor to go on with, 0 at the end.
    pub(crate) fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(&Blob, &V)) -> u64 {
        let moves = u64::from(self.moves) << CURSOR_SLOT;
        let slot = cursor & ((1 << CURSOR_SLOT) - 1);
        let slot = if cursor - slot == moves { slot } else { 0 };
        let mut slot = slot.min(self.cells.len() as u64) as usize;
        let mut seen = 0;
        // Free cells count a tenth, so that a call over a sparse table is bounded, too.
        let mut budget = count.saturating_mul(10);
        while slot < self.cells.len() && seen < count && budget > 0 {
            if let Cell::Full(key, value) = &self.cells[slot] {
                visit(key, value);
                seen += 1;
            }
            budget -= 1;
            slot += 1;
        }
        if slot >= self.cells.len() {
            0
        } else {
            moves | slot as u64
        }
    }

    /// Whether so much was removed that [`Dict::compact`] is worth its while.
    #[inline]
    pub(crate) fn is_sparse(&self) -> bool {
        self.cells.len() > 1024 && self.table.len() < self.cells.len() / 8
    }

    /// Gives back the room of what was removed. All slots change.
    pub(crate) fn compact(&mut self) {
        let old = std::mem::replace(self, Dict::with_capacity(self.len()));
        for cell in old.cells {
            if let Cell::Full(key, value) = cell {
                self.insert_new(&key, value);
            }
        }
        self.moves = (old.moves + 1) & 0x7FFF;
    }
}

impl<V: Clone> Clone for Dict<V> {
    fn clone(&self) -> Dict<V> {
        let mut copy = Dict::with_capacity(self.len());
        for (key, value) in self.iter() {
            copy.insert_new(key, value.clone());
        }
        copy
    }
}
