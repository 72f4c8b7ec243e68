//! The worker: takes jobs, runs them, writes down how they ended, and keeps its lease.
//!
//! Three kinds of tasks work together. The *pump* takes as many jobs as may start and starts them; it is the
//! only one that takes, so it alone knows whether a reply was lost. The *clerk* collects how jobs ended and
//! writes many of them down at once. The *keeper* renews the lease of the current [`Term`]: the time for which
//! the worker is registered under one name. A term that was lost is never revived; the next one has a new name.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use redis::Value;
use tokio::{
    sync::{
        Notify, OwnedSemaphorePermit, Semaphore,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    task::JoinHandle,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Backoff, Handler, Job, JobId, Outcome, Queue,
    job::{Delivery, Record},
    script,
};
use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
    observe,
    script::Script,
    store::{Event, Subscription, Topic},
};

static JOIN: Script = script!("queue.join", "join.lua");
static RESERVE: Script = script!("queue.reserve", "reserve.lua");
static FINISH: Script = script!("queue.finish", "finish.lua");
static RENEW: Script = script!("queue.renew", "renew.lua");
static SYNC: Script = script!("queue.sync", "sync.lua");
static LEAVE: Script = script!("queue.leave", "leave.lua");
static RECLAIM: Script = script!("queue.reclaim", "reclaim.lua");
static PROGRESS: Script = script!("queue.progress", "progress.lua");

/// Endings written down by one script.
const BATCH: usize = 512;
/// Delayed jobs made ready by one script.
const PROMOTE: usize = 500;
const MAX_CONCURRENCY: usize = 10_000;
/// The embedded engine's clock can be moved under a sleeping worker.
const EMBEDDED_NAP: Duration = Duration::from_millis(50);

/// A handler with its job's type erased.
trait Runner: Send + Sync {
    fn run(
        &self,
        record: Vec<u8>,
        payload: usize,
        context: Context,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send + '_>>;
}

struct Typed<J, H>(H, std::marker::PhantomData<fn(J)>);

impl<J: Job, H: Handler<J>> Runner for Typed<J, H> {
    fn run(
        &self,
        record: Vec<u8>,
        payload: usize,
        context: Context,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send + '_>> {
        match Json::decode::<J>(&record[payload..]) {
            Ok(job) => {
                drop(record);
                Box::pin(self.0.run(job, context))
            }
            // It will not decode next time either.
            Err(error) => Box::pin(std::future::ready(Outcome::dead(error))),
        }
    }
}

/// Settings of a [`Worker`].
#[must_use = "a builder does nothing until it runs"]
pub struct WorkerBuilder {
    queue: Queue,
    handlers: HashMap<&'static str, Arc<dyn Runner>>,
    twice: Option<&'static str>,
    concurrency: usize,
    lease: Duration,
    backoff: Backoff,
    max_attempts: u16,
    timeout: Option<Duration>,
}

impl WorkerBuilder {
    pub(super) fn new(queue: Queue) -> Self {
        Self {
            queue,
            handlers: HashMap::new(),
            twice: None,
            concurrency: 16,
            lease: Duration::from_secs(30),
            backoff: Backoff::default(),
            max_attempts: 10,
            timeout: None,
        }
    }

    /// Handles another kind of job too. A job whose name no handler has becomes a dead letter.
    pub fn also<J: Job, H: Handler<J>>(mut self, handler: H) -> Self {
        let runner = Arc::new(Typed(handler, std::marker::PhantomData::<fn(J)>));
        if self.handlers.insert(J::NAME, runner).is_some() {
            self.twice = Some(J::NAME);
        }
        self
    }

    /// How many jobs it holds at most at a time, from taken to written down (default 16).
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.concurrency = jobs;
        self
    }

    /// How long the worker may be silent before others take its jobs (default 30 s). It renews three times as
    /// often.
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

