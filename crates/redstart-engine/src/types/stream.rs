//! Streams: a log of entries with consumer groups.
//!
//! As in Redis, entries lie packed in nodes of about a hundred, ordered by id. A node keeps the
//! field names of its first entry, and entries with the same fields store only their values. An
//! entry is found in O(log n); a deleted one is marked, and goes when its whole node does.
//!
//! `MAXLEN ~` removes whole nodes only, so the borders of the nodes are visible from outside. They
//! are drawn where Redis draws them: [`Node::packed`] counts the bytes that its listpack would have.

mod radix;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::blob::Blob;
use crate::number::parse_int;

/// Redis's `stream-node-max-bytes`.
const NODE_BYTES: usize = 4096;

/// The id of an entry: unix milliseconds and a number within them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) ms: u64,
    pub(crate) seq: u64,
}

impl Id {
    pub(crate) const ZERO: Id = Id { ms: 0, seq: 0 };
    pub(crate) const MAX: Id = Id {
        ms: u64::MAX,
        seq: u64::MAX,
    };

    /// The id that follows; `None` after the last one.
    pub(crate) fn next(self) -> Option<Id> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Id { ms: self.ms, seq }),
            None => self.ms.checked_add(1).map(|ms| Id { ms, seq: 0 }),
        }
    }

    /// The id before; `None` before the first one.
    pub(crate) fn previous(self) -> Option<Id> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Id { ms: self.ms, seq }),
            None => self.ms.checked_sub(1).map(|ms| Id { ms, seq: u64::MAX }),
        }
    }

    pub(crate) fn to_bytes(self) -> Bytes {
        let mut text = Vec::with_capacity(24);
        text.extend_from_slice(itoa::Buffer::new().format(self.ms).as_bytes());
        text.push(b'-');
        text.extend_from_slice(itoa::Buffer::new().format(self.seq).as_bytes());
        text.into()
    }
}

/// What XADD and XTRIM may be told to cut off.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    MaxLen(u64),
    MinId(Id),
}

/// How to trim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trim {
    pub(crate) limit: Limit,
    /// Whole nodes only.
    pub(crate) approximate: bool,
    /// How many entries to remove at most; 0 is no limit.
    pub(crate) at_most: u64,
}

const DELETED: u8 = 1;
const SAME_FIELDS: u8 = 2;

#[derive(Clone)]
struct Node {
    /// The fields of the first entry.
    fields: Vec<Blob>,
    /// Entries one after another: flags, length of the rest, and in the rest the id's difference
    /// to the node's, the fields unless they are those of the node, and the values.
    data: Vec<u8>,
    live: u32,
    dead: u32,
    /// The size of Redis's listpack for this node, without the two counters.
    packed: usize,
}

/// An entry in place.
pub(crate) struct Entry<'a> {
    node: &'a Node,
    same_fields: bool,
    /// Fields and values.
    body: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Calls `visit` with each field and its value.
    pub(crate) fn each(&self, mut visit: impl FnMut(&'a [u8], &'a [u8])) {
        let mut body = self.body;
        if self.same_fields {
            for field in &self.node.fields {
                visit(field, take_slice(&mut body));
            }
        } else {
            while !body.is_empty() {
                let field = take_slice(&mut body);
                visit(field, take_slice(&mut body));
            }
        }
    }
}

fn put_varint(data: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        data.push(value as u8 | 0x80);
        value >>= 7;
    }
    data.push(value as u8);
}

fn take_varint(data: &mut &[u8]) -> u64 {
    let mut value = 0;
    let mut shift = 0;
    while let Some((&byte, rest)) = data.split_first() {
        *data = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            break;
        }
        shift += 7;
    }
    value
}

fn put_slice(data: &mut Vec<u8>, slice: &[u8]) {
    put_varint(data, slice.len() as u64);
    data.extend_from_slice(slice);
}

fn take_slice<'a>(data: &mut &'a [u8]) -> &'a [u8] {
    let len = take_varint(data) as usize;
    let (slice, rest) = data.split_at(len.min(data.len()));
    *data = rest;
    slice
}

/// Small differences of either sign become small numbers.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// The bytes of an integer in a listpack, with the length that follows it.
fn packed_int(value: i64) -> usize {
    let size = match value {
        0..=127 => 1,
        -4096..=4095 => 2,
        -32_768..=32_767 => 3,
        -8_388_608..=8_388_607 => 4,
        -2_147_483_648..=2_147_483_647 => 5,
        _ => 9,
    };
    size + 1
}

/// The bytes of a string in a listpack.
fn packed_str(text: &[u8]) -> usize {
    if text.len() <= 20
        && let Some(value) = parse_int(text)
    {
        return packed_int(value);
    }
    let size = match text.len() {
        len @ 0..64 => 1 + len,
        len @ 64..4096 => 2 + len,
        len => 5 + len,
    };
    let back = match size {
        ..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    };
    size + back
}

impl Node {
    fn new<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Node {
        let fields: Vec<Blob> = pairs.map(|(field, _)| Blob::new(field)).collect();
        // Header, number of fields, the fields, terminator.
        let packed = 7
            + packed_int(fields.len() as i64)
            + fields.iter().map(|field| packed_str(field)).sum::<usize>()
            + packed_int(0);
        Node {
            fields,
            data: Vec::new(),
            live: 0,
            dead: 0,
            packed,
        }
    }

    fn packed(&self) -> usize {
        self.packed + packed_int(self.live.into()) + packed_int(self.dead.into())
    }

