//! A running worker. The tasks it consists of are drawn at the top of `queue.rs`.

mod acknowledge;
mod builder;
mod context;
mod dispatcher;
mod fetch;
mod heartbeat;
mod registration;
mod run;
mod schedule;
mod settler;
mod signal;
mod slots;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use builder::WorkerBuilder;
pub use context::JobContext;
pub use dispatcher::{DispatchedJob, Dispatcher, DispatcherBuilder, JobFence};
use registration::Registration;
use run::Ended;
pub(super) use run::Runner;
pub use settler::Settler;
use signal::Signals;
use slots::Room;
pub use slots::WorkerSlots;

use super::{
    Backoff, JobId, Queue,
    policy::JobBackoff,
    record::{DeliveryId, Record},
};
use crate::{duration::micros, error::Result, observe};

/// What all tasks of one worker share.
struct Shared {
    /// The worker's name on the wake channels, over its whole life.
    id: String,
    queue: Queue,
    /// The registration of now; `None` only at the start.
    current: Mutex<Option<Arc<Registration>>>,
    /// Those before it whose jobs nobody has taken over yet, as far as this worker knows.
    former: Mutex<Vec<Arc<Registration>>>,
    signals: Arc<Signals>,
    handlers: HashMap<&'static str, Arc<dyn Runner>>,
    concurrency: usize,
    lease: Duration,
    backoff: Backoff,
    /// Waits that jobs ask for by name.
    backoffs: HashMap<String, Arc<NamedBackoff>>,
    max_attempts: u16,
    timeout: Option<Duration>,
    /// How long a handler may go on after it was told to stop.
    cancel_grace: Duration,
    room: Room,
    jobs: TaskTracker,
    /// Has room for every job that holds a permit, so sending never waits.
    ended: mpsc::Sender<Ended>,
    /// Take no more jobs.
    stop: CancellationToken,
    /// Drop what runs.
    abort: CancellationToken,
    /// The store answers again: endings that wait for that may go.
    answers: Notify,
    /// All endings are in the channel: the acknowledger may end once it has written them.
    drained: CancellationToken,
    /// The store says that this worker holds more than it knows of.
    suspect: Notify,
    totals: Totals,
}

/// The wait after an attempt; the first is 1.
pub(super) type NamedBackoff = dyn Fn(u32) -> Duration + Send + Sync;

impl Shared {
    fn lease_micros(&self) -> u64 {
        micros(self.lease)
    }

    /// Tells workers of other queues that share its slots whether this one has jobs to take, as far as it knows.
    fn wants_slots(&self, wants: bool) {
        if let Some(share) = self.room.share() {
            share.wants(wants);
        }
    }
}

/// What the worker did over its whole life.
#[derive(Default)]
struct Totals {
    done: AtomicU64,
    failed: AtomicU64,
    handed_back: AtomicU64,
}

/// A job in this worker's hands.
struct Delivery {
    shared: Arc<Shared>,
    registration: Arc<Registration>,
    key: DeliveryId,
    id: JobId,
    /// The name of its kind; empty if the record is corrupt.
    kind: String,
    attempt: u32,
    /// Its own, or the worker's.
    max_attempts: u32,
    backoff: Option<JobBackoff>,
    /// Whether it leaves nothing but its record when it is done.
    plain: bool,
    /// Whether the job itself is kept when it is done, or has a parent that is told.
    result_is_kept: bool,
    /// How many children it has whose results it may ask for.
    children: u32,
    /// How long it waited since it was due.
    waited: Duration,
    started: Instant,
    /// Somebody wants it to stop.
    cancelled: CancellationToken,
    /// It has details that its record did not have when it was taken.
    progressed: AtomicBool,
}

impl Delivery {
    /// A delivery that was taken just now, by the server's time in microseconds.
    fn new(
        shared: &Arc<Shared>,
        registration: &Arc<Registration>,
        key: DeliveryId,
        record: Option<&Record>,
        now: u64,
    ) -> Self {
        let max_attempts = record.and_then(|record| record.max_attempts);
        let due = record.map_or(now, |record| record.due);
        Self {
            shared: shared.clone(),
            registration: registration.clone(),
            key,
            id: record.map_or(JobId([0; 16]), |record| record.id),
            kind: record.map_or_else(String::new, |record| record.name.clone()),
            attempt: record.map_or(1, |record| u32::from(record.attempts) + 1),
            max_attempts: u32::from(max_attempts.unwrap_or(shared.max_attempts)),
            backoff: record.and_then(Record::backoff),
            plain: record.is_some_and(Record::is_plain),
            result_is_kept: record
                .is_some_and(|record| record.keep().is_some() || record.parent().is_some()),
            children: record.and_then(Record::children).unwrap_or(0),
            waited: Duration::from_micros(now.saturating_sub(due)),
            started: Instant::now(),
            cancelled: CancellationToken::new(),
            progressed: AtomicBool::new(false),
        }
    }
}

