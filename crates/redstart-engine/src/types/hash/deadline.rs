//! When fields of a hash expire.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::{keyspace::NEVER, types::blob::Blob};

/// The deadlines of a hash's fields, in unix milliseconds; fields without one are not in it.
#[derive(Clone, Default)]
pub(super) struct Deadlines {
    by_field: HashMap<Blob, i64, ahash::RandomState>,
    by_time: BTreeSet<(i64, Blob)>,
}

impl Deadlines {
    pub(super) fn get(&self, field: &[u8]) -> Option<i64> {
        self.by_field.get(field).copied()
    }

    pub(super) fn set(&mut self, field: &[u8], deadline: i64) {
        let field = Blob::new(field);
        if let Some(before) = self.by_field.insert(field.clone(), deadline) {
            self.by_time.remove(&(before, field.clone()));
        }
        self.by_time.insert((deadline, field));
    }

    /// Whether the field had one.
    pub(super) fn remove(&mut self, field: &[u8]) -> bool {
        let Some((field, deadline)) = self.by_field.remove_entry(field) else {
            return false;
        };
        self.by_time.remove(&(deadline, field))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_field.is_empty()
    }

    /// The first of all, or [`NEVER`].
    pub(super) fn first(&self) -> i64 {
        self.by_time
            .first()
            .map_or(NEVER, |(deadline, _)| *deadline)
    }

    /// Takes out a field whose deadline has passed.
    pub(super) fn pop_due(&mut self, now_ms: i64) -> Option<Blob> {
        if self.by_time.first()?.0 >= now_ms {
            return None;
        }
        let (_, field) = self.by_time.pop_first()?;
        self.by_field.remove(&field);
        Some(field)
    }

    /// In the order of the deadlines.
    pub(super) fn iter(&self) -> impl Iterator<Item = (i64, &Blob)> {
        self.by_time
            .iter()
            .map(|(deadline, field)| (*deadline, field))
    }

    pub(super) fn heap_size(&self) -> usize {
        // Two copies of each field, one of them in a tree.
        let each = 2 * (size_of::<Blob>() + size_of::<i64>()) + 16;
        let fields: usize = self.by_field.keys().take(32).map(Blob::heap_size).sum();
        let sampled = self.by_field.len().clamp(1, 32);
        self.by_field.len() * (each + 2 * fields / sampled)
    }
}
