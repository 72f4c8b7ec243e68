//! Hashes.

use super::{
    blob::Blob,
    dict::{Dict, Slot},
};
use crate::{
    config::Config,
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
    Table(Dict<Blob>),
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
            Hash::Table(dict) => dict.len(),
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
            Hash::Table(dict) => dict.heap_size(Blob::heap_size),
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
            Hash::Table(dict) => dict.get(field),
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
            *self = Hash::Table(dict);
        }
    }

    /// Sets a field; whether it is new.
    pub(crate) fn set(&mut self, field: &[u8], value: &[u8], config: &Config) -> bool {
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
            Hash::Table(dict) => dict.insert(field, Blob::new(value)).is_none(),
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
            Hash::Table(dict) => {
                let value = dict.remove(field);
                if dict.is_sparse() {
                    dict.compact();
                }
                value
            }
        }
    }

    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = (&Blob, &Blob)> + '_> {
        match self {
            Hash::Packed(pairs) => Box::new(pairs.iter().map(|(field, value)| (field, value))),
            Hash::Table(dict) => Box::new(dict.iter()),
        }
    }

    /// What is at a place that [`Draw`] gave.
    pub(crate) fn at(&self, slot: Slot) -> Option<(&Blob, &Blob)> {
        match self {
            Hash::Packed(pairs) => pairs
                .get(slot as usize)
                .map(|(field, value)| (field, value)),
            Hash::Table(dict) => dict.at(slot),
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
            Hash::Table(dict) => dict.scan(cursor, count, visit),
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
            Hash::Table(dict) => dict.slots(),
        }
    }

    fn is_taken(&self, place: Slot) -> bool {
        self.at(place).is_some()
    }

    fn draw(&self, random: &mut Random) -> Option<Slot> {
        match self {
            Hash::Packed(pairs) if pairs.is_empty() => None,
            Hash::Packed(pairs) => Some(random.below(pairs.len()) as Slot),
            Hash::Table(dict) => dict.random(random),
        }
    }
}
