//! The worker: takes jobs, runs them, writes down how they ended, and keeps its lease.
//!
//! Three kinds of tasks work together. The *pump* takes as many jobs as may start and starts them; it is the
//! only one that takes, so it alone knows whether a reply was lost. The *clerk* collects how jobs ended and
//! writes many of them down at once. The *keeper* renews the lease of the current [`Term`]: the time for which
//! the worker is registered under one name. A term that was lost is never revived; the next one has a new name.

mod clerk;
mod context;
mod keeper;
mod pump;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::Value;
use tokio::{
    sync::{
        Notify, OwnedSemaphorePermit, Semaphore,
        mpsc::{UnboundedSender, unbounded_channel},
    },
    task::JoinHandle,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use clerk::clerk;
pub use context::Context;
use keeper::keeper;
use pump::Pump;

use super::{Backoff, Handler, Job, JobId, Outcome, Queue, job::Delivery, script};
use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
    observe,
    script::Script,
    store::Listen,
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
            .subscribe([Listen::Sharded(crew.queue.0.channel.clone())])
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
