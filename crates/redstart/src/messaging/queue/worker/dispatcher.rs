//! Hands jobs to workers that are not in this process: clients of an HTTP service, workers in other languages.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    str::FromStr,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedMutexGuard, Semaphore, mpsc},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Delivery, Registration, Shared, Totals,
    acknowledge::Batch,
    fetch::{Fetcher, Next, Reserved},
    heartbeat::renew,
    run::{Ended, Ending},
    schedule::schedule,
    signal::Signals,
};
use crate::{
    error::{Error, Result},
    messaging::{
        Settled,
        queue::{
            Backoff, JobId, Queue, Verdict,
            record::{DeliveryId, Record},
            script::{PROGRESS, REGISTER},
        },
        wake::Wake,
    },
    observe,
    token::token,
};

/// Jobs that one call hands out.
const MAX_JOBS: usize = 256;
/// Names of kinds that a process keeps for good; see [`kind_name`].
const MAX_KIND_NAMES: usize = 10_000;

/// Says which delivery of which job a worker speaks of. Made by [`Dispatcher::take`]; only the worker that got it can
/// settle that delivery, and only while it holds the job.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct JobFence {
    /// The registration that holds the job.
    lease: String,
    delivery: DeliveryId,
}

impl JobFence {
    fn attempt(&self) -> u32 {
        u32::from(u16::from_be_bytes([self.delivery[16], self.delivery[17]])) + 1
    }
}

impl fmt::Display for JobFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delivery = &self.delivery;
        delivery
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ".{}", self.lease)
    }
}

impl fmt::Debug for JobFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobFence")
    }
}

impl FromStr for JobFence {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || Error::config("this text is not the fence of a job");
        let (delivery, lease) = text.split_once('.').ok_or_else(invalid)?;
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if delivery.len() != 40 || lease.len() != 64 || !plain(delivery) || !plain(lease) {
            return Err(invalid());
        }
        let mut bytes = [0; 20];
        for (byte, pair) in bytes.iter_mut().zip(delivery.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| invalid())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| invalid())?;
        }
        Ok(Self {
            lease: lease.to_owned(),
            delivery: bytes,
        })
    }
}

/// A job in the hands of a worker elsewhere.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DispatchedJob {
    /// Its id.
    pub id: JobId,
    /// What its worker settles it with.
    pub fence: JobFence,
    /// The name of its kind.
    pub kind: String,
    /// The payload: JSON.
    pub payload: Vec<u8>,
    /// Which attempt this is; the first is 1.
    pub attempt: u32,
    /// How many attempts it has in all.
    pub max_attempts: u32,
    /// How long this run may take, if the job was enqueued with a limit.
    pub timeout: Option<Duration>,
}

/// Settings of a [`Dispatcher`]; made by [`Queue::dispatcher`].
#[must_use = "a dispatcher runs only after `start`"]
#[derive(Debug)]
pub struct DispatcherBuilder {
    queue: Queue,
    kinds: Vec<String>,
    lease: Duration,
    backoff: Backoff,
    max_attempts: u16,
}

impl Queue {
    /// Starts the settings of a dispatcher, which hands jobs of these kinds to workers outside of this process.
    pub fn dispatcher<K: Into<String>>(
        &self,
        kinds: impl IntoIterator<Item = K>,
    ) -> DispatcherBuilder {
        DispatcherBuilder {
            queue: self.clone(),
            kinds: kinds.into_iter().map(Into::into).collect(),
            lease: Duration::from_secs(30),
            backoff: Backoff::default(),
            max_attempts: 10,
        }
    }
}

impl DispatcherBuilder {
    /// How long a worker may be silent before others take its jobs (default 30 s).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The waits between attempts, and how many attempts a job has in all (default 10).
    pub fn retry(mut self, backoff: Backoff, max_attempts: u16) -> Self {
        self.backoff = backoff;
        self.max_attempts = max_attempts;
        self
    }

