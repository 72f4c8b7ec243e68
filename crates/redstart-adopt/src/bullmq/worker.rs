//! Takes jobs and runs them.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _};
use redis::cmd;
use redstart::key::{Key, Keys, Layout};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    BullQueue, STALLED, TAKE, ending,
    taken::{JobError, Taken},
    watch::Watch,
};
use crate::error::{Error, Result};

/// How many finished jobs are kept, and for how long.
///
/// ```
/// use std::time::Duration;
/// use redstart_adopt::bullmq::Keep;
///
/// let at_most = Keep::from(1_000);
/// let for_a_day = Keep::from(Duration::from_secs(86_400));
/// let both = at_most.and_for(Duration::from_secs(86_400));
/// # let _ = (for_a_day, both);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// -1 for all.
    pub(super) count: i64,
    /// Seconds; 0 is forever.
    pub(super) age: i64,
}

impl Keep {
    pub(super) const ALL: Self = Self { count: -1, age: 0 };

    /// As the options of a job have it.
    pub(super) fn json(self) -> Value {
        match (self.count, self.age) {
            (count, 0) if count >= 0 => json!(count),
            (_, 0) => json!(false),
            (count, age) if count >= 0 => json!({"age": age, "count": count}),
            (_, age) => json!({"age": age}),
        }
    }

    /// Those that are older than this are removed too.
    #[must_use]
    pub fn and_for(mut self, age: Duration) -> Self {
        self.age = i64::try_from(age.as_secs())
            .unwrap_or(i64::MAX >> 20)
            .max(1);
        self
    }
}

/// At most this many; 0 keeps none.
impl From<u32> for Keep {
    fn from(count: u32) -> Self {
        Self {
            count: i64::from(count),
            age: 0,
        }
    }
}

/// Those that are not older than this.
impl From<Duration> for Keep {
    fn from(age: Duration) -> Self {
        Self::ALL.and_for(age)
    }
}

/// How long a job waits whose backoff is of a type that BullMQ does not have.
type Wait = Arc<dyn Fn(&Taken, u32) -> Duration + Send + Sync>;

/// Makes a [`BullWorker`].
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct BullWorkerBuilder {
    pub(super) queue: BullQueue,
    name: String,
    pub(super) lease: Duration,
    concurrency: usize,
    stalled_every: Duration,
    max_stalled: u32,
    limit: Option<(u32, Duration)>,
    pub(super) keep_completed: Keep,
    pub(super) keep_failed: Keep,
    pub(super) backoff: Option<Wait>,
}

impl fmt::Debug for BullWorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BullWorkerBuilder")
            .field("queue", &self.queue)
            .field("name", &self.name)
            .field("lease", &self.lease)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

impl BullWorkerBuilder {
    pub(super) fn new(queue: BullQueue) -> Self {
        Self {
            queue,
            name: String::new(),
            lease: Duration::from_secs(30),
            concurrency: 1,
            stalled_every: Duration::from_secs(30),
            max_stalled: 1,
            limit: None,
            keep_completed: Keep::ALL,
            keep_failed: Keep::ALL,
            backoff: None,
        }
    }

    /// A name that is written to the jobs it takes (default none).
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// How long a job is held without a renewal (default 30 s). It is renewed every half of this.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The jobs that [`run`](BullWorker::run) runs at the same time (default 1).
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How often jobs of dead workers are looked for (default 30 s). All workers of a queue take turns.
    pub fn stalled_every(mut self, every: Duration) -> Self {
        self.stalled_every = every;
        self
    }

    /// How often a job may lose its worker before it fails (default once).
    pub fn max_stalled(mut self, times: u32) -> Self {
        self.max_stalled = times;
        self
    }

    /// At most `jobs` per window over all workers, unless the queue has a limit of its own. All workers of a queue must say the
    /// same.
    pub fn limit(mut self, jobs: u32, window: Duration) -> Self {
        self.limit = Some((jobs, window));
        self
    }

