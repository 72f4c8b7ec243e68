//! The bytes of a write, in the log and as the cached value.
//!
//! | where | bytes |
//! |---|---|
//! | field `v` of a log entry | `+`, the fingerprint (8 bytes), the encoded value; or `-` for a deletion |
//! | the cached value | the id of its log entry (`0` if it was loaded from the sink), a line feed, and the same |
//! | the cached value while it is being loaded | `?` and the token of the loader |

use serde::{Serialize, de::DeserializeOwned};

use super::sink::EntryId;
use crate::{codec::Codec, error::Result};

/// A value or a deletion, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    Value { fingerprint: u64, bytes: Vec<u8> },
    Deleted,
}

/// What decoding gave.
pub(super) enum Decoded<V> {
    /// The value, or `None` for a deletion.
    Row(Option<V>),
    /// Written under another type, schema or codec.
    Foreign,
}

impl Stored {
    pub(super) fn encode<C: Codec, V: Serialize>(fingerprint: u64, value: &V) -> Result<Self> {
        Ok(Self::Value {
            fingerprint,
            bytes: C::encode(value)?,
        })
    }

    /// Reads the bytes of a log entry.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (b'+', rest) => {
                let (fingerprint, bytes) = rest.split_first_chunk()?;
                Some(Self::Value {
                    fingerprint: u64::from_le_bytes(*fingerprint),
                    bytes: bytes.to_vec(),
                })
            }
            (b'-', _) => Some(Self::Deleted),
            _ => None,
        }
    }

    /// Reads the bytes of a cached value; `None` while it is being loaded.
    pub(super) fn parse_cached(bytes: &[u8]) -> Option<Self> {
        let at = bytes.iter().position(|byte| *byte == b'\n')?;
        Self::parse(&bytes[at + 1..])
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Value { fingerprint, bytes } => {
                [b"+", &fingerprint.to_le_bytes()[..], bytes].concat()
            }
            Self::Deleted => b"-".to_vec(),
        }
    }

    /// # Errors
    ///
    /// If the fingerprint is the expected one and the bytes are damaged.
    pub(super) fn decode<C: Codec, V: DeserializeOwned>(
        &self,
        expected: u64,
    ) -> Result<Decoded<V>> {
        match self {
            Self::Deleted => Ok(Decoded::Row(None)),
            Self::Value { fingerprint, bytes } if *fingerprint == expected => {
                C::decode(bytes).map(|value| Decoded::Row(Some(value)))
            }
            Self::Value { .. } => Ok(Decoded::Foreign),
        }
    }
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogEntry {
    pub(super) id: EntryId,
    pub(super) key: String,
    /// The bytes as written; not [`Stored`] if somebody else wrote them.
    pub(super) bytes: Vec<u8>,
}

impl LogEntry {
    pub(super) fn parse(entry: redis::streams::StreamId) -> Option<Self> {
        Some(Self {
            id: entry.id.parse().ok()?,
            key: entry.get("k")?,
            bytes: entry.get("v")?,
        })
    }
}