    /// How long one run may take if the job itself does not say (default: as long as it likes).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Registers the worker and starts it on the current runtime.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for settings that cannot be or a store that cannot subscribe; otherwise
    /// those of the store, if it cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, nothing runs; a registration may be left until its lease is over.
    pub async fn run(self) -> Result<Worker> {
        if let Some(name) = self.twice {
            return Err(Error::config(format!("two handlers for the job {name:?}")));
        }
        if !(1..=MAX_CONCURRENCY).contains(&self.concurrency) {
            return Err(Error::config(format!(
                "a worker's concurrency is from 1 to {MAX_CONCURRENCY}"
            )));
        }
        if self.lease < Duration::from_millis(100) || self.lease > Duration::from_secs(86_400) {
            return Err(Error::config("a lease is from 100 ms to a day"));
        }
        if self.max_attempts == 0 {
            return Err(Error::config("a job has at least one attempt"));
        }
        let (ended, endings) = unbounded_channel();
        let crew = Arc::new(Crew {
            permits: Arc::new(Semaphore::new(self.concurrency)),
            queue: self.queue,
            handlers: self.handlers,
            concurrency: self.concurrency,
            lease: self.lease,
            backoff: self.backoff,
            max_attempts: self.max_attempts,
            timeout: self.timeout,
            jobs: TaskTracker::new(),
            ended,
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            drained: CancellationToken::new(),
            suspect: Notify::new(),
            counts: Counts::default(),
        });
        // Listen first: what is enqueued after the first look must be heard of.
        let mut subscription = crew
            .queue
            .store()
            .subscribe([Topic::Sharded(crew.queue.0.channel.clone())])
            .await?;
        let patience = crew.queue.store().deadline() * 5;
        match tokio::time::timeout(patience, subscription.next()).await {
            Ok(Some(_)) => {}
            Ok(None) => return Err(Error::config("this store cannot subscribe")),
            Err(_) => return Err(Error::timeout("the wake-up channel did not open in time")),
        }
        let term = crew.join().await?;
        let pump = Pump {
            crew: crew.clone(),
            term,
            subscription,
        };
        Ok(Worker {
            pump: Some(tokio::spawn(pump.run())),
            clerk: Some(tokio::spawn(clerk(crew.clone(), endings))),
            crew,
        })
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("queue", &self.queue)
            .field("handlers", &self.handlers.keys())
            .finish_non_exhaustive()
    }
}

/// What all tasks of one worker share.
struct Crew {
    queue: Queue,
    handlers: HashMap<&'static str, Arc<dyn Runner>>,
    concurrency: usize,
    lease: Duration,
    backoff: Backoff,
    max_attempts: u16,
    timeout: Option<Duration>,
    permits: Arc<Semaphore>,
    jobs: TaskTracker,
    ended: UnboundedSender<Ended>,
    /// Take no more.
    stop: CancellationToken,
    /// Stop what runs.
    abort: CancellationToken,
    /// All endings are in the channel: the clerk may leave when it has written them down.
    drained: CancellationToken,
    /// The server says that we hold more than we know of.
    suspect: Notify,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    done: AtomicU64,
    failed: AtomicU64,
    handed_back: AtomicU64,
}

/// One registration of the worker.
struct Term {
    name: String,
    running: String,
    /// Only the pump changes it.
    epoch: AtomicU64,
    /// The lease is over, or nobody can tell any more.
    lost: CancellationToken,
    /// The worker leaves: the keeper may stop.
    over: CancellationToken,
    known: Mutex<HashSet<Delivery>>,
}

/// How a delivery ended.
struct Ended {
    delivered: Arc<Delivered>,
    ending: Ending,
    /// Held until the ending is written down, so that no more than `concurrency` jobs are ever in doubt.
    _permit: OwnedSemaphorePermit,
}

enum Ending {
    Done,
    Retry(Duration),
    Dead(String),
    Back,
}

/// One delivery of a job to this worker.
struct Delivered {
    crew: Arc<Crew>,
    term: Arc<Term>,
    delivery: Delivery,
    id: JobId,
    attempt: u32,
    unique: Option<Vec<u8>>,
    progressed: AtomicBool,
}

/// What a handler knows of the run it is in, and can do about it. Cheap to clone.
///
/// ```
/// use redstart::messaging::queue::{Context, Job, Outcome};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Charge { cents: u64 }
/// # impl Job for Charge { const NAME: &'static str = "charge"; }
/// # async fn pay(_: u64, _: &str) -> redstart::Result<()> { Ok(()) }
///
/// async fn charge(job: Charge, cx: Context) -> redstart::Result<()> {
///     cx.once("pay", async { pay(job.cents, &cx.id().to_string()).await }).await?;
///     cx.progress(0.5).await?;
///     tokio::select! {
///         () = cx.lost() => {}   // another worker has this job by now: stop
///         () = tokio::task::yield_now() => {}
///     }
///     Ok(())
/// }
/// # let _ = charge;
/// ```
#[derive(Clone)]
pub struct Context(Arc<Delivered>);