    /// The completed jobs of the queue that are kept when this worker completes one that does not say (default all), as the option
    /// `removeOnComplete` of Node's `Worker`. All workers of a queue should say the same.
    pub fn keep_completed(mut self, keep: impl Into<Keep>) -> Self {
        self.keep_completed = keep.into();
        self
    }

    /// The failed jobs of the queue that are kept when one fails that does not say (default all), as `removeOnFail` of Node's
    /// `Worker`.
    pub fn keep_failed(mut self, keep: impl Into<Keep>) -> Self {
        self.keep_failed = keep.into();
        self
    }

    /// How long a job waits whose backoff is of a type that BullMQ does not have itself, given the attempts that have ended: what
    /// `settings.backoffStrategy` is in Node. Without this such jobs are left to Node if they can be retried.
    pub fn backoff(
        mut self,
        wait: impl Fn(&Taken, u32) -> Duration + Send + Sync + 'static,
    ) -> Self {
        self.backoff = Some(Arc::new(wait));
        self
    }

    /// Makes the worker. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a lease below 100 ms, a concurrency of 0, or an empty limit.
    pub fn build(self) -> Result<BullWorker> {
        if self.lease < Duration::from_millis(100) {
            return Err(Error::invalid(
                "the lease of a worker must be at least 100 ms",
            ));
        }
        if self.concurrency == 0 {
            return Err(Error::invalid(
                "a worker must run at least one job at a time",
            ));
        }
        if self
            .limit
            .is_some_and(|(jobs, window)| jobs == 0 || window.is_zero())
        {
            return Err(Error::invalid(
                "a limit needs at least one job and a window",
            ));
        }
        let key = |part: &'static str| -> Result<Key> {
            let key = self.queue.key(part);
            let layout = Layout::new(move |_| key.clone());
            let keys = Keys::new("bullmq", part)?.layout(layout);
            Ok(keys.entity(part)?.key().clone())
        };
        Ok(BullWorker(Arc::new(Inner {
            marker: key("marker")?,
            events: key("events")?,
            settings: self,
            has_warned: AtomicBool::new(false),
        })))
    }
}

/// A worker on a queue of BullMQ, beside Node's.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use redstart::Store;
/// use redstart_adopt::bullmq::{BullQueue, NewJob};
///
/// let store = Store::connect("memory://").await?;
/// let mail = BullQueue::new(&store, "mail")?;
/// let _ = mail.add(NewJob::new("welcome", &"ann")?).await?;
/// let worker = mail.worker().build()?;
/// let job = worker.take().await?.expect("there is one");
/// assert_eq!(job.data::<String>()?, "ann");
/// let _ = job.complete(&"sent").await?;
/// assert!(worker.take().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct BullWorker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    marker: Key,
    events: Key,
    settings: BullWorkerBuilder,
    /// Whether it has said that jobs are left to Node.
    has_warned: AtomicBool,
}

enum Next {
    Job(Box<Taken>),
    None(Pause),
}

/// How long to wait before asking again.
enum Pause {
    /// Until the marker shows up, or this time has passed.
    Marker(Duration),
    /// This time, without the marker, which is Node's: it alone can run what is there.
    Node(Duration),
}

impl BullWorker {
    pub(super) fn settings(&self) -> &BullWorkerBuilder {
        &self.0.settings
    }

    /// Takes the next job, if there is one that may run now and that this worker can end as Node would; others are left to Node.
    /// Two round trips at most.
    ///
    /// # Errors
    ///
    /// Those of the store. After [`is_in_doubt`](redstart::Error::is_in_doubt) a job may have been taken: its lease ends, and a
    /// stalled check gives it back.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, a job may have been taken, which a stalled check gives back.
    pub async fn take(&self) -> Result<Option<Taken>> {
        loop {
            match self.next().await? {
                // A parent of a failed child, or a job that stalled too often.
                Next::Job(job) if job.fields().contains_key("defa") => {
                    let reason = job.fields()["defa"].clone();
                    let _ = job.fail(JobError::unrecoverable(reason)).await?;
                }
                Next::Job(job) => return Ok(Some(*job)),
                Next::None(_) => return Ok(None),
            }
        }
    }

