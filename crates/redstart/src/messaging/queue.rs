//! A job queue: typed jobs, retries, dead letters, delays, priorities, unique jobs, cron.
//!
//! # What it promises
//!
//! - **At least once.** A job that was enqueued runs until it is done or becomes a dead letter. When its worker
//!   dies, another takes it when the lease is over. So a job may run twice; [`Context::once`] helps to make the
//!   effect happen once.
//! - **Fenced.** Whoever lost its lease cannot finish, retry or bury a job that another worker has by now, and
//!   its handler hears of the loss by [`Context::lost`].
//! - **Attempts are runs.** A worker takes no more than it can start at once; a job that was handed back
//!   unstarted is charged nothing. A job that kills its process is dead after exactly the given attempts.
//! - **Nothing is trimmed.** At its capacity the queue refuses ([`Enqueued::Full`]); it never drops.
//! - **Nothing stays.** A done job leaves nothing behind, unless [retention](QueueBuilder::retain) was asked for.
//! - **Priorities age.** A job is worth its age plus `priority × boost`, so one of low priority waits a bounded
//!   time behind steady higher ones: at most the difference of priorities times the boost.
//!
//! What was running in a process that died is charged the attempt, even if another job killed the process.
//!
//! # Keys
//!
//! All of `<namespace>:queue:{<name>}:…`, in one slot:
//!
//! | part | type | what |
//! |---|---|---|
//! | `ready` | list | jobs of priority 0, oldest first |
//! | `ranked` | sorted set | jobs of another priority, by due time − priority × boost |
//! | `delayed` | sorted set | by due time: delayed, and waiting for their next attempt |
//! | `running:<worker>` | hash | what a worker holds; the field `''` is its epoch |
//! | `workers` | sorted set | by the end of their lease |
//! | `unique` | hash | unique keys and the jobs that hold them |
//! | `dead` | stream | dead letters; `done`: what retention keeps |
//! | `progress`, `cron`, `crontab`, `meta` | | progress of running jobs; cron entries; whether paused |
//! | `once:…` | string | effects that were done once, with a TTL |
//!
//! A job is one string that moves whole between these, by one script a move: it is in exactly one place at any
//! time. The lease belongs to the worker, not to each job: a heartbeat is one command however many jobs run.
//!
//! # Round trips
//!
//! Enqueue: one. Worker: one to take up to as many jobs as are free to start, one to write down how up to 512
//! ended; both are O(log n) for each job at most. Idle workers wait for a message on the sharded channel
//! `wake`, not by polling; the message is sent only if a worker found too little before.
//!
//! # While the store is down
//!
//! `enqueue` fails; if it is [in doubt](crate::Error::is_in_doubt), the job may be there. Workers keep trying.
//! Running jobs go on, hear [`Context::lost`] when the lease is over, and are acknowledged if the store comes
//! back before another worker took them.
//!
//! # Names
//!
//! Operations `queue.enqueue`, `queue.enqueue_many`, `queue.reserve`, `queue.finish`, `queue.inspect`,
//! `queue.replay`, `queue.cron`; events `queue.done`, `queue.retried`, `queue.dead`, `queue.reclaimed`,
//! `queue.refused`, `queue.lost`, `queue.handed_back`, `queue.duplicate`, `queue.full`.
//!
//! # Example
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use std::time::Duration;
//! use redstart::{Store, messaging::queue::{Backoff, Context, Job, Queue}};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct SendMail { to: String }
//! impl Job for SendMail { const NAME: &'static str = "send_mail"; }
//!
//! let store = Store::connect("memory://").await?;
//! let queue = Queue::new(&store, "shop", "mail")?;
//! queue.enqueue(&SendMail { to: "ann@example.com".into() }).await?;
//!
//! let (sent, mut mails) = tokio::sync::mpsc::unbounded_channel();
//! let worker = queue
//!     .worker(move |mail: SendMail, _: Context| { let sent = sent.clone(); async move { sent.send(mail.to).ok(); } })
//!     .concurrency(8)
//!     .retry(Backoff::default(), 5)
//!     .run()
//!     .await?;
//! assert_eq!(mails.recv().await.as_deref(), Some("ann@example.com"));
//! worker.shutdown(Duration::from_secs(5)).await?;
//! assert_eq!(queue.inspect().counts().await?.waiting(), 0);
//! # Ok(()) }
//! ```

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use redis::Value;

use crate::{
    error::{Error, Result},
    key::{Channel, Entity, Keys, Layout},
    observe,
    script::{Batch, Call, Script},
    store::Store,
};

mod cron;
mod inspect;
mod job;
mod retry;
mod worker;

