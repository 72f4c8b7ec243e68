//! Values of every type and encoding that a server has ever written.

use std::io::Read;

use super::{
    Fault, intset,
    listpack::{self, Item},
    module,
    source::Source,
    stream::{self, Form},
    ziplist,
};
use crate::{
    config::Config,
    number::parse_double,
    types::{
        Value, blob::Blob, dict::Dict, hash::Hash, list::List, set::Set, sorted_set::SortedSet,
        string::Str,
    },
};

/// The byte before a value that says how it is written.
pub(super) mod kind {
    pub(in crate::rdb) const STRING: u8 = 0;
    pub(in crate::rdb) const LIST: u8 = 1;
    pub(in crate::rdb) const SET: u8 = 2;
    pub(in crate::rdb) const ZSET: u8 = 3;
    pub(in crate::rdb) const HASH: u8 = 4;
    pub(in crate::rdb) const ZSET_2: u8 = 5;
    pub(in crate::rdb) const MODULE_2: u8 = 7;
    pub(in crate::rdb) const HASH_ZIPMAP: u8 = 9;
    pub(in crate::rdb) const LIST_ZIPLIST: u8 = 10;
    pub(in crate::rdb) const SET_INTSET: u8 = 11;
    pub(in crate::rdb) const ZSET_ZIPLIST: u8 = 12;
    pub(in crate::rdb) const HASH_ZIPLIST: u8 = 13;
    pub(in crate::rdb) const LIST_QUICKLIST: u8 = 14;
    pub(in crate::rdb) const STREAM: u8 = 15;
    pub(in crate::rdb) const HASH_LISTPACK: u8 = 16;
    pub(in crate::rdb) const ZSET_LISTPACK: u8 = 17;
    pub(in crate::rdb) const LIST_QUICKLIST_2: u8 = 18;
    pub(in crate::rdb) const STREAM_2: u8 = 19;
    pub(in crate::rdb) const SET_LISTPACK: u8 = 20;
    pub(in crate::rdb) const STREAM_3: u8 = 21;
    /// Valkey 9: fields with deadlines. Before Redis 7.4 was finished it had another meaning there.
    pub(in crate::rdb) const HASH_DEADLINES: u8 = 22;
    /// Redis 7.4: fields with deadlines.
    pub(in crate::rdb) const HASH_METADATA: u8 = 24;
    pub(in crate::rdb) const HASH_LISTPACK_EX: u8 = 25;
}

/// A quicklist's node that is one string, not a listpack.
pub(super) const PLAIN: u64 = 1;
pub(super) const PACKED: u64 = 2;

/// What was read for a key.
pub(super) enum Loaded {
    Value(Value),
    /// A value of a module that is not known.
    Skipped(String),
}

/// What the reader needs to know of the world.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) config: &'a Config,
    /// The version of the file or payload.
    pub(super) version: u32,
    /// Unix milliseconds: fields whose time is over are left out.
    pub(super) now_ms: i64,
}

/// Reads a value whose type was read.
pub(super) fn value<R: Read>(
    source: &mut Source<R>,
    kind: u8,
    setting: Setting<'_>,
) -> Result<Loaded, Fault> {
    let config = setting.config;
    let value = match kind {
        kind::STRING => Value::Str(Str::new(&source.string()?)),
        kind::LIST | kind::LIST_ZIPLIST | kind::LIST_QUICKLIST | kind::LIST_QUICKLIST_2 => {
            let list = list(source, kind)?;
            if list.is_empty() {
                return Err(Fault::Empty);
            }
            Value::List(Box::new(list))
        }
        kind::SET | kind::SET_INTSET | kind::SET_LISTPACK => {
            Value::Set(Box::new(set(source, kind, config)?))
        }
        kind::ZSET | kind::ZSET_2 | kind::ZSET_ZIPLIST | kind::ZSET_LISTPACK => {
            Value::SortedSet(Box::new(sorted_set(source, kind, config)?))
        }
        kind::HASH | kind::HASH_ZIPMAP | kind::HASH_ZIPLIST | kind::HASH_LISTPACK => {
            Value::Hash(Box::new(hash(source, kind, config)?))
        }
        kind::HASH_DEADLINES if setting.version >= super::VALKEY_FROM => {
            Value::Hash(Box::new(hash_with_deadlines(source, kind, setting)?))
        }
        kind::HASH_METADATA | kind::HASH_LISTPACK_EX => {
            Value::Hash(Box::new(hash_with_deadlines(source, kind, setting)?))
        }
        kind::STREAM => Value::Stream(Box::new(stream::read(source, Form::First)?)),
        kind::STREAM_2 => Value::Stream(Box::new(stream::read(source, Form::Counters)?)),
        kind::STREAM_3 => Value::Stream(Box::new(stream::read(source, Form::Active)?)),
        kind::MODULE_2 => match module::read(source)? {
            module::Stored::Bloom(bloom) => Value::Bloom(Box::new(bloom)),
            module::Stored::Unknown(name) => return Ok(Loaded::Skipped(name)),
        },
        _ => return Err(Fault::Damaged("a type that is not known")),
    };
    Ok(Loaded::Value(value))
}

