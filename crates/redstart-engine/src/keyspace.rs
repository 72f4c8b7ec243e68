//! A database: keys, their values and their deadlines, who watches them and who waits for them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use hashbrown::HashMap;

use crate::{
    blocking,
    random::Random,
    types::{
        Value,
        blob::Blob,
        dict::{Dict, Slot},
    },
};

/// The deadline of a key that has none. A real one is never 0: what is due is deleted at once.
pub(crate) const NEVER: i64 = 0;

/// A key's value and what is known about it; 40 bytes, so a cell of the table is a cache line.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// Unix time in milliseconds after which the key is gone, or [`NEVER`].
    pub(crate) deadline: i64,
    /// When the key was last used, in seconds of unix time (OBJECT IDLETIME, eviction).
    pub(crate) used: u32,
    /// The size that the database counts for this key; 0 while sizes are not counted.
    size: u32,
}

impl Entry {
    /// About how many bytes the entry takes up, its key's own heap bytes not counted.
    pub(crate) fn size(&self) -> usize {
        // The cell of the slab and its share of the hash table over it.
        size_of::<Entry>() + size_of::<Blob>() + 6 + self.value.heap_size()
    }

    /// When the key or a part of its value expires, or [`NEVER`].
    fn next_deadline(&self) -> i64 {
        match &self.value {
            Value::Hash(hash) => match (self.deadline, hash.next_deadline()) {
                (NEVER, of_field) => of_field,
                (of_key, NEVER) => of_key,
                (of_key, of_field) => of_key.min(of_field),
            },
            _ => self.deadline,
        }
    }

    /// Whether fields of a hash have expired.
    #[inline]
    pub(crate) fn has_expired_fields(&self, now_ms: i64) -> bool {
        matches!(&self.value, Value::Hash(hash) if hash.is_due(now_ms))
    }

    pub(crate) fn is_volatile(&self) -> bool {
        self.deadline != NEVER
    }

    /// Whether the key is gone by now. At its deadline a key is still there.
    #[inline]
    pub(crate) fn is_expired(&self, now_ms: i64) -> bool {
        self.deadline < now_ms && self.deadline != NEVER
    }
}

/// A client that WATCHes a key.
pub(crate) struct Watcher {
    pub(crate) client: u64,
    /// Set when the key is touched; EXEC then refuses.
    pub(crate) touched: Arc<AtomicBool>,
    /// The key was past its deadline already when WATCH ran: its removal is no change.
    pub(crate) was_expired: bool,
}

impl Watcher {
    /// The key has changed; `gone` if it does not exist now.
    pub(crate) fn touch(&mut self, gone: bool) {
        if self.was_expired && gone {
            // It was logically gone when WATCH ran; only now it went in fact, too.
            self.was_expired = false;
        } else {
            self.touched.store(true, Ordering::Relaxed);
        }
    }
}

/// One numbered database.
#[derive(Default)]
pub(crate) struct Db {
    dict: Dict<Entry>,
    /// How many keys have a deadline.
    volatile: usize,
    /// The sizes of all keys that were measured.
    bytes: u64,
    /// When to look at which key that has a deadline.
    wheel: Wheel,
    /// Who watches which key.
    pub(crate) watched: HashMap<Blob, Vec<Watcher>>,
    /// Which clients wait for which key.
    pub(crate) blocked: HashMap<Blob, blocking::Queue>,
}

impl Db {
    pub(crate) fn len(&self) -> usize {
        self.dict.len()
    }

    /// How many keys have a deadline.
    pub(crate) fn volatile(&self) -> usize {
        self.volatile
    }

