//! Sets.

use super::{
    blob::Blob,
    dict::{Dict, Slot},
};
use crate::{
    config::Config,
    number::parse_int,
    random::{Draw, Random},
};

/// A set of strings; sorted integers as long as it holds nothing else and not too many of them.
#[derive(Clone)]
pub(crate) enum Set {
    Ints(Vec<i64>),
    Table(Dict<()>),
}

impl Default for Set {
    fn default() -> Set {
        Set::Ints(Vec::new())
    }
}

/// The integer that a member is, in an intset's eyes.
fn as_int(member: &[u8]) -> Option<i64> {
    if member.len() > 20 {
        None
    } else {
        parse_int(member)
    }
}

fn int_blob(value: i64) -> Blob {
    Blob::new(itoa::Buffer::new().format(value).as_bytes())
}

impl Set {
    pub(crate) fn len(&self) -> usize {
        match self {
            Set::Ints(ints) => ints.len(),
            Set::Table(dict) => dict.len(),
        }
    }

    /// About how many bytes are held on the heap.
    pub(crate) fn heap_size(&self) -> usize {
        let contents = match self {
            Set::Ints(ints) => ints.capacity() * size_of::<i64>(),
            Set::Table(dict) => dict.heap_size(|()| 0),
        };
        size_of::<Set>() + contents
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn encoding(&self) -> &'static str {
        match self {
            Set::Ints(_) => "intset",
            Set::Table(_) => "hashtable",
        }
    }

    pub(crate) fn contains(&self, member: &[u8]) -> bool {
        match self {
            Set::Ints(ints) => as_int(member).is_some_and(|int| ints.binary_search(&int).is_ok()),
            Set::Table(dict) => dict.contains(member),
        }
    }

    fn become_table(&mut self) {
        if let Set::Ints(ints) = self {
            let mut dict = Dict::with_capacity(ints.len() * 2);
            for int in ints.drain(..) {
                dict.insert_new(&int_blob(int), ());
            }
            *self = Set::Table(dict);
        }
    }

    /// Adds a member; whether it is new.
    pub(crate) fn add(&mut self, member: &[u8], config: &Config) -> bool {
        if let Set::Ints(ints) = self {
            match as_int(member) {
                Some(int) => {
                    let Err(at) = ints.binary_search(&int) else {
                        return false;
                    };
                    ints.insert(at, int);
                    if ints.len() > config.set_max_intset_entries {
                        self.become_table();
                    }
                    return true;
                }
                None => self.become_table(),
            }
        }
        match self {
            Set::Table(dict) => {
                let new = !dict.contains(member);
                if new {
                    dict.insert_new(member, ());
                }
                new
            }
            Set::Ints(_) => unreachable!("made a table above"),
        }
    }

    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        match self {
            Set::Ints(ints) => match as_int(member).map(|int| ints.binary_search(&int)) {
                Some(Ok(at)) => {
                    ints.remove(at);
                    true
                }
                _ => false,
            },
            Set::Table(dict) => {
                let held = dict.remove(member).is_some();
                if dict.is_sparse() {
                    dict.compact();
                }
                held
            }
        }
    }

    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = Blob> + '_> {
        match self {
            Set::Ints(ints) => Box::new(ints.iter().map(|&int| int_blob(int))),
            Set::Table(dict) => Box::new(dict.keys().cloned()),
        }
    }

    /// What is at a place that [`Draw`] gave.
    pub(crate) fn at(&self, slot: Slot) -> Option<Blob> {
        match self {
            Set::Ints(ints) => ints.get(slot as usize).map(|&int| int_blob(int)),
            Set::Table(dict) => dict.at(slot).map(|(member, _)| member.clone()),
        }
    }

    /// SSCAN's step: an intset comes whole.
    pub(crate) fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(&[u8])) -> u64 {
        match self {
            Set::Ints(ints) => {
                ints.iter().for_each(|&int| visit(&int_blob(int)));
                0
            }
            Set::Table(dict) => dict.scan(cursor, count, |member, _| visit(member)),
        }
    }
}

impl Draw for Set {
    fn len(&self) -> usize {
        Set::len(self)
    }

    fn places(&self) -> usize {
        match self {
            Set::Ints(ints) => ints.len(),
            Set::Table(dict) => dict.slots(),
        }
    }

    fn is_taken(&self, place: Slot) -> bool {
        self.at(place).is_some()
    }

    fn draw(&self, random: &mut Random) -> Option<Slot> {
        match self {
            Set::Ints(ints) if ints.is_empty() => None,
            Set::Ints(ints) => Some(random.below(ints.len()) as Slot),
            Set::Table(dict) => dict.random(random),
        }
    }
}
