//! Lists.

use std::collections::VecDeque;

use super::blob::Blob;
use crate::memory::sampled;

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Left,
    Right,
}

/// A sequence of strings, quick at both ends and by index.
#[derive(Clone, Default)]
pub(crate) struct List {
    items: VecDeque<Blob>,
}

impl List {
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// About how many bytes are held on the heap.
    pub(crate) fn heap_size(&self) -> usize {
        size_of::<List>()
            + self.items.capacity() * size_of::<Blob>()
            + sampled(self.items.len(), self.items.iter())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn push(&mut self, end: End, item: Blob) {
        match end {
            End::Left => self.items.push_front(item),
            End::Right => self.items.push_back(item),
        }
    }

    pub(crate) fn pop(&mut self, end: End) -> Option<Blob> {
        let item = match end {
            End::Left => self.items.pop_front(),
            End::Right => self.items.pop_back(),
        };
        if self.items.capacity() > 64 && self.items.len() * 4 < self.items.capacity() {
            self.items.shrink_to(self.items.len() * 2);
        }
        item
    }

    /// The position that an index means, negative ones counting from the end.
    pub(crate) fn position(&self, index: i64) -> Option<usize> {
        let len = self.items.len() as i64;
        let at = if index < 0 {
            index.checked_add(len)?
        } else {
            index
        };
        (0..len).contains(&at).then_some(at as usize)
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Blob> {
        self.items.get(at)
    }

    pub(crate) fn set(&mut self, at: usize, item: Blob) {
        self.items[at] = item;
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Blob> + ExactSizeIterator {
        self.items.iter()
    }

    /// The items of positions `from..to`.
    pub(crate) fn range(&self, from: usize, to: usize) -> impl Iterator<Item = &Blob> {
        self.items.range(from..to)
    }

    /// Keeps the items of positions `from..to`.
    pub(crate) fn trim(&mut self, from: usize, to: usize) {
        self.items.truncate(to);
        self.items.drain(..from.min(self.items.len()));
        self.items.shrink_to(self.items.len() * 2);
    }

    pub(crate) fn insert(&mut self, at: usize, item: Blob) {
        self.items.insert(at, item);
    }

    /// Removes up to `limit` items equal to `item`, from the given end on; how many there were.
    pub(crate) fn remove(&mut self, item: &[u8], limit: usize, from: End) -> usize {
        let mut doomed: Vec<usize> = Vec::new();
        let equal = |(at, held): (usize, &Blob)| (held.as_slice() == item).then_some(at);
        match from {
            End::Left => doomed.extend(self.items.iter().enumerate().filter_map(equal).take(limit)),
            End::Right => {
                doomed.extend(
                    self.items
                        .iter()
                        .enumerate()
                        .rev()
                        .filter_map(equal)
                        .take(limit),
                );
                doomed.reverse();
            }
        }
        let mut next = doomed.iter().copied().peekable();
        let mut at = 0;
        self.items.retain(|_| {
            let keep = next.next_if_eq(&at).is_none();
            at += 1;
            keep
        });
        doomed.len()
    }
}

impl FromIterator<Blob> for List {
    fn from_iter<I: IntoIterator<Item = Blob>>(items: I) -> List {
        List {
            items: items.into_iter().collect(),
        }
    }
}