    async fn next(&self) -> Result<Next> {
        let settings = &self.0.settings;
        let queue = &settings.queue;
        let token = format!("{:032x}", rand::random::<u128>());
        let (jobs, window) = settings.limit.unwrap_or_default();
        let reply: Vec<redis::Value> = TAKE
            .run(
                &queue.store,
                &queue.keys,
                &[
                    &queue.prefix,
                    &queue.major,
                    &token,
                    &millis(settings.lease),
                    &settings.name,
                    &jobs,
                    &millis(window),
                    &u8::from(settings.backoff.is_some()),
                ],
            )
            .await?;
        let mut reply = reply.into_iter();
        let id: Vec<u8> = redis::from_redis_value(reply.next().unwrap_or(redis::Value::Nil))?;
        if id.is_empty() {
            let mut number =
                || redis::from_redis_value::<u64>(reply.next().unwrap_or(redis::Value::Int(0)));
            let (wait, left, mixed) = (number()?, number()?, number()?);
            queue.warn_if_mixed(mixed > 0);
            return Ok(Next::None(self.pause(wait, left > 0)));
        }
        let mut fields = BTreeMap::new();
        while let (Some(name), Some(value)) = (reply.next(), reply.next()) {
            let name: Vec<u8> = redis::from_redis_value(name)?;
            let value: Vec<u8> = redis::from_redis_value(value)?;
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            fields.insert(text(name), text(value));
        }
        Ok(Next::Job(Box::new(Taken::hold(
            self.clone(),
            id,
            token,
            fields,
        ))))
    }

