//! Write-behind: writes are answered by the store at once, and reach the database in batches.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use redis::streams::StreamRangeReply;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, timeout_at};

use super::cache::CacheKey;
use crate::{
    codec::{Codec, Postcard},
    duration::{LONGEST, millis},
    error::{Error, Result},
    key::Entity,
    observe,
    script::Script,
    store::{Listen, Store},
    token::token,
};

mod batch;
mod builder;
mod dead;
mod sink;
mod stored;
mod worker;

pub use builder::WriteBehindBuilder;
pub use dead::DeadWrite;
pub use sink::{Change, Changes, EntryId, RefusedChange, Sink, SinkClaim, SinkError};
pub use worker::WriteBehindWorker;

pub(crate) use dead::{BURY, UNBURY};
pub(crate) use worker::{ACK, CLAIM, RESIGN};

use stored::{Decoded, Stored};

pub(crate) static PUT: Script =
    Script::new("write_behind.put", include_str!("write_behind/put.lua"));
pub(crate) static LEASE: Script =
    Script::new("write_behind.lease", include_str!("write_behind/lease.lua"));
pub(crate) static FILL: Script =
    Script::new("write_behind.fill", include_str!("write_behind/fill.lua"));

/// How long the token of a reader that loads from the sink lasts.
const LOAD_LEASE: Duration = Duration::from_secs(30);

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a write may have been refused"]
pub enum Put {
    /// It is stored, and will be applied. The id is its position in the log.
    Accepted(EntryId),
    /// The shard's log is full, because the database does not keep up. Nothing was written.
    Backpressure {
        /// How many writes wait in the shard.
        waiting: u64,
    },
}

/// How far the database is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lag {
    /// Writes that are not in the database, per shard.
    pub shards: Vec<u64>,
    /// How long the oldest of them has waited.
    pub oldest: Option<Duration>,
}

impl Lag {
    /// Writes that are not in the database.
    pub fn total(&self) -> u64 {
        self.shards.iter().sum()
    }
}

struct Shared<V, C> {
    store: Store,
    /// Namespace and name, for the sink.
    log: Arc<str>,
    namespace: Arc<str>,
    shards: Vec<Entity>,
    fingerprint: u64,
    ttl: Duration,
    max_lag: u64,
    batch: usize,
    lease: Duration,
    types: PhantomData<fn() -> (V, C)>,
}

