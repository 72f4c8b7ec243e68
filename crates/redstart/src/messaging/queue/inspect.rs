//! A look into a queue, and repairs by hand. Nothing here blocks the server: lists are read in pages.

mod page;

use std::time::Duration;

use serde::de::DeserializeOwned;

pub use page::JobCursor;

use super::{
    Children, DeadLetters, JobId, JobPolicy, Queue, UniqueUntil, away::AWAY, parked,
    record::Record, script::RUN_NOW,
};
use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
    observe,
    script::Batch,
};

/// How many jobs one batch of scripts deletes.
const BATCH: usize = 100;

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
    /// It waits until its [children](super::Flow) are over.
    Waiting,
    /// It is done and was [kept](super::QueueBuilder::keep_done).
    Done,
    /// It was cancelled, and kept.
    Cancelled,
    /// It was not started in time, and kept. See [`JobPolicy::expires_after`](super::JobPolicy::expires_after).
    Expired,
    /// It failed for good and is a [dead letter](super::DeadLetter).
    Dead,
}

impl JobState {
    /// From the letter in a record.
    pub(super) fn read(letter: u8) -> Option<Self> {
        Some(match letter {
            b'r' => Self::Ready,
            b'l' => Self::Delayed,
            b'x' => Self::Running,
            b'p' => Self::Parked,
            b'w' => Self::Waiting,
            b'd' => Self::Done,
            b'c' => Self::Cancelled,
            b'e' => Self::Expired,
            b'z' => Self::Dead,
            _ => return None,
        })
    }

    /// Whether a job in this state will not run again, unless somebody replays it.
    pub fn is_over(self) -> bool {
        matches!(
            self,
            Self::Done | Self::Cancelled | Self::Expired | Self::Dead
        )
    }
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
    /// Jobs that wait for their children.
    pub waiting: u64,
    /// Dead letters.
    pub dead: u64,
    /// Jobs that are done, cancelled or expired, and were kept.
    pub done: u64,
    /// Registered workers, including those whose lease has ended unnoticed so far.
    pub workers: u64,
    /// Whether the queue is paused.
    pub paused: bool,
}