fn list<R: Read>(source: &mut Source<R>, kind: u8) -> Result<List, Fault> {
    let mut items: Vec<Blob> = Vec::new();
    if kind == kind::LIST_ZIPLIST {
        let data = source.string()?;
        items.extend(ziplist::read(&data)?.into_iter().map(Item::blob));
        return Ok(items.into_iter().collect());
    }
    for _ in 0..source.length()? {
        let form = match kind {
            kind::LIST => PLAIN,
            kind::LIST_QUICKLIST_2 => source.length()?,
            _ => PACKED,
        };
        let data = source.string()?;
        match form {
            PLAIN => items.push(Blob::new(&data)),
            PACKED => {
                let node = if kind == kind::LIST_QUICKLIST {
                    ziplist::read(&data)?
                } else {
                    listpack::read(&data)?
                };
                items.extend(node.into_iter().map(Item::blob));
            }
            _ => return Err(Fault::Damaged("a node of a list")),
        }
    }
    Ok(items.into_iter().collect())
}

fn set<R: Read>(source: &mut Source<R>, kind: u8, config: &Config) -> Result<Set, Fault> {
    const DAMAGED: Fault = Fault::Damaged("a set");
    let mut set = Set::default();
    let mut add = |member: &[u8]| {
        if set.add(member, config) {
            Ok(())
        } else {
            Err(DAMAGED)
        }
    };
    match kind {
        kind::SET => {
            for _ in 0..source.length()? {
                add(&source.string()?)?;
            }
        }
        kind::SET_INTSET => {
            let ints = intset::read(&source.string()?)?;
            if ints.len() <= config.set_max_intset_entries {
                set = Set::Ints(ints);
            } else {
                for int in ints {
                    add(&Item::Int(int).blob())?;
                }
            }
        }
        _ => {
            let data = source.string()?;
            for item in listpack::read(&data)? {
                add(&item.blob())?;
            }
        }
    }
    if set.is_empty() {
        return Err(Fault::Empty);
    }
    Ok(set)
}

/// A score as text, with three lengths that stand for numbers without one.
fn score_text<R: Read>(source: &mut Source<R>) -> Result<f64, Fault> {
    match source.byte()? {
        253 => Ok(f64::NAN),
        254 => Ok(f64::INFINITY),
        255 => Ok(f64::NEG_INFINITY),
        len => {
            let text = source.bytes(len.into())?;
            parse_double(&text).ok_or(Fault::Damaged("a score"))
        }
    }
}

fn item_score(item: Item<'_>) -> Option<f64> {
    match item {
        Item::Int(value) => Some(value as f64),
        Item::Str(text) => parse_double(text),
    }
}

