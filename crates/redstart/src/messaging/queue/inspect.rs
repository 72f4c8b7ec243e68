//! A look into a queue, and repairs by hand. Nothing here blocks the server: lists are read in pages.

mod page;

use std::time::Duration;

use serde::de::DeserializeOwned;

pub use page::JobCursor;

use super::{
    DeadLetters, JobId, Queue, parked,
    record::Record,
    script::{REMOVE, RUN_NOW},
};
use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
    observe,
};

/// How far from the place where a ready job was seen it is looked for.
const REACH: usize = 2000;

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// It waits for a worker.
    Ready,
    /// It waits for its time: delayed, or between attempts.
    Delayed,
    /// A worker has it.
    Running,
    /// No worker that took it could run it; it waits for [one that can](super::QueueBuilder::park_for).
    Parked,
    /// It is done and was [kept](super::QueueBuilder::keep_done).
    Done,
    /// It failed for good and is a [dead letter](super::DeadLetter).
    Dead,
}

/// How many jobs are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueCounts {
    /// Jobs that wait for a worker.
    pub ready: u64,
    /// Jobs that wait for their time.
    pub delayed: u64,
    /// Jobs that workers hold.
    pub running: u64,
    /// Jobs that wait for a worker that can run them.
    pub parked: u64,
    /// Dead letters.
    pub dead: u64,
    /// Done jobs that were kept.
    pub done: u64,
    /// Registered workers, including those whose lease has ended unnoticed so far.
    pub workers: u64,
    /// Whether the queue is paused.
    pub paused: bool,
}

impl QueueCounts {
    /// Jobs that are not finished yet: ready, delayed, running or parked.
    pub fn unfinished(&self) -> u64 {
        self.ready + self.delayed + self.running + self.parked
    }
}

/// A job as it was when it was read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// The name of its kind.
    pub name: String,
    /// Its state.
    pub state: JobState,
    /// Attempts that were charged so far; a running one has begun one more.
    pub attempts: u32,
    /// Its priority.
    pub priority: i16,
    /// When it became or becomes ready, since the Unix epoch.
    pub due: Duration,
    /// The payload: JSON.
    pub payload: Vec<u8>,
    /// The worker that has it.
    pub worker: Option<String>,
    /// The progress that its handler recorded.
    pub progress: Option<f64>,
    record: Vec<u8>,
    /// In the list of ready jobs: its place counted from the end, the last is 1.
    place: usize,
}

impl JobInfo {
    pub(super) fn read(record: Vec<u8>, state: JobState) -> Option<Self> {
        let parsed = Record::parse(&record)?;
        Some(Self {
            id: parsed.id,
            state,
            attempts: u32::from(parsed.attempts),
            priority: parsed.priority,
            due: Duration::from_micros(parsed.due),
            payload: parsed.payload(&record).to_vec(),
            name: parsed.name,
            worker: None,
            progress: None,
            record,
            place: 0,
        })
    }

    /// The payload as a type.
    ///
    /// # Errors
    ///
    /// [`is_codec`](crate::Error::is_codec) if the payload is not a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        Json::decode(&self.payload)
    }
}

/// A look into a queue, and repairs by hand; made by [`Queue::inspect`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use redstart::{Store, messaging::{Job, Queue, JobState}};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail { to: String }
/// # impl Job for Mail { const NAME: &'static str = "mail"; }
/// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "mail")?;
/// for to in ["ann", "bob", "eve"] {
///     queue.enqueue(&Mail { to: to.into() }).await?;
/// }
/// let look = queue.inspect();
/// assert_eq!(look.counts().await?.ready, 3);
/// let found = look.search(JobState::Ready, "bob", 10).await?;
/// assert_eq!(found.len(), 1);
/// assert!(look.delete(found[0].id).await?);
/// assert_eq!(look.counts().await?.ready, 2);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct QueueInspector {
    queue: Queue,
}

