//! Write-behind: writes are answered by the store at once, and reach the database in batches.
//!
//! # What it promises
//!
//! - The value and its place in the log are written by one script: **both or neither**.
//! - **Nothing is lost and nothing is applied twice**, wherever a writer or a worker dies: a batch and its
//!   checkpoint are one transaction of the database, and the log is cut only after the commit.
//! - **One worker a partition counts**: the database gives out epochs, and a batch of an older one is refused.
//! - **Order is kept** for each key; of several writes of a key in one batch only the last is applied.
//! - **A row that cannot be applied** goes to a dead-letter stream and blocks only its key.
//! - **The log is never trimmed by length.** When it is full, [`put`](WriteBehind::put) answers
//!   [`Put::Backpressure`].
//! - **A value that is not yet in the database does not expire.**
//!
//! # What it does not promise
//!
//! What the store loses, the database never gets: run the store with an append-only file and without an
//! eviction policy that takes keys without a TTL. After a failover, writes that the new master never heard of
//! are gone. A row is read from the cache or from the sink; changing it in the database by another way is
//! seen when the cached value expires, and is overwritten by the next write.
//!
//! # Keys
//!
//! | key | type | what |
//! |---|---|---|
//! | `<ns>:behind:{<p>}:log` | stream | writes that are not in the database |
//! | `<ns>:behind:{<p>}:v:<name>` | string | a value; without TTL until it is applied |
//! | `<ns>:behind:{<p>}:owner` | string | the worker that has the partition, with a TTL |
//! | `<ns>:behind:{<p>}:dead`, `:blocked` | stream, set | dead letters, and the keys they block |
//! | `<ns>:behind:{<p>}:progress` | sharded channel | tells `flush` that something was applied |
//!
//! `<p>` is the partition: a hash of the name, modulo the number of partitions, which must not change while
//! the logs hold something.
//!
//! # Round trips
//!
//! `put` and `delete`: one. `get`: one; two more and a query if the value is not cached. A batch of the
//! worker: four, and one transaction.
//!
//! # While the store is down
//!
//! `put` fails, and may be [in doubt](crate::Error::is_in_doubt). While the *database* is down writes go on
//! until the log is full, and drain when it is back.
//!
//! # Operations and events
//!
//! Operations: `write_behind.put`, `write_behind.get`, `write_behind.flush`. Events: `write_behind.backpressure`,
//! `write_behind.applied`, `write_behind.coalesced`, `write_behind.dead_letter`, `write_behind.sink_failed`,
//! `write_behind.lost_partition`.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use redis::streams::StreamRangeReply;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, timeout_at};

use super::cache::{CacheKey, lease};
use crate::{
    codec::{Codec, Envelope, Opened, Postcard},
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::Script,
    store::{Listen, Store},
};

mod sink;
mod worker;

pub use sink::{Change, Changes, Claim, EntryId, Sink, SinkError};
pub use worker::Worker;

static PUT: Script = Script::new("write_behind.put", include_str!("write_behind/put.lua"));
static LEASE: Script = Script::new("write_behind.lease", include_str!("write_behind/lease.lua"));
static FILL: Script = Script::new("write_behind.fill", include_str!("write_behind/fill.lua"));
static UNBURY: Script = Script::new(
    "write_behind.unbury",
    include_str!("write_behind/unbury.lua"),
);

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a write may have been refused"]
pub enum Put {
    /// It is stored, and will be applied. The id is its place in the log.
    Accepted(EntryId),
    /// The partition's log is full, since the database does not keep up. Nothing was written.
    Backpressure {
        /// How many writes wait in the partition.
        waiting: u64,
    },
}

/// How far the database is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lag {
    /// Writes that are not in the database, for each partition.
    pub partitions: Vec<u64>,
    /// How long the oldest of them has waited.
    pub oldest: Option<Duration>,
}

impl Lag {
    /// Writes that are not in the database.
    pub fn total(&self) -> u64 {
        self.partitions.iter().sum()
    }
}

/// A write that could not be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The key's name.
    pub key: String,
    /// Its place in the log.
    pub id: EntryId,
    /// Why it is dead.
    pub why: String,
}

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stored {
    Value(Vec<u8>),
    Deleted,
}

impl Stored {
    fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (b'+', value) => Some(Self::Value(value.to_vec())),
            (b'-', _) => Some(Self::Deleted),
            _ => None,
        }
    }

    /// Without the entry's id before it.
    fn parse_value(bytes: &[u8]) -> Option<Self> {
        let at = bytes.iter().position(|byte| *byte == b'\n')?;
        Self::parse(&bytes[at + 1..])
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Value(value) => [b"+", &value[..]].concat(),
            Self::Deleted => b"-".to_vec(),
        }
    }
}

