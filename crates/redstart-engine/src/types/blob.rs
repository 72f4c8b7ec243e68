//! A byte string that keeps short contents in place.

use std::{borrow::Borrow, fmt, ops::Deref};

use bytes::Bytes;

const INLINE: usize = 22;

/// An immutable byte string in 24 bytes: up to 22 bytes live inside it, longer ones on the heap.
///
/// Keys, fields and members are mostly short, so this saves an allocation and a cache miss each.
#[derive(Clone)]
pub(crate) enum Blob {
    /// The bytes themselves.
    Inline {
        /// How many of them are used.
        len: u8,
        /// The bytes, zero beyond `len`.
        buf: [u8; INLINE],
    },
    /// Bytes too many to be kept inline.
    Heap(Box<[u8]>),
}

impl Blob {
    pub(crate) fn new(data: &[u8]) -> Blob {
        if data.len() <= INLINE {
            let mut buf = [0; INLINE];
            buf[..data.len()].copy_from_slice(data);
            Blob::Inline {
                len: data.len() as u8,
                buf,
            }
        } else {
            Blob::Heap(data.into())
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Blob::Inline { len, buf } => &buf[..usize::from(*len).min(INLINE)],
            Blob::Heap(data) => data,
        }
    }

    /// The contents as shared bytes, by copy.
    pub(crate) fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(self.as_slice())
    }

    /// The contents as shared bytes, without a copy where they are on the heap.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Blob::Inline { .. } => self.to_bytes(),
            Blob::Heap(data) => Bytes::from(data),
        }
    }

    /// The bytes held on the heap.
    pub(crate) fn heap_size(&self) -> usize {
        match self {
            Blob::Inline { .. } => 0,
            Blob::Heap(data) => data.len() + 16,
        }
    }
}

impl Default for Blob {
    fn default() -> Blob {
        Blob::Inline {
            len: 0,
            buf: [0; INLINE],
        }
    }
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Borrow<[u8]> for Blob {
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl From<&[u8]> for Blob {
    fn from(data: &[u8]) -> Blob {
        Blob::new(data)
    }
}

impl From<&Bytes> for Blob {
    fn from(data: &Bytes) -> Blob {
        Blob::new(data)
    }
}

impl PartialEq for Blob {
    fn eq(&self, other: &Blob) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Blob {}

impl PartialOrd for Blob {
    fn partial_cmp(&self, other: &Blob) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Blob {
    fn cmp(&self, other: &Blob) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl std::hash::Hash for Blob {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.as_slice().escape_ascii())
    }
}
