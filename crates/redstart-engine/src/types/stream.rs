//! Streams: a log of entries with consumer groups.
//!
//! As in Redis, entries lie packed in nodes of about a hundred, ordered by id. A node keeps the
//! field names of its first entry, and entries with the same fields store only their values. An
//! entry is found in O(log n); a deleted one is marked, and goes when its whole node does.
//!
//! `MAXLEN ~` removes whole nodes only, so the borders of the nodes are visible from outside. They
//! are drawn where Redis draws them: [`Node::packed`] counts the bytes that its listpack would have.
//!
//! `node.rs` has the nodes and their entries, `id.rs` the ids, `group.rs` consumer groups, `trim.rs` trimming, and `radix.rs`
//! the count of nodes that Redis's radix tree would have.

mod group;
mod id;
mod node;
mod radix;
mod trim;

use std::collections::BTreeMap;

use bytes::Bytes;

use super::blob::Blob;

pub(crate) use group::{Consumer, Group, Pending};
pub(crate) use id::Id;
use node::{DELETED, Node};
pub(crate) use node::{Entry, NodeView, Stored};
pub(crate) use trim::{Limit, Trim};

/// Redis's `stream-node-max-bytes`.
const NODE_BYTES: usize = 4096;

/// A log of entries, ordered by id.
#[derive(Clone, Default)]
pub(crate) struct Stream {
    /// By the id of the first entry that was put in.
    nodes: BTreeMap<Id, Node>,
    /// The nodes of Redis's radix tree over the ids, without its root.
    radix: usize,
    len: u64,
    pub(crate) last_id: Id,
    pub(crate) max_deleted_id: Id,
    pub(crate) entries_added: u64,
    pub(crate) groups: BTreeMap<Blob, Group>,
}

impl Stream {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// How many nodes Redis's radix tree over the ids has.
    pub(crate) fn radix_nodes(&self) -> usize {
        1 + self.radix
    }

    fn add_node(&mut self, id: Id, node: Node) {
        self.radix += radix::gained(&self.nodes, id);
        self.nodes.insert(id, node);
    }

    fn remove_node(&mut self, id: Id) {
        if self.nodes.remove(&id).is_some() {
            self.radix -= radix::gained(&self.nodes, id);
        }
    }

    /// About how many bytes are held on the heap.
    pub(crate) fn heap_size(&self) -> usize {
        let bytes =
            |node: &Node| size_of::<(Id, Node)>() + node.data.capacity() + 24 * node.fields.len();
        // The last node is being filled and may have room for twice of what it has. The others are full and have none to spare,
        // unless entries were deleted from them; they are judged by the first one and by the one before the last.
        let mut backwards = self.nodes.values().rev();
        let last = backwards.next().map_or(0, bytes);
        let full = [self.nodes.values().next(), backwards.next()];
        let full = full.into_iter().flatten().map(bytes).max().unwrap_or(0);
        let nodes = last + full * self.nodes.len().saturating_sub(1);
        let groups: usize = self
            .groups
            .values()
            .map(|group| {
                size_of::<Group>()
                    + group.pending.len() * (size_of::<(Id, Pending)>() + size_of::<Id>())
                    + group.consumers.len() * size_of::<Consumer>()
            })
            .sum();
        size_of::<Stream>() + nodes + groups
    }

    /// The id that `XADD *` assigns at this time; `None` if all are used up.
    pub(crate) fn next_id(&self, now_ms: u64) -> Option<Id> {
        if now_ms > self.last_id.ms {
            Some(Id { ms: now_ms, seq: 0 })
        } else {
            self.last_id.next()
        }
    }

    /// Appends an entry of fields and values, with an id above all before.
    pub(crate) fn append(&mut self, id: Id, pairs: &[Bytes], node_entries: usize) {
        debug_assert!(id > self.last_id);
        let size: usize = pairs.iter().map(Bytes::len).sum();
        let full = match self.nodes.last_entry() {
            None => true,
            Some(last) => {
                let node = last.get();
                node.packed() + size >= NODE_BYTES
                    || (node_entries > 0 && (node.live + node.dead) as usize >= node_entries)
            }
        };
        if full {
            if let Some(mut last) = self.nodes.last_entry() {
                last.get_mut().data.shrink_to_fit();
            }
            let fields = pairs
                .chunks_exact(2)
                .map(|pair| (&pair[0][..], &pair[1][..]));
            let node = Node::new(fields);
            self.add_node(id, node);
        }
        if let Some(mut last) = self.nodes.last_entry() {
            let node_id = *last.key();
            last.get_mut().push(node_id, id, pairs);
        }
        self.last_id = id;
        self.len += 1;
        self.entries_added += 1;
    }

