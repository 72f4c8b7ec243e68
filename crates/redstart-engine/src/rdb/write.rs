//! Values as Redis 7.0 writes them, which Valkey loads as well; hashes with fields that expire as Redis 7.4 or
//! Valkey 9 does.

use super::{
    intset, listpack, lzf, module,
    read::{PACKED, PLAIN, kind},
    stream,
};
use crate::{
    compat::Compat,
    keyspace::NEVER,
    number::{double_text, parse_int},
    types::{Value, hash::Hash, list::List, set::Set, sorted_set::SortedSet},
};

/// A node of a list is about this long at most: `list-max-listpack-size -2`.
const NODE_BYTES: usize = 8192;
/// What a new element is thought to add to a node beside its own bytes.
const ELEMENT: usize = 8;
/// Longer elements have a node for themselves.
const LARGE: usize = 1 << 30;
/// Shorter strings are not compressed.
const COMPRESSED_FROM: usize = 21;

/// Whose format is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    /// Redis 7.0, which Valkey loads as well. It has no fields that expire.
    #[default]
    Redis70,
    Redis74,
    Valkey9,
}

impl Form {
    /// The form for a server that has these values.
    pub(super) fn of<'a>(compat: Compat, values: impl IntoIterator<Item = &'a Value>) -> Form {
        match compat {
            // It cannot say it otherwise.
            Compat::Redis70 if values.into_iter().any(has_deadlines) => Form::Valkey9,
            Compat::Redis70 => Form::Redis70,
            Compat::Valkey9 => Form::Valkey9,
            _ => Form::Redis74,
        }
    }

    /// The form that most servers load and that can hold these values.
    pub(super) fn oldest<'a>(compat: Compat, values: impl IntoIterator<Item = &'a Value>) -> Form {
        match (values.into_iter().any(has_deadlines), compat) {
            (false, _) => Form::Redis70,
            (true, Compat::Redis70 | Compat::Valkey9) => Form::Valkey9,
            (true, _) => Form::Redis74,
        }
    }

    pub(super) fn version(self) -> u32 {
        match self {
            Form::Redis70 => 10,
            Form::Redis74 => 12,
            Form::Valkey9 => 80,
        }
    }

    /// How a file begins.
    pub(super) fn signature(self) -> String {
        match self {
            Form::Valkey9 => format!("VALKEY{:03}", self.version()),
            _ => format!("REDIS{:04}", self.version()),
        }
    }
}

fn has_deadlines(value: &Value) -> bool {
    matches!(value, Value::Hash(hash) if hash.next_deadline() != NEVER)
}

/// Collects what is written.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) out: Vec<u8>,
    pub(super) form: Form,
    compressor: lzf::Compressor,
    /// Long strings are compressed.
    compress: bool,
}