pub use cron::{CronEntry, CronPut, Missed};
pub use inspect::{Counts, Cursor, DeadLetter, DeadLetters, Inspector, JobInfo, State};
pub use job::{Handler, IntoOutcome, Job, JobId, Outcome, Until};
pub use retry::Backoff;
pub use worker::{Context, ShutdownReport, Worker, WorkerBuilder};

use job::{Body, Options};

/// A script of the queue: the shared part, then its own.
macro_rules! script {
    ($name:literal, $file:literal) => {
        crate::script::Script::new(
            $name,
            concat!(
                include_str!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/src/messaging/queue/record.lua"
                )),
                include_str!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/src/messaging/queue/",
                    $file
                )),
            ),
        )
    };
}
pub(crate) use script;

static ENQUEUE: Script = script!("queue.enqueue", "enqueue.lua");

const MAX_PAYLOAD: usize = 1024 * 1024;
/// A script's arguments stay small enough that no other client waits long for it.
const CHUNK_JOBS: usize = 1000;
const CHUNK_BYTES: usize = 512 * 1024;
/// Calls of `enqueue_many` that travel together.
const CHUNKS_AT_ONCE: usize = 4;

/// A job queue. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

struct Inner {
    store: Store,
    entity: Entity,
    channel: Channel,
    boost: u64,
    capacity: u64,
    max_payload: usize,
    retain: u64,
    retain_for: Duration,
    once_for: Duration,
}

/// Settings of a [`Queue`]. All programs that use a queue should agree on them.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct QueueBuilder {
    store: Store,
    namespace: String,
    name: String,
    layout: Option<Layout>,
    boost: Duration,
    capacity: u64,
    max_payload: usize,
    retain: u64,
    retain_for: Duration,
    once_for: Duration,
}

impl QueueBuilder {
    /// How many jobs may wait; beyond that [`Enqueued::Full`] (default: no limit).
    pub fn capacity(mut self, jobs: u64) -> Self {
        self.capacity = jobs;
        self
    }

    /// What one step of priority is worth in age (default: a minute).
    pub fn boost(mut self, boost: Duration) -> Self {
        self.boost = boost;
        self
    }

    /// The longest payload in bytes (default: 1 MiB).
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// Keeps about the last `jobs` done jobs, for `period` at most, so that [`State::Done`] can be listed
    /// (default: none are kept).
    pub fn retain(mut self, jobs: u64, period: Duration) -> Self {
        self.retain = jobs;
        self.retain_for = period;
        self
    }

    /// How long [`Context::once`] remembers (default: a day).
    pub fn once_for(mut self, period: Duration) -> Self {
        self.once_for = period;
        self
    }

    /// Other keys than the [usual ones](crate::key).
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// The queue. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a namespace, a name or a setting that cannot be used.
    pub fn build(self) -> Result<Queue> {
        if self.boost > Duration::from_secs(30 * 86_400) {
            return Err(Error::config("a step of priority is worth at most 30 days"));
        }
        if self.max_payload == 0 || self.max_payload > 64 * MAX_PAYLOAD {
            return Err(Error::config(
                "the longest payload is from 1 byte to 64 MiB",
            ));
        }
        if self.once_for < Duration::from_millis(1) {
            return Err(Error::config("`once` must remember for at least 1 ms"));
        }
        let mut keys = Keys::new(&self.namespace, "queue")?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        let entity = keys.entity(&self.name)?;
        Ok(Queue(Arc::new(Inner {
            channel: entity.channel("wake"),
            store: self.store,
            entity,
            boost: self.boost.as_micros() as u64,
            capacity: self.capacity,
            max_payload: self.max_payload,
            retain: self.retain,
            retain_for: self.retain_for,
            once_for: self.once_for,
        })))
    }
}

/// What became of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a job may have been refused"]
pub enum Enqueued {
    /// The job is in the queue.
    New(JobId),
    /// The unique key is held by this job; nothing was added.
    Duplicate(JobId),
    /// The queue is at its capacity; nothing was added.
    Full,
}

impl Enqueued {
    /// The id of the new job, or of the one that holds the key; `None` if the queue is full.
    pub fn id(self) -> Option<JobId> {
        match self {
            Self::New(id) | Self::Duplicate(id) => Some(id),
            Self::Full => None,
        }
    }

    /// Whether the job was added.
    pub fn is_new(self) -> bool {
        matches!(self, Self::New(_))
    }
}

/// What became of [`Queue::enqueue_many`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "some jobs may have been refused"]
pub struct EnqueuedMany {
    /// The ids of the jobs that were added, in order: the first so many of those given.
    pub added: Vec<JobId>,
    /// How many were refused because the queue is full.
    pub refused: usize,
}

