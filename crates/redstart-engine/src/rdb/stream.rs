//! Streams: their nodes as listpacks, then the counters, groups, consumers and what is pending.

use std::{collections::BTreeMap, io::Read};

use bytes::Bytes;

use super::{
    Fault,
    listpack::{self, Item},
    source::Source,
    write::Writer,
};
use crate::types::{
    blob::Blob,
    stream::{Group, Id, NodeView, Pending, Stored, Stream},
};

const DELETED: i64 = 1;
const SAME_FIELDS: i64 = 2;

/// Which form a stream has: each adds to the one before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    First,
    /// With the first id, the highest deleted id and both counters (Redis 7.0).
    Counters,
    /// With the time at which a consumer was last active (Redis 7.2).
    Active,
}

fn damaged() -> Fault {
    Fault::Damaged("a stream")
}

fn id_of(bytes: &[u8]) -> Option<Id> {
    let (ms, seq) = bytes.split_first_chunk::<8>()?;
    Some(Id {
        ms: u64::from_be_bytes(*ms),
        seq: u64::from_be_bytes(seq.try_into().ok()?),
    })
}

fn raw_id(id: Id) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id.ms.to_be_bytes());
    bytes[8..].copy_from_slice(&id.seq.to_be_bytes());
    bytes
}

fn id<R: Read>(source: &mut Source<R>) -> Result<Id, Fault> {
    Ok(Id {
        ms: source.length()?,
        seq: source.length()?,
    })
}

/// Unix milliseconds that can be subtracted from others.
fn time<R: Read>(source: &mut Source<R>) -> Result<i64, Fault> {
    source.time().map(|time| time.max(0))
}

/// A number that can be counted on.
fn count<R: Read>(source: &mut Source<R>) -> Result<u64, Fault> {
    source.length().map(|count| count.min(i64::MAX as u64))
}

pub(super) fn read<R: Read>(source: &mut Source<R>, form: Form) -> Result<Stream, Fault> {
    let mut stream = Stream::default();
    for _ in 0..source.length()? {
        let node_id = id_of(&source.string()?).ok_or_else(damaged)?;
        let data = source.string()?;
        read_node(&mut stream, node_id, &data)?;
    }
    let len = source.length()?;
    let last_id = id(source)?;
    if len != stream.len() || last_id < stream.last_id {
        return Err(damaged());
    }
    stream.last_id = last_id;
    stream.entries_added = len;
    if form >= Form::Counters {
        // The first id is known from the entries.
        id(source)?;
        stream.max_deleted_id = id(source)?;
        stream.entries_added = count(source)?;
    }
    for _ in 0..source.length()? {
        let name = Blob::new(&source.string()?);
        let group = read_group(source, &stream, form)?;
        if stream.groups.insert(name, group).is_some() {
            return Err(damaged());
        }
    }
    Ok(stream)
}

/// Takes elements from the front, each checked.
struct Items<'a>(std::vec::IntoIter<Item<'a>>);

impl<'a> Items<'a> {
    fn next(&mut self) -> Result<Item<'a>, Fault> {
        self.0.next().ok_or_else(damaged)
    }

    fn int(&mut self) -> Result<i64, Fault> {
        self.next()?.int().ok_or_else(damaged)
    }

    /// A number of elements, of which there cannot be more than are left.
    fn count(&mut self) -> Result<usize, Fault> {
        let count = usize::try_from(self.int()?).map_err(|_| damaged())?;
        if count > self.0.len() {
            return Err(damaged());
        }
        Ok(count)
    }
}

fn read_node(stream: &mut Stream, node_id: Id, data: &[u8]) -> Result<(), Fault> {
    let mut items = Items(listpack::read(data)?.into_iter());
    let (live, dead) = (items.int()?, items.int()?);
    let count = items.count()?;
    let mut fields = Vec::with_capacity(count);
    for _ in 0..count {
        fields.push(items.next()?.bytes());
    }
    if items.int()? != 0 {
        return Err(damaged());
    }
    let mut entries = Vec::new();
    while items.0.len() > 0 {
        entries.push(read_entry(&mut items, node_id, &fields)?);
    }
    let deleted = entries.iter().filter(|entry| entry.deleted).count() as i64;
    if deleted != dead || entries.len() as i64 - deleted != live {
        return Err(damaged());
    }
    let fields = fields.iter().map(Blob::from).collect();
    if stream.load_node(node_id, fields, &entries) {
        Ok(())
    } else {
        Err(damaged())
    }
}