impl Writer {
    pub(super) fn new(form: Form, compress: bool) -> Writer {
        Writer {
            form,
            compress,
            ..Writer::default()
        }
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(super) fn length(&mut self, len: u64) {
        match len {
            0..64 => self.out.push(len as u8),
            64..16_384 => self.out.extend([0x40 | (len >> 8) as u8, len as u8]),
            16_384..=0xFFFF_FFFF => {
                self.out.push(0x80);
                self.out.extend((len as u32).to_be_bytes());
            }
            _ => {
                self.out.push(0x81);
                self.out.extend(len.to_be_bytes());
            }
        }
    }

    /// A string: small integers as such, long strings compressed if that makes them shorter.
    pub(super) fn string(&mut self, text: &[u8]) {
        if text.len() <= 11
            && let Some(value) = parse_int(text)
            && let Ok(value) = i32::try_from(value)
        {
            let bytes = value.to_le_bytes();
            let (encoding, len) = match value {
                -128..=127 => (0xC0, 1),
                -32_768..=32_767 => (0xC1, 2),
                _ => (0xC2, 4),
            };
            self.out.push(encoding);
            return self.raw(&bytes[..len]);
        }
        if self.compress
            && text.len() >= COMPRESSED_FROM
            && let Some(packed) = self.compressor.compress(text, text.len() - 4)
        {
            self.out.push(0xC3);
            self.length(packed.len() as u64);
            self.length(text.len() as u64);
            return self.raw(&packed);
        }
        self.length(text.len() as u64);
        self.raw(text);
    }

    /// The byte that says how a value is written.
    pub(super) fn kind(&mut self, value: &Value) {
        self.out.push(match value {
            Value::Str(_) => kind::STRING,
            Value::List(_) => kind::LIST_QUICKLIST_2,
            Value::Set(set) => match **set {
                Set::Ints(_) => kind::SET_INTSET,
                Set::Table(_) => kind::SET,
            },
            Value::SortedSet(set) if set.is_packed() => kind::ZSET_LISTPACK,
            Value::SortedSet(_) => kind::ZSET_2,
            Value::Hash(hash) if matches!(**hash, Hash::Packed(_)) => kind::HASH_LISTPACK,
            Value::Hash(_) if has_deadlines(value) => match self.form {
                Form::Redis74 => kind::HASH_METADATA,
                Form::Redis70 | Form::Valkey9 => kind::HASH_DEADLINES,
            },
            Value::Hash(_) => kind::HASH,
            Value::Stream(_) => kind::STREAM_2,
            Value::Bloom(_) => kind::MODULE_2,
        });
    }

    pub(super) fn value(&mut self, value: &Value) {
        match value {
            Value::Str(text) => self.string(&text.as_cow()),
            Value::List(list) => self.list(list),
            Value::Set(set) => match &**set {
                Set::Ints(ints) => self.string(&intset::write(ints)),
                Set::Table(members) => {
                    self.length(members.len() as u64);
                    for member in members.keys() {
                        self.string(member);
                    }
                }
            },
            Value::SortedSet(set) => self.sorted_set(set),
            Value::Hash(hash) if matches!(**hash, Hash::Packed(_)) => {
                let mut pack = listpack::Writer::default();
                for (field, value) in hash.iter() {
                    pack.text(field);
                    pack.text(value);
                }
                self.string(&pack.finish());
            }
            Value::Hash(hash) if has_deadlines(value) => self.expiring_hash(hash),
            Value::Hash(hash) => {
                self.length(hash.len() as u64);
                for (field, value) in hash.iter() {
                    self.string(field);
                    self.string(value);
                }
            }
            Value::Stream(log) => stream::write(self, log),
            Value::Bloom(bloom) => module::write_bloom(self, bloom),
        }
    }

    /// A hash with fields that expire.
    fn expiring_hash(&mut self, hash: &Hash) {
        let earliest = hash.next_deadline();
        if self.form == Form::Redis74 {
            self.raw(&earliest.to_le_bytes());
        }
        self.length(hash.len() as u64);
        for (field, value) in hash.iter() {
            let deadline = hash.deadline(field);
            if self.form == Form::Redis74 {
                let after = deadline.map_or(0, |deadline| deadline - earliest + 1);
                self.length(after as u64);
                self.string(field);
                self.string(value);
            } else {
                self.string(field);
                self.string(value);
                self.raw(&deadline.unwrap_or(-1).to_le_bytes());
            }
        }
    }

    /// A list in nodes as RPUSH would have filled them.
    fn list(&mut self, list: &List) {
        let mut nodes: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut pack = listpack::Writer::default();
        let mut used = 0;
        for item in list.iter() {
            let large = item.len() >= LARGE;
            if used > 0 && (large || pack.len() + item.len() + ELEMENT > NODE_BYTES) {
                nodes.push((PACKED, std::mem::take(&mut pack).finish()));
                used = 0;
            }
            if large {
                nodes.push((PLAIN, item.to_vec()));
            } else {
                pack.text(item);
                used += 1;
            }
        }
        if used > 0 {
            nodes.push((PACKED, pack.finish()));
        }
        self.length(nodes.len() as u64);
        for (form, data) in nodes {
            self.length(form);
            self.string(&data);
        }
    }

    fn sorted_set(&mut self, set: &SortedSet) {
        if set.is_packed() {
            let mut pack = listpack::Writer::default();
            set.each(0, set.len(), false, |member, score| {
                pack.text(member);
                match whole(score) {
                    Some(score) => pack.int(score),
                    None => pack.text(double_text(score).as_bytes()),
                }
            });
            return self.string(&pack.finish());
        }
        self.length(set.len() as u64);
        // From the highest down: the loader appends at one end.
        set.each(0, set.len(), true, |member, score| {
            self.string(member);
            self.raw(&score.to_le_bytes());
        });
    }
}

/// The integer that a score is, in a listpack's eyes.
fn whole(score: f64) -> Option<i64> {
    const EXACT: f64 = (1u64 << 52) as f64;
    let fits = (1.0 - EXACT..=EXACT).contains(&score) && score.fract() == 0.0;
    fits.then_some(score as i64)
}