impl QueueCounts {
    /// Jobs that are not finished yet: ready, delayed, running, parked or waiting.
    pub fn unfinished(&self) -> u64 {
        self.ready + self.delayed + self.running + self.parked + self.waiting
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
    /// How many attempts it has in all, if the job says so itself.
    pub max_attempts: Option<u32>,
    /// Its priority.
    pub priority: i16,
    /// When it was enqueued, since the Unix epoch.
    pub created: Duration,
    /// When it became or becomes ready, or when it ended, since the Unix epoch.
    pub due: Duration,
    /// When the worker that has it took it.
    pub started: Option<Duration>,
    /// The worker that has it.
    pub worker: Option<String>,
    /// The progress that its handler recorded.
    pub progress: Option<f64>,
    /// Its unique key.
    pub unique: Option<String>,
    /// Its group.
    pub group: Option<String>,
    /// The job that waits for it.
    pub parent: Option<JobId>,
    /// The namespace and the name of the queue of that job, if it is another one.
    pub parent_queue: Option<(String, String)>,
    /// Whether it runs and was told to stop.
    pub to_be_cancelled: bool,
    /// When it expires, since the Unix epoch.
    pub expires: Option<Duration>,
    /// How it is run, as it was enqueued. What it does not say is decided by the worker and the queue.
    pub policy: JobPolicy,
    /// The payload: JSON.
    pub payload: Vec<u8>,
    /// How it holds its unique key; a time is zero here.
    uniqueness: Option<UniqueUntil>,
}

impl JobInfo {
    pub(super) fn read(record: Vec<u8>) -> Option<Self> {
        let parsed = Record::parse(&record)?;
        let held = parsed.held.clone();
        Some(Self {
            id: parsed.id,
            state: parsed.state?,
            attempts: u32::from(parsed.attempts),
            max_attempts: parsed.max_attempts.map(u32::from),
            priority: parsed.priority,
            created: Duration::from_micros(parsed.created),
            due: Duration::from_micros(parsed.due),
            started: held
                .as_ref()
                .map(|(_, since)| Duration::from_micros(*since)),
            worker: held.map(|(worker, _)| worker),
            progress: None,
            unique: parsed.unique(),
            group: parsed.group(),
            parent: parsed.parent(),
            parent_queue: parsed.parent_queue(),
            to_be_cancelled: parsed.is_to_be_cancelled(),
            expires: parsed.expires(),
            policy: parsed.policy(),
            uniqueness: parsed.uniqueness(),
            payload: parsed.payload(&record).to_vec(),
            name: parsed.name,
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

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// How much longer a job holds its unique key: for a time, that is what is left of it. `None` if it has none, or holds
    /// it no longer.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn unique_until(&self, job: &JobInfo) -> Result<Option<UniqueUntil>> {
        let (Some(key), Some(UniqueUntil::For(_))) = (&job.unique, job.uniqueness) else {
            return Ok(job.uniqueness);
        };
        let (store, unique) = (self.queue.store(), self.queue.entity().part("unique"));
        // The id of the job that holds it, and until when.
        let held: Option<Vec<u8>> = store.query(redis::cmd("HGET").arg(unique).arg(key)).await?;
        let until = held.as_deref().and_then(|held| {
            let until = held.strip_prefix(&job.id.0[..])?;
            std::str::from_utf8(until).ok()?.parse::<u64>().ok()
        });
        let Some(until) = until else {
            return Ok(None);
        };
        let left = Duration::from_micros(until).saturating_sub(self.queue.time().await?);
        Ok((!left.is_zero()).then_some(UniqueUntil::For(left)))
    }

    /// How many jobs are in each state, at one moment. Where workers come and go all the time, those that came in between
    /// are counted without what they run.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn counts(&self) -> Result<QueueCounts> {
        let (mut workers, mut kinds) = self.workers_and_parked_kinds().await?;
        // What is counted depends on who is there; a change in between is seen in the reply.
        let mut tries = 5;
        loop {
            let (counts, now_workers, now_kinds) = self.count(&workers, &kinds).await?;
            tries -= 1;
            if (now_workers == workers && now_kinds == kinds) || tries == 0 {
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
            ("ZCARD", "grouped"),
            ("ZCARD", "delayed"),
            ("ZCARD", "parents"),
            ("ZCARD", "dead"),
            ("ZCARD", "done"),
        ] {
            pipeline.cmd(command).arg(entity.part(part));
        }
        let meta = entity.part("meta");
        pipeline.cmd("HEXISTS").arg(&meta).arg("paused");
        pipeline.cmd("HGET").arg(&meta).arg("deleted");
        // What parents in other queues are to be told lies there too: see `place.lua`.
        let parents = entity.part("parents");
        pipeline.cmd("ZCOUNT").arg(parents).arg(AWAY).arg("(9e15");
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
        if numbers.len() != 10 + workers.len() + kinds.len() {
            return Err(Error::codec("unexpected shape of the reply"));
        }
        let (running, parked) = numbers[10..].split_at(workers.len());
        let counts = QueueCounts {
            ready: (numbers[0] + numbers[1] + numbers[2]).saturating_sub(numbers[8]),
            delayed: numbers[3],
            waiting: numbers[4].saturating_sub(numbers[9]),
            dead: numbers[5],
            done: numbers[6],
            paused: numbers[7] == 1,
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

    /// When the job became ready that has waited for a worker the longest, since the Unix epoch; `None` if none waits.
    ///
    /// Only the jobs that are first in turn are looked at: ten of each kind of place. One that is before them in time,
    /// because they have a higher priority or its group waits for a place, may not be seen; nor is any behind a hundred
    /// thousand deleted ones in a row.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::Queue};
    /// # let store = Store::connect("memory://").await?;
    /// # let queue = Queue::new(&store, "shop", "mail")?;
    /// assert_eq!(queue.inspect().oldest().await?, None);
    /// queue.enqueue_raw("mail", b"1").await?;
    /// let oldest = queue.inspect().oldest().await?.unwrap();
    /// assert!(oldest <= store.time().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn oldest(&self) -> Result<Option<Duration>> {
        observe::operation("queue.oldest", self.queue.namespace(), self.first_due()).await
    }

    /// A page of jobs, in no particular order, and the cursor of the next page.
    ///
    /// A job that keeps its state while all pages are read is in at least one of them, and may be in two. However fast jobs
    /// are added, the pages come to an end. Dead letters have [their own list](Self::dead_letters).
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
        self.matching(state, limit, |job| has_text(job, text)).await
    }

    /// One step of a [search](Self::search): the jobs of one page whose payload contains a text, and the cursor of the next
    /// page. A page without a match is empty, and is not the last one if it has a cursor. What holds for the pages of
    /// [`list`](Self::list) holds for these.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn search_page(
        &self,
        state: JobState,
        text: &str,
        from: Option<JobCursor>,
    ) -> Result<(Vec<JobInfo>, Option<JobCursor>)> {
        let (mut jobs, next) = self.list(state, from).await?;
        jobs.retain(|job| has_text(job, text));
        Ok((jobs, next))
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

    /// The time of the server that has the queue, since the Unix epoch: of the same clock as the times of its jobs. In a
    /// Cluster each node has a clock of its own.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::Queue};
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "mail")?;
    /// let id = queue.enqueue_raw("report", b"5").await?.id().unwrap();
    /// let look = queue.inspect();
    /// assert!(look.find(id).await?.unwrap().created <= look.time().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn time(&self) -> Result<Duration> {
        self.queue.time().await
    }

