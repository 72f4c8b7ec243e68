//! The worker: one task per shard, each the only one whose batches count.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redis::streams::{StreamRangeReply, StreamReadReply};
use serde::{Serialize, de::DeserializeOwned};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    batch::{Batch, Refusal},
    dead,
    sink::{Changes, EntryId, Sink, SinkClaim, SinkError},
    stored::LogEntry,
};
use crate::{
    codec::Codec,
    duration::millis,
    error::{Error, Result},
    key::Entity,
    observe,
    script::Script,
    store::Dedicated,
    token::token,
};

pub(crate) static CLAIM: Script = Script::new("write_behind.claim", include_str!("claim.lua"));
pub(crate) static RESIGN: Script = Script::new("write_behind.resign", include_str!("resign.lua"));
pub(crate) static ACK: Script = Script::new("write_behind.ack", include_str!("ack.lua"));

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Applies the log to the sink until it is stopped or dropped.
///
/// Any number of workers, in any number of processes, share the shards among themselves.
#[must_use = "a worker that is dropped stops"]
pub struct WriteBehindWorker {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl WriteBehindWorker {
    /// Lets each shard finish its batch, releases the shards, and ends.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the worker ends at once; its shards are free when their lease ends.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl<V, C> Shared<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    pub(super) fn work<S: Sink<V>>(self: &Arc<Self>, sink: &Arc<S>) -> Result<WriteBehindWorker> {
        let runtime = self
            .store
            .runtime()
            .ok_or_else(|| Error::config("a write-behind worker needs a tokio runtime"))?;
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for (number, entity) in (0..).zip(&self.shards) {
            let shard = Shard {
                shared: self.clone(),
                sink: sink.clone(),
                entity: entity.clone(),
                number,
                token: token(),
                stop: stop.clone(),
            };
            tasks.spawn_on(crate::task::owned(shard.run()), &runtime);
        }
        Ok(WriteBehindWorker { stop, tasks })
    }
}

/// A worker's task for one shard.
struct Shard<V, C, S> {
    shared: Arc<Shared<V, C>>,
    sink: Arc<S>,
    entity: Entity,
    number: u32,
    token: String,
    stop: CancellationToken,
}

/// Why a worker no longer serves a shard.
enum End {
    Stopped,
    /// Another worker has the shard.
    Lost,
    Failed(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl<V, C, S> Shard<V, C, S>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
    S: Sink<V>,
{
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        let clock = self.shared.store.clock();
        while !self.stop.is_cancelled() {
            let rest = match self.own().await {
                Ok(None) => match self.serve().await {
                    Err(End::Stopped) | Ok(()) => break,
                    Err(End::Lost) => {
                        observe::event("write_behind.lost_shard");
                        FIRST_PAUSE
                    }
                    Err(End::Failed(error)) => {
                        tracing::warn!(%error, shard = self.number, "a write-behind worker starts again");
                        pause = (pause * 2).min(LONGEST_PAUSE);
                        pause
                    }
                },
                // A moment longer than the other worker's lease, at most.
                Ok(Some(left)) => left.min(self.shared.lease / 2) + Duration::from_millis(1),
                Err(error) => {
                    tracing::debug!(%error, "a write-behind worker waits for its store");
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    pause
                }
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                () = clock.sleep(rest) => {}
            }
        }
        let resigned = RESIGN
            .on(&self.entity)
            .part("owner")
            .arg(&self.token)
            .arg(self.entity.channel("progress"))
            .idempotent();
        // If this fails, the lease ends on its own.
        let _ = resigned.run::<u8>(&self.shared.store).await;
    }

    /// Takes or renews the lease of the shard. If another worker has it: for how long.
    async fn own(&self) -> Result<Option<Duration>> {
        let left: u64 = CLAIM
            .on(&self.entity)
            .part("owner")
            .arg(&self.token)
            .arg(millis(self.shared.lease))
            .idempotent()
            .run(&self.shared.store)
            .await?;
        Ok((left > 0).then(|| Duration::from_millis(left)))
    }

    /// From claiming the shard in the sink to losing it.
    async fn serve(&self) -> Result<(), End> {
        let claim = self.held(self.claim()).await??;
        let SinkClaim { epoch, mut applied } = claim;
        if crate::mend::is_missing("the sink says what was applied") {
            applied = EntryId::default();
        }
        self.catch_up(applied).await?;
        let mut line = self.shared.store.dedicated(&self.entity.part("log"));
        let clock = self.shared.store.clock();
        let mut renewed = clock.now();
        while !self.stop.is_cancelled() {
            if clock.now().saturating_duration_since(renewed) > self.shared.lease / 3 {
                renewed = clock.now();
                if self.own().await?.is_some() {
                    return Err(End::Lost);
                }
            }
            let (last, entries) = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                // The lease is renewed meanwhile if the clock gets there before the read ends.
                read = self.held(self.read(&mut line, applied)) => read??,
            };
            let Some(last) = last else { continue };
            let done = self.apply(epoch, last, entries).await?;
            applied = last;
            self.ack(applied, &done).await?;
        }
        Ok(())
    }