struct Inner<V, C> {
    store: Store,
    namespace: Arc<str>,
    partitions: Vec<Entity>,
    schema: u32,
    ttl: Duration,
    max_lag: u64,
    batch: usize,
    owner_lasts: Duration,
    types: PhantomData<fn() -> (V, C)>,
}

type Types<K, V, C> = PhantomData<fn(&K) -> (V, C)>;

/// Sets up a [`WriteBehind`].
#[must_use = "a builder does nothing until it builds"]
pub struct WriteBehindBuilder<K: ?Sized, V, C> {
    store: Store,
    namespace: String,
    partitions: u32,
    schema: u32,
    ttl: Duration,
    max_lag: u64,
    batch: usize,
    owner_lasts: Duration,
    types: Types<K, V, C>,
}

impl<K: ?Sized, V, C> WriteBehindBuilder<K, V, C> {
    /// Into how many logs keys are spread (default 8). It must not change while the logs hold something.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// The version of the type `V`. A worker buries writes of another version.
    pub fn schema(mut self, schema: u32) -> Self {
        self.schema = schema;
        self
    }

    /// How long a value is kept after it was applied, or loaded (default an hour).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How many writes may wait in a partition (default 10,000); beyond that they are refused.
    pub fn max_lag(mut self, max: u64) -> Self {
        self.max_lag = max;
        self
    }

    /// How many entries of the log a transaction takes in (default 500).
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// How long the partition of a worker that died stays its own (default 10 s).
    pub fn owner_for(mut self, lasts: Duration) -> Self {
        self.owner_lasts = lasts;
        self
    }

    /// How values become bytes. The default is [`Postcard`].
    pub fn codec<D: Codec>(self, _: D) -> WriteBehindBuilder<K, V, D> {
        WriteBehindBuilder {
            store: self.store,
            namespace: self.namespace,
            partitions: self.partitions,
            schema: self.schema,
            ttl: self.ttl,
            max_lag: self.max_lag,
            batch: self.batch,
            owner_lasts: self.owner_lasts,
            types: PhantomData,
        }
    }
}

impl<K, V, C> WriteBehindBuilder<K, V, C>
where
    K: CacheKey + ?Sized,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// Makes it, with the sink that takes the writes. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or a setting out of its range.
    pub fn build<S: Sink<V>>(self, sink: S) -> Result<WriteBehind<K, V, S, C>> {
        if !(1..=1024).contains(&self.partitions) {
            return Err(Error::config("there are 1 to 1024 partitions"));
        }
        if self.ttl < Duration::from_millis(1) {
            return Err(Error::config("a TTL is at least 1 ms"));
        }
        if self.max_lag == 0 || self.batch == 0 || self.batch > 5000 {
            return Err(Error::config(
                "max_lag is at least 1, and a batch 1 to 5000",
            ));
        }
        if self.owner_lasts < Duration::from_millis(100) {
            return Err(Error::config("a partition is owned for at least 100 ms"));
        }
        let keys = Keys::new(&self.namespace, "behind")?;
        let partitions = (0..self.partitions)
            .map(|partition| keys.entity(&partition.to_string()))
            .collect::<Result<_>>()?;
        Ok(WriteBehind {
            inner: Arc::new(Inner {
                store: self.store,
                namespace: keys.namespace().clone(),
                partitions,
                schema: self.schema,
                ttl: self.ttl,
                max_lag: self.max_lag,
                batch: self.batch,
                owner_lasts: self.owner_lasts,
                types: PhantomData,
            }),
            sink: Arc::new(sink),
            key: PhantomData,
        })
    }
}

/// Values that are written to the store at once and to a database behind it. See the [module](self).
///
/// It is cheap to clone. A [`Worker`] applies the writes, in this process or in others.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use redstart::{Store, caching::{WriteBehind, Put, sql::SqlSink}};
///
/// let store = Store::connect("memory://").await?;
/// let sink = SqlSink::connect("sqlite::memory:", "views").await?.column("count", |n: &u64| (*n).into());
/// sink.create_tables().await?;
/// let views = WriteBehind::<str, u64>::builder(&store, "views").build(sink)?;
/// let worker = views.work()?;
///
/// assert!(matches!(views.put("home", &41).await?, Put::Accepted(_)));
/// assert!(matches!(views.put("home", &42).await?, Put::Accepted(_)));
/// assert_eq!(views.get("home").await?, Some(42));   // at once
/// views.flush(Duration::from_secs(10)).await?;      // and now in the database
/// assert_eq!(views.lag().await?.total(), 0);
/// worker.stop().await;
/// # Ok(()) }
/// # #[cfg(not(feature = "sqlite"))] fn main() {}
/// ```
pub struct WriteBehind<K: ?Sized, V, S = (), C = Postcard> {
    inner: Arc<Inner<V, C>>,
    sink: Arc<S>,
    key: PhantomData<fn(&K)>,
}