    /// Starts the dispatcher on the current runtime. It also looks after what is due in the queue, as every worker does.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for invalid settings or a store that cannot subscribe; otherwise those of the
    /// store, if it cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, nothing runs.
    pub async fn start(self) -> Result<Dispatcher> {
        if self.kinds.is_empty() || self.kinds.len() > 64 {
            return Err(Error::config("a dispatcher must have 1 to 64 kinds of job"));
        }
        if self.lease < Duration::from_millis(100) || self.lease > Duration::from_secs(86_400) {
            return Err(Error::config("a lease must be from 100 ms to a day"));
        }
        if self.max_attempts == 0 {
            return Err(Error::config("max_attempts must be at least 1"));
        }
        let kinds = self.kinds.iter().map(|kind| kind_name(kind));
        let kinds = kinds.collect::<Result<Vec<_>>>()?;
        // Nobody receives: endings are written by `settle`, which can answer.
        let (ended, _) = mpsc::channel(1);
        let clock = self.queue.store().clock();
        let shared = Arc::new(Shared {
            id: token(),
            current: Mutex::default(),
            signals: Arc::new(Signals::new(clock, kinds)),
            permits: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            turn: 1,
            queue: self.queue,
            handlers: HashMap::new(),
            concurrency: MAX_JOBS,
            lease: self.lease,
            backoff: self.backoff,
            backoffs: HashMap::new(),
            max_attempts: self.max_attempts,
            timeout: None,
            cancel_grace: Duration::ZERO,
            jobs: TaskTracker::new(),
            ended,
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            drained: CancellationToken::new(),
            suspect: Notify::new(),
            totals: Totals::default(),
        });
        let queue = &shared.queue;
        let own = queue.entity().channel(&format!("wake:{}", shared.id));
        let signals = shared.signals.clone();
        let channels = [queue.0.channel.clone(), own];
        let wake = Wake::open(queue.store(), channels, move |event| signals.hear(event)).await?;
        Ok(Dispatcher(Arc::new(Inner {
            scheduler: crate::task::spawn(schedule(shared.clone())),
            kinds: self.kinds.into_iter().collect(),
            wake: Arc::new(wake),
            turn: Arc::default(),
            shared,
        })))
    }
}

/// Hands jobs to workers that are not in this process: clients of an HTTP service, workers in other languages. Cheap to
/// clone; dropping the last clone stops it.
///
/// # Promises
///
/// Those of the [`Queue`]. A worker holds what it took for a lease, which it extends while it works. A worker that dies
/// loses its jobs at the end of the lease, and what it says of them after that is refused. Any dispatcher of the same
/// queue, in any process, accepts what a worker says: a [`JobFence`] is all that is needed.
///
/// Waiting workers do not poll the store, however many there are: they take turns, and one of them listens.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, messaging::{JobFence, Queue, Settled, Verdict}};
/// let store = Store::connect("memory://").await?;
/// let queue = Queue::new(&store, "shop", "mail")?;
/// queue.enqueue_raw("send_mail", br#"{"to":"ann"}"#).await?;
///
/// let dispatcher = queue.dispatcher(["send_mail"]).start().await?;
/// let jobs = dispatcher.take(10, Duration::from_secs(1)).await?;
/// assert_eq!((jobs.len(), jobs[0].attempt), (1, 1));
///
/// let fence: JobFence = jobs[0].fence.to_string().parse()?;
/// assert_eq!(dispatcher.settle(&fence, Verdict::Done).await?, Settled::Done);
/// assert_eq!(dispatcher.settle(&fence, Verdict::Done).await?, Settled::Lost);
/// # Ok(()) }
/// ```
///
/// # Round trips
///
/// Taking: three, one of them in the background, and one for each time that a waiting worker is woken. Settling: two, and
/// one more for the last job that was taken together. Extending and recording progress: one.
#[derive(Clone)]
pub struct Dispatcher(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    kinds: HashSet<String>,
    wake: Arc<Wake>,
    /// Held by the worker whose turn it is to take jobs.
    turn: Arc<tokio::sync::Mutex<()>>,
    scheduler: JoinHandle<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.stop.cancel();
        self.scheduler.abort();
    }
}

