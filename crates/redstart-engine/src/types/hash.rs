//! Hashes.

mod deadline;

use deadline::Deadlines;

use super::{
    blob::Blob,
    dict::{Dict, Slot},
};
use crate::{
    config::Config,
    keyspace::NEVER,
    memory::sampled,
    random::{Draw, Random},
};

/// A map of fields to values.
///
/// Small ones keep the order of insertion, as Redis's listpacks do; that order is what HGETALL
/// shows, so it is part of the behaviour.
#[derive(Clone)]
pub(crate) enum Hash {
    Packed(Vec<(Blob, Blob)>),
    Table(Table),
}

/// A hash that is too large to be packed, or has fields that expire.
#[derive(Clone, Default)]
pub(crate) struct Table {
    dict: Dict<Blob>,
    deadlines: Option<Box<Deadlines>>,
}

impl Table {
    fn forget_deadline(&mut self, field: &[u8]) -> bool {
        let Some(deadlines) = &mut self.deadlines else {
            return false;
        };
        let had = deadlines.remove(field);
        if deadlines.is_empty() {
            self.deadlines = None;
        }
        had
    }
}

impl Default for Hash {
    fn default() -> Hash {
        Hash::Packed(Vec::new())
    }
}

impl Hash {
    pub(crate) fn len(&self) -> usize {
        match self {
            Hash::Packed(pairs) => pairs.len(),
            Hash::Table(table) => table.dict.len(),
        }
    }

    /// About how many bytes are held on the heap.
    pub(crate) fn heap_size(&self) -> usize {
        let contents = match self {
            Hash::Packed(pairs) => {
                pairs.capacity() * size_of::<(Blob, Blob)>()
                    + sampled(pairs.len(), pairs.iter().map(|(field, _)| field))
                    + sampled(pairs.len(), pairs.iter().map(|(_, value)| value))
            }
            Hash::Table(table) => {
                let deadlines = table.deadlines.as_ref();
                table.dict.heap_size(Blob::heap_size) + deadlines.map_or(0, |all| all.heap_size())
            }
        };
        size_of::<Hash>() + contents
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn encoding(&self) -> &'static str {
        match self {
            Hash::Packed(_) => "listpack",
            Hash::Table(_) => "hashtable",
        }
    }

    pub(crate) fn get(&self, field: &[u8]) -> Option<&Blob> {
        match self {
            Hash::Packed(pairs) => pairs
                .iter()
                .find(|(held, _)| held.as_slice() == field)
                .map(|(_, value)| value),
            Hash::Table(table) => table.dict.get(field),
        }
    }

    pub(crate) fn contains(&self, field: &[u8]) -> bool {
        self.get(field).is_some()
    }