fn read_entry(items: &mut Items<'_>, node_id: Id, fields: &[Bytes]) -> Result<Stored, Fault> {
    let flags = items.int()?;
    let (ms, seq) = (items.int()?, items.int()?);
    let same = flags & SAME_FIELDS != 0;
    let count = if same { fields.len() } else { items.count()? };
    if count * (2 - usize::from(same)) > items.0.len() {
        return Err(damaged());
    }
    let mut pairs = Vec::with_capacity(2 * count);
    let mut known = fields.iter().filter(|_| same);
    for _ in 0..count {
        let field = match known.next() {
            Some(field) => field.clone(),
            None => items.next()?.bytes(),
        };
        pairs.push(field);
        pairs.push(items.next()?.bytes());
    }
    let elements = if same { count + 3 } else { 2 * count + 4 };
    if items.int()? != elements as i64 {
        return Err(damaged());
    }
    Ok(Stored {
        id: Id {
            ms: node_id.ms.wrapping_add(ms as u64),
            seq: node_id.seq.wrapping_add(seq as u64),
        },
        deleted: flags & DELETED != 0,
        pairs,
    })
}

fn read_group<R: Read>(
    source: &mut Source<R>,
    stream: &Stream,
    form: Form,
) -> Result<Group, Fault> {
    let mut group = Group::default();
    group.last_id = id(source)?;
    group.entries_read = if form >= Form::Counters {
        // A count below zero but -1 has wrapped around.
        Some(source.length()? as i64).filter(|&read| read != -1)
    } else {
        stream.count_up_to(group.last_id)
    };
    let mut waiting = BTreeMap::new();
    for _ in 0..source.length()? {
        let id = id_of(&source.array::<16>()?).ok_or_else(damaged)?;
        let (time, count) = (time(source)?, count(source)?);
        if waiting.insert(id, (time, count)).is_some() {
            return Err(damaged());
        }
    }
    for _ in 0..source.length()? {
        let name = source.string()?;
        let seen = time(source)?;
        if form >= Form::Active {
            source.time()?;
        }
        let consumer = group.load_consumer(&name, seen).ok_or_else(damaged)?;
        for _ in 0..source.length()? {
            let id = id_of(&source.array::<16>()?).ok_or_else(damaged)?;
            // Each pending entry is one consumer's.
            let (time, count) = waiting.remove(&id).ok_or_else(damaged)?;
            group.assign(
                id,
                Pending {
                    consumer,
                    time,
                    count,
                },
            );
        }
    }
    if waiting.is_empty() {
        Ok(group)
    } else {
        Err(damaged())
    }
}

pub(super) fn write(writer: &mut Writer, stream: &Stream) {
    writer.length(stream.node_count() as u64);
    for node in stream.nodes() {
        writer.string(&raw_id(node.id()));
        writer.string(&write_node(&node));
    }
    let put_id = |writer: &mut Writer, id: Id| {
        writer.length(id.ms);
        writer.length(id.seq);
    };
    writer.length(stream.len());
    put_id(writer, stream.last_id);
    put_id(writer, stream.first_id());
    put_id(writer, stream.max_deleted_id);
    writer.length(stream.entries_added);
    writer.length(stream.groups.len() as u64);
    for (name, group) in &stream.groups {
        writer.string(name);
        put_id(writer, group.last_id);
        writer.length(group.entries_read.unwrap_or(-1) as u64);
        writer.length(group.pending.len() as u64);
        for (&id, pending) in &group.pending {
            writer.raw(&raw_id(id));
            writer.raw(&pending.time.to_le_bytes());
            writer.length(pending.count);
        }
        writer.length(group.consumer_count() as u64);
        for consumer in group.consumers() {
            writer.string(&consumer.name);
            writer.raw(&consumer.seen.to_le_bytes());
            writer.length(consumer.pending.len() as u64);
            for &id in &consumer.pending {
                writer.raw(&raw_id(id));
            }
        }
    }
}

fn write_node(node: &NodeView<'_>) -> Vec<u8> {
    let mut list = listpack::Writer::default();
    let (live, dead) = node.counts();
    list.int(live.into());
    list.int(dead.into());
    list.int(node.fields().len() as i64);
    for field in node.fields() {
        list.text(field);
    }
    list.int(0);
    for (id, deleted, same, entry) in node.entries() {
        let mut flags = 0;
        flags |= if deleted { DELETED } else { 0 };
        flags |= if same { SAME_FIELDS } else { 0 };
        list.int(flags);
        list.int(id.ms.wrapping_sub(node.id().ms) as i64);
        list.int(id.seq.wrapping_sub(node.id().seq) as i64);
        let mut pairs: Vec<(&[u8], &[u8])> = Vec::new();
        entry.each(|field, value| pairs.push((field, value)));
        if !same {
            list.int(pairs.len() as i64);
        }
        for (field, value) in &pairs {
            if !same {
                list.text(field);
            }
            list.text(value);
        }
        let elements = if same {
            pairs.len() + 3
        } else {
            2 * pairs.len() + 4
        };
        list.int(elements as i64);
    }
    list.finish()
}
