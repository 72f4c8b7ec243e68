//! String values.

use std::borrow::Cow;

use bytes::Bytes;

use super::blob::Blob;
use crate::number::parse_int;

/// From this size on a value is shared with its readers instead of copied for each of them.
const SHARED: usize = 1024;

/// The longest string that Redis keeps in one allocation with its header (`embstr`).
const EMBEDDED: usize = 44;

/// A string, kept the way that suits it; [`Str::encoding`] says what Redis would call it.
#[derive(Clone)]
pub(crate) enum Str {
    /// Set as a whole and of moderate length.
    Blob(Blob),
    /// The decimal form of an integer.
    Int(i64),
    /// Set as a whole and long: readers get a reference.
    Shared(Box<Bytes>),
    /// Edited in place at least once. Boxed, since a vector would make every value larger.
    #[allow(clippy::box_collection)]
    Raw(Box<Vec<u8>>),
}

impl Str {
    /// A value as SET stores it: integers as such, the rest by length.
    pub(crate) fn new(data: &Bytes) -> Str {
        if data.len() <= 20 {
            if let Some(value) = parse_int(data) {
                return Str::Int(value);
            }
            Str::Blob(Blob::new(data))
        } else if data.len() < SHARED {
            Str::Blob(Blob::new(data))
        } else {
            Str::Shared(Box::new(data.clone()))
        }
    }

    /// The bytes held on the heap.
    pub(crate) fn heap_size(&self) -> usize {
        match self {
            Str::Blob(data) => data.heap_size(),
            Str::Int(_) => 0,
            Str::Shared(data) => size_of::<Bytes>() + 16 + data.len(),
            Str::Raw(data) => size_of::<Vec<u8>>() + 16 + data.capacity(),
        }
    }

    /// The contents for a reply; copied unless they are long.
    pub(crate) fn to_bytes(&self) -> Bytes {
        match self {
            Str::Blob(data) => data.to_bytes(),
            Str::Int(value) => crate::number::int_bytes(*value),
            Str::Shared(data) => (**data).clone(),
            Str::Raw(data) => Bytes::copy_from_slice(data),
        }
    }

    /// The contents, borrowed where they exist as bytes.
    pub(crate) fn as_cow(&self) -> Cow<'_, [u8]> {
        match self {
            Str::Blob(data) => Cow::Borrowed(data),
            Str::Int(value) => Cow::Owned(itoa::Buffer::new().format(*value).as_bytes().to_vec()),
            Str::Shared(data) => Cow::Borrowed(data),
            Str::Raw(data) => Cow::Borrowed(data),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Str::Blob(data) => data.len(),
            Str::Int(value) => itoa::Buffer::new().format(*value).len(),
            Str::Shared(data) => data.len(),
            Str::Raw(data) => data.len(),
        }
    }

    /// The integer that the string spells, if it spells one.
    pub(crate) fn as_int(&self) -> Option<i64> {
        match self {
            Str::Int(value) => Some(*value),
            other => parse_int(&other.as_cow()),
        }
    }

    /// The bytes for editing in place; the string counts as `raw` from then on, as in Redis.
    pub(crate) fn make_raw(&mut self) -> &mut Vec<u8> {
        if !matches!(self, Str::Raw(_)) {
            *self = Str::Raw(Box::new(self.as_cow().into_owned()));
        }
        match self {
            Str::Raw(data) => data,
            _ => unreachable!("made raw just above"),
        }
    }

    pub(crate) fn encoding(&self) -> &'static str {
        match self {
            Str::Int(_) => "int",
            Str::Blob(data) if data.len() <= EMBEDDED => "embstr",
            _ => "raw",
        }
    }
}

impl From<Vec<u8>> for Str {
    fn from(data: Vec<u8>) -> Str {
        if data.len() < SHARED {
            Str::Blob(Blob::new(&data))
        } else {
            Str::Shared(Box::new(Bytes::from(data)))
        }
    }
}

impl Default for Str {
    fn default() -> Str {
        Str::Blob(Blob::default())
    }
}
