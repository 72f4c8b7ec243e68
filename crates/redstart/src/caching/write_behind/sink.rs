//! The database behind the log.

use std::{error::Error as StdError, fmt, future::Future, str::FromStr, sync::Arc};

/// The position of a write in its shard's log. Later writes have greater ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Milliseconds of the server's time.
    pub ms: u64,
    /// The number within the millisecond.
    pub n: u64,
}

impl EntryId {
    /// One number for a database column: the milliseconds and 20 bits of the number. Later writes never have a smaller one.
    ///
    /// When a server's clock is set back, it counts the number up within one millisecond until the clock has caught up.
    /// From 2^20 writes on, they all have the same number here.
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

    /// A text of constant length with the same order.
    pub(crate) fn padded(self) -> String {
        format!("{:020}-{:020}", self.ms, self.n)
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

/// A write that the sink applies: the newest one of its key in the batch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Change<V> {
    /// The key's name.
    pub key: String,
    /// The new value, or `None` for a deletion.
    pub value: Option<V>,
    /// Its position in the log.
    pub id: EntryId,
    /// Earlier writes of the key in the batch, newest first. They are not to be applied: the next of them takes this one's
    /// place if this one is refused. Only filled when a later write of the key has been refused already, so that a sink can
    /// tell [how many more](RefusedChange::older) it would refuse.
    pub older: Vec<(EntryId, Option<V>)>,
}

/// What is applied in one transaction.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Changes<V> {
    /// The log that the changes come from, by namespace and name.
    pub log: Arc<str>,
    /// The shard of that log.
    pub shard: u32,
    /// The worker's epoch, from [`Sink::claim`]. Under any other epoch nothing may be applied.
    pub epoch: i64,
    /// The checkpoint to record in the same transaction.
    pub upto: EntryId,
    /// At most one per key.
    pub changes: Vec<Change<V>>,
}

/// What a worker gets when it claims a shard of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinkClaim {
    /// Greater than every earlier epoch.
    pub epoch: i64,
    /// Everything up to this id has been applied.
    pub applied: EntryId,
}

/// A change that can never be applied.
#[derive(Debug)]
pub struct RefusedChange {
    /// Its index in [`Changes::changes`].
    pub index: usize,
    /// Why it was refused. The text is kept with the dead letter.
    pub source: Box<dyn StdError + Send + Sync>,
    /// Reasons for the leading entries of [`Change::older`] that would be refused as well, one for each, up to the first that
    /// would not. If it is empty, each of them is tried separately, which delays the rest of the batch. Reasons beyond that
    /// list are ignored.
    pub older: Vec<Box<dyn StdError + Send + Sync>>,
}

/// Why nothing was applied.
#[derive(Debug)]
#[non_exhaustive]
pub enum SinkError {
    /// A later worker has claimed the shard.
    Fenced,
    /// These changes become dead letters; the rest of the batch is tried again without them. A sink may report
    /// one refused change at a time, or all of them at once, which saves attempts.
    Refused(Vec<RefusedChange>),
    /// The sink cannot work now; the same batch is tried again.
    Unavailable(Box<dyn StdError + Send + Sync>),
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fenced => f.write_str("a later worker owns the shard"),
            Self::Refused(refused) => match &refused[..] {
                [first, ..] => write!(f, "{} changes refused: {}", refused.len(), first.source),
                [] => f.write_str("changes refused"),
            },
            Self::Unavailable(source) => write!(f, "the sink is unavailable: {source}"),
        }
    }
}

impl StdError for SinkError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Fenced => None,
            Self::Refused(refused) => refused.first().map(|first| &*first.source as _),
            Self::Unavailable(source) => Some(&**source),
        }
    }
}

/// A database that takes the writes.
///
/// `SqlSink` (features `sqlite` and `postgres`) implements it for SQLite and Postgres. Your own sink must do
/// three things, each in a transaction: hand out epochs that only grow, refuse a batch of an older epoch, and
/// record the checkpoint together with the changes. Then a crash at any point loses nothing and applies nothing
/// twice. Epochs and checkpoints belong to a shard of a log: two logs may share a table.
pub trait Sink<V>: Send + Sync + 'static {
    /// Makes this worker the one whose batches count from now on, and returns what has been applied.
    fn claim(
        &self,
        log: &str,
        shard: u32,
    ) -> impl Future<Output = Result<SinkClaim, SinkError>> + Send;

    /// Applies a batch and its checkpoint, all or nothing.
    fn apply(&self, changes: &Changes<V>) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// The row of a key, for reads that the cache cannot answer.
    fn load(&self, key: &str) -> impl Future<Output = Result<Option<V>, SinkError>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_order_as_numbers_and_as_padded_texts() {
        let ids = [
            "0-0",
            "0-1",
            "1700000000000-0",
            "1700000000000-7",
            "1700000000000-10",
            "1700000000001-0",
        ];
        let ids: Vec<EntryId> = ids.iter().map(|id| id.parse().unwrap()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]
            && pair[0].seq() < pair[1].seq()
            && pair[0].padded() < pair[1].padded()));
        assert_eq!(ids[3].to_string(), "1700000000000-7");
        assert_eq!(ids[3].padded().parse::<EntryId>().unwrap(), ids[3]);
        assert!("x-1".parse::<EntryId>().is_err());
    }
}