impl Queue {
    /// A queue with the usual settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a namespace or a name that cannot be used.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Starts with the usual settings.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> QueueBuilder {
        QueueBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            layout: None,
            boost: Duration::from_secs(60),
            capacity: 0,
            max_payload: MAX_PAYLOAD,
            retain: 0,
            retain_for: Duration::ZERO,
            once_for: Duration::from_secs(86_400),
        }
    }

    /// Adds a job; await what this returns, after setting options.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use std::time::Duration;
    /// # use redstart::{Store, messaging::queue::{Enqueued, Job, Queue, Until}};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Report { month: u8 }
    /// # impl Job for Report { const NAME: &'static str = "report"; }
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "reports")?;
    /// let first = queue
    ///     .enqueue(&Report { month: 5 })
    ///     .delay(Duration::from_secs(60))
    ///     .priority(3)
    ///     .unique("report:5", Until::Done)
    ///     .timeout(Duration::from_secs(30))
    ///     .await?;
    /// let again = queue.enqueue(&Report { month: 5 }).unique("report:5", Until::Done).await?;
    /// assert_eq!(again, Enqueued::Duplicate(first.id().unwrap()));
    /// # Ok(()) }
    /// ```
    pub fn enqueue<'a, J: Job + Sync>(&'a self, job: &'a J) -> Enqueue<'a, J> {
        Enqueue {
            queue: self,
            job,
            options: Options::default(),
        }
    }

    /// Adds many jobs of one kind, a thousand a script.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::queue::{Job, Queue}};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Thumbnail(u64);
    /// # impl Job for Thumbnail { const NAME: &'static str = "thumbnail"; }
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "images")?;
    /// let added = queue.enqueue_many((0..2500).map(Thumbnail)).await?;
    /// assert_eq!(added.added.len(), 2500);
    /// # Ok(()) }
    /// ```
    pub fn enqueue_many<I>(&self, jobs: I) -> EnqueueMany<'_, I>
    where
        I: IntoIterator,
        I::Item: Job,
    {
        EnqueueMany {
            queue: self,
            jobs,
            options: Options::default(),
        }
    }

    /// Starts a worker's settings with the handler of one kind of job.
    pub fn worker<J: Job, H: Handler<J>>(&self, handler: H) -> WorkerBuilder {
        WorkerBuilder::new(self.clone()).also(handler)
    }

    /// A look inside: counts, lists, search, dead letters.
    pub fn inspect(&self) -> Inspector {
        Inspector::new(self.clone())
    }

    /// Hands out no more jobs until [`resume`](Self::resume), on all workers. Running jobs finish.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    pub async fn pause(&self) -> Result<()> {
        inspect::set_paused(self, true).await
    }

    /// Hands out jobs again.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    pub async fn resume(&self) -> Result<()> {
        inspect::set_paused(self, false).await
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    pub(crate) fn entity(&self) -> &Entity {
        &self.0.entity
    }

    fn namespace(&self) -> &Arc<str> {
        self.0.entity.namespace()
    }

    fn enqueue_call(&self, options: &Options) -> Call<'_> {
        let inner = &*self.0;
        let unique = options.unique.as_ref().map_or("", |(key, _)| key);
        ENQUEUE
            .on(&inner.entity)
            .part("ready")
            .part("ranked")
            .part("delayed")
            .part("meta")
            .part("unique")
            .arg(&inner.channel)
            .arg(inner.capacity)
            .arg(options.delay.as_micros() as u64)
            .arg(options.priority)
            .arg(inner.boost)
            .arg(unique)
    }

    async fn add(&self, body: Body, options: &Options) -> Result<Enqueued> {
        let mut call = self.enqueue_call(options).arg(&body.bytes[..]);
        // A repeated request finds its own id under the key.
        if options.unique.is_some() {
            call = call.idempotent();
        }
        let reply: Vec<Value> = call.run(&self.0.store).await?;
        match reply.as_slice() {
            [Value::Int(1)] => Ok(Enqueued::New(body.id)),
            [Value::Int(0)] => {
                observe::event("queue.full");
                Ok(Enqueued::Full)
            }
            [Value::Int(2), Value::BulkString(holder)] => match JobId::read(holder) {
                Some(id) if id == body.id => Ok(Enqueued::New(id)),
                Some(id) => {
                    observe::event("queue.duplicate");
                    Ok(Enqueued::Duplicate(id))
                }
                None => Err(Error::codec(
                    "a unique key is held by something that is no job",
                )),
            },
            _ => Err(Error::codec("the reply has an unexpected shape")),
        }
    }
}