impl<K: ?Sized, V, S, C> Clone for WriteBehind<K, V, S, C> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
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
    /// Starts to set one up in a namespace of the store.
    pub fn builder(store: &Store, namespace: &str) -> WriteBehindBuilder<K, V, Postcard> {
        WriteBehindBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            partitions: 8,
            schema: 0,
            ttl: Duration::from_secs(3600),
            max_lag: 10_000,
            batch: 500,
            owner_lasts: Duration::from_secs(10),
            types: PhantomData,
        }
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
    fn partition(&self, name: &str) -> Result<&Entity> {
        if name.is_empty() || name.len() > 1000 {
            return Err(Error::config("a key has 1 to 1000 bytes"));
        }
        let at = xxhash_rust::xxh3::xxh3_64(name.as_bytes()) % self.inner.partitions.len() as u64;
        Ok(&self.inner.partitions[at as usize])
    }

    /// Writes a value. It can be read at once, and reaches the database later.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the value cannot be encoded, [`is_config`](Error::is_config) for a bad
    /// key, and those of the store; [in doubt](Error::is_in_doubt) if the reply was lost. Repeating such a
    /// write is harmless unless another writer of the same key came between.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the value may or may not have been written; never without its log entry.
    pub async fn put(&self, key: &K, value: &V) -> Result<Put> {
        let bytes = Envelope::seal::<C, V>(self.inner.schema, value)?;
        self.write(&key.name(), Stored::Value(bytes)).await
    }

    /// Deletes a value: it is gone at once, and from the database later.
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
        observe::operation("write_behind.put", &self.inner.namespace, async {
            let reply = PUT
                .on(self.partition(name)?)
                .part("log")
                .part(&value_part(name))
                .arg(name)
                .arg(change.bytes())
                .arg(self.inner.max_lag)
                .run(&self.inner.store)
                .await?;
            if let redis::Value::Int(waiting) = reply {
                observe::event("write_behind.backpressure");
                let waiting = u64::try_from(waiting).unwrap_or(self.inner.max_lag);
                return Ok(Put::Backpressure { waiting });
            }
            let id = redis::from_redis_value::<String>(reply)?
                .parse()
                .map_err(|_| Error::codec("the log gave an id that is none"))?;
            Ok(Put::Accepted(id))
        })
        .await
    }

    /// The newest value: from the store, or from the sink if the store has none.
    ///
    /// # Errors
    ///
    /// Those of the store, and [`is_user`](Error::is_user) if the sink failed.
    pub async fn get(&self, key: &K) -> Result<Option<V>> {
        let name = key.name();
        let partition = self.partition(&name)?;
        observe::operation("write_behind.get", &self.inner.namespace, async {
            let store = &self.inner.store;
            let value_key = partition.part(&value_part(&name));
            let value: Option<Vec<u8>> = store.query(redis::cmd("GET").arg(&value_key)).await?;
            if let Some(found) = value.as_deref().and_then(|value| self.open(value)) {
                return found;
            }
            let token = format!("?{}", lease::token());
            let value: Option<Vec<u8>> = LEASE
                .on(partition)
                .part(&value_part(&name))
                .arg(&token)
                .arg(30_000)
                .idempotent()
                .run(store)
                .await?;
            if let Some(found) = value.as_deref().and_then(|value| self.open(value)) {
                return found;
            }
            let row = self
                .sink
                .load(&name)
                .await
                .map_err(|error| Error::user("the sink failed", error))?;
            let stored = match &row {
                Some(row) => Stored::Value(Envelope::seal::<C, V>(self.inner.schema, row)?),
                None => Stored::Deleted,
            };
            FILL.on(partition)
                .part(&value_part(&name))
                .arg(&token)
                .arg([b"0\n", &stored.bytes()[..]].concat())
                .arg(u64::try_from(self.inner.ttl.as_millis()).unwrap_or(u64::MAX))
                .idempotent()
                .run::<u8>(store)
                .await?;
            Ok(row)
        })
        .await
    }

    /// `None` if the bytes are of another schema.
    fn open(&self, bytes: &[u8]) -> Option<Result<Option<V>>> {
        match Stored::parse_value(bytes)? {
            Stored::Deleted => Some(Ok(None)),
            Stored::Value(bytes) => match Envelope::open::<C, V>(self.inner.schema, &bytes) {
                Ok(Opened::Value(value)) => Some(Ok(Some(value))),
                Ok(Opened::Foreign) => None,
                Err(error) => Some(Err(error)),
            },
        }
    }

    /// Starts to apply writes to the sink, in the background.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) outside a tokio runtime.
    pub fn work(&self) -> Result<Worker> {
        self.inner.work(&self.sink)
    }

    /// How far the database is behind.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn lag(&self) -> Result<Lag> {
        let inner = &self.inner;
        let mut pipeline = redis::Pipeline::new();
        for partition in &inner.partitions {
            let log = partition.part("log");
            pipeline.cmd("XLEN").arg(&log);
            pipeline
                .cmd("XRANGE")
                .arg(&log)
                .arg("-")
                .arg("+")
                .arg("COUNT")
                .arg(1);
        }
        let replies: Vec<(u64, StreamRangeReply)> = {
            let flat: Vec<redis::Value> = inner.store.pipeline(&pipeline).await?;
            let mut flat = flat.into_iter();
            let mut pairs = Vec::with_capacity(inner.partitions.len());
            while let (Some(length), Some(first)) = (flat.next(), flat.next()) {
                pairs.push((
                    redis::from_redis_value(length)?,
                    redis::from_redis_value(first)?,
                ));
            }
            pairs
        };
        let first = replies
            .iter()
            .filter_map(|(_, first)| first.ids.first()?.id.parse::<EntryId>().ok())
            .min();
        let oldest = match first {
            Some(first) => {
                let now = inner.store.time().await?;
                Some(now.saturating_sub(Duration::from_millis(first.ms)))
            }
            None => None,
        };
        Ok(Lag {
            partitions: replies.into_iter().map(|(length, _)| length).collect(),
            oldest,
        })
    }

    /// Waits until everything written before now is in the database, or in the dead letters.
    ///
    /// # Errors
    ///
    /// [`is_timeout`](Error::is_timeout) if that takes longer than `within`, and those of the store.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn flush(&self, within: Duration) -> Result<()> {
        let inner = &self.inner;
        observe::operation("write_behind.flush", &inner.namespace, async {
            let until = Instant::now() + within;
            let late = || Error::timeout(format!("the database is still behind after {within:?}"));
            let mut waiting: Vec<(&Entity, EntryId)> = Vec::new();
            for partition in &inner.partitions {
                let mut cmd = redis::cmd("XREVRANGE");
                cmd.arg(partition.part("log"))
                    .arg("+")
                    .arg("-")
                    .arg("COUNT")
                    .arg(1);
                let last: StreamRangeReply = inner.store.query(&cmd).await?;
                if let Some(id) = last.ids.first().and_then(|last| last.id.parse().ok()) {
                    waiting.push((partition, id));
                }
            }
            if waiting.is_empty() {
                return Ok(());
            }
            let topics = waiting
                .iter()
                .map(|(partition, _)| Listen::Sharded(partition.channel("progress")));
            let mut news = inner.store.subscribe(topics).await?;
            loop {
                // Whatever happened, also to the subscription itself: look again.
                timeout_at(until, news.next())
                    .await
                    .map_err(|_| late())?
                    .ok_or_else(|| Error::unavailable("the subscription ended"))?;
                let mut behind = Vec::with_capacity(waiting.len());
                for (partition, id) in waiting {
                    let mut cmd = redis::cmd("XRANGE");
                    cmd.arg(partition.part("log"))
                        .arg("-")
                        .arg(id.to_string())
                        .arg("COUNT")
                        .arg(1);
                    let left: StreamRangeReply = inner.store.query(&cmd).await?;
                    if !left.ids.is_empty() {
                        behind.push((partition, id));
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

    /// The writes that could not be applied.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn dead_letters(&self) -> Result<Vec<DeadLetter>> {
        let mut letters = Vec::new();
        for partition in &self.inner.partitions {
            let mut cmd = redis::cmd("XRANGE");
            cmd.arg(partition.part("dead")).arg("-").arg("+");
            let reply: StreamRangeReply = self.inner.store.query(&cmd).await?;
            letters.extend(reply.ids.into_iter().filter_map(|letter| {
                Some(DeadLetter {
                    key: letter.get("k")?,
                    why: letter.get("why")?,
                    id: letter.id.parse().ok()?,
                })
            }));
        }
        Ok(letters)
    }

    /// Writes the last dead letter of a key again and unblocks it. Says how many letters there were.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, it may or may not have happened.
    pub async fn retry_dead(&self, key: &K) -> Result<u64> {
        self.unbury(key, "retry").await
    }

    /// Drops the dead letters of a key and its cached value, and unblocks it. Says how many there were.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, it may or may not have happened.
    pub async fn discard_dead(&self, key: &K) -> Result<u64> {
        self.unbury(key, "discard").await
    }

    async fn unbury(&self, key: &K, verb: &str) -> Result<u64> {
        let name = key.name();
        UNBURY
            .on(self.partition(&name)?)
            .part("dead")
            .part("blocked")
            .part("log")
            .part(&value_part(&name))
            .arg(&*name)
            .arg(verb)
            .run(&self.inner.store)
            .await
    }
}
