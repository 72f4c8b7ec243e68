//! What a command answers.

use std::borrow::Cow;

use bytes::Bytes;

use crate::number;

/// The protocol a session speaks: it decides the shape of some replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Redis's original protocol: no maps, sets, doubles or pushes.
    #[default]
    Resp2,
    /// The richer protocol that a client asks for with `HELLO 3`.
    Resp3,
}

/// A command's answer, before it becomes bytes on a wire.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// No value (`$-1` in RESP2, `_` in RESP3).
    Nil,
    /// No array (`*-1` in RESP2, `_` in RESP3).
    NilArray,
    /// A simple string such as `OK`.
    Status(Cow<'static, str>),
    /// An integer.
    Int(i64),
    /// A binary string.
    Bulk(Bytes),
    /// An error with its code, e.g. `ERR syntax error`.
    Error(String),
    /// An ordered list.
    Array(Vec<Reply>),
    /// Key-value pairs; a flat array in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// An unordered collection; an array in RESP2.
    Set(Vec<Reply>),
    /// A floating-point number; a bulk string in RESP2.
    Double(f64),
    /// A boolean; `1` or `0` in RESP2.
    Bool(bool),
    /// An integer of any size; a bulk string in RESP2.
    BigNumber(String),
    /// Text with a three-letter format; a bulk string in RESP2.
    Verbatim {
        /// `txt` or `mkd`.
        format: [u8; 3],
        /// The text itself.
        text: Bytes,
    },
    /// Out-of-band data: a message or an invalidation.
    Push(Vec<Reply>),
}

impl Reply {
    /// The answer of a command that has nothing else to say.
    pub const OK: Reply = Reply::Status(Cow::Borrowed("OK"));
    pub(crate) const ZERO: Reply = Reply::Int(0);
    pub(crate) const ONE: Reply = Reply::Int(1);

    /// A bulk string copied from `data`.
    pub fn bulk(data: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(Bytes::copy_from_slice(data.as_ref()))
    }

    pub(crate) fn status(text: &'static str) -> Reply {
        Reply::Status(Cow::Borrowed(text))
    }

    pub(crate) fn empty() -> Reply {
        Reply::Array(Vec::new())
    }

    /// Whether this is an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }

    /// The reply as a RESP2 session sees it: maps and sets flattened to arrays, doubles as strings.
    ///
    /// This is the one place where that mechanical translation happens; handlers return the rich
    /// form, and branch on the protocol only where Redis itself changes the nesting.
    #[must_use]
    pub fn into_resp2(self) -> Reply {
        match self {
            Reply::Array(items) => Reply::Array(items.into_iter().map(Reply::into_resp2).collect()),
            Reply::Set(items) => Reply::Array(items.into_iter().map(Reply::into_resp2).collect()),
            Reply::Push(items) => Reply::Push(items.into_iter().map(Reply::into_resp2).collect()),
            Reply::Map(pairs) => {
                let mut flat = Vec::with_capacity(pairs.len() * 2);
                for (key, value) in pairs {
                    flat.push(key.into_resp2());
                    flat.push(value.into_resp2());
                }
                Reply::Array(flat)
            }
            Reply::Double(value) => Reply::Bulk(number::format_double(value)),
            Reply::Bool(value) => Reply::Int(i64::from(value)),
            Reply::BigNumber(digits) => Reply::Bulk(Bytes::from(digits)),
            Reply::Verbatim { text, .. } => Reply::Bulk(text),
            plain => plain,
        }
    }

    /// About how many bytes the reply takes up while it waits to be sent.
    pub(crate) fn size(&self) -> usize {
        let inner = match self {
            Reply::Bulk(bytes) | Reply::Verbatim { text: bytes, .. } => bytes.len(),
            Reply::Error(text) | Reply::BigNumber(text) => text.len(),
            Reply::Status(text) => text.len(),
            Reply::Array(items) | Reply::Set(items) | Reply::Push(items) => {
                items.iter().map(Reply::size).sum()
            }
            Reply::Map(pairs) => pairs.iter().map(|(k, v)| k.size() + v.size()).sum(),
            _ => 0,
        };
        size_of::<Reply>() + inner
    }

    /// Whether [`Reply::into_resp2`] would change anything at this level or below.
    pub(crate) fn is_rich(&self) -> bool {
        match self {
            Reply::Nil
            | Reply::NilArray
            | Reply::Status(_)
            | Reply::Int(_)
            | Reply::Bulk(_)
            | Reply::Error(_) => false,
            Reply::Array(items) | Reply::Push(items) => items.iter().any(Reply::is_rich),
            _ => true,
        }
    }
}

impl From<i64> for Reply {
    fn from(value: i64) -> Reply {
        Reply::Int(value)
    }
}

impl From<usize> for Reply {
    fn from(value: usize) -> Reply {
        Reply::Int(value as i64)
    }
}

impl From<bool> for Reply {
    /// Redis answers yes and no with the integers 1 and 0.
    fn from(value: bool) -> Reply {
        Reply::Int(i64::from(value))
    }
}

impl From<Bytes> for Reply {
    fn from(value: Bytes) -> Reply {
        Reply::Bulk(value)
    }
}

impl From<Option<Bytes>> for Reply {
    fn from(value: Option<Bytes>) -> Reply {
        value.map_or(Reply::Nil, Reply::Bulk)
    }
}