impl Dispatcher {
    /// Takes up to `max` jobs, at most 256, for one worker. If there are none, waits for as long as `wait`; an empty list
    /// says that there were none. All of them share one lease: extending one extends all.
    ///
    /// # Errors
    ///
    /// Those of the store. Jobs that may have been taken are handed back, at the latest when the lease ends.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, jobs that were taken are handed back in the background.
    pub async fn take(&self, max: usize, wait: Duration) -> Result<Vec<DispatchedJob>> {
        let inner = &*self.0;
        let end = Instant::now().checked_add(wait);
        let turn = inner.turn.clone().lock_owned();
        let turn = match end {
            // Whoever has the turn takes what there is, so there is nothing for this worker.
            Some(end) => match tokio::time::timeout_at(end, turn).await {
                Ok(turn) => turn,
                Err(_) => return Ok(Vec::new()),
            },
            None => turn.await,
        };
        let mut taking = Taking::new(&inner.shared, turn);
        taking.register().await?;
        loop {
            let fetcher = taking.fetcher(&inner.wake);
            inner.shared.signals.reset();
            let next = match fetcher.reserve(max.clamp(1, MAX_JOBS)).await? {
                Reserved::Lost | Reserved::Stale => {
                    taking.registration = registration(&taking.name());
                    taking.register().await?;
                    continue;
                }
                Reserved::Jobs { next, records, .. } => {
                    let jobs = self.accept(&taking, records).await?;
                    if !jobs.is_empty() {
                        taking.keep();
                        return Ok(jobs);
                    }
                    next
                }
            };
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(Vec::new());
            }
            if let Next::Rest(until_due) = next {
                // Asking renews the registration, which has no heartbeat.
                let most = inner.shared.lease / 3;
                let rest = fetcher.rest(Some(until_due.unwrap_or(most).min(most)));
                match end {
                    Some(end) => drop(tokio::time::timeout_at(end, rest).await),
                    None => rest.await,
                }
            }
        }
    }

    /// The jobs among these records that the workers can run; the others are left to other workers.
    async fn accept(&self, taking: &Taking, records: Vec<Vec<u8>>) -> Result<Vec<DispatchedJob>> {
        let shared = &self.0.shared;
        let (mut jobs, mut others) = (Vec::new(), Vec::new());
        for bytes in records {
            let Some(delivery) = Record::delivery(&bytes) else {
                continue;
            };
            let fence = JobFence {
                lease: taking.registration.name.clone(),
                delivery,
            };
            match Record::parse(&bytes) {
                Some(record) if self.0.kinds.contains(&record.name) => jobs.push(DispatchedJob {
                    id: record.id,
                    attempt: fence.attempt(),
                    max_attempts: u32::from(record.max_attempts.unwrap_or(shared.max_attempts)),
                    payload: record.payload(&bytes).to_vec(),
                    timeout: record.timeout,
                    kind: record.name,
                    fence,
                }),
                Some(record) => {
                    let reason = format!("no handler for the job {:?}", record.name);
                    let ending = shared.cannot_run(record.name.clone(), reason);
                    others.push(self.ended(&taking.registration, &fence, Some(&record), ending)?);
                }
                None => {
                    let ending = Ending::Dead("corrupt record".to_owned());
                    others.push(self.ended(&taking.registration, &fence, None, ending)?);
                }
            }
        }
        if !others.is_empty() {
            self.write(&taking.registration, &others).await?;
        }
        Ok(jobs)
    }

    /// Says how a delivery ended. [`Settled::Lost`] if the worker no longer held the job: its lease had ended, or it had
    /// settled the job before.
    ///
    /// # Errors
    ///
    /// Those of the store. Saying it again is harmless.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the ending may have been written.
    pub async fn settle(&self, fence: &JobFence, verdict: Verdict) -> Result<Settled> {
        let shared = &self.0.shared;
        let registration = registration(&fence.lease);
        let running = shared.queue.entity().part(&registration.running);
        let mut look = redis::pipe();
        look.cmd("HEXISTS").arg(&running).arg(&fence.delivery[..]);
        look.cmd("HLEN").arg(&running);
        let jobs = shared.queue.entity().part("jobs");
        look.cmd("HGET").arg(jobs).arg(&fence.delivery[..16]);
        let (is_held, held, record): (bool, u64, Option<Vec<u8>>) =
            shared.queue.store().pipeline(&look).await?;
        let (true, Some(record)) = (is_held, record) else {
            observe::event("queue.refused");
            return Ok(Settled::Lost);
        };
        let record = Record::parse(&record);
        let delivery = Delivery::new(shared, &registration, fence.delivery, record.as_ref(), 0);
        let ending = match verdict {
            Verdict::Done => Ending::Done(Vec::new()),
            Verdict::DoneWith { result } => Ending::Done(result),
            Verdict::Retry { after, reason } => shared.after_failure(&delivery, after, reason),
            Verdict::Dead { reason } => Ending::Dead(reason),
        };
        let ended = self.ended(&registration, fence, record.as_ref(), ending)?;
        if !self.write(&registration, &[ended]).await? {
            observe::event("queue.refused");
            return Ok(Settled::Lost);
        }
        // One field of the hash is the registration's own.
        if held <= 2 {
            let shared = shared.clone();
            let store = shared.queue.store().clone();
            store.defer(async move {
                if let Err(error) = shared.leave(&registration).await {
                    tracing::debug!(%error, "a worker elsewhere could not unregister");
                }
            });
        }
        Ok(Settled::Done)
    }

    /// Makes the lease of a worker run anew; `false` if it was lost.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease may have been extended.
    pub async fn extend(&self, fence: &JobFence) -> Result<bool> {
        let registration = registration(&fence.lease);
        Ok(renew(&self.0.shared, &registration).await?.0 >= 0)
    }

    /// Records how far a job is, from 0 to 1; `false` if the worker no longer holds it.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a number outside 0 to 1; otherwise those of the store.
    pub async fn progress(&self, fence: &JobFence, progress: f64) -> Result<bool> {
        if !(0.0..=1.0).contains(&progress) {
            return Err(Error::config("progress must be from 0 to 1"));
        }
        let queue = &self.0.shared.queue;
        let noted: u8 = queue
            .call(&PROGRESS, &[&format!("running:{}", fence.lease)])
            .arg(&fence.delivery[..])
            .arg("progress")
            .arg(progress)
            .idempotent()
            .run(queue.store())
            .await?;
        Ok(noted == 1)
    }

    /// Whether somebody [cancelled](Queue::cancel) a job that is held: its worker should stop. It is not tried again,
    /// whatever the worker says of it.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn is_cancelled(&self, fence: &JobFence) -> Result<bool> {
        let queue = &self.0.shared.queue;
        let mut look = redis::cmd("HEXISTS");
        look.arg(queue.entity().part("meta"))
            .arg([b"c:", &fence.delivery[..16]].concat());
        queue.store().query(&look).await
    }

    /// For how long a worker may be silent.
    pub fn lease(&self) -> Duration {
        self.0.shared.lease
    }

    fn ended(
        &self,
        registration: &Arc<Registration>,
        fence: &JobFence,
        record: Option<&Record>,
        ending: Ending,
    ) -> Result<Ended> {
        let shared = &self.0.shared;
        let permit = shared.permits.clone().try_acquire_owned();
        Ok(Ended {
            delivery: Arc::new(Delivery {
                // It may have recorded some by another dispatcher.
                progressed: AtomicBool::new(true),
                ..Delivery::new(shared, registration, fence.delivery, record, 0)
            }),
            ending,
            _permit: permit.map_err(|_| Error::unavailable("too many jobs end at once"))?,
        })
    }

    /// Writes endings of one registration; `false` if it is lost.
    async fn write(&self, registration: &Registration, ended: &[Ended]) -> Result<bool> {
        let shared = &self.0.shared;
        let batch = Batch::new(ended, shared);
        let call = batch
            .call(shared, registration)
            .run::<u8>(shared.queue.store());
        let written = observe::operation("queue.finish", shared.queue.namespace(), call).await?;
        if written == 1 {
            batch.count(shared);
        }
        Ok(written == 1)
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher")
            .field("queue", &self.0.shared.queue)
            .finish_non_exhaustive()
    }
}

