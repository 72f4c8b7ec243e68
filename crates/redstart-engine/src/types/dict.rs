//! The hash table under the keyspace, hashes, sets and sorted sets.

use std::sync::LazyLock;

use ahash::RandomState;
use hashbrown::HashTable;

use super::blob::Blob;
use crate::random::Random;

static HASHER: LazyLock<RandomState> = LazyLock::new(|| {
    #[cfg(feature = "sim")]
    if crate::sim::is_seeded() {
        return RandomState::with_seeds(1, 2, 3, 4);
    }
    RandomState::new()
});

pub(crate) fn hash(key: &[u8]) -> u64 {
    HASHER.hash_one(key)
}

/// The place of an entry in a [`Dict`]; stable for as long as the entry is there.
pub(crate) type Slot = u32;

const NONE: Slot = Slot::MAX;

#[cfg(test)]
thread_local! {
    /// How many entries this thread has hashed again so far, of all tables.
    static HASHED_AGAIN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many entries this thread has hashed again so far.
#[cfg(test)]
pub(crate) fn hashed_again() -> usize {
    HASHED_AGAIN.get()
}

#[cfg(test)]
fn hash_again() {
    HASHED_AGAIN.set(HASHED_AGAIN.get() + 1);
}

enum Cell<V> {
    Full(Blob, V),
    /// Head of the rest of the chunk's list of free cells.
    Free(Slot),
}

/// How many cells a chunk of the slab has.
const CHUNK: usize = 4096;
/// A table with room for more entries than this grows a little with each change instead of at once.
const LARGE: usize = 4096;
/// How many slots a change looks at, at least, while entries move to another table.
const MOVED_PER_CHANGE: usize = 8;
/// How many keys are looked up together.
pub(crate) const WARMED: usize = 32;
/// Compacting moves all entries at once: what has more keeps its free cells instead.
const COMPACTED: usize = 16 * CHUNK;

/// A part of the slab. Its memory is given back when its last entry goes.
struct Chunk<V> {
    cells: Vec<Cell<V>>,
    /// Head of the list of free cells.
    free: Slot,
    live: usize,
    /// It is in the list of chunks with room.
    listed: bool,
}

/// A map from byte strings to `V`: entries in a slab, and a hash table of 4-byte slots over it.
///
/// Compared with a plain hash map this wastes 5 bytes instead of a whole entry for each empty
/// bucket, picks random entries in O(1), and, since entries stay where they are, makes a scan's
/// cursor a slot number: whatever is there from the first call to the last is returned, and only
/// once. Only [`Dict::compact`] moves entries; it is counted, and a scan from before starts again.
///
/// No change takes long, however many entries there are: the slab grows by a chunk, and a large
/// table moves to one of another size step by step, entries being looked up in both meanwhile.
pub(crate) struct Dict<V> {
    table: HashTable<Slot>,
    /// The table before, while its entries move to `table`.
    old: Option<HashTable<Slot>>,
    /// The next slot to be moved.
    moved: usize,
    chunks: Vec<Chunk<V>>,
    /// Chunks with room for another entry.
    open: Vec<usize>,
    /// How often entries were moved; part of a scan's cursor.
    moves: u16,
}

/// A cursor is a number of moves above a slot.
const CURSOR_SLOT: u32 = 48;

impl<V> Default for Dict<V> {
    fn default() -> Dict<V> {
        Dict::with_capacity(0)
    }
}

impl<V> Dict<V> {
    pub(crate) fn new() -> Dict<V> {
        Dict::default()
    }

    pub(crate) fn with_capacity(capacity: usize) -> Dict<V> {
        Dict {
            table: HashTable::with_capacity(capacity),
            old: None,
            moved: 0,
            chunks: Vec::new(),
            open: Vec::new(),
            moves: 0,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.table.len() + self.old.as_ref().map_or(0, HashTable::len)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<Slot> {
        if self.table.is_empty() && self.old.is_none() {
            return None;
        }
        let hash = hash(key);
        let found = self.table.find(hash, |&slot| self.is_at(slot, key));
        match &self.old {
            Some(old) if found.is_none() => old.find(hash, |&slot| self.is_at(slot, key)),
            _ => found,
        }
        .copied()
    }

    /// Loads what looking these keys up will read into the processor's caches. In a large dictionary
    /// each look-up waits for memory two or three times; here they wait together.
    pub(crate) fn warm<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let mut slots = [NONE; WARMED];
        let mut count = 0;
        for (key, place) in keys.zip(&mut slots) {
            // The first entry with about the same hash is nearly always the right one.
            if let Some(&slot) = self.table.find(hash(key), |_| true) {
                *place = slot;
            }
            count += 1;
        }
        let lengths = slots[..count]
            .iter()
            .filter_map(|&slot| self.at(slot))
            .map(|(key, _)| key.len());
        std::hint::black_box(lengths.sum::<usize>());
    }

    #[inline]
    fn cell(&self, slot: Slot) -> &Cell<V> {
        &self.chunks[slot as usize / CHUNK].cells[slot as usize % CHUNK]
    }

    #[inline]
    fn is_at(&self, slot: Slot, key: &[u8]) -> bool {
        matches!(self.cell(slot), Cell::Full(held, _) if held.as_slice() == key)
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
        match self.cell(slot) {
            Cell::Full(key, _) => key,
            Cell::Free(_) => unreachable!("slots are only handed out for entries"),
        }
    }

    /// The value at an occupied slot.
    #[inline]
    pub(crate) fn value(&self, slot: Slot) -> &V {
        match self.cell(slot) {
            Cell::Full(_, value) => value,
            Cell::Free(_) => unreachable!("slots are only handed out for entries"),
        }
    }

    /// The value at an occupied slot, to be changed.
    #[inline]
    pub(crate) fn value_mut(&mut self, slot: Slot) -> &mut V {
        match &mut self.chunks[slot as usize / CHUNK].cells[slot as usize % CHUNK] {
            Cell::Full(_, value) => value,
            Cell::Free(_) => unreachable!("slots are only handed out for entries"),
        }
    }

    /// The entry at any slot below [`Dict::slots`], if there is one.
    pub(crate) fn at(&self, slot: Slot) -> Option<(&Blob, &V)> {
        let chunk = self.chunks.get(slot as usize / CHUNK)?;
        match chunk.cells.get(slot as usize % CHUNK) {
            Some(Cell::Full(key, value)) => Some((key, value)),
            _ => None,
        }
    }

    /// All slots are below this; some are free.
    pub(crate) fn slots(&self) -> usize {
        match self.chunks.last() {
            Some(last) => (self.chunks.len() - 1) * CHUNK + last.cells.len(),
            None => 0,
        }
    }

    /// Puts a cell into the slab.
    fn allocate(&mut self, cell: Cell<V>) -> Slot {
        while let Some(&number) = self.open.last() {
            let chunk = &mut self.chunks[number];
            let at = if chunk.free != NONE {
                let at = chunk.free as usize;
                match std::mem::replace(&mut chunk.cells[at], cell) {
                    Cell::Free(next) => chunk.free = next,
                    Cell::Full(..) => unreachable!("the free list holds free cells only"),
                }
                at
            } else if chunk.cells.len() < CHUNK {
                chunk.cells.push(cell);
                chunk.cells.len() - 1
            } else {
                chunk.listed = false;
                self.open.pop();
                continue;
            };
            chunk.live += 1;
            return (number * CHUNK + at) as Slot;
        }
        let number = self.chunks.len();
        let slot = (number * CHUNK) as Slot;
        assert!(
            number < NONE as usize / CHUNK,
            "a dictionary holds fewer than 2^32 entries"
        );
        self.chunks.push(Chunk {
            cells: vec![cell],
            free: NONE,
            live: 1,
            listed: true,
        });
        self.open.push(number);
        slot
    }

    /// Takes a cell out of the slab.
    fn release(&mut self, slot: Slot) -> Cell<V> {
        let (number, at) = (slot as usize / CHUNK, slot as usize % CHUNK);
        let chunk = &mut self.chunks[number];
        let cell = std::mem::replace(&mut chunk.cells[at], Cell::Free(chunk.free));
        chunk.free = at as Slot;
        chunk.live -= 1;
        if chunk.live == 0 {
            chunk.cells = Vec::new();
            chunk.free = NONE;
        }
        if !chunk.listed {
            chunk.listed = true;
            self.open.push(number);
        }
        cell
    }

    /// Adds an entry for a key that is known not to be there.
    pub(crate) fn insert_new(&mut self, key: &[u8], value: V) -> Slot {
        debug_assert!(!self.contains(key));
        let slot = self.allocate(Cell::Full(Blob::new(key), value));
        let full = self.table.len() == self.table.capacity();
        if full && self.table.len() >= LARGE && self.old.is_none() {
            self.resize(self.table.len() * 2);
        }
        self.put(hash(key), slot);
        self.move_some();
        slot
    }

    /// Enters a slot into the table.
    fn put(&mut self, hash: u64, slot: Slot) {
        let chunks = &self.chunks;
        self.table.insert_unique(hash, slot, |&slot| {
            #[cfg(test)]
            hash_again();
            match &chunks[slot as usize / CHUNK].cells[slot as usize % CHUNK] {
                Cell::Full(key, _) => self::hash(key),
                Cell::Free(_) => unreachable!("the table points to entries only"),
            }
        });
    }

    /// Begins to move to a table with room for this many entries.
    fn resize(&mut self, capacity: usize) {
        let table = HashTable::with_capacity(capacity);
        self.old = Some(std::mem::replace(&mut self.table, table));
        self.moved = 0;
    }

    /// Moves a few entries to the new table, if there is one.
    #[inline]
    fn move_some(&mut self) {
        if let Some(old) = &self.old {
            // The new table must have taken in all entries before new ones have filled it. After a shrink there are many
            // more slots than entries.
            let taken = self.table.len() + old.len();
            let room = self.table.capacity().saturating_sub(taken).max(1);
            let left = self.slots().saturating_sub(self.moved);
            for _ in 0..left.div_ceil(room).max(MOVED_PER_CHANGE) {
                self.move_one();
            }
        }
    }

    fn move_one(&mut self) {
        let Some(old) = &mut self.old else {
            return;
        };
        let chunk = self.chunks.get(self.moved / CHUNK);
        let Some(chunk) = chunk.filter(|_| !old.is_empty()) else {
            self.old = None;
            return;
        };
        let at = self.moved % CHUNK;
        if at >= chunk.cells.len() {
            self.moved = (self.moved / CHUNK + 1) * CHUNK;
            return;
        }
        let slot = self.moved as Slot;
        self.moved += 1;
        if let Cell::Full(key, _) = &chunk.cells[at] {
            let hash = hash(key);
            #[cfg(test)]
            hash_again();
            if let Ok(entry) = old.find_entry(hash, |&other| other == slot) {
                entry.remove();
                self.put(hash, slot);
            }
        }
    }

    /// Sets a key's value and returns the previous one.
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

    /// Removes a key; returns its slot, the key and the value.
    pub(crate) fn remove_entry(&mut self, key: &[u8]) -> Option<(Slot, Blob, V)> {
        let slot = self.find(key)?;
        let hash = hash(key);
        let tables = [Some(&mut self.table), self.old.as_mut()];
        for table in tables.into_iter().flatten() {
            if let Ok(entry) = table.find_entry(hash, |&other| other == slot) {
                entry.remove();
                break;
            }
        }
        let cell = self.release(slot);
        if self.is_empty() {
            let moves = self.moves;
            if self.table.capacity() > LARGE {
                *self = Dict::default();
            }
            self.old = None;
            self.chunks.clear();
            self.open.clear();
            self.moves = moves;
        }
        self.move_some();
        match cell {
            Cell::Full(key, value) => Some((slot, key, value)),
            Cell::Free(_) => unreachable!("the table points to entries only"),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Blob, &V)> {
        let cells = self.chunks.iter().flat_map(|chunk| &chunk.cells);
        cells.filter_map(|cell| match cell {
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
        let buckets = self.table.capacity() + self.old.as_ref().map_or(0, HashTable::capacity);
        let cells = match &self.chunks[..] {
            [one] => one.cells.capacity(),
            many => many.len() * CHUNK,
        };
        cells * size_of::<Cell<V>>() + buckets * 6 + contents
    }

    /// A slot picked at random; `None` only if there are no entries.
    pub(crate) fn random(&self, random: &mut Random) -> Option<Slot> {
        if self.is_empty() {
            return None;
        }
        let slots = self.slots();
        for _ in 0..64 {
            let slot = random.below(slots) as Slot;
            if self.at(slot).is_some() {
                return Some(slot);
            }
        }
        // Almost everything was deleted: take the next entry after a random place.
        let start = random.below(slots);
        self.next_taken(start).or_else(|| self.next_taken(0))
    }

    /// The first entry at or after a slot.
    fn next_taken(&self, mut slot: usize) -> Option<Slot> {
        while let Some(chunk) = self.chunks.get(slot / CHUNK) {
            if chunk.live > 0 {
                let rest = chunk.cells.iter().enumerate().skip(slot % CHUNK);
                for (at, cell) in rest {
                    if matches!(cell, Cell::Full(..)) {
                        return Some((slot / CHUNK * CHUNK + at) as Slot);
                    }
                }
            }
            slot = (slot / CHUNK + 1) * CHUNK;
        }
        None
    }

    /// Visits about `count` entries from `cursor` on; the cursor to go on with, 0 at the end.
    pub(crate) fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(&Blob, &V)) -> u64 {
        let moves = u64::from(self.moves) << CURSOR_SLOT;
        let slot = cursor & ((1 << CURSOR_SLOT) - 1);
        let slot = if cursor - slot == moves { slot } else { 0 };
        let slots = self.slots();
        let mut slot = slot.min(slots as u64) as usize;
        let mut seen = 0;
        // Free cells count a tenth, so that a call over a sparse table is bounded, too.
        let mut budget = count.saturating_mul(10);
        while slot < slots && seen < count && budget > 0 {
            budget -= 1;
            let chunk = &self.chunks[slot / CHUNK];
            match chunk.cells.get(slot % CHUNK) {
                Some(Cell::Full(key, value)) => {
                    visit(key, value);
                    seen += 1;
                    slot += 1;
                }
                Some(Cell::Free(_)) => slot += 1,
                None => slot = (slot / CHUNK + 1) * CHUNK,
            }
        }
        if slot >= slots {
            0
        } else {
            moves | slot as u64
        }
    }

    /// Whether so much was removed that [`Dict::compact`] is worth its while.
    #[inline]
    pub(crate) fn is_sparse(&self) -> bool {
        let slots = self.slots();
        slots > 1024 && self.len() < slots / 8
    }

    /// Gives back the room of what was removed. A large table only begins to move to a smaller one;
    /// otherwise all slots change. Whether they did.
    pub(crate) fn compact(&mut self) -> bool {
        if self.len() > COMPACTED {
            if self.old.is_none() && self.table.capacity() > 8 * self.len() {
                self.resize(self.len() * 2);
            }
            self.move_some();
            return false;
        }
        let old = std::mem::replace(self, Dict::with_capacity(self.len()));
        for cell in old.chunks.into_iter().flat_map(|chunk| chunk.cells) {
            if let Cell::Full(key, value) = cell {
                self.insert_new(&key, value);
            }
        }
        self.moves = (old.moves + 1) & 0x7FFF;
        true
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn key(n: usize) -> Vec<u8> {
        format!("key:{n}").into_bytes()
    }

    #[test]
    fn no_single_change_of_a_large_table_takes_long() {
        let mut dict = Dict::new();
        let mut most = 0;
        let mut change = |dict: &mut Dict<usize>, change: &dyn Fn(&mut Dict<usize>)| {
            let before = hashed_again();
            change(dict);
            most = most.max(hashed_again() - before);
        };
        for n in 0..300_000 {
            change(&mut dict, &|dict| {
                dict.insert_new(&key(n), n);
            });
        }
        for n in 0..300_000 {
            assert_eq!(dict.get(&key(n)), Some(&n));
        }
        for n in 0..299_000 {
            change(&mut dict, &|dict| {
                assert_eq!(dict.remove(&key(n)), Some(n));
            });
        }
        assert_eq!(dict.iter().count(), 1000);
        // Emptied chunks hold no memory.
        let held: usize = dict.chunks.iter().map(|chunk| chunk.cells.capacity()).sum();
        assert!(held <= 3 * CHUNK, "{held} cells for 1000 entries");
        // A table that has shrunk to a ninth is filled again while its entries still move. So many fill the next one
        // nearly to its half.
        const LEFT: usize = 114_000;
        let mut dict = Dict::new();
        for n in 0..9 * LEFT {
            change(&mut dict, &|dict| {
                dict.insert_new(&key(n), n);
            });
        }
        for n in LEFT..9 * LEFT {
            change(&mut dict, &|dict| {
                dict.remove(&key(n));
            });
        }
        change(&mut dict, &|dict| assert!(!dict.compact()));
        assert!(dict.is_sparse() && dict.old.is_some());
        for n in LEFT..3 * LEFT {
            change(&mut dict, &|dict| {
                dict.insert_new(&key(n), n);
            });
        }
        for n in 0..3 * LEFT {
            assert_eq!(dict.get(&key(n)), Some(&n));
        }
        assert!(most <= LARGE, "{most} entries were hashed again at once");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn it_holds_what_a_map_holds_while_it_grows_and_shrinks(
            steps in prop::collection::vec((0usize..20_000, 0usize..12_000, any::<bool>()), 1..12),
        ) {
            let (mut dict, mut model) = (Dict::new(), HashMap::new());
            for (from, count, add) in steps {
                for n in from..from + count {
                    if add {
                        prop_assert_eq!(dict.insert(&key(n), n), model.insert(key(n), n));
                    } else {
                        prop_assert_eq!(dict.remove(&key(n)), model.remove(&key(n)));
                    }
                }
                if dict.is_sparse() {
                    dict.compact();
                }
                prop_assert_eq!(dict.len(), model.len());
                for n in (0..32_000).step_by(7) {
                    prop_assert_eq!(dict.get(&key(n)), model.get(&key(n)));
                }
                let mut seen = 0;
                let mut cursor = 0;
                loop {
                    cursor = dict.scan(cursor, 100, |key, value| {
                        assert_eq!(model.get(key.as_slice()), Some(value));
                        seen += 1;
                    });
                    if cursor == 0 { break; }
                }
                prop_assert_eq!(seen, model.len());
                let random = dict.random(&mut Random::new());
                prop_assert_eq!(random.is_some(), !model.is_empty());
            }
        }
    }
}