    /// Becomes a table if one of these strings is too long for a listpack, as Redis decides before
    /// it looks at any field.
    pub(crate) fn prepare<'a>(
        &mut self,
        strings: impl IntoIterator<Item = &'a [u8]>,
        config: &Config,
    ) {
        if matches!(self, Hash::Packed(_))
            && strings
                .into_iter()
                .any(|text| text.len() > config.hash_max_listpack_value)
        {
            self.become_table();
        }
    }

    fn become_table(&mut self) {
        if let Hash::Packed(pairs) = self {
            let mut dict = Dict::with_capacity(pairs.len() * 2);
            for (field, value) in pairs.drain(..) {
                dict.insert_new(&field, value);
            }
            *self = Hash::Table(Table {
                dict,
                deadlines: None,
            });
        }
    }

    /// Sets a field, which has no deadline then; whether it is new.
    pub(crate) fn set(&mut self, field: &[u8], value: &[u8], config: &Config) -> bool {
        if let Hash::Table(table) = self {
            table.forget_deadline(field);
        }
        self.set_value(field, value, config)
    }

    /// As [`Hash::set`], but the field keeps its deadline.
    pub(crate) fn set_value(&mut self, field: &[u8], value: &[u8], config: &Config) -> bool {
        if let Hash::Packed(pairs) = self {
            if field.len() > config.hash_max_listpack_value
                || value.len() > config.hash_max_listpack_value
            {
                self.become_table();
            } else if let Some(pair) = pairs.iter_mut().find(|(held, _)| held.as_slice() == field) {
                pair.1 = Blob::new(value);
                return false;
            } else {
                pairs.push((Blob::new(field), Blob::new(value)));
                if pairs.len() > config.hash_max_listpack_entries {
                    self.become_table();
                }
                return true;
            }
        }
        match self {
            Hash::Table(table) => table.dict.insert(field, Blob::new(value)).is_none(),
            Hash::Packed(_) => unreachable!("made a table above"),
        }
    }

    pub(crate) fn remove(&mut self, field: &[u8]) -> Option<Blob> {
        match self {
            Hash::Packed(pairs) => {
                let at = pairs
                    .iter()
                    .position(|(held, _)| held.as_slice() == field)?;
                Some(pairs.remove(at).1)
            }
            Hash::Table(table) => {
                table.forget_deadline(field);
                let value = table.dict.remove(field);
                if table.dict.is_sparse() {
                    table.dict.compact();
                }
                value
            }
        }
    }

    /// When a field expires, in unix milliseconds; `None` if it does not.
    pub(crate) fn deadline(&self, field: &[u8]) -> Option<i64> {
        match self {
            Hash::Packed(_) => None,
            Hash::Table(table) => table.deadlines.as_ref()?.get(field),
        }
    }

    /// Lets a field expire that is known to be there.
    pub(crate) fn set_deadline(&mut self, field: &[u8], deadline: i64) {
        self.become_table();
        if let Hash::Table(table) = self {
            let deadlines = table.deadlines.get_or_insert_default();
            deadlines.set(field, deadline);
        }
    }

    /// Lets a field stay; whether it would have expired.
    pub(crate) fn persist(&mut self, field: &[u8]) -> bool {
        match self {
            Hash::Packed(_) => false,
            Hash::Table(table) => table.forget_deadline(field),
        }
    }

    /// When the next field expires, or [`NEVER`].
    #[inline]
    pub(crate) fn next_deadline(&self) -> i64 {
        match self {
            Hash::Packed(_) => NEVER,
            Hash::Table(table) => table.deadlines.as_ref().map_or(NEVER, |all| all.first()),
        }
    }

    /// Whether a field has expired.
    #[inline]
    pub(crate) fn is_due(&self, now_ms: i64) -> bool {
        let next = self.next_deadline();
        next < now_ms && next != NEVER
    }

    /// Removes the fields that have expired, those first that did so first, and no more than so many.
    pub(crate) fn remove_due(&mut self, now_ms: i64, most: usize) -> Vec<Blob> {
        let mut fields = Vec::new();
        if let Hash::Table(table) = self
            && let Some(deadlines) = &mut table.deadlines
        {
            while fields.len() < most
                && let Some(field) = deadlines.pop_due(now_ms)
            {
                table.dict.remove(&field);
                fields.push(field);
            }
            if deadlines.is_empty() {
                table.deadlines = None;
            }
            if table.dict.is_sparse() {
                table.dict.compact();
            }
        }
        fields
    }

    /// Takes out the fields that have expired, with their deadlines. The others stay in their places.
    pub(crate) fn take_due(&mut self, now_ms: i64) -> Vec<(Blob, Blob, i64)> {
        let mut fields = Vec::new();
        if let Hash::Table(table) = self
            && let Some(deadlines) = &mut table.deadlines
        {
            loop {
                let deadline = deadlines.first();
                let Some(field) = deadlines.pop_due(now_ms) else {
                    break;
                };
                if let Some(value) = table.dict.remove(&field) {
                    fields.push((field, value, deadline));
                }
            }
        }
        fields
    }

    /// Undoes [`Hash::take_due`], but for fields that are there again.
    pub(crate) fn give_back(&mut self, fields: Vec<(Blob, Blob, i64)>, config: &Config) {
        for (field, value, deadline) in fields {
            if !self.contains(&field) {
                self.set_value(&field, &value, config);
                self.set_deadline(&field, deadline);
            }
        }
    }

    /// The fields that expire, by their deadlines.
    pub(crate) fn deadlines(&self) -> impl Iterator<Item = (i64, &Blob)> {
        let deadlines = match self {
            Hash::Packed(_) => None,
            Hash::Table(table) => table.deadlines.as_ref(),
        };
        deadlines.into_iter().flat_map(|all| all.iter())
    }

    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = (&Blob, &Blob)> + '_> {
        match self {
            Hash::Packed(pairs) => Box::new(pairs.iter().map(|(field, value)| (field, value))),
            Hash::Table(table) => Box::new(table.dict.iter()),
        }
    }

    /// What is at a place that [`Draw`] gave.
    pub(crate) fn at(&self, slot: Slot) -> Option<(&Blob, &Blob)> {
        match self {
            Hash::Packed(pairs) => pairs
                .get(slot as usize)
                .map(|(field, value)| (field, value)),
            Hash::Table(table) => table.dict.at(slot),
        }
    }

    /// HSCAN's step: a listpack comes whole.
    pub(crate) fn scan(
        &self,
        cursor: u64,
        count: usize,
        mut visit: impl FnMut(&Blob, &Blob),
    ) -> u64 {
        match self {
            Hash::Packed(pairs) => {
                pairs.iter().for_each(|(field, value)| visit(field, value));
                0
            }
            Hash::Table(table) => table.dict.scan(cursor, count, visit),
        }
    }
}

impl Draw for Hash {
    fn len(&self) -> usize {
        Hash::len(self)
    }

    fn places(&self) -> usize {
        match self {
            Hash::Packed(pairs) => pairs.len(),
            Hash::Table(table) => table.dict.slots(),
        }
    }

    fn is_taken(&self, place: Slot) -> bool {
        self.at(place).is_some()
    }

    fn draw(&self, random: &mut Random) -> Option<Slot> {
        match self {
            Hash::Packed(pairs) if pairs.is_empty() => None,
            Hash::Packed(pairs) => Some(random.below(pairs.len()) as Slot),
            Hash::Table(table) => table.dict.random(random),
        }
    }
}
