//! The worker: one task a partition, each the only one whose batches count.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use redis::streams::{StreamRangeReply, StreamReadReply};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Inner, Stored,
    sink::{Change, Changes, Claim, EntryId, Sink, SinkError},
};
use crate::{
    codec::{Codec, Envelope, Opened},
    error::{Error, Result},
    key::Entity,
    observe,
    script::Script,
    store::Dedicated,
};

static CLAIM: Script = Script::new("write_behind.claim", include_str!("claim.lua"));
static RESIGN: Script = Script::new("write_behind.resign", include_str!("resign.lua"));
static ACK: Script = Script::new("write_behind.ack", include_str!("ack.lua"));
static BURY: Script = Script::new("write_behind.bury", include_str!("bury.lua"));

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Applies the log to the sink until it is stopped or dropped.
///
/// Any number of workers, in any number of processes, share the partitions among themselves.
#[must_use = "a worker that is dropped stops"]
pub struct Worker {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Worker {
    /// Lets each partition finish the batch it is at, gives the partitions back, and ends.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the worker ends at once; its partitions are free after their lease.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl<V, C> Inner<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    pub(super) fn work<S: Sink<V>>(self: &Arc<Self>, sink: &Arc<S>) -> Result<Worker> {
        let runtime = self
            .store
            .runtime()
            .ok_or_else(|| Error::config("a worker runs within a tokio runtime"))?;
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for (partition, entity) in self.partitions.iter().enumerate() {
            let one = Partition {
                inner: self.clone(),
                sink: sink.clone(),
                entity: entity.clone(),
                number: u32::try_from(partition).unwrap_or(u32::MAX),
                token: crate::caching::cache::lease::token(),
                stop: stop.clone(),
            };
            tasks.spawn_on(one.run(), &runtime);
        }
        Ok(Worker { stop, tasks })
    }
}

struct Partition<V, C, S> {
    inner: Arc<Inner<V, C>>,
    sink: Arc<S>,
    entity: Entity,
    number: u32,
    token: String,
    stop: CancellationToken,
}

/// An entry of the log.
struct Entry {
    id: EntryId,
    key: String,
    stored: Stored,
}