impl Queue {
    async fn add_many<J: Job>(
        &self,
        mut jobs: impl Iterator<Item = J> + Send,
        options: Options,
    ) -> Result<EnqueuedMany> {
        options.check()?;
        let mut outcome = EnqueuedMany {
            added: Vec::with_capacity(jobs.size_hint().0),
            refused: 0,
        };
        // With a capacity each piece waits for the answer to the one before, so that what is refused is the end.
        let at_once = if self.0.capacity == 0 {
            CHUNKS_AT_ONCE
        } else {
            1
        };
        loop {
            let mut pieces = Vec::with_capacity(at_once);
            while pieces.len() < at_once {
                let (mut piece, mut bytes) = (Vec::new(), 0);
                while piece.len() < CHUNK_JOBS && bytes < CHUNK_BYTES {
                    let Some(job) = jobs.next() else { break };
                    let body = Body::new(&job, &options, self.0.max_payload)?;
                    bytes += body.bytes.len();
                    piece.push(body);
                }
                if piece.is_empty() {
                    break;
                }
                pieces.push(piece);
            }
            if pieces.is_empty() {
                return Ok(outcome);
            }
            let mut batch = Batch::new();
            for piece in &pieces {
                let mut call = self.enqueue_call(&options);
                for body in piece {
                    call = call.arg(&body.bytes[..]);
                }
                batch.push(call);
            }
            let replies = batch.run::<(i64,)>(&self.0.store).await?;
            for (piece, reply) in pieces.iter().zip(replies) {
                match reply? {
                    (1,) => outcome.added.extend(piece.iter().map(|body| body.id)),
                    _ => outcome.refused += piece.len(),
                }
            }
            if outcome.refused > 0 {
                observe::event("queue.full");
                outcome.refused += jobs.count();
                return Ok(outcome);
            }
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(self.0.entity.key()).finish()
    }
}

/// A job to be added; made by [`Queue::enqueue`], sent when it is awaited.
#[must_use = "a job is added when this is awaited"]
pub struct Enqueue<'a, J> {
    queue: &'a Queue,
    job: &'a J,
    options: Options,
}

impl<J> Enqueue<'_, J> {
    /// Runs it no earlier than this from now, by the server's clock.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.delay = delay;
        self
    }

    /// From -1000 to 1000; a higher one runs earlier. The default is 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.options.priority = priority;
        self
    }

    /// Adds it only if no other job holds this key.
    pub fn unique(mut self, key: &str, until: Until) -> Self {
        self.options.unique = Some((key.to_owned(), until));
        self
    }

    /// How long one run may take; after that it is dropped and tried again.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }
}

/// # Errors
///
/// [`is_config`](Error::is_config) for an option that cannot be or a payload over the limit, with nothing sent;
/// otherwise those of the [`Store`]. If it is [in doubt](Error::is_in_doubt), the job may have been added.
///
/// # Cancel safety
///
/// Dropped before it is done, the job may or may not have been added.
impl<'a, J: Job + Sync> IntoFuture for Enqueue<'a, J> {
    type Output = Result<Enqueued>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self {
            queue,
            job,
            options,
        } = self;
        Box::pin(observe::operation(
            "queue.enqueue",
            queue.namespace(),
            async move {
                options.check()?;
                let body = Body::new(job, &options, queue.0.max_payload)?;
                queue.add(body, &options).await
            },
        ))
    }
}

/// Many jobs to be added; made by [`Queue::enqueue_many`], sent when it is awaited.
#[must_use = "jobs are added when this is awaited"]
pub struct EnqueueMany<'a, I> {
    queue: &'a Queue,
    jobs: I,
    options: Options,
}

impl<I> EnqueueMany<'_, I> {
    /// Runs them no earlier than this from now.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.delay = delay;
        self
    }

    /// From -1000 to 1000; a higher one runs earlier. The default is 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.options.priority = priority;
        self
    }

    /// How long one run may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }
}

/// # Errors
///
/// As for [`Queue::enqueue`]. Jobs are added in pieces of up to a thousand; the pieces before the one that
/// failed are in the queue.
///
/// # Cancel safety
///
/// Dropped before it is done, some pieces may have been added.
impl<'a, I> IntoFuture for EnqueueMany<'a, I>
where
    I: IntoIterator + Send + 'a,
    I::Item: Job,
    I::IntoIter: Send,
{
    type Output = Result<EnqueuedMany>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self {
            queue,
            jobs,
            options,
        } = self;
        Box::pin(observe::operation(
            "queue.enqueue_many",
            queue.namespace(),
            queue.add_many(jobs.into_iter(), options),
        ))
    }
}