    /// The nodes in order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeView<'_>> {
        self.nodes.iter().map(|(&id, node)| NodeView { id, node })
    }

    /// Adds a node from a dump behind all others; whether its ids rise as they must. The caller sets
    /// the stream's own counters afterwards.
    pub(crate) fn load_node(&mut self, id: Id, fields: Vec<Blob>, entries: &[Stored]) -> bool {
        let mut node = Node::new(fields.iter().map(|field| (field.as_slice(), &b""[..])));
        let mut last = self.last_id;
        // A node has the id of its first entry, and no entry is 0-0.
        if id <= last {
            return false;
        }
        for entry in entries {
            if entry.id < id || entry.id <= last {
                return false;
            }
            last = entry.id;
            let at = node.data.len();
            node.push(id, entry.id, &entry.pairs);
            if entry.deleted {
                node.data[at] |= DELETED;
                node.live -= 1;
                node.dead += 1;
            }
        }
        self.last_id = last;
        if node.live > 0 {
            node.data.shrink_to_fit();
            self.len += u64::from(node.live);
            self.add_node(id, node);
        }
        true
    }

    /// Visits the entries from `start` to `end`, both included, until `visit` says false.
    pub(crate) fn range<'a>(
        &'a self,
        start: Id,
        end: Id,
        mut visit: impl FnMut(Id, Entry<'a>) -> bool,
    ) {
        if start > end {
            return;
        }
        let from = self.node_of(start).unwrap_or(start);
        for (&node_id, node) in self.nodes.range(from..=end) {
            for (_, id, deleted, entry) in node.entries(node_id) {
                if id > end {
                    return;
                }
                if !deleted && id >= start && !visit(id, entry) {
                    return;
                }
            }
        }
    }

    /// As [`Stream::range`], from `end` down to `start`.
    pub(crate) fn range_back<'a>(
        &'a self,
        start: Id,
        end: Id,
        mut visit: impl FnMut(Id, Entry<'a>) -> bool,
    ) {
        for (&node_id, node) in self.nodes.range(..=end).rev() {
            let entries: Vec<_> = node.entries(node_id).collect();
            for (_, id, deleted, entry) in entries.into_iter().rev() {
                if id < start {
                    return;
                }
                if !deleted && id <= end && !visit(id, entry) {
                    return;
                }
            }
        }
    }

    /// The node in which an id would lie.
    fn node_of(&self, id: Id) -> Option<Id> {
        self.nodes.range(..=id).next_back().map(|(&node, _)| node)
    }

    /// The first entry's id, or zero.
    pub(crate) fn first_id(&self) -> Id {
        let mut first = Id::ZERO;
        self.range(Id::ZERO, Id::MAX, |id, _| {
            first = id;
            false
        });
        first
    }

    /// The id of the last entry that is still there, or zero.
    pub(crate) fn last_entry_id(&self) -> Id {
        let mut last = Id::ZERO;
        self.range_back(Id::ZERO, Id::MAX, |id, _| {
            last = id;
            false
        });
        last
    }

    /// Deletes an entry; whether it was there.
    pub(crate) fn delete(&mut self, id: Id) -> bool {
        let Some(node_id) = self.node_of(id) else {
            return false;
        };
        let Some(node) = self.nodes.get_mut(&node_id) else {
            return false;
        };
        let found = node
            .entries(node_id)
            .find(|(_, other, deleted, _)| *other == id && !deleted)
            .map(|(at, _, _, _)| at);
        let Some(at) = found else {
            return false;
        };
        node.data[at] |= DELETED;
        node.live -= 1;
        node.dead += 1;
        if node.live == 0 {
            self.remove_node(node_id);
        }
        self.len -= 1;
        self.max_deleted_id = self.max_deleted_id.max(id);
        true
    }

    /// Whether something was deleted from `start` on, so that counting there is not exact.
    pub(crate) fn has_tombstones_from(&self, start: Id) -> bool {
        self.len > 0
            && self.max_deleted_id != Id::ZERO
            && start <= self.max_deleted_id
            && self.first_id() <= self.max_deleted_id
    }

    /// How many entries were ever added up to and including this id, if that can be known.
    pub(crate) fn count_up_to(&self, id: Id) -> Option<i64> {
        let (added, len) = (self.entries_added as i64, self.len as i64);
        if added == 0 {
            return Some(0);
        }
        if (len == 0 && id <= self.last_id) || id == self.last_id {
            return Some(added);
        }
        if id > self.last_id {
            return None;
        }
        let first = self.first_id();
        if self.max_deleted_id == Id::ZERO || self.max_deleted_id < first {
            match id.cmp(&first) {
                std::cmp::Ordering::Less => return Some(added.wrapping_sub(len)),
                std::cmp::Ordering::Equal => {
                    return Some(added.wrapping_sub(len).wrapping_add(1));
                }
                std::cmp::Ordering::Greater => {}
            }
        }
        None
    }

    /// How many entries a group has still to read, if that can be known.
    pub(crate) fn lag(&self, group: &Group) -> Option<i64> {
        let added = self.entries_added as i64;
        if added == 0 {
            return Some(0);
        }
        match group.entries_read {
            Some(read) if !self.has_tombstones_from(group.last_id) => {
                Some(added.wrapping_sub(read))
            }
            _ => self
                .count_up_to(group.last_id)
                .map(|read| added.wrapping_sub(read)),
        }
    }

    /// A group takes note of an entry that it has read. ENTRIESREAD may have set any count: it wraps
    /// around, as on the servers.
    pub(crate) fn advance(&self, group: &Group, id: Id) -> Option<(Id, Option<i64>)> {
        if id <= group.last_id {
            return None;
        }
        let read = match group.entries_read {
            Some(read) if !self.has_tombstones_from(id) => Some(read.wrapping_add(1)),
            read if self.entries_added == 0 => read,
            _ => self.count_up_to(id),
        };
        Some((id, read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(ms: u64, seq: u64) -> Id {
        Id { ms, seq }
    }

    fn all(stream: &Stream) -> Vec<Id> {
        let mut ids = Vec::new();
        stream.range(Id::ZERO, Id::MAX, |id, _| {
            ids.push(id);
            true
        });
        ids
    }

    /// However full the node is that is being filled.
    #[test]
    fn the_bytes_of_an_entry_do_not_depend_on_how_many_there_are() {
        let mut stream = Stream::default();
        let pairs = [Bytes::from_static(b"d"), Bytes::copy_from_slice(&[7; 100])];
        for n in 1..=2000 {
            stream.append(id(1_700_000_000_000 + n, 0), &pairs, 100);
            if n >= 1000 {
                let each = stream.heap_size() as f64 / n as f64;
                assert!((105.0..125.0).contains(&each), "{each} bytes each of {n}");
            }
        }
    }

    #[test]
    fn entries_come_back_as_they_went_in() {
        let mut stream = Stream::default();
        let pairs = |words: &[&str]| -> Vec<Bytes> {
            words
                .iter()
                .map(|w| Bytes::copy_from_slice(w.as_bytes()))
                .collect()
        };
        stream.append(id(5, 9), &pairs(&["a", "1", "b", "2"]), 100);
        stream.append(id(6, 0), &pairs(&["a", "3", "b", ""]), 100);
        stream.append(id(6, 1), &pairs(&["c", "4"]), 100);
        let mut seen = Vec::new();
        stream.range(Id::ZERO, Id::MAX, |id, entry| {
            entry.each(|field, value| {
                seen.push((id, field.to_vec(), value.to_vec()));
            });
            true
        });
        let expected = [
            (id(5, 9), "a", "1"),
            (id(5, 9), "b", "2"),
            (id(6, 0), "a", "3"),
            (id(6, 0), "b", ""),
            (id(6, 1), "c", "4"),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(id, f, v)| (id, f.as_bytes().to_vec(), v.as_bytes().to_vec()))
            .collect();
        assert_eq!(seen, expected);
    }

    proptest! {
        #[test]
        fn a_stream_behaves_like_an_ordered_list(
            steps in prop::collection::vec((0u8..10, 0u64..400, 0u64..400), 1..300)
        ) {
            let mut stream = Stream::default();
            let mut model: Vec<Id> = Vec::new();
            let pairs = [Bytes::from_static(b"f"), Bytes::from_static(b"v")];
            for (what, a, b) in steps {
                match what {
                    0..=5 => {
                        let id = Id { ms: stream.last_id.ms + a % 3, seq: 0 }
                            .max(stream.last_id.next().unwrap());
                        stream.append(id, &pairs, 4);
                        model.push(id);
                    }
                    6 => {
                        let at = a as usize % (model.len() + 1);
                        let id = model.get(at).copied().unwrap_or(id(a, b));
                        let was = model.iter().position(|other| *other == id);
                        prop_assert_eq!(stream.delete(id), was.is_some());
                        if let Some(at) = was {
                            model.remove(at);
                        }
                    }
                    7 => {
                        let keep = a as usize % (model.len() + 1);
                        let limit = Limit::MaxLen(keep as u64);
                        let trim = Trim { limit, approximate: false, at_most: 0 };
                        let removed = stream.trim(trim) as usize;
                        prop_assert_eq!(removed, model.len() - keep);
                        model.drain(..removed);
                    }
                    8 => {
                        let min = id(a, 0);
                        let trim =
                            Trim { limit: Limit::MinId(min), approximate: false, at_most: 0 };
                        stream.trim(trim);
                        model.retain(|id| *id >= min);
                    }
                    _ => {
                        let (from, to) = (id(a.min(b), 0), id(a.max(b), 5));
                        let mut found = Vec::new();
                        stream.range_back(from, to, |id, _| {
                            found.push(id);
                            found.len() < 7
                        });
                        let expected: Vec<Id> = model
                            .iter()
                            .rev()
                            .filter(|id| (from..=to).contains(id))
                            .take(7)
                            .copied()
                            .collect();
                        prop_assert_eq!(found, expected);
                    }
                }
                prop_assert_eq!(stream.len() as usize, model.len());
                prop_assert_eq!(all(&stream), model.clone());
                prop_assert_eq!(stream.first_id(), model.first().copied().unwrap_or_default());
                prop_assert_eq!(stream.last_entry_id(), model.last().copied().unwrap_or_default());
            }
        }
    }
}