    /// Finds a key, expired or not; [`crate::context::Ctx`] has the lookups that honour deadlines.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<Slot> {
        self.dict.find(key)
    }

    /// Prepares for looking up the first few of these keys, if that pays.
    #[inline]
    pub(crate) fn warm<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        /// This many entries and their table fit into the processor's fast caches.
        const SMALL: usize = 4096;
        if self.dict.len() > SMALL {
            self.dict.warm(keys);
        }
    }

    #[inline]
    pub(crate) fn entry(&self, slot: Slot) -> &Entry {
        self.dict.value(slot)
    }

    /// The entry at a slot. Deadlines are changed by [`Db::set_deadline`] only, which counts them.
    #[inline]
    pub(crate) fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        self.dict.value_mut(slot)
    }

    pub(crate) fn key(&self, slot: Slot) -> &Blob {
        self.dict.key(slot)
    }

    pub(crate) fn set_deadline(&mut self, slot: Slot, deadline: i64) {
        let entry = self.dict.value_mut(slot);
        let before = std::mem::replace(&mut entry.deadline, deadline);
        self.volatile -= usize::from(before != NEVER);
        self.volatile += usize::from(deadline != NEVER);
        // A later deadline is seen when the earlier one comes.
        if deadline != NEVER && (before == NEVER || deadline < before) {
            self.wheel.add(deadline, slot);
            self.enter_again(ENTERED_PER_CHANGE);
        }
    }

    /// Adds a key that is known not to be there.
    pub(crate) fn insert_new(
        &mut self,
        key: &[u8],
        value: Value,
        deadline: i64,
        used: u32,
    ) -> Slot {
        self.volatile += usize::from(deadline != NEVER);
        let entry = Entry {
            value,
            deadline,
            used,
            size: 0,
        };
        let slot = self.dict.insert_new(key, entry);
        self.enter(slot);
        slot
    }

    /// Sees to it that a key is looked at when it, or a field of its hash, expires.
    pub(crate) fn enter(&mut self, slot: Slot) {
        let deadline = self.dict.value(slot).next_deadline();
        if deadline != NEVER {
            self.wheel.add(deadline, slot);
            self.enter_again(ENTERED_PER_CHANGE);
        }
    }

    /// Counts what a key takes up now.
    pub(crate) fn measure(&mut self, key: &[u8]) {
        if let Some(slot) = self.dict.find(key) {
            let size = self.dict.key(slot).heap_size() + self.dict.value(slot).size();
            let size = u32::try_from(size).unwrap_or(u32::MAX);
            let before = std::mem::replace(&mut self.dict.value_mut(slot).size, size);
            self.bytes = self.bytes - u64::from(before) + u64::from(size);
        }
    }

    /// Counts what all keys take up.
    pub(crate) fn measure_all(&mut self) {
        let keys: Vec<Blob> = self.dict.keys().cloned().collect();
        for key in keys {
            self.measure(&key);
        }
    }

    /// The sum of all keys' sizes, as far as they were measured.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What all keys take up, judged by a few of them.
    pub(crate) fn estimate(&self) -> u64 {
        const FEW: usize = 32;
        let (mut seen, mut bytes) = (0u64, 0u64);
        for (key, entry) in self.dict.iter().take(FEW) {
            seen += 1;
            bytes += (key.heap_size() + entry.size()) as u64;
        }
        bytes
            .checked_div(seen)
            .map_or(0, |average| average * self.dict.len() as u64)
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let entry = self.dict.remove(key)?;
        self.volatile -= usize::from(entry.deadline != NEVER);
        self.bytes -= u64::from(entry.size);
        Some(entry)
    }

    pub(crate) fn random(&self, random: &mut Random) -> Option<Slot> {
        self.dict.random(random)
    }

    /// A key that has a deadline.
    pub(crate) fn random_volatile(&self, random: &mut Random) -> Option<Slot> {
        /// How often any key is drawn in the hope that it has one.
        const TRIES: usize = 256;
        if self.volatile == 0 {
            return None;
        }
        let is_volatile = |slot: &Slot| {
            let entry = self.dict.at(*slot);
            entry.is_some_and(|(_, entry)| entry.is_volatile())
        };
        for _ in 0..TRIES {
            let slot = if self.volatile * 32 >= self.dict.len() {
                self.dict.random(random)
            } else {
                self.wheel.random(random)
            };
            if let Some(slot) = slot.filter(is_volatile) {
                return Some(slot);
            }
        }
        // Most entries of the wheel are outdated.
        let before = self
            .wheel
            .before
            .iter()
            .flat_map(|before| before.lists.values());
        let mut slots = self.wheel.lists.values().chain(before).flatten();
        slots.find(|slot| is_volatile(slot)).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Blob, &Entry)> {
        self.dict.iter()
    }

    pub(crate) fn scan(&self, cursor: u64, count: usize, visit: impl FnMut(&Blob, &Entry)) -> u64 {
        self.dict.scan(cursor, count, visit)
    }

    /// Takes all keys out, leaving watchers and waiting clients where they are.
    pub(crate) fn take_keys(&mut self) -> Keys {
        Keys {
            dict: std::mem::take(&mut self.dict),
            wheel: std::mem::take(&mut self.wheel),
            volatile: std::mem::take(&mut self.volatile),
            bytes: std::mem::take(&mut self.bytes),
        }
    }

    /// Puts keys in that came from another database by [`Db::take_keys`].
    pub(crate) fn put_keys(&mut self, keys: Keys) {
        self.dict = keys.dict;
        self.wheel = keys.wheel;
        self.volatile = keys.volatile;
        self.bytes = keys.bytes;
    }

    /// Gives back the room of removed keys, and of entries of the wheel that no key needs, if there
    /// is much of it. All slots may change.
    pub(crate) fn compact_if_sparse(&mut self) {
        /// This number of outdated entries of the wheel is always allowed.
        const OUTDATED: usize = 65_536;
        /// How many slots are entered again at once.
        const STEP: usize = 16_384;
        if self.dict.is_sparse() && self.dict.compact() {
            // There are few entries: a large table keeps its slots.
            self.wheel.clear();
            self.wheel.begin_again();
            self.enter_again(usize::MAX);
        } else if self.wheel.len > 2 * self.dict.slots() + OUTDATED {
            self.wheel.begin_again();
        }
        self.enter_again(STEP);
    }

    /// Enters the keys of the next few slots into a wheel that was begun again.
    #[inline]
    fn enter_again(&mut self, count: usize) {
        let Some(before) = &mut self.wheel.before else {
            return;
        };
        let slots = self.dict.slots();
        let (from, to) = (before.next, before.next.saturating_add(count).min(slots));
        before.next = to;
        for slot in from..to {
            #[cfg(test)]
            self.wheel.entered.set(self.wheel.entered.get() + 1);
            if let Some((_, entry)) = self.dict.at(slot as Slot) {
                let deadline = entry.next_deadline();
                if deadline != NEVER {
                    self.wheel.add(deadline, slot as Slot);
                }
            }
        }
        if to == slots {
            self.wheel.before = None;
        }
    }

    /// The next keys that have expired, found by looking at no more than `budget` entries, and how
    /// many were looked at: fewer than `budget` if no others have expired.
    pub(crate) fn sweep(&mut self, now_ms: i64, budget: usize) -> (Swept, usize) {
        self.wheel.now = now_ms;
        let mut swept = Swept::default();
        let mut looked = 0;
        while looked < budget
            && let Some(slot) = self.wheel.next_due()
        {
            looked += 1;
            let Some((key, entry)) = self.dict.at(slot) else {
                continue;
            };
            if entry.is_expired(now_ms) {
                swept.keys.push(key.clone());
            } else if entry.has_expired_fields(now_ms) {
                swept.hashes.push(key.clone());
            } else {
                let deadline = entry.next_deadline();
                if deadline != NEVER {
                    self.wheel.add(deadline, slot);
                }
            }
        }
        (swept, looked)
    }
}