    fn pause(&self, wait: u64, left: bool) -> Pause {
        if left && !self.0.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                queue = self.0.settings.queue.base(),
                "jobs are left to Node: their scheduler has a cron pattern, or their backoff is not BullMQ's own"
            );
        }
        let wait = match wait {
            0 => LONGEST_WAIT,
            wait => Duration::from_millis(wait).min(LONGEST_WAIT),
        };
        match left {
            true => Pause::Node(wait.min(NODE_FIRST)),
            false => Pause::Marker(wait),
        }
    }

    /// Gives back jobs of dead workers, if no other worker has looked lately. Returns their ids.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn check_stalled(&self) -> Result<Vec<String>> {
        let settings = &self.0.settings;
        let queue = &settings.queue;
        let back: Vec<Vec<u8>> = STALLED
            .run(
                &queue.store,
                &queue.keys,
                &[
                    &queue.prefix,
                    &queue.major,
                    &settings.max_stalled,
                    &millis(settings.stalled_every),
                ],
            )
            .await?;
        let text = |id: Vec<u8>| String::from_utf8_lossy(&id).into_owned();
        Ok(back.into_iter().map(text).collect())
    }

    /// Checks for stalled jobs, again and again.
    async fn sweep(&self) {
        let mut check = tokio::time::interval(self.0.settings.stalled_every);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            check.tick().await;
            if let Err(error) = self.check_stalled().await {
                tracing::warn!(%error, "a check for stalled jobs failed");
            }
        }
    }

    /// Runs one job to its end.
    async fn perform<H, F, R>(&self, job: Taken, handler: &H)
    where
        H: Fn(Arc<Taken>) -> F,
        F: Future<Output = Result<R, JobError>>,
        R: Serialize,
    {
        // A parent of a failed child, or a job that stalled too often.
        if let Some(reason) = job.fields().get("defa").cloned() {
            return ending::write(&job, Err::<R, _>(JobError::unrecoverable(reason))).await;
        }
        let job = Arc::new(job);
        // Unwinding further would drop the other jobs half-way.
        let work = AssertUnwindSafe(async { handler(job.clone()).await });
        let result = match work.catch_unwind().await {
            Ok(result) => result,
            Err(panic) => Err(JobError::panic(&*panic)),
        };
        ending::write(&job, result).await;
    }

    /// Runs jobs until `stop` is done, then waits for those that are running.
    ///
    /// While the store is down it keeps trying; what it runs goes on, and what ends meanwhile is written when the store is back, unless that is after the
    /// lease: then the job runs again. A handler that panics fails its job, and no other.
    ///
    /// # Errors
    ///
    /// Only those that trying again cannot mend: an [invalid](Error::is_invalid) request.
    ///
    /// # Cancel safety
    ///
    /// Dropped, running jobs are dropped with it; their leases end and a stalled check gives them back.
    pub async fn run<H, F, R>(&self, handler: H, stop: impl Future<Output = ()>) -> Result<()>
    where
        H: Fn(Arc<Taken>) -> F,
        F: Future<Output = Result<R, JobError>>,
        R: Serialize,
    {
        let (mut stop, mut sweep) = (std::pin::pin!(stop), std::pin::pin!(self.sweep()));
        let mut running = futures_util::stream::FuturesUnordered::new();
        let settings = &self.0.settings;
        let _watch = Watch::start(settings.queue.clone(), self.0.events.clone());
        let mut own = settings.queue.store.dedicated(&self.0.marker);
        let mut pause = None;
        loop {
            let free = running.len() < settings.concurrency;
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(()) = running.next(), if !running.is_empty() => {}
                () = &mut sweep => {}
                () = self.rest(&mut own, pause.as_ref()), if free => {}
            }
            if running.len() >= settings.concurrency {
                continue;
            }
            // Never dropped half-way: a job that was taken and forgotten would wait for its lease to end.
            let mut next = std::pin::pin!(self.next());
            let next = loop {
                tokio::select! {
                    biased;
                    next = &mut next => break next,
                    Some(()) = running.next(), if !running.is_empty() => {}
                    () = &mut sweep => {}
                }
            };
            pause = match next {
                Ok(Next::Job(job)) => {
                    running.push(self.perform(*job, &handler));
                    None
                }
                Ok(Next::None(pause)) => Some(pause),
                Err(error) if error.is_invalid() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "no job could be taken");
                    Some(Pause::Marker(LONGEST_WAIT))
                }
            };
        }
        while running.next().await.is_some() {}
        // The hint that this worker may have consumed is for the others.
        let queue = &self.0.settings.queue;
        let hint: Result<(), _> = queue
            .store
            .query(cmd("ZADD").arg(&self.0.marker).arg(0).arg("0"))
            .await;
        if let Err(error) = hint {
            tracing::debug!(%error, "other workers look again by themselves");
        }
        Ok(())
    }

    /// Waits for the marker, which Node's workers wait for too. It is only a hint, so nobody waits for it long, and it does no harm
    /// if it is taken by a wait that is dropped.
    async fn rest(&self, own: &mut redstart::store::Dedicated, pause: Option<&Pause>) {
        let (block, wait) = match pause {
            None => return,
            Some(Pause::Node(wait)) => return tokio::time::sleep(*wait).await,
            Some(Pause::Marker(wait)) => {
                let wait = (*wait).max(Duration::from_millis(2));
                let mut block = cmd("BZPOPMIN");
                block.arg(&self.0.marker).arg(wait.as_secs_f64());
                (block, wait)
            }
        };
        let hint: Result<redis::Value, _> = own.query(&block, wait).await;
        match hint {
            // The time of a delayed job, which may be later than what this worker knows: it asks.
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "waiting for a job failed");
                tokio::time::sleep(wait.min(Duration::from_millis(500))).await;
            }
        }
    }
}

/// While jobs wait that only Node can run, Node's workers get the marker.
const NODE_FIRST: Duration = Duration::from_millis(500);

/// A worker asks again after this long, even if nothing woke it.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX >> 12)
}
