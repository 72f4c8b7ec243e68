//! Hands jobs to workers that are not in this process: clients of an HTTP service, workers in other languages.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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
    Registration, Settler, Shared, Totals,
    fetch::{Fetcher, Next, Reserved},
    run::Ending,
    schedule::schedule,
    signal::Signals,
    slots::Room,
};
use crate::{
    error::{Error, Result},
    messaging::{
        Settled,
        queue::{
            Backoff, JobId, Queue, Verdict,
            record::{DeliveryId, Record},
            script::REGISTER,
        },
        wake::Wake,
    },
    store::Clock,
    token::token,
};

/// Jobs that one call hands out.
const MAX_JOBS: usize = 256;

/// Says which delivery of which job a worker speaks of. Made by [`Dispatcher::take`]; only the worker that got it can
/// settle that delivery, and only while it holds the job.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct JobFence {
    /// The registration that holds the job.
    pub(super) lease: String,
    pub(super) delivery: DeliveryId,
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
        if self
            .kinds
            .iter()
            .any(|kind| kind.is_empty() || kind.len() > 255)
        {
            return Err(Error::config("the kind of a job must have 1 to 255 bytes"));
        }
        let shared = self.shared()?;
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
            resting: AtomicBool::new(false),
            settler: Settler(shared.clone()),
            shared,
        })))
    }

    /// A handle that settles jobs and takes none. It has no subscription and nothing runs, so it costs no round trip;
    /// the kinds do not matter to it.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for invalid settings.
    pub fn settler(self) -> Result<Settler> {
        Ok(Settler(self.shared()?))
    }

    fn shared(&self) -> Result<Arc<Shared>> {
        if self.lease < Duration::from_millis(100) || self.lease > Duration::from_secs(86_400) {
            return Err(Error::config("a lease must be from 100 ms to a day"));
        }
        if self.max_attempts == 0 {
            return Err(Error::config("max_attempts must be at least 1"));
        }
        let kinds = self.kinds.iter().map(|kind| Arc::from(kind.as_str()));
        // Nobody receives: endings are written by `settle`, which can answer.
        let (ended, _) = mpsc::channel(1);
        let clock = self.queue.store().clock();
        Ok(Arc::new(Shared {
            id: token(),
            current: Mutex::default(),
            former: Mutex::default(),
            signals: Arc::new(Signals::new(clock, kinds.collect())),
            room: Room::new(Semaphore::MAX_PERMITS),
            queue: self.queue.clone(),
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
            answers: Notify::new(),
            totals: Totals::default(),
        }))
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
/// Taking: three, one of them in the background, and one for each time that a waiting worker is woken. Settling: two, a
/// third beside the first where the queue has a history, and one more for the last job that was taken together. Extending
/// and recording progress: one.
#[derive(Clone)]
pub struct Dispatcher(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    settler: Settler,
    kinds: HashSet<String>,
    wake: Arc<Wake>,
    /// Held by the worker whose turn it is to take jobs.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Whoever has the turn has found nothing and waits for a signal.
    resting: AtomicBool,
    scheduler: JoinHandle<()>,
}

impl Inner {
    /// Waits for the turn to take jobs; `None` if there is nothing to take.
    async fn turn(&self, end: Option<Instant>) -> Result<Option<OwnedMutexGuard<()>>> {
        let turn = self.turn.clone().lock_owned();
        let Some(end) = end else {
            return Ok(Some(turn.await));
        };
        let mut turn = std::pin::pin!(turn);
        if let Ok(turn) = tokio::time::timeout_at(end, &mut turn).await {
            return Ok(Some(turn));
        }
        // Whoever rests has found nothing. While somebody asks, there may be jobs for this worker too.
        if self.resting.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let deadline = self.shared.queue.store().deadline() * 2;
        match tokio::time::timeout(deadline, turn).await {
            Ok(turn) => Ok(Some(turn)),
            Err(_) if self.resting.load(Ordering::Relaxed) => Ok(None),
            Err(_) => Err(Error::unavailable(
                "the store did not answer the worker whose turn it was",
            )),
        }
    }
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
        let Some(turn) = inner.turn(end).await? else {
            return Ok(Vec::new());
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
            let until_due = match next {
                // There may be some now, also for a worker that does not wait.
                Next::Look => continue,
                // Some may be parked, of a kind that was not asked for yet.
                Next::Rest(_)
                    if end.is_some_and(|end| Instant::now() >= end)
                        && !inner.shared.signals.must_look() =>
                {
                    return Ok(Vec::new());
                }
                Next::Rest(until_due) => until_due,
            };
            let _resting = Resting::new(&inner.resting);
            // Asking renews the registration, which has no heartbeat.
            let most = inner.shared.lease / 3;
            let rest = fetcher.rest(Some(until_due.unwrap_or(most).min(most)));
            match end {
                Some(end) => drop(tokio::time::timeout_at(end, rest).await),
                None => rest.await,
            }
        }
    }

    /// The jobs among these records that the workers can run; the others are left to other workers.
    async fn accept(&self, taking: &Taking, records: Vec<Vec<u8>>) -> Result<Vec<DispatchedJob>> {
        let (shared, settler) = (&self.0.shared, &self.0.settler);
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
                    let delivery =
                        settler.delivery(&taking.registration, &fence, Some(&record), None);
                    others.push(settler.ended(delivery, ending)?);
                }
                None => {
                    let ending = Ending::Dead("corrupt record".to_owned());
                    let delivery = settler.delivery(&taking.registration, &fence, None, None);
                    others.push(settler.ended(delivery, ending)?);
                }
            }
        }
        if !others.is_empty() {
            settler.write(&taking.registration, &others).await?;
        }
        Ok(jobs)
    }

    /// Says how a delivery ended; see [`Settler::settle`].
    ///
    /// # Errors
    ///
    /// Those of the store. Saying it again is harmless.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the ending may have been written.
    pub async fn settle(&self, fence: &JobFence, verdict: Verdict) -> Result<Settled> {
        self.0.settler.settle(fence, verdict).await
    }

    /// Renews the worker's lease; `false` if it has expired.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease may have been extended.
    pub async fn extend(&self, fence: &JobFence) -> Result<bool> {
        self.0.settler.extend(fence).await
    }

    /// Records how far a job is, from 0 to 1; `false` if the worker no longer holds it.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a number outside 0 to 1; otherwise those of the store.
    pub async fn progress(&self, fence: &JobFence, progress: f64) -> Result<bool> {
        self.0.settler.progress(fence, progress).await
    }

    /// Whether somebody [cancelled](Queue::cancel) a job that is held; see [`Settler::is_cancelled`].
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn is_cancelled(&self, fence: &JobFence) -> Result<bool> {
        self.0.settler.is_cancelled(fence).await
    }

    /// For how long a worker may be silent.
    pub fn lease(&self) -> Duration {
        self.0.shared.lease
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher")
            .field("queue", &self.0.shared.queue)
            .finish_non_exhaustive()
    }
}

/// While it lives, whoever has the turn rests.
struct Resting<'a>(&'a AtomicBool);

impl<'a> Resting<'a> {
    fn new(resting: &'a AtomicBool) -> Self {
        resting.store(true, Ordering::Relaxed);
        Self(resting)
    }
}

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
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
            .part("meta")
            .arg(&self.registration.name)
            .arg(1)
            .arg(self.shared.lease_micros())
            .arg("-")
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
pub(super) fn registration(name: &str) -> Arc<Registration> {
    Arc::new(Registration::new(name.to_owned(), Clock::default()))
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
