//! Adding jobs: one with options, or many of one kind.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    time::{Duration, SystemTime},
};

use redis::Value;

use super::{
    Backoff, Job, JobHandle, JobId, JobPolicy, Queue, UniqueUntil,
    record::{Body, Duplicate, Options, RunAt, Unique},
    script::ENQUEUE,
};
use crate::{
    duration::{micros, millis},
    error::{Error, Result},
    observe,
    script::{Batch, Call},
};

/// A script's arguments stay small enough that no other client waits long for it.
const CHUNK_JOBS: usize = 1000;
const CHUNK_BYTES: usize = 512 * 1024;
/// How many calls of `enqueue_many` are sent together.
const CHUNKS_AT_ONCE: usize = 4;
/// For how long at least a request that is sent again after a lost reply is recognised.
const RECOGNISED: Duration = Duration::from_secs(10);

/// What became of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// The job was added.
    New(JobId),
    /// This job holds the unique key; nothing was added.
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
pub struct EnqueuedMany {
    /// The ids of the jobs that were added, in the order given. Jobs are refused from the end only.
    pub added: Vec<JobId>,
    /// How many were refused because the queue is full.
    pub refused: usize,
}

impl Queue {
    /// Adds a job. Set options on the returned value, then await it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use std::time::Duration;
    /// # use redstart::{Store, messaging::{Enqueued, Job, Queue, UniqueUntil}};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Report { month: u8 }
    /// # impl Job for Report { const NAME: &'static str = "report"; }
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "reports")?;
    /// let first = queue
    ///     .enqueue(&Report { month: 5 })
    ///     .delay(Duration::from_secs(60))
    ///     .priority(3)
    ///     .unique("report:5", UniqueUntil::Done)
    ///     .timeout(Duration::from_secs(30))
    ///     .await?;
    /// let again = queue.enqueue(&Report { month: 5 }).unique("report:5", UniqueUntil::Done).await?;
    /// assert_eq!(again, Enqueued::Duplicate(first.id().unwrap()));
    /// # Ok(()) }
    /// ```
    pub fn enqueue<'a, J: Job + Sync>(&'a self, job: &'a J) -> Enqueue<'a, J> {
        Enqueue {
            queue: self,
            job,
            options: self.options_of(J::NAME, J::policy()),
        }
    }

    /// Adds many jobs of one kind, up to a thousand per script.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::{Job, Queue}};
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
            options: self.options_of(I::Item::NAME, I::Item::policy()),
        }
    }

    /// The options of a kind of job: those of its policy, and the line of its own if the kind is limited.
    pub(super) fn options_of(&self, kind: &str, policy: JobPolicy) -> Options {
        let mut options = Options::new(policy);
        if self.0.kind_limits.contains_key(kind) {
            options.line = Some(format!("\u{1}{kind}"));
            options.policy.priority = 0;
        }
        options
    }

    /// A request whose first job has this id.
    fn enqueue_call(&self, options: &Options, id: JobId) -> Call<'_> {
        let inner = &*self.0;
        if self.is_plain(options) {
            return self.plain_call();
        }
        let mark = format!("enqueued:{id}");
        let parts: &[&str] = match options.unique {
            Some(_) => &[&mark, "uniques"],
            None => &[],
        };
        let (key, how, period, duplicate) = match &options.unique {
            None => ("", 0, 0, "keep"),
            Some(Unique {
                key,
                until,
                duplicate,
            }) => {
                let (how, period) = match until {
                    UniqueUntil::Done => (1, 0),
                    UniqueUntil::Started => (2, 0),
                    UniqueUntil::For(period) => (3, micros(*period)),
                };
                let duplicate = match duplicate {
                    Duplicate::Keep => "keep",
                    Duplicate::Replace => "replace",
                    Duplicate::Restart => "restart",
                };
                (&**key, how, period, duplicate)
            }
        };
        self.call(&ENQUEUE, parts)
            .arg(inner.capacity)
            .arg(match options.run_at {
                RunAt::After(delay) => micros(delay).to_string(),
                RunAt::At(time) => format!("@{}", time.as_nanos().div_ceil(1000)),
            })
            .arg(options.policy.priority)
            .arg(options.place().unwrap_or(""))
            .arg(key)
            .arg(how)
            .arg(period)
            .arg(duplicate)
            .arg(self.mark_millis())
    }

    /// How long the mark of a request stays: nobody sends it again after that.
    pub(super) fn mark_millis(&self) -> u64 {
        millis(RECOGNISED + self.0.store.deadline() * 2)
    }

    /// Whether jobs with these options need no more than `enqueue_plain.lua` does.
    fn is_plain(&self, options: &Options) -> bool {
        options.is_plain() && self.0.capacity == 0
    }

    pub(super) async fn add(&self, body: Body, options: &Options) -> Result<Enqueued> {
        if self.is_plain(options) {
            return self.add_plain(body).await;
        }
        let mut call = self.enqueue_call(options, body.id).arg(&body.bytes[..]);
        // A repeated request finds its own mark, also after the job is done.
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
            [Value::Int(2), Value::BulkString(holder), ..] => match JobId::read(holder) {
                Some(id) if id == body.id => Ok(Enqueued::New(id)),
                Some(id) => {
                    observe::event("queue.duplicate");
                    Ok(Enqueued::Duplicate(id))
                }
                None => Err(Error::codec("the holder of a unique key is not a job id")),
            },
            _ => Err(Error::codec("unexpected shape of the reply")),
        }
    }

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
        // With a capacity each chunk waits for the reply to the one before, so that jobs are refused from the end.
        let at_once = if self.0.capacity == 0 {
            CHUNKS_AT_ONCE
        } else {
            1
        };
        loop {
            let mut chunks = Vec::with_capacity(at_once);
            while chunks.len() < at_once {
                let chunk = self.next_chunk(&mut jobs, &options)?;
                if chunk.is_empty() {
                    break;
                }
                chunks.push(chunk);
            }
            if chunks.is_empty() {
                return Ok(outcome);
            }
            let mut batch = Batch::new();
            for chunk in &chunks {
                let mut call = self.enqueue_call(&options, chunk[0].id);
                for body in chunk {
                    call = call.arg(&body.bytes[..]);
                }
                batch.push(call);
            }
            let replies = batch.run::<(i64,)>(&self.0.store).await?;
            for (chunk, reply) in chunks.iter().zip(replies) {
                match reply? {
                    (1,) => outcome.added.extend(chunk.iter().map(|body| body.id)),
                    _ => outcome.refused += chunk.len(),
                }
            }
            if outcome.refused > 0 {
                observe::event("queue.full");
                outcome.refused += jobs.count();
                return Ok(outcome);
            }
        }
    }

    /// As many jobs as one script takes.
    fn next_chunk<J: Job>(
        &self,
        jobs: &mut impl Iterator<Item = J>,
        options: &Options,
    ) -> Result<Vec<Body>> {
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        while chunk.len() < CHUNK_JOBS && bytes < CHUNK_BYTES {
            let Some(job) = jobs.next() else { break };
            let body = Body::new(&job, options, self.0.max_payload)?;
            bytes += body.bytes.len();
            chunk.push(body);
        }
        Ok(chunk)
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
    /// Runs the job no earlier than this from now, by the server's clock.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.run_at = RunAt::After(delay);
        self
    }

    /// Runs the job no earlier than at this time, by the server's clock.
    pub fn at(mut self, time: SystemTime) -> Self {
        let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH);
        self.options.run_at = RunAt::At(since_epoch.unwrap_or_default());
        self
    }

    /// From -1000 to 1000; a higher priority runs earlier. The default is 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.options.policy.priority = priority;
        self
    }

    /// How long one run may take; after that it is dropped and retried.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.policy.timeout = Some(timeout);
        self
    }

    /// How many attempts the job has in all, instead of what the worker says.
    pub fn attempts(mut self, attempts: u16) -> Self {
        self.options.policy.attempts = Some(attempts);
        self
    }

    /// The waits between attempts, instead of the worker's.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.options.policy = self.options.policy.backoff(backoff);
        self
    }

    /// Does not start the job later than this after now; see [`JobPolicy::expires_after`].
    pub fn expires_after(mut self, period: Duration) -> Self {
        self.options.policy.expires_after = Some(period);
        self
    }

    /// How long the job is kept with the result after the end; see [`JobPolicy::keep`].
    pub fn keep(mut self, period: Duration) -> Self {
        self.options.policy.keep = Some(period);
        self
    }

    /// All of a policy at once, instead of the kind's.
    pub fn policy(mut self, policy: JobPolicy) -> Self {
        self.options.policy = policy;
        self
    }

    /// The group that the job belongs to, such as a tenant. Groups with jobs to run take turns, so that one with many
    /// jobs does not delay the others; see [`group_limit`](super::QueueBuilder::group_limit) for limits of each.
    /// Within a group, jobs run in the order of their enqueueing; they have no priority.
    pub fn group(mut self, group: &str) -> Self {
        self.options.group = Some(group.to_owned());
        self
    }

    /// Adds the job only if no other job holds this key.
    pub fn unique(mut self, key: &str, until: UniqueUntil) -> Self {
        self.options.unique = Some(Unique {
            key: key.to_owned(),
            until,
            duplicate: Duplicate::Keep,
        });
        self
    }

    /// With [`unique`](Self::unique): if the job that holds the key has not started yet, it gets the new payload. A job
    /// between two attempts has started, and keeps its payload; so does one that may have run before it was
    /// [handed back](super::Worker::shutdown) or [replayed](super::DeadLetters::replay). If such a job holds the key
    /// [until it starts](UniqueUntil::Started), the new payload is that of another job.
    pub fn replace_waiting(mut self) -> Self {
        if let Some(unique) = &mut self.options.unique {
            unique.duplicate = Duplicate::Replace;
        }
        self
    }

    /// Runs one job for all that are enqueued with this key, `period` after the last of them, with its payload. Its time
    /// to [expire](Self::expires_after) begins with the last of them too.
    pub fn debounce(mut self, key: &str, period: Duration) -> Self {
        self.options.run_at = RunAt::After(period);
        self.options.unique = Some(Unique {
            key: key.to_owned(),
            until: UniqueUntil::Started,
            duplicate: Duplicate::Restart,
        });
        self
    }

    /// Adds the job unless one was added with this key within `period` before, whatever became of that one.
    pub fn throttle(self, key: &str, period: Duration) -> Self {
        self.unique(key, UniqueUntil::For(period))
    }
}

