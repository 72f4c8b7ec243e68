//! A node: about a hundred entries, packed.

use bytes::Bytes;

use super::id::Id;
use crate::{number::parse_int, types::blob::Blob};

pub(super) const DELETED: u8 = 1;
const SAME_FIELDS: u8 = 2;

#[derive(Clone)]
pub(super) struct Node {
    /// The fields of the first entry.
    pub(super) fields: Vec<Blob>,
    /// Entries one after another: flags, length of the rest, and in the rest the id's difference
    /// to the node's, the fields unless they are those of the node, and the values.
    pub(super) data: Vec<u8>,
    pub(super) live: u32,
    pub(super) dead: u32,
    /// The size of Redis's listpack for this node, without the two counters.
    packed: usize,
}

/// An entry in place.
pub(crate) struct Entry<'a> {
    pub(super) node: &'a Node,
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
    pub(super) fn new<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Node {
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

    pub(super) fn packed(&self) -> usize {
        self.packed + packed_int(self.live.into()) + packed_int(self.dead.into())
    }

    pub(super) fn push(&mut self, node_id: Id, id: Id, pairs: &[Bytes]) {
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
    pub(super) fn entries(
        &self,
        node_id: Id,
    ) -> impl Iterator<Item = (usize, Id, bool, Entry<'_>)> {
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

    pub(super) fn last_id(&self, node_id: Id) -> Id {
        self.entries(node_id)
            .last()
            .map_or(node_id, |(_, id, _, _)| id)
    }
}

/// A node as a dump shows it: deleted entries are in it as well.
pub(crate) struct NodeView<'a> {
    pub(super) id: Id,
    pub(super) node: &'a Node,
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
