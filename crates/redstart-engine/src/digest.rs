//! DEBUG DIGEST: a number for all data, the same as Redis's for the same data.
//!
//! Keys and the members of unordered collections are mixed so that their order does not matter.

use sha1_smol::Sha1;

use crate::{
    engine::State,
    keyspace::{Entry, NEVER},
    number::double_text,
    types::{Value, stream::Id},
};

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Digest([u8; 20]);

impl Digest {
    /// Adds something whose place does not matter.
    fn add(&mut self, bytes: &[u8]) {
        let hash = Sha1::from(bytes).digest().bytes();
        for (own, other) in self.0.iter_mut().zip(hash) {
            *own ^= other;
        }
    }

    /// Adds something that comes after what was added before.
    fn mix(&mut self, bytes: &[u8]) {
        self.add(bytes);
        self.0 = Sha1::from(self.0).digest().bytes();
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The digest of all databases.
pub(crate) fn of_all(state: &State) -> Digest {
    let mut all = Digest::default();
    for (number, db) in state.dbs.iter().enumerate() {
        if db.len() == 0 {
            continue;
        }
        all.mix(&(number as u32).to_be_bytes());
        for (key, entry) in db.iter() {
            let mut own = Digest::default();
            own.mix(key);
            add_value(&mut own, entry);
            all.add(&own.0);
        }
    }
    all
}

/// The digest of a value, without its key.
pub(crate) fn of_value(entry: &Entry) -> Digest {
    let mut own = Digest::default();
    add_value(&mut own, entry);
    own
}

fn add_value(own: &mut Digest, entry: &Entry) {
    let kind: u32 = match &entry.value {
        Value::Str(_) => 0,
        Value::List(_) => 1,
        Value::Set(_) => 2,
        Value::SortedSet(_) => 3,
        Value::Hash(_) => 4,
        Value::Bloom(_) => 5,
        Value::Stream(_) => 6,
    };
    own.mix(&kind.to_be_bytes());
    let mut pair = |first: &[u8], second: &[u8]| {
        let mut both = Digest::default();
        both.mix(first);
        both.mix(second);
        own.add(&both.0);
    };
    match &entry.value {
        Value::Str(value) => own.mix(&value.to_bytes()),
        Value::List(list) => list.iter().for_each(|item| own.mix(item)),
        Value::Set(set) => set.iter().for_each(|member| own.add(&member)),
        Value::SortedSet(set) => {
            for (member, score) in set.iter() {
                pair(member, double_text(score).as_bytes());
            }
        }
        Value::Hash(hash) => {
            for (field, value) in hash.iter() {
                pair(field, value);
            }
        }
        Value::Stream(stream) => {
            stream.range(Id::ZERO, Id::MAX, |id, entry| {
                own.mix(format!("{}.{}", id.ms, id.seq).as_bytes());
                entry.each(|field, value| {
                    own.mix(field);
                    own.mix(value);
                });
                true
            });
        }
        // As Redis does for modules that have no digest of their own.
        Value::Bloom(_) => {}
    }
    if entry.deadline != NEVER {
        own.add(b"!!expire!!");
    }
}