/// # Errors
///
/// [`is_config`](Error::is_config) for an invalid option or a payload over the limit, with nothing sent; otherwise
/// those of the [`Store`](crate::Store). If the error is [in doubt](Error::is_in_doubt), the job may have been added. A
/// unique job is sent again automatically after a lost reply, and is added once even if it has run in the meantime.
///
/// # Cancel safety
///
/// If the future is dropped early, the job may or may not have been added.
impl<'a, J: Job + Sync> IntoFuture for Enqueue<'a, J> {
    type Output = Result<JobHandle<J>>;
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
                let enqueued = queue.add(body, &options).await?;
                Ok(JobHandle::new(queue.clone(), enqueued))
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
    /// Runs the jobs no earlier than this from now, by the server's clock.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.run_at = RunAt::After(delay);
        self
    }

    /// Runs the jobs no earlier than at this time, by the server's clock.
    pub fn at(mut self, time: SystemTime) -> Self {
        let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH);
        self.options.run_at = RunAt::At(since_epoch.unwrap_or_default());
        self
    }

    /// From -1000 to 1000; a higher priority runs earlier. The default is 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.options.policy.priority = priority;
        self
    }

    /// How long one run may take; after that it is dropped and retried.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.policy.timeout = Some(timeout);
        self
    }

    /// How many attempts the jobs have in all, instead of what the worker says.
    pub fn attempts(mut self, attempts: u16) -> Self {
        self.options.policy.attempts = Some(attempts);
        self
    }

    /// The waits between attempts, instead of the worker's.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.options.policy = self.options.policy.backoff(backoff);
        self
    }

    /// Does not start the jobs later than this after now; see [`JobPolicy::expires_after`].
    pub fn expires_after(mut self, period: Duration) -> Self {
        self.options.policy.expires_after = Some(period);
        self
    }

    /// How long the jobs are kept with the result after the end; see [`JobPolicy::keep`].
    pub fn keep(mut self, period: Duration) -> Self {
        self.options.policy.keep = Some(period);
        self
    }

    /// All of a policy at once, instead of the kind's.
    pub fn policy(mut self, policy: JobPolicy) -> Self {
        self.options.policy = policy;
        self
    }

    /// The group that the jobs belong to, such as a tenant. Groups with jobs to run take turns, so that one with many
    /// jobs does not delay the others; see [`group_limit`](super::QueueBuilder::group_limit) for limits of each.
    /// Within a group, jobs run in the order of their enqueueing; they have no priority.
    pub fn group(mut self, group: &str) -> Self {
        self.options.group = Some(group.to_owned());
        self
    }
}

/// # Errors
///
/// As for [`Queue::enqueue`]. Jobs are added in chunks of up to a thousand; the chunks before the one that failed are
/// in the queue.
///
/// # Cancel safety
///
/// If the future is dropped early, some chunks may have been added.
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