/// Why a tenure ended.
enum End {
    Stopped,
    /// Another worker has the partition.
    Lost,
    Failed(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl<V, C, S> Partition<V, C, S>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
    S: Sink<V>,
{
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        while !self.stop.is_cancelled() {
            let rest = match self.own().await {
                Ok(None) => match self.tenure().await {
                    End::Stopped => break,
                    End::Lost => {
                        observe::event("write_behind.lost_partition");
                        FIRST_PAUSE
                    }
                    End::Failed(error) => {
                        tracing::warn!(%error, partition = self.number, "a write-behind worker begins anew");
                        pause = (pause * 2).min(LONGEST_PAUSE);
                        pause
                    }
                },
                // A moment longer than the other's lease, at most.
                Ok(Some(left)) => left.min(self.inner.owner_lasts / 2) + Duration::from_millis(1),
                Err(error) => {
                    tracing::debug!(%error, "a write-behind worker waits for its store");
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    pause
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = tokio::time::sleep(rest) => {}
            }
        }
        let resigned = RESIGN
            .on(&self.entity)
            .part("owner")
            .arg(&self.token)
            .arg(self.entity.channel("progress"))
            .idempotent();
        let _ = resigned.run::<u8>(&self.inner.store).await;
    }

    /// Takes or keeps the partition; how long it is another's otherwise.
    async fn own(&self) -> Result<Option<Duration>> {
        let left: u64 = CLAIM
            .on(&self.entity)
            .part("owner")
            .arg(&self.token)
            .arg(u64::try_from(self.inner.owner_lasts.as_millis()).unwrap_or(u64::MAX))
            .idempotent()
            .run(&self.inner.store)
            .await?;
        Ok((left > 0).then(|| Duration::from_millis(left)))
    }

    /// From claiming the partition in the sink to losing it.
    async fn tenure(&self) -> End {
        match self.serve().await {
            Ok(()) => End::Stopped,
            Err(end) => end,
        }
    }

    async fn serve(&self) -> Result<(), End> {
        let claim = self
            .held(self.sink_retry(|| self.sink.claim(self.number)))
            .await??;
        let Claim { epoch, applied } = claim;
        self.catch_up(applied).await?;
        let mut applied = applied;
        let mut line = self.inner.store.dedicated(&self.entity.part("log"));
        let mut renewed = Instant::now();
        while !self.stop.is_cancelled() {
            if renewed.elapsed() > self.inner.owner_lasts / 3 {
                renewed = Instant::now();
                if self.own().await?.is_some() {
                    return Err(End::Lost);
                }
            }
            let entries = tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                entries = self.read(&mut line, applied) => entries?,
            };
            let Some(last) = entries.last().map(|entry| entry.id) else {
                continue;
            };
            let done = self.apply(epoch, last, entries).await?;
            applied = last;
            self.ack(applied, &done).await?;
        }
        Ok(())
    }

    /// Runs something that may take long, and keeps the partition meanwhile.
    async fn held<T>(&self, work: impl Future<Output = T>) -> Result<T, End> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(self.inner.owner_lasts / 3) => {
                    // With the store away the sink's epoch still decides; what is done is done once.
                    if let Ok(Some(_)) = self.own().await {
                        return Err(End::Lost);
                    }
                }
            }
        }
    }

    /// Tries until the sink can work, unless the worker is stopped.
    async fn sink_retry<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T, End>
    where
        F: Future<Output = Result<T, SinkError>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            match attempt().await {
                Ok(value) => return Ok(value),
                Err(SinkError::Fenced) => return Err(End::Lost),
                Err(error) => {
                    observe::event("write_behind.sink_failed");
                    tracing::warn!(%error, partition = self.number, "the sink failed");
                }
            }
            tokio::select! {
                () = self.stop.cancelled() => return Err(End::Stopped),
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// What an earlier worker applied and did not get to acknowledge.
    async fn catch_up(&self, applied: EntryId) -> Result<()> {
        loop {
            let mut cmd = redis::cmd("XRANGE");
            cmd.arg(self.entity.part("log"))
                .arg("-")
                .arg(applied.to_string())
                .arg("COUNT")
                .arg(self.inner.batch);
            let reply: StreamRangeReply = self.inner.store.query(&cmd).await?;
            let entries: Vec<Entry> = reply.ids.into_iter().filter_map(entry).collect();
            let Some(last) = entries.last().map(|entry| entry.id) else {
                return Ok(());
            };
            let done = entries
                .into_iter()
                .map(|entry| (entry.key, entry.id))
                .collect();
            self.ack(last, &done).await?;
        }
    }

    async fn read(&self, line: &mut Dedicated, after: EntryId) -> Result<Vec<Entry>> {
        let wait = self.inner.owner_lasts / 3;
        let mut cmd = redis::cmd("XREAD");
        cmd.arg("COUNT")
            .arg(self.inner.batch)
            .arg("BLOCK")
            .arg(u64::try_from(wait.as_millis()).unwrap_or(1).max(1))
            .arg("STREAMS")
            .arg(self.entity.part("log"))
            .arg(after.to_string());
        let reply: Option<StreamReadReply> = line.query(&cmd, wait).await?;
        Ok(reply
            .into_iter()
            .flat_map(|reply| reply.keys)
            .flat_map(|key| key.ids)
            .filter_map(entry)
            .collect())
    }

    /// Applies the last write of each key in one transaction. What cannot be applied is buried. Returns the
    /// keys that were applied, with the ids of their last writes.
    async fn apply(
        &self,
        epoch: i64,
        upto: EntryId,
        entries: Vec<Entry>,
    ) -> Result<HashMap<String, EntryId>, End> {
        let read = entries.len();
        let mut blocked: HashSet<String> = self
            .inner
            .store
            .query(redis::cmd("SMEMBERS").arg(self.entity.part("blocked")))
            .await?;
        let mut last: HashMap<String, Entry> = HashMap::with_capacity(entries.len());
        for entry in entries {
            if blocked.contains(&entry.key) {
                self.bury(&entry, "an earlier write of this key is dead")
                    .await?;
            } else if let Some(old) = last.insert(entry.key.clone(), entry)
                && old.id > upto
            {
                // Entries come in order; this cannot be.
                return Err(End::Failed(Error::codec("the log is out of order")));
            }
        }
        let mut batch = Changes {
            partition: self.number,
            epoch,
            upto,
            changes: Vec::with_capacity(last.len()),
        };
        let mut order: Vec<Entry> = last.into_values().collect();
        order.sort_by_key(|entry| entry.id);
        let mut kept = Vec::with_capacity(order.len());
        for entry in order {
            match open::<C, V>(self.inner.schema, &entry.stored) {
                Ok(value) => {
                    batch.changes.push(Change {
                        key: entry.key.clone(),
                        value,
                        id: entry.id,
                    });
                    kept.push(entry);
                }
                Err(error) => {
                    blocked.insert(entry.key.clone());
                    self.bury(&entry, &error.to_string()).await?;
                }
            }
        }
        let mut pause = FIRST_PAUSE;
        loop {
            match self.held(self.sink.apply(&batch)).await? {
                Ok(()) => break,
                Err(SinkError::Fenced) => return Err(End::Lost),
                Err(SinkError::Row { index, source }) if index < kept.len() => {
                    let entry = kept.remove(index);
                    batch.changes.remove(index);
                    self.bury(&entry, &source.to_string()).await?;
                }
                Err(error) => {
                    observe::event("write_behind.sink_failed");
                    tracing::warn!(%error, partition = self.number, "the sink failed");
                    let rest = self.held(async {
                        tokio::select! {
                            () = self.stop.cancelled() => true,
                            () = tokio::time::sleep(pause) => false,
                        }
                    });
                    if rest.await? {
                        return Err(End::Stopped);
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        let applied = batch.changes.len();
        observe::events("write_behind.applied", applied as u64);
        observe::events("write_behind.coalesced", (read - applied.min(read)) as u64);
        Ok(kept
            .into_iter()
            .map(|entry| (entry.key, entry.id))
            .collect())
    }

    async fn bury(&self, entry: &Entry, why: &str) -> Result<()> {
        observe::event("write_behind.dead_letter");
        BURY.on(&self.entity)
            .part("dead")
            .part("blocked")
            .arg(entry.id.to_string())
            .arg(&entry.key)
            .arg(entry.stored.bytes())
            .arg(why)
            .idempotent()
            .run::<u8>(&self.inner.store)
            .await
            .map(drop)
    }

    async fn ack(&self, applied: EntryId, done: &HashMap<String, EntryId>) -> Result<()> {
        let ttl = u64::try_from(self.inner.ttl.as_millis()).unwrap_or(u64::MAX);
        let mut call = ACK.on(&self.entity).part("log");
        for key in done.keys() {
            call = call.part(&super::value_part(key));
        }
        call = call
            .arg(applied.next().to_string())
            .arg(ttl)
            .arg(self.entity.channel("progress"));
        for id in done.values() {
            call = call.arg(id.to_string());
        }
        call.idempotent()
            .run::<u64>(&self.inner.store)
            .await
            .map(drop)
    }
}

fn entry(id: redis::streams::StreamId) -> Option<Entry> {
    let key: String = id.get("k")?;
    let stored: Vec<u8> = id.get("v")?;
    Some(Entry {
        id: id.id.parse().ok()?,
        key,
        stored: Stored::parse(&stored)?,
    })
}

fn open<C: Codec, V: DeserializeOwned>(schema: u32, stored: &Stored) -> Result<Option<V>> {
    match stored {
        Stored::Deleted => Ok(None),
        Stored::Value(bytes) => match Envelope::open::<C, V>(schema, bytes)? {
            Opened::Value(value) => Ok(Some(value)),
            Opened::Foreign => Err(Error::codec("written under another schema or codec")),
        },
    }
}