    /// A job by its id. [`Queue::job`] tells more.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn find(&self, id: JobId) -> Result<Option<JobInfo>> {
        Ok(self.queue.job(id).await?.map(|found| found.job))
    }

    /// Deletes a job that waits, and frees its unique key; `false` if it runs, or is not there. Nothing of it is kept.
    ///
    /// # Errors
    ///
    /// Those of the store. [In doubt](crate::Error::is_in_doubt) if the reply was lost and the job is gone.
    pub async fn delete(&self, id: JobId) -> Result<bool> {
        Ok(self.queue.end_by_hand(id, "delete").await? == 1)
    }

    /// Deletes jobs that wait, as [`delete`](Self::delete) does, and returns how many: two round trips per hundred jobs.
    ///
    /// # Errors
    ///
    /// Those of the store; some jobs may have been deleted.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some jobs may have been deleted.
    pub async fn delete_many(&self, ids: &[JobId]) -> Result<u64> {
        let mut deleted = 0;
        for ids in ids.chunks(BATCH) {
            let ended = self.queue.end_many_by_hand(ids, "delete").await?;
            deleted += ended.iter().filter(|ended| **ended == 1).count() as u64;
        }
        Ok(deleted)
    }

    /// Cancels jobs, as [`Queue::cancel`] does; how many will not run or had their worker told. Jobs that are over are left
    /// as they are.
    ///
    /// # Errors
    ///
    /// Those of the store; some jobs may have been cancelled.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some jobs may have been cancelled.
    pub async fn cancel_many(&self, ids: &[JobId]) -> Result<u64> {
        let mut cancelled = 0;
        for ids in ids.chunks(BATCH) {
            let ended = self.queue.end_many_by_hand(ids, "cancel").await?;
            cancelled += ended.iter().filter(|ended| **ended > 0).count() as u64;
        }
        Ok(cancelled)
    }