    /// Runs something that may take long, and renews the lease meanwhile.
    async fn held<T>(&self, work: impl Future<Output = T>) -> Result<T, End> {
        tokio::pin!(work);
        let clock = self.shared.store.clock();
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = clock.sleep(self.shared.lease / 3) => {
                    // If the store is down, the sink's epoch still decides: nothing is applied twice.
                    if let Ok(Some(_)) = self.own().await {
                        return Err(End::Lost);
                    }
                }
            }
        }
    }

    /// Claims the shard in the sink, as soon as that can work.
    async fn claim(&self) -> Result<SinkClaim, End> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.sink.claim(&self.shared.log, self.number).await {
                Ok(claim) => return Ok(claim),
                Err(SinkError::Fenced) => return Err(End::Lost),
                Err(error) => self.rest(&error, &mut pause).await?,
            }
        }
    }

    /// Waits after the sink failed.
    async fn rest(&self, error: &SinkError, pause: &mut Duration) -> Result<(), End> {
        observe::event("write_behind.sink_failed");
        tracing::warn!(%error, shard = self.number, "the sink failed");
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(End::Stopped),
            () = tokio::time::sleep(*pause) => {}
        }
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    /// Acknowledges what an earlier worker applied and did not get to acknowledge.
    async fn catch_up(&self, applied: EntryId) -> Result<()> {
        loop {
            let mut cmd = redis::cmd("XRANGE");
            cmd.arg(self.entity.part("log"))
                .arg("-")
                .arg(applied.to_string())
                .arg("COUNT")
                .arg(self.shared.batch);
            let reply: StreamRangeReply = self.shared.store.query(&cmd).await?;
            let Some(last) = reply.ids.last().and_then(|entry| entry.id.parse().ok()) else {
                return Ok(());
            };
            let entries = reply.ids.into_iter().filter_map(LogEntry::parse);
            let entries: Vec<LogEntry> = entries.collect();
            let dead = self.first_dead(&entries).await?;
            // A dead write stays pinned, as its key stays blocked.
            let done = entries
                .into_iter()
                .filter(|entry| dead.get(&entry.key).is_none_or(|first| entry.id < *first))
                .map(|entry| (entry.key, entry.id))
                .collect();
            self.ack(last, &done).await?;
        }
    }

    /// Waits for writes. Returns the id of the last one; entries of another shape are left out.
    async fn read(
        &self,
        line: &mut Dedicated,
        after: EntryId,
    ) -> Result<(Option<EntryId>, Vec<LogEntry>)> {
        let wait = self.shared.lease / 3;
        let mut cmd = redis::cmd("XREAD");
        cmd.arg("COUNT")
            .arg(self.shared.batch)
            .arg("BLOCK")
            .arg(millis(wait).max(1))
            .arg("STREAMS")
            .arg(self.entity.part("log"))
            .arg(after.to_string());
        let reply: Option<StreamReadReply> = line.query(&cmd, wait).await?;
        let read: Vec<_> = reply
            .into_iter()
            .flat_map(|reply| reply.keys)
            .flat_map(|key| key.ids)
            .collect();
        let last = read
            .last()
            .map(|last| dead::parse_id(&last.id))
            .transpose()?;
        Ok((last, read.into_iter().filter_map(LogEntry::parse).collect()))
    }

    /// The first dead write of each blocked key among these.
    async fn first_dead(&self, entries: &[LogEntry]) -> Result<BTreeMap<String, EntryId>> {
        let keys: std::collections::BTreeSet<&str> =
            entries.iter().map(|entry| &*entry.key).collect();
        let keys: Vec<&str> = keys.into_iter().collect();
        if keys.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(self.entity.part("blocked")).arg(&keys);
        let ids: Vec<Option<String>> = self.shared.store.query(&cmd).await?;
        keys.into_iter()
            .zip(ids)
            .filter_map(|(key, id)| Some((key, id?)))
            .map(|(key, id)| Ok((key.to_owned(), dead::parse_id(&id)?)))
            .collect()
    }

    /// Applies the newest write of each key in one transaction, with the checkpoint. Dead letters are stored before.
    /// Returns the keys that were applied, with the ids of the writes.
    async fn apply(
        &self,
        epoch: i64,
        upto: EntryId,
        entries: Vec<LogEntry>,
    ) -> Result<BTreeMap<String, EntryId>, End> {
        let read = entries.len();
        let dead = self.first_dead(&entries).await?;
        let mut batch = Batch::<V>::new::<C>(self.shared.fingerprint, entries, &dead);
        let mut pause = FIRST_PAUSE;
        loop {
            let letters = batch.take_letters();
            if !letters.is_empty() {
                dead::bury(&self.shared.store, &self.entity, &letters).await?;
            }
            let changes = Changes {
                log: self.shared.log.clone(),
                shard: self.number,
                epoch,
                upto,
                changes: batch.take_changes(),
            };
            let result = self.held(self.sink.apply(&changes)).await?;
            let count = changes.changes.len();
            batch.put_changes(changes.changes);
            match result {
                Ok(()) => break,
                Err(SinkError::Fenced) => return Err(End::Lost),
                Err(SinkError::Refused(refused))
                    if !refused.is_empty() && refused.iter().all(|one| one.index < count) =>
                {
                    let refused = refused.into_iter().map(|one| {
                        let reasons = std::iter::once(one.source).chain(one.older);
                        Refusal {
                            index: one.index,
                            reasons: reasons.map(|reason| reason.to_string()).collect(),
                        }
                    });
                    batch.refuse::<C>(refused.collect());
                }
                Err(error) => self.held(self.rest(&error, &mut pause)).await??,
            }
        }
        let applied = batch.changes().len();
        observe::events("write_behind.applied", applied as u64);
        observe::events("write_behind.coalesced", (read - applied.min(read)) as u64);
        Ok(batch
            .applied()
            .map(|(key, id)| (key.to_owned(), id))
            .collect())
    }

    async fn ack(&self, applied: EntryId, done: &BTreeMap<String, EntryId>) -> Result<()> {
        let mut call = ACK.on(&self.entity).part("log");
        for key in done.keys() {
            call = call.part(&super::value_part(key));
        }
        call = call
            .arg(applied.next().to_string())
            .arg(millis(self.shared.ttl))
            .arg(self.entity.channel("progress"));
        for id in done.values() {
            call = call.arg(id.to_string());
        }
        call.idempotent()
            .run::<u64>(&self.shared.store)
            .await
            .map(drop)
    }
}