/// One worker's turn to take jobs. When it ends, the worker no longer counts as idle, and what was not kept is handed
/// back. The next worker waits under a registration of its own, so it need not wait for that.
struct Taking {
    shared: Arc<Shared>,
    registration: Arc<Registration>,
    kept: bool,
    _turn: OwnedMutexGuard<()>,
}

impl Taking {
    fn new(shared: &Arc<Shared>, turn: OwnedMutexGuard<()>) -> Self {
        Self {
            registration: registration(&format!("{}{}", shared.id, token())),
            shared: shared.clone(),
            kept: false,
            _turn: turn,
        }
    }

    fn name(&self) -> String {
        format!("{}{}", self.shared.id, token())
    }

    async fn register(&self) -> Result<()> {
        REGISTER
            .on(self.shared.queue.entity())
            .part(&self.registration.running)
            .part("workers")
            .arg(&self.registration.name)
            .arg(1)
            .arg(self.shared.lease_micros())
            .idempotent()
            .run::<u8>(self.shared.queue.store())
            .await
            .map(drop)
    }

    fn fetcher(&self, wake: &Arc<Wake>) -> Fetcher {
        Fetcher {
            shared: self.shared.clone(),
            registration: self.registration.clone(),
            wake: wake.clone(),
        }
    }