/// Values that are written to the store at once and to a database behind it.
///
/// It is cheap to clone. A [`WriteBehindWorker`] applies the writes, in this process or in others.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use redstart::{Store, caching::{Put, SqlSink, WriteBehind}};
///
/// let store = Store::connect("memory://").await?;
/// let sink = SqlSink::connect("sqlite::memory:", "views").await?.column("count", |n: &u64| (*n).into());
/// sink.create_tables().await?;
/// let views = WriteBehind::<str, u64>::builder(&store, "shop", "views", sink).build()?;
/// let worker = views.work()?;
///
/// match views.put("home", &41).await? {
///     Put::Accepted(id) => println!("stored at {id}"),
///     Put::Backpressure { waiting } => println!("{waiting} writes wait; try later"),
/// }
/// assert_eq!(views.get("home").await?, Some(41));   // at once
/// views.flush(Duration::from_secs(10)).await?;      // and now in the database
/// assert_eq!(views.lag().await?.total(), 0);
/// worker.stop().await;
/// # Ok(()) }
/// # #[cfg(not(feature = "sqlite"))] fn main() {}
/// ```
///
/// # Promises
///
/// - The value and its entry in the log are written by one script: **both or neither**.
/// - **Nothing is lost and nothing is applied twice**, wherever a writer or a worker dies: a batch and its
///   checkpoint are one transaction of the database, and the log is cut only after the commit.
/// - **One worker per shard counts**: the database hands out epochs, and a batch of an older one is refused.
/// - **Order is kept** for each key. Of several writes of a key in one batch only the newest that can be applied is
///   applied.
/// - **A row that cannot be applied** becomes a dead letter and blocks only its key, whatever else is in its batch. The
///   other rows of that batch wait for two more tries at most, if the sink tells all it would refuse, as `SqlSink` does.
///   Later writes of a blocked key become dead letters too, until an operator calls
///   [`retry_dead`](WriteBehind::retry_dead) or [`discard_dead`](WriteBehind::discard_dead).
/// - **The log is never trimmed by length.** When it is full, [`put`](WriteBehind::put) answers
///   [`Put::Backpressure`].
/// - **A value that is not yet in the database does not expire.**
/// - Values carry a fingerprint of type, schema and codec. Bytes of another one are never decoded.
///
/// # Limits
///
/// What the store loses, the database never gets: run the store with an append-only file, and without an
/// eviction policy that removes keys without a TTL. After a failover, writes that the new master had not received
/// are lost; if its clock is behind that of the old one, so are writes that it accepts until it has caught up, because
/// they seem older than what the database has: keep the clocks of the servers together. A row is read from the cache or from the sink; a change of the row by another program is seen when the
/// cached value expires, and is overwritten by the next write. A worker of one schema makes writes of another schema
/// dead letters, so change the schema only when the log is empty, or under another name.
///
/// # Keys
///
/// | key | type | content |
/// |---|---|---|
/// | `<ns>:behind.<name>:{<shard>}:log` | stream | writes that are not in the database |
/// | `<ns>:behind.<name>:{<shard>}:v:<key>` | string | a value; without TTL until it is applied |
/// | `<ns>:behind.<name>:{<shard>}:owner` | string | the worker that serves the shard, with a TTL |
/// | `<ns>:behind.<name>:{<shard>}:dead` | sorted set | names of the dead letters |
/// | `<ns>:behind.<name>:{<shard>}:letters` | hash | contents of the dead letters |
/// | `<ns>:behind.<name>:{<shard>}:blocked` | hash | blocked keys, with the first dead write of each |
/// | `<ns>:behind.<name>:{<shard>}:progress` | sharded channel | tells `flush` that a batch was applied |
///
/// The shard is a hash of the key's name modulo the number of shards.
///
/// # Round trips
///
/// | operation | cost |
/// |---|---|
/// | `put`, `delete` | one |
/// | `get` | one; two more and a query if the value is not cached |
/// | a batch of the worker | three and one transaction; one more, and a second transaction, with dead letters |
///
/// # While the store is down
///
/// `put` fails, and may be [in doubt](crate::Error::is_in_doubt). While the *database* is down, writes are accepted
/// until the log is full, and are applied when it is back.
///
/// # Metrics
///
/// Operations: `write_behind.put`, `write_behind.get`, `write_behind.flush`, `write_behind.dead_writes`,
/// `write_behind.unbury`. Events: `write_behind.backpressure`, `write_behind.applied`, `write_behind.coalesced`,
/// `write_behind.dead_letter`, `write_behind.sink_failed`, `write_behind.lost_shard`.
pub struct WriteBehind<K: ?Sized, V, S = (), C = Postcard> {
    shared: Arc<Shared<V, C>>,
    sink: Arc<S>,
    key: PhantomData<fn(&K)>,
}

impl<K: ?Sized, V, S, C> Clone for WriteBehind<K, V, S, C> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            sink: self.sink.clone(),
            key: PhantomData,
        }
    }
}

impl<K, V> WriteBehind<K, V, (), Postcard>
where
    K: CacheKey + ?Sized,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    /// Starts to set up a write-behind with this name in a namespace of the store, and the sink that takes the
    /// writes.
    pub fn builder<S: Sink<V>>(
        store: &Store,
        namespace: &str,
        name: &str,
        sink: S,
    ) -> WriteBehindBuilder<K, V, S, Postcard> {
        WriteBehindBuilder::new(store, namespace, name, sink)
    }
}

/// The part under which a value lies.
fn value_part(name: &str) -> String {
    format!("v:{name}")
}

