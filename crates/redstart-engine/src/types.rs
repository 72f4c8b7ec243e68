//! The data structures behind the keys.

pub(crate) mod blob;
pub(crate) mod bloom;
pub(crate) mod dict;
pub(crate) mod geo;
pub(crate) mod hash;
pub(crate) mod hyperloglog;
pub(crate) mod list;
pub(crate) mod set;
pub(crate) mod sorted_set;
pub(crate) mod stream;
pub(crate) mod string;

use bloom::Bloom;
use hash::Hash;
use list::List;
use set::Set;
use sorted_set::SortedSet;
use stream::Stream;
use string::Str;

/// What a key holds.
#[derive(Clone)]
pub(crate) enum Value {
    Str(Str),
    List(Box<List>),
    Hash(Box<Hash>),
    Set(Box<Set>),
    SortedSet(Box<SortedSet>),
    Stream(Box<Stream>),
    Bloom(Box<Bloom>),
}

impl Value {
    /// What TYPE says.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Str(_) => "string",
            Value::List(_) => "list",
            Value::Hash(_) => "hash",
            Value::Set(_) => "set",
            Value::SortedSet(_) => "zset",
            Value::Stream(_) => "stream",
            Value::Bloom(_) => "MBbloom--",
        }
    }

    /// About how many bytes the value holds on the heap.
    pub(crate) fn heap_size(&self) -> usize {
        match self {
            Value::Str(value) => value.heap_size(),
            Value::List(value) => value.heap_size(),
            Value::Hash(value) => value.heap_size(),
            Value::Set(value) => value.heap_size(),
            Value::SortedSet(value) => value.heap_size(),
            Value::Stream(value) => value.heap_size(),
            Value::Bloom(value) => value.size() as usize,
        }
    }

    /// How many parts have to be freed one by one.
    pub(crate) fn elements(&self) -> usize {
        match self {
            Value::Str(_) | Value::Bloom(_) => 1,
            Value::List(value) => value.len(),
            Value::Hash(value) => value.len(),
            Value::Set(value) => value.len(),
            Value::SortedSet(value) => value.len(),
            Value::Stream(value) => value.len() as usize,
        }
    }

    /// What OBJECT ENCODING says.
    pub(crate) fn encoding(&self) -> &'static str {
        match self {
            Value::Str(value) => value.encoding(),
            Value::List(_) => "quicklist",
            Value::Hash(value) => value.encoding(),
            Value::Set(value) => value.encoding(),
            Value::SortedSet(value) => value.encoding(),
            Value::Stream(_) => "stream",
            Value::Bloom(_) => "raw",
        }
    }
}

/// A type that a [`Value`] may hold; lets [`crate::context::Ctx`] look keys up by type.
pub(crate) trait Typed: Sized {
    fn of(value: &Value) -> Option<&Self>;
    fn of_mut(value: &mut Value) -> Option<&mut Self>;
    fn wrap(self) -> Value;
}

impl Typed for Str {
    fn of(value: &Value) -> Option<&Str> {
        if let Value::Str(inner) = value {
            Some(inner)
        } else {
            None
        }
    }

    fn of_mut(value: &mut Value) -> Option<&mut Str> {
        if let Value::Str(inner) = value {
            Some(inner)
        } else {
            None
        }
    }

    fn wrap(self) -> Value {
        Value::Str(self)
    }
}

macro_rules! typed {
    ($($name:ident),*) => {$(
        impl Typed for $name {
            fn of(value: &Value) -> Option<&$name> {
                if let Value::$name(inner) = value { Some(inner) } else { None }
            }

            fn of_mut(value: &mut Value) -> Option<&mut $name> {
                if let Value::$name(inner) = value { Some(inner) } else { None }
            }

            fn wrap(self) -> Value {
                Value::$name(Box::new(self))
            }
        }
    )*};
}

typed!(List, Hash, Set, SortedSet, Stream, Bloom);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_small() {
        assert_eq!(size_of::<blob::Blob>(), 24);
        assert_eq!(size_of::<Value>(), 24);
    }
}