impl Context {
    /// The job's id.
    pub fn id(&self) -> JobId {
        self.0.id
    }

    /// Which attempt this is; the first is 1. Runs that were handed back do not count.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Waits until the lease is lost: another worker has the job, or will have it soon. What this run returns
    /// is then refused.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped and called again.
    pub async fn lost(&self) {
        self.0.term.lost.cancelled().await;
    }

    /// Whether the lease is lost.
    pub fn is_lost(&self) -> bool {
        self.0.term.lost.is_cancelled()
    }

    /// Notes how far the job is, from 0 to 1, for those who [look](super::Inspector). `false` if the job is no
    /// longer this worker's.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a number outside 0 to 1; otherwise those of the store.
    pub async fn progress(&self, progress: f64) -> Result<bool> {
        let Delivered { crew, term, .. } = &*self.0;
        if !(0.0..=1.0).contains(&progress) {
            return Err(Error::config("progress is a number from 0 to 1"));
        }
        self.0.progressed.store(true, Ordering::Relaxed);
        let noted: u8 = PROGRESS
            .on(crew.queue.entity())
            .part(&term.running)
            .part("progress")
            .arg(&self.0.delivery[..])
            .arg(&self.0.id.0[..])
            .arg(progress)
            .idempotent()
            .run(crew.queue.store())
            .await?;
        Ok(noted == 1)
    }

    /// Runs an effect unless a run of this job has completed it before under the same key.
    ///
    /// `None` means that it was done before. When the process dies between the effect and the note about it,
    /// the effect happens again: hand the job's [id](Self::id) on as an idempotency key where that matters.
    ///
    /// # Errors
    ///
    /// The effect's own; and those of the store, by `From`.
    ///
    /// # Cancel safety
    ///
    /// Dropped while the effect runs, the effect is dropped and not noted.
    pub async fn once<T, E: From<Error>>(
        &self,
        key: &str,
        effect: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<Option<T>, E> {
        let queue = &self.0.crew.queue;
        let mark = queue.entity().part(&format!("once:{}:{key}", self.0.id));
        let store = queue.store();
        if store.query(redis::cmd("EXISTS").arg(&mark)).await? {
            return Ok(None);
        }
        let value = effect.await?;
        let millis = queue.0.once_for.as_millis() as u64;
        store
            .query::<()>(redis::cmd("SET").arg(&mark).arg(1).arg("PX").arg(millis))
            .await?;
        Ok(Some(value))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("id", &self.0.id)
            .field("attempt", &self.0.attempt)
            .finish_non_exhaustive()
    }
}

enum Reserved {
    Lost,
    Stale,
    Jobs {
        /// Until something is due; `None` if nothing ever is.
        wait: Option<Duration>,
        expired: Vec<String>,
        cron: bool,
        records: Vec<Vec<u8>>,
    },
}

impl Crew {
    fn micros(&self) -> u64 {
        self.lease.as_micros() as u64
    }

    /// Registers under a new name and starts the keeper of the lease.
    async fn join(self: &Arc<Self>) -> Result<Arc<Term>> {
        let name = format!("{:032x}", rand::random::<u128>());
        let term = Arc::new(Term {
            running: format!("running:{name}"),
            name,
            epoch: AtomicU64::new(1),
            lost: CancellationToken::new(),
            over: CancellationToken::new(),
            known: Mutex::default(),
        });
        let started = Instant::now();
        let _: u8 = JOIN
            .on(self.queue.entity())
            .part(&term.running)
            .part("workers")
            .arg(&term.name)
            .arg(1)
            .arg(self.micros())
            .idempotent()
            .run(self.queue.store())
            .await?;
        tokio::spawn(keeper(self.clone(), term.clone(), started));
        Ok(term)
    }