fn sorted_set<R: Read>(
    source: &mut Source<R>,
    kind: u8,
    config: &Config,
) -> Result<SortedSet, Fault> {
    const DAMAGED: Fault = Fault::Damaged("a sorted set");
    let mut scores: Dict<f64> = Dict::new();
    let mut add = |member: &[u8], score: f64| {
        if score.is_nan() || scores.contains(member) {
            return Err(DAMAGED);
        }
        scores.insert_new(member, score);
        Ok(())
    };
    if matches!(kind, kind::ZSET | kind::ZSET_2) {
        for _ in 0..source.length()? {
            let member = source.string()?;
            let score = if kind == kind::ZSET_2 {
                source.double()?
            } else {
                score_text(source)?
            };
            add(&member, score)?;
        }
    } else {
        let data = source.string()?;
        let items = if kind == kind::ZSET_ZIPLIST {
            ziplist::read(&data)?
        } else {
            listpack::read(&data)?
        };
        let mut pairs = items.chunks_exact(2);
        for pair in &mut pairs {
            add(&pair[0].blob(), item_score(pair[1]).ok_or(DAMAGED)?)?;
        }
        if !pairs.remainder().is_empty() {
            return Err(DAMAGED);
        }
    }
    if scores.is_empty() {
        return Err(Fault::Empty);
    }
    let mut set = SortedSet::from_scores(scores);
    set.pack(config);
    Ok(set)
}

const BAD_HASH: Fault = Fault::Damaged("a hash");

fn hash<R: Read>(source: &mut Source<R>, kind: u8, config: &Config) -> Result<Hash, Fault> {
    let mut hash = Hash::default();
    if kind == kind::HASH {
        for _ in 0..source.length()? {
            let (field, value) = (source.string()?, source.string()?);
            if !hash.set(&field, &value, config) {
                return Err(BAD_HASH);
            }
        }
    } else {
        let data = source.string()?;
        let items = match kind {
            kind::HASH_ZIPMAP => ziplist::read_zipmap(&data)?,
            kind::HASH_ZIPLIST => ziplist::read(&data)?,
            _ => listpack::read(&data)?,
        };
        let mut pairs = items.chunks_exact(2);
        for pair in &mut pairs {
            if !hash.set(&pair[0].blob(), &pair[1].blob(), config) {
                return Err(BAD_HASH);
            }
        }
        if !pairs.remainder().is_empty() {
            return Err(BAD_HASH);
        }
    }
    if hash.is_empty() {
        return Err(Fault::Empty);
    }
    Ok(hash)
}

/// A hash whose fields have deadlines.
fn hash_with_deadlines<R: Read>(
    source: &mut Source<R>,
    kind: u8,
    setting: Setting<'_>,
) -> Result<Hash, Fault> {
    let mut hash = Hash::default();
    let mut add = |field: &[u8], value: &[u8], deadline: Option<i64>| {
        // 0 would read as none, and HPEXPIREAT takes nothing below it.
        let deadline = deadline.map(|deadline| deadline.max(1));
        if deadline.is_some_and(|deadline| deadline < setting.now_ms) {
            return Ok(());
        }
        if !hash.set(field, value, setting.config) {
            return Err(BAD_HASH);
        }
        if let Some(deadline) = deadline {
            hash.set_deadline(field, deadline);
        }
        Ok(())
    };
    match kind {
        kind::HASH_DEADLINES => {
            for _ in 0..source.length()? {
                let (field, value) = (source.string()?, source.string()?);
                let deadline = source.time()?;
                add(&field, &value, (deadline >= 0).then_some(deadline))?;
            }
        }
        kind::HASH_METADATA => {
            let earliest = source.time()?;
            for _ in 0..source.length()? {
                let after = source.length()?;
                let (field, value) = (source.string()?, source.string()?);
                let deadline = match i64::try_from(after).map_err(|_| BAD_HASH)? {
                    0 => None,
                    after => Some(earliest.checked_add(after - 1).ok_or(BAD_HASH)?),
                };
                add(&field, &value, deadline)?;
            }
        }
        _ => {
            source.time()?;
            let data = source.string()?;
            let items = listpack::read(&data)?;
            let mut triples = items.chunks_exact(3);
            for triple in &mut triples {
                let deadline = triple[2].int().ok_or(BAD_HASH)?;
                let deadline = (deadline > 0).then_some(deadline);
                add(&triple[0].blob(), &triple[1].blob(), deadline)?;
            }
            if !triples.remainder().is_empty() {
                return Err(BAD_HASH);
            }
        }
    }
    if hash.is_empty() {
        return Err(Fault::Empty);
    }
    Ok(hash)
}
