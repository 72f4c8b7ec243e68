//! Which writes of a batch reach the sink, and which become dead letters.
//!
//! ```text
//! log entries ──> one stack of writes per key
//!                   │ from the first dead write of the key on ──> dead letters
//!                   ▼
//!                 the newest write of each stack
//!                   │ cannot be decoded ──> dead letter, and the next older write takes its place
//!                   ▼
//!                 Sink::apply
//!                   │ refused ──> dead letter, and the next older write takes its place, with those before it at hand:
//!                   │             a sink can refuse all of them at once, so that other keys wait for two tries at most
//!                   ▼
//!                 committed with the checkpoint
//! ```
//!
//! Dead letters are stored before the checkpoint that covers them is committed, so none is lost. The decisions
//! depend only on the log, on the dead letters and on the sink: a worker that repeats the batch after a crash
//! decides the same.

use std::collections::{BTreeMap, HashMap};

use serde::de::DeserializeOwned;

use super::{
    sink::{Change, EntryId},
    stored::{Decoded, LogEntry, Stored},
};
use crate::codec::Codec;

/// A write that will not be applied, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Letter {
    pub(super) entry: LogEntry,
    pub(super) reason: String,
}

/// A change that the sink refused, and how many before it.
pub(super) struct Refusal {
    /// Its index among the changes.
    pub(super) index: usize,
    /// Why; the first reason is that of the change, the others are those of the writes before it, newest first.
    pub(super) reasons: Vec<String>,
}

/// The writes of one visit to the log.
pub(super) struct Batch<V> {
    fingerprint: u64,
    /// Writes of each key that may still be applied, oldest first. The newest is in `changes`.
    older: HashMap<String, Vec<LogEntry>>,
    /// What the sink is given, with the entries that it was made from.
    changes: Vec<Change<V>>,
    entries: Vec<LogEntry>,
    /// Dead letters that are not stored yet.
    letters: Vec<Letter>,
}

impl<V: DeserializeOwned> Batch<V> {
    /// `dead` has, for each blocked key, the id of its first dead write.
    pub(super) fn new<C: Codec>(
        fingerprint: u64,
        entries: Vec<LogEntry>,
        dead: &BTreeMap<String, EntryId>,
    ) -> Self {
        let mut batch = Self {
            fingerprint,
            older: HashMap::with_capacity(entries.len()),
            changes: Vec::with_capacity(entries.len()),
            entries: Vec::with_capacity(entries.len()),
            letters: Vec::new(),
        };
        // The order in which the sink applies changes is that of the last writes.
        let mut last: Vec<String> = Vec::with_capacity(entries.len());
        for entry in entries {
            if dead.get(&entry.key).is_some_and(|first| *first <= entry.id) {
                batch.letters.push(Letter {
                    entry,
                    reason: "an earlier write of this key is dead".to_owned(),
                });
                continue;
            }
            last.push(entry.key.clone());
            batch
                .older
                .entry(entry.key.clone())
                .or_default()
                .push(entry);
        }
        let mut seen = std::collections::HashSet::with_capacity(last.len());
        last.reverse();
        last.retain(|key| seen.insert(key.clone()));
        for key in last.into_iter().rev() {
            batch.choose::<C>(&key);
        }
        batch
    }

    /// Gives the sink the newest write of a key that can be decoded.
    fn choose<C: Codec>(&mut self, key: &str) {
        if let Some((entry, value)) = self.pop::<C>(key) {
            self.changes.push(Change {
                key: entry.key.clone(),
                value,
                id: entry.id,
                older: Vec::new(),
            });
            self.entries.push(entry);
        }
    }

    /// The newest write of a key that can be decoded. Those before it that cannot become dead letters.
    fn pop<C: Codec>(&mut self, key: &str) -> Option<(LogEntry, Option<V>)> {
        while let Some(entry) = self.older.get_mut(key).and_then(Vec::pop) {
            match self.decode::<C>(&entry) {
                Ok(value) => return Some((entry, value)),
                Err(reason) => self.letters.push(Letter { entry, reason }),
            }
        }
        None
    }

    /// What was written, or why it cannot be read.
    fn decode<C: Codec>(&self, entry: &LogEntry) -> Result<Option<V>, String> {
        let decoded = match Stored::parse(&entry.bytes) {
            Some(stored) => stored.decode::<C, V>(self.fingerprint),
            None => Ok(Decoded::Foreign),
        };
        match decoded {
            Ok(Decoded::Row(value)) => Ok(value),
            Ok(Decoded::Foreign) => Err("written under another type, schema or codec".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The sink refused these changes.
    pub(super) fn refuse<C: Codec>(&mut self, mut refused: Vec<Refusal>) {
        refused.sort_by_key(|one| std::cmp::Reverse(one.index));
        refused.dedup_by_key(|one| one.index);
        for Refusal { index, reasons } in refused {
            let told = self.changes.remove(index).older.len();
            let entry = self.entries.remove(index);
            let key = entry.key.clone();
            let mut reasons = reasons.into_iter();
            let reason = reasons.next().unwrap_or_default();
            self.letters.push(Letter { entry, reason });
            // Of writes that the sink was not told of it can know nothing.
            for reason in reasons.take(told) {
                if let Some((entry, _)) = self.pop::<C>(&key) {
                    self.letters.push(Letter { entry, reason });
                }
            }
            let chosen = self.changes.len();
            self.choose::<C>(&key);
            // The sink will be told of all that could follow.
            if self.changes.len() > chosen {
                let older = self.older.get(&key).into_iter().flatten().rev();
                let readable = older
                    .filter_map(|entry| Some((entry.id, self.decode::<C>(entry).ok()?)))
                    .collect();
                self.changes[chosen].older = readable;
            }
        }
    }

    pub(super) fn changes(&self) -> &[Change<V>] {
        &self.changes
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change<V>> {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn put_changes(&mut self, changes: Vec<Change<V>>) {
        self.changes = changes;
    }

    /// The dead letters that must be stored before anything is committed.
    pub(super) fn take_letters(&mut self) -> Vec<Letter> {
        std::mem::take(&mut self.letters)
    }

    /// The keys that were applied, with the ids of the writes.
    pub(super) fn applied(&self) -> impl ExactSizeIterator<Item = (&str, EntryId)> {
        self.entries.iter().map(|entry| (&*entry.key, entry.id))
    }
}