    async fn reserve(&self, term: &Term, want: usize) -> Result<Reserved> {
        let reply: Vec<Value> = RESERVE
            .on(self.queue.entity())
            .part("ready")
            .part("ranked")
            .part("delayed")
            .part(&term.running)
            .part("workers")
            .part("meta")
            .part("dead")
            .part("cron")
            .part("unique")
            .arg(&term.name)
            .arg(term.epoch.load(Ordering::Relaxed))
            .arg(want)
            .arg(self.micros())
            .arg(self.queue.0.boost)
            .arg(PROMOTE)
            .run(self.queue.store())
            .await?;
        let mut reply = reply.into_iter();
        match (
            reply.next(),
            reply.next(),
            reply.next(),
            reply.next(),
            reply.next(),
        ) {
            (Some(Value::Int(0)), ..) => Ok(Reserved::Lost),
            (Some(Value::Int(2)), ..) => Ok(Reserved::Stale),
            (
                Some(Value::Int(1)),
                Some(Value::Int(wait)),
                Some(expired),
                Some(Value::Int(cron)),
                Some(Value::Array(records)),
            ) => Ok(Reserved::Jobs {
                wait: u64::try_from(wait).ok().map(Duration::from_micros),
                expired: redis::from_redis_value(expired)?,
                cron: cron > 0,
                records: records
                    .into_iter()
                    .filter_map(|record| match record {
                        Value::BulkString(bytes) => Some(bytes),
                        _ => None,
                    })
                    .collect(),
            }),
            _ => Err(Error::codec("the reply has an unexpected shape")),
        }
    }

    /// Takes over the jobs of a worker whose lease is over; how many became ready.
    async fn reclaim(&self, name: &str) -> Result<i64> {
        let (ready, dead): (i64, u64) = RECLAIM
            .on(self.queue.entity())
            .part(&format!("running:{name}"))
            .part("workers")
            .part("ready")
            .part("ranked")
            .part("dead")
            .part("meta")
            .part("unique")
            .part("progress")
            .arg(&self.queue.0.channel)
            .arg(self.queue.0.boost)
            .arg(name)
            .arg(self.max_attempts)
            .idempotent()
            .run(self.queue.store())
            .await?;
        if ready >= 0 {
            observe::events("queue.reclaimed", ready as u64 + dead);
            observe::events("queue.dead", dead);
            tracing::debug!(
                worker = name,
                ready,
                dead,
                "took over the jobs of a silent worker"
            );
        }
        Ok(ready)
    }