/// What active expiry has found.
#[derive(Default)]
pub(crate) struct Swept {
    /// Keys that have expired.
    pub(crate) keys: Vec<Blob>,
    /// Hashes with fields that have expired; to be entered again by [`Db::enter`].
    pub(crate) hashes: Vec<Blob>,
}

/// When to look at which slot, so that active expiry finds what is due without looking at the rest.
///
/// A slot is entered when its key gets a deadline or an earlier one, in a list whose time is not
/// after the deadline; the farther off it is, the coarser the time. When the time comes, the key is
/// expired if it is due, and otherwise entered again, more exactly. Nothing is removed when a key
/// goes or gets a later deadline. When such entries are too many, the wheel is begun again: all keys are
/// entered into new lists, a few with each change, and until that is done the lists from before are
/// looked at as well.
#[derive(Default)]
struct Wheel {
    lists: Lists,
    /// How many entries there are in `lists`.
    len: usize,
    /// What was there when the wheel was begun again, until all keys are entered.
    before: Option<Before>,
    /// The time of the last sweep.
    now: i64,
    /// How many slots were entered again so far.
    #[cfg(test)]
    entered: std::cell::Cell<usize>,
}

/// Slots by unix milliseconds.
type Lists = BTreeMap<i64, Vec<Slot>>;

struct Before {
    lists: Lists,
    len: usize,
    /// The next slot to be entered.
    next: usize,
}

/// How many slots a new entry enters again: enough to be done before there are too many once more.
const ENTERED_PER_CHANGE: usize = 4;

impl Wheel {
    fn add(&mut self, deadline: i64, slot: Slot) {
        /// Deadlines that are nearer than this are entered exactly.
        const NEAR: i64 = 1024;
        let left = deadline.saturating_sub(self.now);
        let time = if left < NEAR {
            deadline
        } else {
            // Early by less than an eighth of what is left.
            let width = 1 << (63 - (left / 8).leading_zeros());
            deadline & !(width - 1)
        };
        self.lists.entry(time).or_default().push(slot);
        self.len += 1;
    }

    /// The next slot to be looked at; `None` if that is not yet to be done.
    fn next_due(&mut self) -> Option<Slot> {
        if let Some(before) = &mut self.before
            && let Some(slot) = next_due(&mut before.lists, self.now)
        {
            before.len -= 1;
            return Some(slot);
        }
        let slot = next_due(&mut self.lists, self.now)?;
        self.len -= 1;
        Some(slot)
    }