    /// Leaves the jobs to their worker.
    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        let (shared, registration) = (self.shared.clone(), self.registration.clone());
        let (store, kept) = (shared.queue.store().clone(), self.kept);
        store.defer(async move {
            let left = match kept {
                true => shared.stop_waiting(&registration).await,
                false => shared.leave(&registration).await.map(drop),
            };
            if let Err(error) = left {
                tracing::debug!(%error, "a worker elsewhere could not unregister");
            }
        });
    }
}

/// The registration of this name. Its lease is the worker's own to extend.
fn registration(name: &str) -> Arc<Registration> {
    Arc::new(Registration::new(name.to_owned()))
}

/// A name of a kind for the whole life of the process. Workers know their kinds when they are compiled; those elsewhere
/// do not, so the number of names is limited.
fn kind_name(kind: &str) -> Result<&'static str> {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    if kind.is_empty() || kind.len() > 255 {
        return Err(Error::config("the kind of a job must have 1 to 255 bytes"));
    }
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(kind) {
        return Ok(known);
    }
    if names.len() >= MAX_KIND_NAMES {
        return Err(Error::config("too many different kinds of job"));
    }
    let name: &'static str = Box::leak(kind.to_owned().into_boxed_str());
    names.insert(name);
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_reads_back_as_it_was_written_and_nothing_else_is_one() {
        let fence = JobFence {
            lease: format!("{}{}", token(), token()),
            delivery: *b"0123456789abcdef\x00\x02\x00\x00",
        };
        let text = fence.to_string();
        assert_eq!(text.parse::<JobFence>().unwrap(), fence);
        assert_eq!(fence.attempt(), 3);
        for bad in [
            "",
            ".",
            "abc.def",
            &text[1..],
            &format!("{text}x"),
            &text.replace('.', ":"),
        ] {
            assert!(bad.parse::<JobFence>().unwrap_err().is_config(), "{bad}");
        }
    }
}