    async fn leave(&self, term: &Term) -> Result<u64> {
        LEAVE
            .on(self.queue.entity())
            .part(&term.running)
            .part("workers")
            .part("ready")
            .part("ranked")
            .part("meta")
            .part("progress")
            .arg(&self.queue.0.channel)
            .arg(self.queue.0.boost)
            .arg(&term.name)
            .idempotent()
            .run(self.queue.store())
            .await
    }
}

/// Renews the lease while the term lasts. It never revives one.
async fn keeper(crew: Arc<Crew>, term: Arc<Term>, mut renewed: Instant) {
    let every = crew.lease / 3;
    let mut strange = 0;
    let mut next = renewed + every;
    loop {
        tokio::select! {
            () = term.over.cancelled() => return,
            () = term.lost.cancelled() => break,
            () = tokio::time::sleep_until(next) => {}
        }
        // Taken before it is sent: the server's lease ends later than ours, never earlier.
        let asked = Instant::now();
        if asked >= renewed + crew.lease {
            // Too late to be sure; the server may know better, but handlers must hear of the doubt.
            break;
        }
        let held: Result<i64> = RENEW
            .on(crew.queue.entity())
            .part(&term.running)
            .part("workers")
            .arg(&term.name)
            .arg(crew.micros())
            .idempotent()
            .run(crew.queue.store())
            .await;
        match held {
            // A worker that has just left is not registered either.
            Ok(held) if held < 0 && term.over.is_cancelled() => return,
            Ok(held) if held < 0 => break,
            Ok(held) => {
                renewed = asked;
                next = asked + every;
                // Once may be a reply that is on its way; twice is a job that nobody runs.
                let known = term.known.lock().len() as i64;
                strange = if held > known { strange + 1 } else { 0 };
                if strange >= 2 {
                    strange = 0;
                    crew.suspect.notify_one();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the lease could not be renewed");
                next = (asked + every / 4).max(Instant::now());
            }
        }
    }
    if !term.lost.is_cancelled() {
        term.lost.cancel();
    }
    observe::event("queue.lost");
    tracing::warn!(queue = %crew.queue.entity().key(), "a worker's lease is over before it was renewed");
}

/// Takes jobs and starts them.
struct Pump {
    crew: Arc<Crew>,
    term: Arc<Term>,
    subscription: Subscription,
}

impl Pump {
    async fn run(mut self) -> Arc<Term> {
        let crew = self.crew.clone();
        let mut pause = Duration::from_millis(10);
        while !crew.stop.is_cancelled() {
            let permits = tokio::select! {
                () = crew.stop.cancelled() => break,
                permits = self.permits() => permits,
            };
            if self.term.lost.is_cancelled() && !self.renew_term().await {
                break;
            }
            // What was said before this look is answered by it.
            while let Some(Some(_)) = self.subscription.next().now_or_never() {}
            let want = permits.num_permits();
            let reserved = observe::operation(
                "queue.reserve",
                crew.queue.entity().namespace(),
                crew.reserve(&self.term, want),
            )
            .await;
            match reserved {
                Ok(Reserved::Jobs {
                    wait,
                    expired,
                    cron,
                    records,
                }) => {
                    pause = Duration::from_millis(10);
                    let short = records.len() < want;
                    // Asked to stop meanwhile: what came is handed back by the sync below.
                    if crew.stop.is_cancelled() {
                        break;
                    }
                    self.start(records, permits);
                    let mut again = false;
                    for name in expired {
                        match crew.reclaim(&name).await {
                            Ok(ready) => again |= ready > 0,
                            Err(error) => {
                                tracing::debug!(%error, "a silent worker's jobs could not be taken")
                            }
                        }
                    }
                    if cron {
                        match crew.queue.tick().await {
                            Ok(()) => again = true,
                            Err(error) => tracing::warn!(%error, "a cron entry could not be run"),
                        }
                    }
                    if short && !again {
                        self.rest(wait).await;
                    }
                }
                Ok(Reserved::Lost) => self.term.lost.cancel(),
                Ok(Reserved::Stale) => self.sync().await,
                Err(error) => {
                    tracing::debug!(%error, "no jobs could be taken");
                    drop(permits);
                    self.nap(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                    self.sync().await;
                }
            }
        }
        // Whatever came in after the stop goes back at once, not after the grace.
        self.sync().await;
        self.term
    }

    /// As many permits as there are, at least one.
    async fn permits(&self) -> OwnedSemaphorePermit {
        let semaphore = &self.crew.permits;
        // Neither fails: the semaphore is never closed.
        let mut permits = match semaphore.clone().acquire_owned().await {
            Ok(permit) => permit,
            Err(_) => std::future::pending().await,
        };
        let more = semaphore.available_permits().min(self.crew.concurrency);
        if more > 0
            && let Ok(rest) = semaphore.clone().try_acquire_many_owned(more as u32)
        {
            permits.merge(rest);
        }
        permits
    }

    fn start(&self, records: Vec<Vec<u8>>, mut permits: OwnedSemaphorePermit) {
        let crew = &self.crew;
        {
            let mut known = self.term.known.lock();
            known.extend(records.iter().filter_map(|bytes| Record::delivery(bytes)));
        }
        for bytes in records {
            // There is a permit for each: no more were asked for.
            let Some(permit) = permits.split(1) else {
                return;
            };
            // The script gives out no record that is too short for this.
            let Some(delivery) = Record::delivery(&bytes) else {
                continue;
            };
            let record = Record::parse(&bytes);
            let delivered = Arc::new(Delivered {
                crew: crew.clone(),
                term: self.term.clone(),
                delivery,
                id: record.as_ref().map_or(JobId([0; 16]), |record| record.id),
                attempt: record
                    .as_ref()
                    .map_or(1, |record| u32::from(record.attempts) + 1),
                unique: record.as_ref().and_then(|record| record.unique.clone()),
                progressed: AtomicBool::new(false),
            });
            let failed = match &record {
                None => Some("corrupt record".to_owned()),
                Some(record) if !crew.handlers.contains_key(&*record.name) => {
                    Some(format!("no handler for the job {:?}", record.name))
                }
                Some(_) => None,
            };
            match (record, failed) {
                (Some(record), None) => {
                    let runner = crew.handlers[&*record.name].clone();
                    let limit = record.timeout.or(crew.timeout);
                    let payload = bytes.len() - record.payload(&bytes).len();
                    crew.jobs
                        .spawn(run_job(runner, bytes, payload, delivered, limit, permit));
                }
                (_, reason) => {
                    let _ = crew.ended.send(Ended {
                        delivered,
                        ending: Ending::Dead(reason.unwrap_or_default()),
                        _permit: permit,
                    });
                }
            }
        }
    }

    /// Until a message, a due time, or something to look after.
    async fn rest(&mut self, wait: Option<Duration>) {
        // A message that was lost in a way that nobody noticed costs no more than a lease.
        let mut most = wait.unwrap_or(self.crew.lease).min(self.crew.lease);
        if self.crew.queue.store().is_embedded() {
            most = most.min(EMBEDDED_NAP);
        }
        let sync = tokio::select! {
            () = self.crew.stop.cancelled() => false,
            () = self.term.lost.cancelled() => false,
            () = self.crew.suspect.notified() => true,
            event = self.subscription.next() => {
                match event {
                    // Nothing can be heard now; look again when it can.
                    Some(Event::Lost) => {
                        let _ = tokio::time::timeout(most, self.subscription.next()).await;
                    }
                    Some(_) => {}
                    // It never ends while the store lives; should it, there is still the clock.
                    None => self.nap(most).await,
                }
                false
            }
            () = tokio::time::sleep(most) => false,
        };
        if sync {
            self.sync().await;
        }
    }

    async fn nap(&self, pause: Duration) {
        tokio::select! {
            () = self.crew.stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Makes sure that the server and we agree on what we hold, and that no request that is still on its way
    /// changes that.
    async fn sync(&self) {
        let crew = &self.crew;
        let mut pause = Duration::from_millis(10);
        // At the end it is worth one try: leaving hands back the same.
        loop {
            let epoch = self.term.epoch.fetch_add(1, Ordering::Relaxed) + 1;
            let known: Vec<Delivery> = self.term.known.lock().iter().copied().collect();
            let mut call = SYNC
                .on(crew.queue.entity())
                .part(&self.term.running)
                .part("ready")
                .part("ranked")
                .part("meta")
                .arg(&crew.queue.0.channel)
                .arg(crew.queue.0.boost)
                .arg(epoch);
            for delivery in &known {
                call = call.arg(&delivery[..]);
            }
            match call.run::<i64>(crew.queue.store()).await {
                Ok(-1) => return self.term.lost.cancel(),
                Ok(-2) => continue,
                Ok(back) => {
                    observe::events("queue.handed_back", back as u64);
                    crew.counts
                        .handed_back
                        .fetch_add(back as u64, Ordering::Relaxed);
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "the worker could not compare notes with the store")
                }
            }
            if crew.stop.is_cancelled() || self.term.lost.is_cancelled() {
                return;
            }
            self.nap(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Registers anew after a loss; `false` when the worker was asked to stop meanwhile.
    async fn renew_term(&mut self) -> bool {
        let mut pause = Duration::from_millis(10);
        while !self.crew.stop.is_cancelled() {
            match self.crew.join().await {
                Ok(term) => {
                    self.term = term;
                    return true;
                }
                Err(error) => tracing::debug!(%error, "the worker could not register again"),
            }
            self.nap(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        false
    }
}

async fn run_job(
    runner: Arc<dyn Runner>,
    record: Vec<u8>,
    payload: usize,
    delivered: Arc<Delivered>,
    limit: Option<Duration>,
    permit: OwnedSemaphorePermit,
) {
    let crew = delivered.crew.clone();
    let context = Context(delivered.clone());
    let attempt = delivered.attempt;
    let work =
        AssertUnwindSafe(async { runner.run(record, payload, context).await }).catch_unwind();
    let limited = async {
        match limit {
            None => Some(work.await),
            Some(limit) => tokio::time::timeout(limit, work).await.ok(),
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = limited => Some(outcome),
        () = crew.abort.cancelled() => None,
    };
    let ending = match outcome {
        None => Ending::Back,
        Some(None) => crew.again(attempt, None, "timed out".to_owned()),
        Some(Some(Err(_))) => crew.again(attempt, None, "panicked".to_owned()),
        Some(Some(Ok(Outcome::Done))) => Ending::Done,
        Some(Some(Ok(Outcome::Retry { after, reason }))) => crew.again(attempt, after, reason),
        Some(Some(Ok(Outcome::Dead { reason }))) => Ending::Dead(reason),
    };
    // The clerk outlives the jobs.
    let _ = crew.ended.send(Ended {
        delivered,
        ending,
        _permit: permit,
    });
}

impl Crew {
    /// The next attempt, or the end after the last.
    fn again(&self, attempt: u32, after: Option<Duration>, reason: String) -> Ending {
        if attempt >= u32::from(self.max_attempts) {
            return Ending::Dead(reason);
        }
        let wait = after.unwrap_or_else(|| self.backoff.wait(attempt));
        Ending::Retry(wait.min(super::job::MAX_DELAY))
    }
}

/// Writes down how jobs ended, as many at once as there are.
async fn clerk(crew: Arc<Crew>, mut endings: UnboundedReceiver<Ended>) {
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            biased;
            count = endings.recv_many(&mut batch, BATCH) => if count == 0 { return },
            () = crew.drained.cancelled() => return,
        }
        while let Some(first) = batch.first() {
            let term = first.delivered.term.clone();
            let (same, other): (Vec<_>, Vec<_>) = batch
                .drain(..)
                .partition(|ended| Arc::ptr_eq(&ended.delivered.term, &term));
            batch = other;
            finish(&crew, &term, same).await;
        }
    }
}

async fn finish(crew: &Crew, term: &Term, ended: Vec<Ended>) {
    let (mut done, mut retry, mut dead, mut back) = (vec![], vec![], vec![], vec![]);
    let (mut unique, mut progress) = (vec![], vec![]);
    for Ended {
        delivered, ending, ..
    } in &ended
    {
        let delivery = &delivered.delivery;
        match ending {
            Ending::Done => done.push(delivery),
            Ending::Retry(wait) => retry.push((delivery, wait.as_micros() as u64)),
            Ending::Dead(reason) => dead.push((delivery, reason)),
            Ending::Back => back.push(delivery),
        }
        if let (Ending::Done | Ending::Dead(_), Some(key)) = (ending, &delivered.unique) {
            unique.push((key, delivered.id));
        }
        if delivered.progressed.load(Ordering::Relaxed) {
            progress.push(delivered.id);
        }
    }
    let queue = &crew.queue;
    let call = || {
        let mut call = FINISH
            .on(queue.entity())
            .part(&term.running)
            .part("ready")
            .part("ranked")
            .part("delayed")
            .part("dead")
            .part("meta")
            .part("unique")
            .part("progress")
            .part("done")
            .arg(&queue.0.channel)
            .arg(queue.0.boost)
            .arg(queue.0.retain)
            .arg(queue.0.retain_for.as_millis() as u64);
        call = call.arg(done.len());
        for delivery in &done {
            call = call.arg(&delivery[..]);
        }
        call = call.arg(retry.len());
        for (delivery, wait) in &retry {
            call = call.arg(&delivery[..]).arg(wait);
        }
        call = call.arg(dead.len());
        for (delivery, reason) in &dead {
            call = call.arg(&delivery[..]).arg(reason);
        }
        call = call.arg(back.len());
        for delivery in &back {
            call = call.arg(&delivery[..]);
        }
        call = call.arg(unique.len());
        for (key, id) in &unique {
            call = call.arg(&key[..]).arg(&id.0[..]);
        }
        call = call.arg(progress.len());
        for id in &progress {
            call = call.arg(&id.0[..]);
        }
        // A delivery that was written down before is skipped, so a lost reply does no harm.
        call.idempotent()
    };
    let mut pause = Duration::from_millis(10);
    let mut tries_left = 3;
    let accepted = loop {
        let namespace = queue.entity().namespace();
        match observe::operation("queue.finish", namespace, call().run::<u8>(queue.store())).await {
            Ok(accepted) => break accepted == 1,
            Err(error) => {
                tracing::debug!(%error, "endings of jobs could not be written down");
                // At the end of the worker there is no time to wait for a store that does not come back.
                if crew.drained.is_cancelled() {
                    tries_left -= 1;
                    if tries_left == 0 {
                        break false;
                    }
                }
            }
        }
        tokio::select! {
            () = crew.drained.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(Duration::from_secs(1));
    };
    {
        let mut known = term.known.lock();
        for Ended { delivered, .. } in &ended {
            known.remove(&delivered.delivery);
        }
    }
    if accepted {
        let counts = &crew.counts;
        counts.done.fetch_add(done.len() as u64, Ordering::Relaxed);
        counts
            .failed
            .fetch_add((retry.len() + dead.len()) as u64, Ordering::Relaxed);
        counts
            .handed_back
            .fetch_add(back.len() as u64, Ordering::Relaxed);
        for (event, count) in [
            ("queue.done", done.len()),
            ("queue.retried", retry.len()),
            ("queue.dead", dead.len()),
            ("queue.handed_back", back.len()),
        ] {
            if count > 0 {
                observe::events(event, count as u64);
            }
        }
    } else {
        observe::events("queue.refused", ended.len() as u64);
        term.lost.cancel();
    }
}

/// What a worker did, and what it left to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Jobs that this worker finished, over its whole life.
    pub done: u64,
    /// Runs that failed: tried again or dead.
    pub failed: u64,
    /// Jobs that were handed back uncharged, by this shutdown or before.
    pub handed_back: u64,
}

/// A running worker. Drop stops it without grace; [`shutdown`](Self::shutdown) is the way to stop it.
#[must_use = "a worker stops when it is dropped"]
pub struct Worker {
    crew: Arc<Crew>,
    pump: Option<JoinHandle<Arc<Term>>>,
    clerk: Option<JoinHandle<()>>,
}

impl Worker {
    /// Takes no more jobs, lets the running ones finish within the grace, and hands the rest back uncharged so
    /// that another worker takes them at once.
    ///
    /// A run that is not over after the grace is dropped where it waits; one that never waits (that blocks its
    /// thread) goes on while another worker runs the job too.
    ///
    /// # Errors
    ///
    /// Those of the store, if the worker could not say goodbye: then its lease has to run out first.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the worker stops without further grace, in the background.
    pub async fn shutdown(mut self, grace: Duration) -> Result<ShutdownReport> {
        self.crew.stop.cancel();
        let crew = self.crew.clone();
        // The job tasks are waited for first, so that a future dropped here leaves all to `Drop`.
        crew.jobs.close();
        let _ = tokio::time::timeout(grace, crew.jobs.wait()).await;
        let (pump, clerk) = (self.pump.take(), self.clerk.take());
        wind_down(crew, pump, clerk).await
    }
}

async fn wind_down(
    crew: Arc<Crew>,
    pump: Option<JoinHandle<Arc<Term>>>,
    clerk: Option<JoinHandle<()>>,
) -> Result<ShutdownReport> {
    let term = match pump {
        Some(pump) => pump.await.ok(),
        None => None,
    };
    crew.abort.cancel();
    crew.jobs.close();
    // Dropped futures end where they wait; one that blocks its thread is not waited for.
    let _ = tokio::time::timeout(Duration::from_secs(5), crew.jobs.wait()).await;
    crew.drained.cancel();
    if let Some(clerk) = clerk {
        let _ = clerk.await;
    }
    let mut left = Ok(0);
    if let Some(term) = term {
        term.over.cancel();
        left = crew.leave(&term).await;
    }
    let counts = &crew.counts;
    let back = left?;
    observe::events("queue.handed_back", back);
    Ok(ShutdownReport {
        done: counts.done.load(Ordering::Relaxed),
        failed: counts.failed.load(Ordering::Relaxed),
        handed_back: counts.handed_back.load(Ordering::Relaxed) + back,
    })
}

impl Drop for Worker {
    fn drop(&mut self) {
        let (pump, clerk) = (self.pump.take(), self.clerk.take());
        if pump.is_none() && clerk.is_none() {
            return;
        }
        let crew = self.crew.clone();
        crew.stop.cancel();
        crew.abort.cancel();
        let store = crew.queue.store().clone();
        store.defer(async move {
            if let Err(error) = wind_down(crew, pump, clerk).await {
                tracing::debug!(%error, "a dropped worker could not say goodbye");
            }
        });
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("queue", &self.crew.queue)
            .finish_non_exhaustive()
    }
}
