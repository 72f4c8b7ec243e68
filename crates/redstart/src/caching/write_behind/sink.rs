//! Where writes go in the end.

use std::{error::Error as StdError, fmt, future::Future, str::FromStr};

/// The place of an entry in its partition's log. Later entries have greater ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Milliseconds of the server's time.
    pub ms: u64,
    /// The number within the millisecond.
    pub n: u64,
}

impl EntryId {
    /// One number with the same order, for a database column: the milliseconds and 20 bits of the number.
    ///
    /// A server would have to take in a million writes in a millisecond to fill those bits.
    pub fn seq(self) -> i64 {
        let n = self.n.min((1 << 20) - 1);
        i64::try_from((self.ms << 20) | n).unwrap_or(i64::MAX)
    }

    pub(crate) fn next(self) -> Self {
        Self {
            ms: self.ms,
            n: self.n + 1,
        }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.n)
    }
}

impl FromStr for EntryId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (ms, n) = text.split_once('-').unwrap_or((text, "0"));
        Ok(Self {
            ms: ms.parse()?,
            n: n.parse()?,
        })
    }
}

/// A write that the sink is to apply: the last one of its key in the batch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Change<V> {
    /// The key's name.
    pub key: String,
    /// The new value, or `None` for a deletion.
    pub value: Option<V>,
    /// Where it stood in the log.
    pub id: EntryId,
}

/// What is applied in one transaction.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Changes<V> {
    /// The partition.
    pub partition: u32,
    /// The worker's epoch, from [`Sink::claim`]. Under another one nothing may be applied.
    pub epoch: i64,
    /// The checkpoint to record in the same transaction.
    pub upto: EntryId,
    /// At most one for each key.
    pub changes: Vec<Change<V>>,
}

/// What a worker gets when it claims a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Greater than every epoch before.
    pub epoch: i64,
    /// Everything up to here has been applied.
    pub applied: EntryId,
}

/// Why nothing was applied.
#[derive(Debug)]
#[non_exhaustive]
pub enum SinkError {
    /// A later worker has claimed the partition.
    Fenced,
    /// The change at this place cannot be applied, now or ever: it goes to the dead letters.
    Row {
        /// Its place in [`Changes::changes`].
        index: usize,
        /// Why.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The sink cannot work now; the same batch is tried again.
    Unavailable(Box<dyn StdError + Send + Sync>),
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fenced => f.write_str("a later worker owns the partition"),
            Self::Row { source, .. } => write!(f, "a row cannot be applied: {source}"),
            Self::Unavailable(source) => write!(f, "the sink cannot work now: {source}"),
        }
    }
}

impl StdError for SinkError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Fenced => None,
            Self::Row { source, .. } | Self::Unavailable(source) => Some(&**source),
        }
    }
}

/// A database that takes the writes.
///
/// `SqlSink` (features `sqlite` and `postgres`) is one for SQLite and Postgres. One of your own must do three
/// things, each in a transaction: hand out epochs that only grow, refuse a batch of an older epoch, and record
/// the checkpoint together with the changes. Then a crash at any point loses nothing and applies nothing twice.
pub trait Sink<V>: Send + Sync + 'static {
    /// Makes this worker the one whose batches count from now on, and says what has been applied.
    fn claim(&self, partition: u32) -> impl Future<Output = Result<Claim, SinkError>> + Send;

    /// Applies a batch and its checkpoint, all or nothing.
    fn apply(&self, changes: &Changes<V>) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// The row of a key, for reads that the cache cannot answer.
    fn load(&self, key: &str) -> impl Future<Output = Result<Option<V>, SinkError>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_order_as_numbers() {
        let ids = [
            "0-0",
            "0-1",
            "1700000000000-0",
            "1700000000000-7",
            "1700000000001-0",
        ];
        let ids: Vec<EntryId> = ids.iter().map(|id| id.parse().unwrap()).collect();
        assert!(
            ids.windows(2)
                .all(|pair| pair[0] < pair[1] && pair[0].seq() < pair[1].seq())
        );
        assert_eq!(ids[3].to_string(), "1700000000000-7");
        assert!("x-1".parse::<EntryId>().is_err());
    }
}