    fn push(&mut self, node_id: Id, id: Id, pairs: &[Bytes]) {
        let same = pairs.len() / 2 == self.fields.len()
            && pairs
                .chunks_exact(2)
                .zip(&self.fields)
                .all(|(pair, field)| pair[0] == field.as_slice());
        let (ms, seq) = (
            id.ms.wrapping_sub(node_id.ms) as i64,
            id.seq.wrapping_sub(node_id.seq) as i64,
        );
        let mut rest = Vec::new();
        put_varint(&mut rest, zigzag(ms));
        put_varint(&mut rest, zigzag(seq));
        let count = pairs.len() / 2;
        // Flags, both differences, number of elements.
        self.packed += packed_int(0) + packed_int(ms) + packed_int(seq);
        let elements = if same {
            count + 3
        } else {
            self.packed += packed_int(count as i64);
            2 * count + 4
        };
        self.packed += packed_int(elements as i64);
        for pair in pairs.chunks_exact(2) {
            if !same {
                put_slice(&mut rest, &pair[0]);
                self.packed += packed_str(&pair[0]);
            }
            put_slice(&mut rest, &pair[1]);
            self.packed += packed_str(&pair[1]);
        }
        self.data.push(if same { SAME_FIELDS } else { 0 });
        put_slice(&mut self.data, &rest);
        self.live += 1;
    }

    /// All entries with their places, deleted ones as well.
    fn entries(&self, node_id: Id) -> impl Iterator<Item = (usize, Id, bool, Entry<'_>)> {
        let mut rest = &self.data[..];
        let whole = self.data.len();
        std::iter::from_fn(move || {
            let at = whole - rest.len();
            let (&flags, after) = rest.split_first()?;
            rest = after;
            let mut body = take_slice(&mut rest);
            let ms = unzigzag(take_varint(&mut body));
            let seq = unzigzag(take_varint(&mut body));
            let id = Id {
                ms: node_id.ms.wrapping_add(ms as u64),
                seq: node_id.seq.wrapping_add(seq as u64),
            };
            let entry = Entry {
                node: self,
                same_fields: flags & SAME_FIELDS != 0,
                body,
            };
            Some((at, id, flags & DELETED != 0, entry))
        })
    }

    fn last_id(&self, node_id: Id) -> Id {
        self.entries(node_id)
            .last()
            .map_or(node_id, |(_, id, _, _)| id)
    }
}

/// A node as a dump shows it: deleted entries are in it as well.
pub(crate) struct NodeView<'a> {
    id: Id,
    node: &'a Node,
}

impl<'a> NodeView<'a> {
    pub(crate) fn id(&self) -> Id {
        self.id
    }

    /// The fields of the first entry.
    pub(crate) fn fields(&self) -> &'a [Blob] {
        &self.node.fields
    }

    /// How many entries are there, and how many were deleted.
    pub(crate) fn counts(&self) -> (u32, u32) {
        (self.node.live, self.node.dead)
    }

    /// Each entry: its id, whether it was deleted, whether its fields are those of the node.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Id, bool, bool, Entry<'a>)> + use<'a> {
        let entries = self.node.entries(self.id);
        entries.map(|(_, id, deleted, entry)| (id, deleted, entry.same_fields, entry))
    }
}

/// An entry of a node that is loaded from a dump.
pub(crate) struct Stored {
    pub(crate) id: Id,
    pub(crate) deleted: bool,
    /// Fields and values.
    pub(crate) pairs: Vec<Bytes>,
}

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
    consumers: Vec<Option<Consumer>>,
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
        // Judged by the first and the last node, most others being full.
        let ends = [self.nodes.first_key_value(), self.nodes.last_key_value()];
        let node = ends
            .into_iter()
            .flatten()
            .map(|(_, node)| {
                size_of::<(Id, Node)>() + node.data.capacity() + 24 * node.fields.len()
            })
            .max();
        let nodes = node.unwrap_or(0) * self.nodes.len();
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

    /// Cuts off old entries; how many.
    pub(crate) fn trim(&mut self, trim: Trim) -> u64 {
        let mut removed = 0;
        while let Some(mut first) = self.nodes.first_entry() {
            if matches!(trim.limit, Limit::MaxLen(max) if self.len <= max) {
                break;
            }
            let node_id = *first.key();
            let node = first.get_mut();
            let live = u64::from(node.live);
            if trim.at_most > 0 && removed + live > trim.at_most {
                break;
            }
            let whole = match trim.limit {
                Limit::MaxLen(max) => self.len - live >= max,
                Limit::MinId(min) => node.last_id(node_id) < min,
            };
            if whole {
                self.remove_node(node_id);
                self.len -= live;
                removed += live;
                continue;
            }
            if trim.approximate {
                break;
            }
            let mut surplus = match trim.limit {
                Limit::MaxLen(max) => self.len - max,
                Limit::MinId(_) => u64::MAX,
            };
            let mut marked = Vec::new();
            for (at, id, deleted, _) in node.entries(node_id) {
                if surplus == 0 || matches!(trim.limit, Limit::MinId(min) if id >= min) {
                    break;
                }
                if !deleted {
                    marked.push(at);
                    surplus -= 1;
                }
            }
            for &at in &marked {
                node.data[at] |= DELETED;
            }
            node.live -= marked.len() as u32;
            node.dead += marked.len() as u32;
            self.len -= marked.len() as u64;
            removed += marked.len() as u64;
            break;
        }
        removed
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