    /// Cancels those of these jobs that wait; how many. Jobs that run by now, or are over, are left as they are.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::Queue};
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "mail")?;
    /// let id = queue.enqueue_raw("report", b"5").await?.id().unwrap();
    /// assert_eq!(queue.inspect().cancel_waiting_many(&[id, id]).await?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the store; some jobs may have been cancelled.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some jobs may have been cancelled.
    pub async fn cancel_waiting_many(&self, ids: &[JobId]) -> Result<u64> {
        let mut cancelled = 0;
        for ids in ids.chunks(BATCH) {
            let ended = self.queue.end_many_by_hand(ids, "withdraw").await?;
            cancelled += ended.iter().filter(|ended| **ended == 1).count() as u64;
        }
        Ok(cancelled)
    }

    /// Makes delayed jobs ready now, as [`run_now`](Self::run_now) does; how many. Jobs that are not delayed are left as
    /// they are.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use std::time::Duration;
    /// # use redstart::{Store, messaging::Queue};
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "mail")?;
    /// let later = queue.enqueue_raw("report", b"5").delay(Duration::from_secs(60)).await?;
    /// let id = later.id().unwrap();
    /// assert_eq!(queue.inspect().run_now_many(&[id, id]).await?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the store; some jobs may have been made ready.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some jobs may have been made ready.
    pub async fn run_now_many(&self, ids: &[JobId]) -> Result<u64> {
        let mut made_ready = 0;
        for ids in ids.chunks(BATCH) {
            let mut batch = Batch::new();
            for id in ids {
                batch.push(self.queue.call(&RUN_NOW, &[]).arg(&id.0[..]));
            }
            for made in batch.run::<u64>(self.queue.store()).await? {
                made_ready += made?;
            }
        }
        Ok(made_ready)
    }

    /// What became of the [children](super::Flow) of a job that is not over; `None` if there is no such job.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::{ChildResult, Flow, Queue}};
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "images")?;
    /// let flow = Flow::raw("publish", b"{}")?.child(Flow::raw("resize", b"320")?);
    /// let root = queue.add_flow(flow).await?.root().unwrap();
    /// let children = queue.inspect().children::<u64>(root).await?.unwrap();
    /// assert_eq!((children.failed, children.waiting), (0, 1));
    /// assert_eq!(children.results, [ChildResult::Ignored], "it has not run yet");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if a child returned something else than a `T`; otherwise those of the store.
    pub async fn children<T: DeserializeOwned>(&self, id: JobId) -> Result<Option<Children<T>>> {
        Children::read(&self.queue, id).await
    }

    /// Deletes those jobs of one page that the filter accepts; how many, and the cursor of the next page.
    ///
    /// When all pages are through, every job that waited in this state all the time and is accepted is gone. A job that
    /// becomes [running](JobState::Running) meanwhile is not deleted.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::{Job, Queue, JobState}};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail { to: String }
    /// # impl Job for Mail { const NAME: &'static str = "mail"; }
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "mail")?;
    /// # for to in ["ann", "bob", "eve"] { queue.enqueue(&Mail { to: to.into() }).await?; }
    /// let look = queue.inspect();
    /// let (mut deleted, mut from) = (0, None);
    /// loop {
    ///     let of_bob = |job: &redstart::messaging::JobInfo| job.decode::<Mail>().is_ok_and(|mail| mail.to == "bob");
    ///     let (gone, next) = look.delete_page(JobState::Ready, from, of_bob).await?;
    ///     deleted += gone;
    ///     match next {
    ///         Some(next) => from = Some(next),
    ///         None => break,
    ///     }
    /// }
    /// assert_eq!((deleted, look.counts().await?.ready), (1, 2));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the store; some jobs may have been deleted.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some jobs of the page may have been deleted.
    pub async fn delete_page(
        &self,
        state: JobState,
        from: Option<JobCursor>,
        filter: impl Fn(&JobInfo) -> bool,
    ) -> Result<(u64, Option<JobCursor>)> {
        let (jobs, next) = self.list(state, from).await?;
        let chosen = jobs.iter().filter(|job| filter(job)).map(|job| job.id);
        let deleted = self.delete_many(&chosen.collect::<Vec<_>>()).await?;
        Ok((deleted, next))
    }

    /// Makes a delayed job ready now; `false` if it is not delayed. It may have been enqueued with a delay, or wait
    /// for its next attempt.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn run_now(&self, id: JobId) -> Result<bool> {
        let made_ready: u8 = self
            .queue
            .call(&RUN_NOW, &[])
            .arg(&id.0[..])
            .run(self.queue.store())
            .await?;
        Ok(made_ready == 1)
    }

    /// The dead letters.
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters::new(self.queue.clone())
    }
}

fn has_text(job: &JobInfo, text: &str) -> bool {
    let text = text.as_bytes();
    text.is_empty() || job.payload.windows(text.len()).any(|part| part == text)
}
