//! The id of an entry.

use bytes::Bytes;

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