/// What a worker did, and what it left to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Jobs that this worker finished, over its whole life.
    pub done: u64,
    /// Runs that failed: retried or dead.
    pub failed: u64,
    /// Jobs that were handed back without being charged an attempt, by this shutdown or before.
    pub handed_back: u64,
}

/// A running worker. Stop it with [`shutdown`](Self::shutdown); dropping it stops it without grace.
///
/// A worker that was shut down is gone, and takes no job any more:
///
/// ```compile_fail,E0382
/// # async fn f(worker: redstart::messaging::Worker) -> redstart::Result<()> {
/// # use std::time::Duration;
/// worker.shutdown(Duration::from_secs(5)).await?;
/// worker.shutdown(Duration::from_secs(5)).await?;
/// # Ok(()) }
/// ```
#[must_use = "a worker stops when it is dropped"]
pub struct Worker {
    shared: Arc<Shared>,
    /// Taken when the worker begins to end.
    tasks: Option<Tasks>,
}

struct Tasks {
    fetcher: JoinHandle<Arc<Registration>>,
    acknowledger: JoinHandle<()>,
    scheduler: JoinHandle<()>,
}

impl Worker {
    /// Takes no more jobs, lets the running ones finish within the grace, and hands the rest back without charging
    /// an attempt, so that another worker takes them at once.
    ///
    /// A run that has not ended after the grace is dropped at its next await. A run that blocks its thread goes on
    /// while another worker runs the job too.
    ///
    /// # Errors
    ///
    /// Those of the store, if the worker could not unregister: then others take its jobs when its lease ends.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, the worker stops without further grace, in the background.
    pub async fn shutdown(mut self, grace: Duration) -> Result<ShutdownReport> {
        self.shared.stop.cancel();
        // While this waits, `Drop` still has the tasks.
        self.shared.jobs.close();
        let _ = tokio::time::timeout(grace, self.shared.jobs.wait()).await;
        let Some(tasks) = self.tasks.take() else {
            return Ok(self.shared.totals.report(0));
        };
        // In a task of its own: it goes on if this future is dropped.
        let shared = self.shared.clone();
        match crate::task::spawn(stop(shared, tasks)).await {
            Ok(report) => report,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
}

impl Totals {
    fn report(&self, handed_back: u64) -> ShutdownReport {
        ShutdownReport {
            done: self.done.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            handed_back: self.handed_back.load(Ordering::Relaxed) + handed_back,
        }
    }
}

/// Ends all tasks and unregisters the worker.
async fn stop(shared: Arc<Shared>, tasks: Tasks) -> Result<ShutdownReport> {
    let registration = tasks.fetcher.await.ok();
    let _ = tasks.scheduler.await;
    shared.abort.cancel();
    shared.jobs.close();
    // Dropped futures end where they wait; one that blocks its thread is not waited for.
    let _ = tokio::time::timeout(Duration::from_secs(5), shared.jobs.wait()).await;
    shared.drained.cancel();
    let _ = tasks.acknowledger.await;
    let Some(registration) = registration else {
        return Ok(shared.totals.report(0));
    };
    registration.over.cancel();
    let handed_back = shared.leave(&registration).await?;
    observe::events("queue.handed_back", handed_back);
    Ok(shared.totals.report(handed_back))
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(tasks) = self.tasks.take() else {
            return;
        };
        let shared = self.shared.clone();
        shared.stop.cancel();
        shared.abort.cancel();
        let store = shared.queue.store().clone();
        store.defer(async move {
            if let Err(error) = stop(shared, tasks).await {
                tracing::debug!(%error, "a dropped worker could not unregister");
            }
        });
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("queue", &self.shared.queue)
            .finish_non_exhaustive()
    }
}