impl QueueInspector {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue }
    }

    /// How many jobs are in each state.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn counts(&self) -> Result<QueueCounts> {
        let (mut workers, mut kinds) = self.workers_and_parked_kinds().await?;
        // What is counted depends on who is there; a change in between is seen in the reply.
        loop {
            let (counts, now_workers, now_kinds) = self.count(&workers, &kinds).await?;
            if now_workers == workers && now_kinds == kinds {
                return Ok(counts);
            }
            (workers, kinds) = (now_workers, now_kinds);
        }
    }

    /// Counts at one moment, and who was there at that moment.
    async fn count(
        &self,
        workers: &[String],
        kinds: &[String],
    ) -> Result<(QueueCounts, Vec<String>, Vec<String>)> {
        let entity = self.queue.entity();
        let mut pipeline = redis::pipe();
        pipeline.atomic();
        for part in ["workers", "parked"] {
            let key = entity.part(part);
            pipeline.cmd("ZRANGE").arg(key).arg(0).arg(-1);
        }
        for (command, part) in [
            ("LLEN", "ready"),
            ("ZCARD", "ranked"),
            ("ZCARD", "delayed"),
            ("XLEN", "dead"),
            ("XLEN", "done"),
        ] {
            pipeline.cmd(command).arg(entity.part(part));
        }
        let meta = entity.part("meta");
        pipeline.cmd("HEXISTS").arg(&meta).arg("paused");
        pipeline.cmd("HGET").arg(&meta).arg("deleted");
        for worker in workers {
            let running = entity.part(&format!("running:{worker}"));
            pipeline.cmd("HLEN").arg(running);
        }
        for kind in kinds {
            let parked = entity.part(&parked::part(kind));
            pipeline.cmd("ZCARD").arg(parked);
        }
        let replies: Vec<redis::Value> = self.queue.store().pipeline(&pipeline).await?;
        let mut replies = replies.into_iter();
        let mut names = || -> Result<Vec<String>> {
            let reply = replies.next().unwrap_or(redis::Value::Nil);
            // Their order changes with every renewal.
            let mut names: Vec<String> = redis::from_redis_value(reply)?;
            names.sort_unstable();
            Ok(names)
        };
        let (now_workers, now_kinds) = (names()?, names()?);
        let mut numbers = Vec::with_capacity(replies.len());
        for reply in replies {
            let number: Option<u64> = redis::from_redis_value(reply)?;
            numbers.push(number.unwrap_or(0));
        }
        if numbers.len() != 7 + workers.len() + kinds.len() {
            return Err(Error::codec("unexpected shape of the reply"));
        }
        let (running, parked) = numbers[7..].split_at(workers.len());
        let counts = QueueCounts {
            ready: (numbers[0] + numbers[1]).saturating_sub(numbers[6]),
            delayed: numbers[2],
            dead: numbers[3],
            done: numbers[4],
            paused: numbers[5] == 1,
            // One field of each hash is the worker's epoch.
            running: running.iter().map(|held| held.saturating_sub(1)).sum(),
            parked: parked.iter().sum(),
            workers: workers.len() as u64,
        };
        Ok((counts, now_workers, now_kinds))
    }

    async fn workers_and_parked_kinds(&self) -> Result<(Vec<String>, Vec<String>)> {
        let mut pipeline = redis::pipe();
        for part in ["workers", "parked"] {
            let key = self.queue.entity().part(part);
            pipeline.cmd("ZRANGE").arg(key).arg(0).arg(-1);
        }
        let (mut workers, mut kinds): (Vec<String>, Vec<String>) =
            self.queue.store().pipeline(&pipeline).await?;
        workers.sort_unstable();
        kinds.sort_unstable();
        Ok((workers, kinds))
    }

    /// A page of jobs, in no particular order, and the cursor of the next page.
    ///
    /// A job that keeps its state while all pages are read is in at least one of them, and may be in two. Dead
    /// letters have [their own list](Self::dead_letters).
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn list(
        &self,
        state: JobState,
        from: Option<JobCursor>,
    ) -> Result<(Vec<JobInfo>, Option<JobCursor>)> {
        observe::operation(
            "queue.inspect",
            self.queue.namespace(),
            self.page(state, from),
        )
        .await
    }

    /// At most `limit` jobs whose payload contains a text. Reads all jobs of that state, page by page.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn search(&self, state: JobState, text: &str, limit: usize) -> Result<Vec<JobInfo>> {
        let text = text.as_bytes();
        self.matching(state, limit, |job| {
            text.is_empty() || job.payload.windows(text.len()).any(|part| part == text)
        })
        .await
    }

    async fn matching(
        &self,
        state: JobState,
        limit: usize,
        matches: impl Fn(&JobInfo) -> bool,
    ) -> Result<Vec<JobInfo>> {
        let mut seen = std::collections::HashSet::new();
        let mut found = Vec::new();
        let mut from = None;
        loop {
            let (jobs, next) = self.list(state, from).await?;
            for job in jobs {
                if found.len() < limit && matches(&job) && seen.insert(job.id) {
                    found.push(job);
                }
            }
            match next {
                Some(next) if found.len() < limit => from = Some(next),
                _ => return Ok(found),
            }
        }
    }

    /// A job that is not finished, by its id. Reads page by page until it is found.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn find(&self, id: JobId) -> Result<Option<JobInfo>> {
        for state in [
            JobState::Running,
            JobState::Ready,
            JobState::Delayed,
            JobState::Parked,
        ] {
            let found = self.matching(state, 1, |job| job.id == id).await?;
            if let Some(job) = found.into_iter().next() {
                return Ok(Some(job));
            }
        }
        Ok(None)
    }

    /// Deletes a job that waits, and frees its unique key; `false` if it runs, or is not there.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn delete(&self, id: JobId) -> Result<bool> {
        // A job that has moved far in the list since it was found is looked for again.
        for _ in 0..5 {
            let Some(job) = self.find(id).await? else {
                return Ok(false);
            };
            let (kind, part) = match (job.state, job.priority) {
                (JobState::Ready, 0) => ("list", "ready".to_owned()),
                (JobState::Ready, _) => ("zset", "ranked".to_owned()),
                (JobState::Delayed, _) => ("zset", "delayed".to_owned()),
                (JobState::Parked, _) => ("zset", parked::part(&job.name)),
                _ => return Ok(false),
            };
            let removed: u8 = REMOVE
                .on(self.queue.entity())
                .part(&part)
                .part("unique")
                .part("meta")
                .arg(kind)
                .arg(&job.record[..])
                .arg(job.place)
                .arg(REACH)
                .run(self.queue.store())
                .await?;
            if removed < 2 {
                return Ok(removed == 1);
            }
        }
        Ok(false)
    }

    /// Makes a delayed job ready now; `false` if it is not delayed. It may have been enqueued with a delay, or wait
    /// for its next attempt.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn run_now(&self, id: JobId) -> Result<bool> {
        let found = self
            .matching(JobState::Delayed, 1, |job| job.id == id)
            .await?;
        let Some(job) = found.into_iter().next() else {
            return Ok(false);
        };
        let made_ready: u8 = RUN_NOW
            .on(self.queue.entity())
            .part("delayed")
            .part("ready")
            .part("ranked")
            .part("idle")
            .arg(&self.queue.0.channel)
            .arg(self.queue.0.boost)
            .arg(&job.record[..])
            .run(self.queue.store())
            .await?;
        Ok(made_ready == 1)
    }

    /// The dead letters.
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters::new(self.queue.clone())
    }
}