impl<K, V, S, C> WriteBehind<K, V, S, C>
where
    K: CacheKey + ?Sized,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    S: Sink<V>,
    C: Codec,
{
    fn shard_number(&self, name: &str) -> Result<usize> {
        if name.is_empty() || name.len() > 1000 {
            return Err(Error::config("a key must have 1 to 1000 bytes"));
        }
        let at = xxhash_rust::xxh3::xxh3_64(name.as_bytes()) % self.shared.shards.len() as u64;
        Ok(at as usize)
    }

    fn shard(&self, name: &str) -> Result<&Entity> {
        Ok(&self.shared.shards[self.shard_number(name)?])
    }

    /// Writes a value. It can be read at once, and reaches the database later.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the value cannot be encoded, [`is_config`](Error::is_config) for an invalid
    /// key, and those of the store; [in doubt](Error::is_in_doubt) if the reply was lost. Repeating such a
    /// write is harmless unless another writer changed the key in between.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the value may or may not have been written; never without its log entry.
    pub async fn put(&self, key: &K, value: &V) -> Result<Put> {
        let stored = Stored::encode::<C, V>(self.shared.fingerprint, value)?;
        self.write(&key.name(), stored).await
    }

    /// Deletes a value: from the store at once, from the database later.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put).
    ///
    /// # Cancel safety
    ///
    /// As [`put`](Self::put).
    pub async fn delete(&self, key: &K) -> Result<Put> {
        self.write(&key.name(), Stored::Deleted).await
    }

    async fn write(&self, name: &str, change: Stored) -> Result<Put> {
        let shared = &self.shared;
        observe::operation("write_behind.put", &shared.namespace, async {
            let reply = PUT
                .on(self.shard(name)?)
                .part("log")
                .part(&value_part(name))
                .arg(name)
                .arg(change.bytes())
                .arg(shared.max_lag)
                .run(&shared.store)
                .await?;
            if let redis::Value::Int(waiting) = reply {
                observe::event("write_behind.backpressure");
                let waiting = u64::try_from(waiting).unwrap_or(shared.max_lag);
                return Ok(Put::Backpressure { waiting });
            }
            let id = redis::from_redis_value::<String>(reply)?;
            Ok(Put::Accepted(dead::parse_id(&id)?))
        })
        .await
    }

    /// The newest value: from the store, or from the sink if the store has none.
    ///
    /// # Errors
    ///
    /// Those of the store, [`is_user`](Error::is_user) if the sink failed, and [`is_codec`](Error::is_codec) if the
    /// newest write is of another type or schema and is not in the database yet.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn get(&self, key: &K) -> Result<Option<V>> {
        let name = key.name();
        let shard = self.shard(&name)?;
        let shared = &self.shared;
        observe::operation("write_behind.get", &shared.namespace, async {
            let store = &shared.store;
            let value_key = shard.part(&value_part(&name));
            let value: Option<Vec<u8>> = store.query(redis::cmd("GET").arg(&value_key)).await?;
            match self.cached(value)? {
                Some(Decoded::Row(row)) => return Ok(row),
                Some(Decoded::Foreign) => {
                    let left: i64 = store.query(redis::cmd("PTTL").arg(&value_key)).await?;
                    if left == -1 {
                        return Err(Error::codec(
                            "the newest write has a different type or schema and is not applied yet",
                        ));
                    }
                    return self.load(&name).await;
                }
                None => {}
            }
            let token = format!("?{}", token());
            let value: Option<Vec<u8>> = LEASE
                .on(shard)
                .part(&value_part(&name))
                .arg(&token)
                .arg(millis(LOAD_LEASE))
                .idempotent()
                .run(store)
                .await?;
            if let Some(Decoded::Row(row)) = self.cached(value)? {
                return Ok(row);
            }
            let row = self.load(&name).await?;
            let stored = match &row {
                Some(row) => Stored::encode::<C, V>(shared.fingerprint, row)?,
                None => Stored::Deleted,
            };
            FILL.on(shard)
                .part(&value_part(&name))
                .arg(&token)
                .arg([b"0\n", &stored.bytes()[..]].concat())
                .arg(millis(shared.ttl))
                .idempotent()
                .run::<u8>(store)
                .await?;
            Ok(row)
        })
        .await
    }

    async fn load(&self, name: &str) -> Result<Option<V>> {
        let row = self.sink.load(name).await;
        row.map_err(|error| Error::user("the sink failed", error))
    }

    /// Reads a cached value; `None` if there is none.
    fn cached(&self, bytes: Option<Vec<u8>>) -> Result<Option<Decoded<V>>> {
        bytes
            .and_then(|bytes| Stored::parse_cached(&bytes))
            .map(|stored| stored.decode::<C, V>(self.shared.fingerprint))
            .transpose()
    }

    /// Starts to apply writes to the sink, in the background.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) outside a tokio runtime.
    pub fn work(&self) -> Result<WriteBehindWorker> {
        self.shared.work(&self.sink)
    }

    /// How far the database is behind.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn lag(&self) -> Result<Lag> {
        let shared = &self.shared;
        let mut pipeline = redis::Pipeline::new();
        for shard in &shared.shards {
            let log = shard.part("log");
            pipeline.cmd("XLEN").arg(&log);
            let first = pipeline.cmd("XRANGE").arg(&log);
            first.arg("-").arg("+").arg("COUNT").arg(1);
        }
        let replies: Vec<redis::Value> = shared.store.pipeline(&pipeline).await?;
        let mut replies = replies.into_iter();
        let (mut shards, mut oldest) = (Vec::with_capacity(shared.shards.len()), None);
        while let (Some(length), Some(first)) = (replies.next(), replies.next()) {
            shards.push(redis::from_redis_value(length)?);
            let first: StreamRangeReply = redis::from_redis_value(first)?;
            let id = first.ids.first().and_then(|first| first.id.parse().ok());
            oldest = oldest.into_iter().chain(id).min();
        }
        let oldest = match oldest {
            Some(EntryId { ms, .. }) => {
                let now = shared.store.time().await?;
                Some(now.saturating_sub(Duration::from_millis(ms)))
            }
            None => None,
        };
        Ok(Lag { shards, oldest })
    }

    /// Waits until everything written before now is in the database or is a dead letter.
    ///
    /// # Errors
    ///
    /// [`is_timeout`](Error::is_timeout) if that takes longer than `within`, and those of the store.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn flush(&self, within: Duration) -> Result<()> {
        let shared = &self.shared;
        observe::operation("write_behind.flush", &shared.namespace, async {
            let until = Instant::now() + within.min(LONGEST);
            let late = || Error::timeout(format!("the database is still behind after {within:?}"));
            let mut waiting: Vec<(&Entity, EntryId)> = Vec::new();
            for shard in &shared.shards {
                let mut cmd = redis::cmd("XREVRANGE");
                cmd.arg(shard.part("log")).arg("+").arg("-");
                cmd.arg("COUNT").arg(1);
                let last: StreamRangeReply = shared.store.query(&cmd).await?;
                if let Some(id) = last.ids.first().and_then(|last| last.id.parse().ok()) {
                    waiting.push((shard, id));
                }
            }
            if waiting.is_empty() {
                return Ok(());
            }
            let topics = waiting
                .iter()
                .map(|(shard, _)| Listen::Sharded(shard.channel("progress")));
            let mut news = shared.store.subscribe(topics).await?;
            loop {
                // Whatever happened, also to the subscription itself: look again.
                timeout_at(until, news.next())
                    .await
                    .map_err(|_| late())?
                    .ok_or_else(|| Error::unavailable("the subscription ended"))?;
                let mut behind = Vec::with_capacity(waiting.len());
                for (shard, id) in waiting {
                    let mut cmd = redis::cmd("XRANGE");
                    cmd.arg(shard.part("log")).arg("-").arg(id.to_string());
                    cmd.arg("COUNT").arg(1);
                    let left: StreamRangeReply = shared.store.query(&cmd).await?;
                    if !left.ids.is_empty() {
                        behind.push((shard, id));
                    }
                }
                if behind.is_empty() {
                    return Ok(());
                }
                waiting = behind;
            }
        })
        .await
    }
}
