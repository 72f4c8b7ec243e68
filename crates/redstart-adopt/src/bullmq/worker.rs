//! Takes jobs, holds them, ends them.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use redis::cmd;
use redstart::{
    Store,
    key::{Keys, Layout},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{BullQueue, EXTEND, FINISH, NOTE, RETRY, STALLED, TAKE};
use crate::error::{Error, Result};

/// Makes a [`BullWorker`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct BullWorkerBuilder {
    queue: BullQueue,
    name: String,
    lease: Duration,
    concurrency: usize,
    stalled_every: Duration,
    max_stalled: u32,
    limit: Option<(u32, Duration)>,
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
        let marker = self.queue.key("marker");
        let layout = Layout::new(move |_| marker.clone());
        let marker = Keys::new("bullmq", "marker")?
            .layout(layout)
            .entity("marker")?;
        Ok(BullWorker(Arc::new(Inner {
            marker: marker.key().clone(),
            settings: self,
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
    marker: redstart::key::Key,
    settings: BullWorkerBuilder,
}

/// Why a job did not succeed.
#[derive(Clone, Debug)]
pub struct JobError {
    message: String,
    retry: bool,
}

impl JobError {
    /// It is tried again if it has attempts left.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            retry: true,
        }
    }

    /// It fails for good, whatever attempts it has left.
    pub fn unrecoverable(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            retry: false,
        }
    }
}

/// What became of a job when its worker ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the hold on the job may have been lost, and then the result was not written"]
#[non_exhaustive]
pub enum Ended {
    /// It is completed.
    Completed,
    /// It failed for good.
    Failed,
    /// It will be tried again.
    Retried,
    /// This worker did not hold it any more, so nothing was written: it ran longer than its lease without renewals, or was
    /// removed.
    Lost,
}

enum Next {
    Job(Box<Taken>),
    /// Nothing now; asking again may help after this time.
    None(Option<Duration>),
}

impl BullWorker {
    /// Takes the next job, if there is one that may run now. Two round trips at most.
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
                Next::Job(job) if job.fields.contains_key("defa") => {
                    let reason = job.fields["defa"].clone();
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
                ],
            )
            .await?;
        let mut reply = reply.into_iter();
        let id: String = redis::from_redis_value(reply.next().unwrap_or(redis::Value::Nil))?;
        if id.is_empty() {
            let wait: u64 = redis::from_redis_value(reply.next().unwrap_or(redis::Value::Int(0)))?;
            return Ok(Next::None((wait > 0).then(|| Duration::from_millis(wait))));
        }
        let mut fields = BTreeMap::new();
        while let (Some(name), Some(value)) = (reply.next(), reply.next()) {
            let name: String = redis::from_redis_value(name)?;
            let value: Vec<u8> = redis::from_redis_value(value)?;
            fields.insert(name, String::from_utf8_lossy(&value).into_owned());
        }
        let held = Arc::new(AtomicBool::new(true));
        let renewal = tokio::spawn(renew(
            queue.clone(),
            id.clone(),
            token.clone(),
            settings.lease,
            held.clone(),
        ));
        Ok(Next::Job(Box::new(Taken {
            queue: queue.clone(),
            id,
            token,
            fields,
            held,
            renewal,
        })))
    }

    /// Gives back jobs of dead workers, if no other worker has looked lately. Returns their ids.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn check_stalled(&self) -> Result<Vec<String>> {
        let settings = &self.0.settings;
        let queue = &settings.queue;
        STALLED
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
            .await
    }

    /// Runs jobs until `stop` is done, then waits for those that are running.
    ///
    /// While the store is down it keeps trying; what it runs goes on.
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
        let mut stop = std::pin::pin!(stop);
        let mut running = futures_util::stream::FuturesUnordered::new();
        let mut check = tokio::time::interval(self.0.settings.stalled_every);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut own = self.0.settings.queue.store.dedicated(&self.0.marker);
        let mut wait = Duration::ZERO;
        loop {
            let free = running.len() < self.0.settings.concurrency;
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(()) = running.next(), if !running.is_empty() => {}
                _ = check.tick() => {
                    if let Err(error) = self.check_stalled().await {
                        tracing::warn!(%error, "a check for stalled jobs failed");
                    }
                    continue;
                }
                () = self.wait_for_marker(&mut own, wait), if free => {}
            }
            if running.len() >= self.0.settings.concurrency {
                continue;
            }
            // Never dropped half-way: a job that was taken and forgotten would wait for its lease to end.
            let mut next = std::pin::pin!(self.next());
            let next = loop {
                tokio::select! {
                    biased;
                    next = &mut next => break next,
                    Some(()) = running.next(), if !running.is_empty() => {}
                }
            };
            wait = match next {
                Ok(Next::Job(job)) => {
                    let job: Arc<Taken> = Arc::from(job);
                    let defect = job.fields.get("defa").cloned();
                    let work = defect.is_none().then(|| handler(job.clone()));
                    running.push(async move {
                        let ended = match (work, defect) {
                            (Some(work), _) => match work.await {
                                Ok(value) => job.complete(&value).await,
                                Err(error) => job.fail(error).await,
                            },
                            // A parent of a failed child, or a job that stalled too often.
                            (None, reason) => {
                                job.fail(JobError::unrecoverable(reason.unwrap_or_default()))
                                    .await
                            }
                        };
                        if let Err(error) = ended {
                            tracing::warn!(%error, "the end of a job could not be written");
                        }
                    });
                    Duration::ZERO
                }
                Ok(Next::None(soon)) => soon.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT),
                Err(error) if error.is_invalid() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "no job could be taken");
                    LONGEST_WAIT
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
    async fn wait_for_marker(&self, own: &mut redstart::store::Dedicated, wait: Duration) {
        if wait.is_zero() {
            return;
        }
        let wait = wait.max(Duration::from_millis(2));
        let mut block = cmd("BZPOPMIN");
        block.arg(&self.0.marker).arg(wait.as_secs_f64());
        let hint: Result<Option<(String, String, f64)>, _> = own.query(&block, wait).await;
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

/// A worker asks again after this long, even if nothing woke it.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

async fn renew(
    queue: BullQueue,
    id: String,
    token: String,
    lease: Duration,
    held: Arc<AtomicBool>,
) {
    loop {
        tokio::time::sleep(lease / 2).await;
        let extended: Result<u8> = EXTEND
            .run(
                &queue.store,
                &queue.keys,
                &[&queue.prefix, &queue.major, &id, &token, &millis(lease)],
            )
            .await;
        match extended {
            Ok(0) => {
                held.store(false, Ordering::Release);
                return;
            }
            Ok(_) => {}
            // The lease may survive this; the next renewal or the end of the job will tell.
            Err(error) => tracing::warn!(%error, "a lease could not be renewed"),
        }
    }
}

/// A job that this worker holds. Dropped without an end, its lease ends and a stalled check gives it back.
#[derive(Debug)]
pub struct Taken {
    queue: BullQueue,
    id: String,
    token: String,
    fields: BTreeMap<String, String>,
    held: Arc<AtomicBool>,
    renewal: JoinHandle<()>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

impl Taken {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.fields.get("name").map_or("", String::as_str)
    }

    /// Its data.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it is not a `T`.
    pub fn data<T: DeserializeOwned>(&self) -> Result<T> {
        let text = self.fields.get("data").map_or("null", String::as_str);
        serde_json::from_str(text)
            .map_err(|_| Error::invalid("the data of a job is not of the expected type"))
    }

    /// All its fields as they were stored when it was taken.
    pub fn fields(&self) -> &BTreeMap<String, String> {
        &self.fields
    }

    /// The attempts that ended before this one.
    pub fn attempts_made(&self) -> u32 {
        self.number("atm")
    }

    /// Whether a renewal has found that the job is not held any more: its work should stop.
    pub fn is_lost(&self) -> bool {
        !self.held.load(Ordering::Acquire)
    }

    fn number(&self, field: &str) -> u32 {
        self.fields
            .get(field)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    fn options(&self) -> Value {
        let text = self.fields.get("opts").map_or("{}", String::as_str);
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Completes it with a result.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the result cannot be JSON; otherwise those of the store. After
    /// [`is_in_doubt`](redstart::Error::is_in_doubt) it may be completed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the job may have ended.
    pub async fn complete(&self, result: &impl Serialize) -> Result<Ended> {
        let value = serde_json::to_string(result)
            .map_err(|_| Error::invalid("the result of a job must be representable as JSON"))?;
        self.end(
            "completed",
            &value,
            "",
            "removeOnComplete",
            Ended::Completed,
        )
        .await
    }

    /// Says that this attempt failed: it is tried again if it may be, or fails for good.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    ///
    /// # Cancel safety
    ///
    /// As [`complete`](Self::complete).
    pub async fn fail(&self, error: JobError) -> Result<Ended> {
        let options = self.options();
        let attempts = options["attempts"].as_u64().unwrap_or(0);
        let made = u64::from(self.attempts_made()) + 1;
        // What Node keeps there are stack traces; ours has the messages.
        let before = self.fields.get("stacktrace").map_or("[]", String::as_str);
        let mut trace: Vec<Value> = serde_json::from_str(before).unwrap_or_default();
        trace.push(json!(error.message));
        let trace = Value::Array(trace).to_string();
        if !error.retry || made >= attempts {
            return self
                .end(
                    "failed",
                    &error.message,
                    &trace,
                    "removeOnFail",
                    Ended::Failed,
                )
                .await;
        }
        let push = if options["lifo"].as_bool() == Some(true) {
            "RPUSH"
        } else {
            "LPUSH"
        };
        let code: i64 = RETRY
            .run(
                &self.queue.store,
                &self.queue.keys,
                &[
                    &self.queue.prefix,
                    &self.queue.major,
                    &self.id,
                    &self.token,
                    &backoff(&options["backoff"], made),
                    &error.message,
                    &trace,
                    &push,
                ],
            )
            .await?;
        self.ended(code, Ended::Retried)
    }

    async fn end(
        &self,
        state: &str,
        value: &str,
        trace: &str,
        keep: &str,
        ended: Ended,
    ) -> Result<Ended> {
        let options = self.options();
        let (count, age) = match &options[keep] {
            Value::Bool(true) => (0, 0),
            Value::Number(count) => (count.as_i64().unwrap_or(-1), 0),
            Value::Object(both) => (
                both.get("count").and_then(Value::as_i64).unwrap_or(-1),
                both.get("age").and_then(Value::as_i64).unwrap_or(0),
            ),
            _ => (-1, 0),
        };
        let attempts = options["attempts"].as_u64().unwrap_or(0);
        let code: i64 = FINISH
            .run(
                &self.queue.store,
                &self.queue.keys,
                &[
                    &self.queue.prefix,
                    &self.queue.major,
                    &self.id,
                    &self.token,
                    &state,
                    &value,
                    &trace,
                    &count,
                    &age,
                    &attempts,
                ],
            )
            .await?;
        self.ended(code, ended)
    }

    fn ended(&self, code: i64, ended: Ended) -> Result<Ended> {
        self.renewal.abort();
        match code {
            0 => Ok(ended),
            -4 => Err(Error::invalid(
                "a job with unfinished children cannot be completed",
            )),
            _ => Ok(Ended::Lost),
        }
    }

    /// Writes how far it is, which Node's `QueueEvents` hears.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    pub async fn progress(&self, progress: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(progress)
            .map_err(|_| Error::invalid("the progress of a job must be representable as JSON"))?;
        self.note("progress", &text).await
    }

    /// Writes a line to its log.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn log(&self, line: &str) -> Result<()> {
        self.note("log", line).await
    }

    async fn note(&self, what: &str, text: &str) -> Result<()> {
        let _: i64 = NOTE
            .run(
                &self.queue.store,
                &self.queue.keys,
                &[
                    &self.queue.prefix,
                    &self.queue.major,
                    &self.id,
                    &what,
                    &text,
                ],
            )
            .await?;
        Ok(())
    }

    /// The store that it is on.
    pub fn store(&self) -> &Store {
        &self.queue.store
    }
}

/// How long BullMQ would wait before the next attempt.
fn backoff(options: &Value, made: u64) -> u64 {
    match options {
        Value::Number(delay) => delay.as_u64().unwrap_or(0),
        Value::Object(both) => {
            let delay = both.get("delay").and_then(Value::as_u64).unwrap_or(0);
            match both.get("type").and_then(Value::as_str) {
                Some("exponential") => {
                    let factor = 1_u64 << made.saturating_sub(1).min(40);
                    delay.saturating_mul(factor).min(1 << 40)
                }
                _ => delay,
            }
        }
        _ => 0,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX >> 12)
}