    /// Any entry. There are at most a few thousand lists: the farther off a time is, the coarser.
    fn random(&self, random: &mut Random) -> Option<Slot> {
        let before = self.before.as_ref();
        let len = self.len + before.map_or(0, |before| before.len);
        if len == 0 {
            return None;
        }
        let mut at = random.below(len);
        let before = before.into_iter().flat_map(|before| before.lists.values());
        for list in self.lists.values().chain(before) {
            match list.get(at) {
                Some(slot) => return Some(*slot),
                None => at -= list.len(),
            }
        }
        None
    }

    /// Begins new lists, into which all keys are to be entered; does nothing while that is under way.
    fn begin_again(&mut self) {
        if self.before.is_none() {
            self.before = Some(Before {
                lists: std::mem::take(&mut self.lists),
                len: std::mem::take(&mut self.len),
                next: 0,
            });
        }
    }

    fn clear(&mut self) {
        self.lists.clear();
        self.len = 0;
        self.before = None;
    }
}

fn next_due(lists: &mut Lists, now: i64) -> Option<Slot> {
    loop {
        let mut first = lists.first_entry()?;
        if *first.key() >= now {
            return None;
        }
        match first.get_mut().pop() {
            Some(slot) => return Some(slot),
            None => drop(first.remove()),
        }
    }
}

/// All keys of a database, on their way elsewhere.
pub(crate) struct Keys {
    dict: Dict<Entry>,
    wheel: Wheel,
    volatile: usize,
    bytes: u64,
}

impl Keys {
    pub(crate) fn len(&self) -> usize {
        self.dict.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::string::Str;

    #[test]
    fn entries_of_the_wheel_that_no_key_needs_are_dropped() {
        let mut db = Db::default();
        let value = || Value::Str(Str::from(b"v".to_vec()));
        let slot = db.insert_new(b"k", value(), NEVER, 0);
        for round in 0..200_000 {
            db.set_deadline(slot, NEVER);
            db.set_deadline(slot, 86_400_000);
            if round % 1000 == 0 {
                db.compact_if_sparse();
            }
        }
        assert!(db.wheel.len < 100_000, "{} entries", db.wheel.len);
        let listed: usize = db.wheel.lists.values().map(Vec::len).sum();
        assert_eq!(db.wheel.len, listed);
        // The key is still found when its time comes.
        let (found, _) = db.sweep(86_400_001, usize::MAX);
        assert!(found.keys.iter().any(|key| **key == b"k"[..]));
        assert_eq!(db.wheel.len, 0);
    }

    #[test]
    fn deadlines_that_are_set_again_and_again_cost_each_change_the_same() {
        const KEYS: usize = 100_000;
        let mut db = Db::default();
        let slots: Vec<Slot> = (0..KEYS)
            .map(|n| {
                let value = Value::Str(Str::from(b"v".to_vec()));
                db.insert_new(format!("key:{n}").as_bytes(), value, NEVER, 0)
            })
            .collect();
        // What is due is found once, and has no deadline any more.
        let expire = |db: &mut Db| -> Vec<Vec<u8>> {
            let (swept, _) = db.sweep(2000, usize::MAX);
            for key in &swept.keys {
                let slot = db.find(key).unwrap();
                db.set_deadline(slot, NEVER);
            }
            swept.keys.iter().map(|key| key.to_vec()).collect()
        };
        let (mut most, mut longest) = (0, 0);
        for round in 0..8 {
            let mut found = std::collections::BTreeSet::new();
            for (n, &slot) in slots.iter().enumerate() {
                let before = db.wheel.entered.get();
                db.set_deadline(slot, NEVER);
                // Some are due while the wheel is begun again.
                let soon = n % 10 == round && round < 7;
                db.set_deadline(slot, if soon { 1000 } else { 86_400_000 });
                if n % 1000 == 0 {
                    db.compact_if_sparse();
                    found.extend(expire(&mut db));
                }
                most = most.max(db.wheel.entered.get() - before);
                let before = db.wheel.before.as_ref().map_or(0, |before| before.len);
                longest = longest.max(db.wheel.len + before);
            }
            found.extend(expire(&mut db));
            let due = if round < 7 { KEYS / 10 } else { 0 };
            assert_eq!(found.len(), due, "in round {round}");
        }
        assert!(db.wheel.entered.get() >= KEYS, "it was never begun again");
        assert!(most < 20_000, "{most} slots were entered again at once");
        assert!(longest < 5 * KEYS + 2 * 65_536, "{longest} entries");
        let (found, _) = db.sweep(86_400_001, usize::MAX);
        let found: std::collections::BTreeSet<_> =
            found.keys.iter().map(|key| key.to_vec()).collect();
        assert_eq!(found.len(), KEYS);
    }
}
