//! The job queue.
//!
//! # Terms
//!
//! ```text
//!                     register, reserve, renew …
//!  Queue ── enqueue ──► store ◄───────────────────────────────────────┐
//!                         │ records                                   │
//!                         ▼                                           │
//!  Worker ═╦═ Fetcher ────┴─ Delivery ──► a task per job ── Ending ─► Acknowledger (finish, in batches)
//!          ╠═ heartbeat      (a job in this     │ JobHandler::run
//!          ╠═ scheduler       worker's hands)   ▼
//!          ╚═ Shared                         JobContext
//!             (settings, permits, signals)
//! ```
//!
//! | term | meaning | file |
//! |---|---|---|
//! | record | a job as it is stored: one string, whose id moves between containers | `record.rs`, `record.lua`, `place.lua` |
//! | policy | attempts, waits and limits of time of a kind of job, or of one | `policy.rs` |
//! | handle | an enqueued job that can be waited for, in any process | `handle.rs` |
//! | details | what is known of a job beside its record: attempts, progress, log, result | `details.rs` |
//! | group | jobs that share turns and limits, such as those of a tenant | `limit.rs`, `reserve.lua` |
//! | flow | jobs that run when others are over, also across queues | `flow.rs`, `away.rs` |
//! | delivery | one hand-over of a job to a worker; fences late acknowledgements | `worker.rs` |
//! | registration | the time for which a worker is known under one name; a lost one is never revived | `worker/registration.rs` |
//! | heartbeat | renews the registration's lease | `worker/heartbeat.rs` |
//! | scheduler | cron ticks, silent workers, parked jobs and kept records, whether or not a worker is free | `worker/schedule.rs` |
//! | signals | what messages on the wake channels told this worker | `worker/signal.rs` |
//! | fetcher | the only task that takes jobs, so it knows when a reply was lost | `worker/fetch.rs` |
//! | parked job | one that the worker which took it does not know or cannot decode; it waits for another worker | `parked.rs` |
//! | ending | what became of a delivery: done, retry, dead, handed back, parked | `worker/run.rs` |
//! | acknowledger | writes endings to the store, many per script | `worker/acknowledge.rs` |
//! | slots | how many jobs run at a time; may be shared by workers of several queues | `worker/slots.rs` |

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use crate::{
    duration::millis,
    error::Result,
    key::{Channel, Entity, Key},
    store::Store,
};

mod away;
mod backoff;
mod builder;
mod combine;
mod cron;
mod dead_letter;
mod details;
mod enqueue;
mod events;
mod failure;
mod flow;
mod handle;
mod history;
mod inspect;
mod job;
mod limit;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod outbox;
mod parked;
mod policy;
mod raw;
mod record;
mod registry;
pub(super) mod script;
mod settings;
mod verdict;
mod worker;

pub use backoff::Backoff;
pub use builder::QueueBuilder;
pub use cron::{CronEntry, CronPut, MissedTicks};
pub use dead_letter::{DeadLetter, DeadLetters};
pub use details::{Cancelled, JobAttempt, JobDetails};
pub use enqueue::{Enqueue, EnqueueMany, Enqueued, EnqueuedMany};
pub use events::{QueueEvent, QueueEventKind, QueueEvents};
pub use failure::{DeadGroup, normalized_error};
pub use flow::{ChildFailure, ChildResult, Children, Flow, FlowAdded};
pub use handle::{JobHandle, Outcome};
pub use history::{QueueMinute, Spread};
pub use inspect::{JobCursor, JobInfo, JobState, QueueCounts, QueueInspector};
pub use job::{Job, JobHandler, JobId, JobOutput, UniqueUntil};
pub use limit::JobLimit;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use outbox::{Outbox, OutboxDatabase, OutboxRelay};
pub use policy::JobPolicy;
pub use raw::EnqueueRaw;
pub use registry::{
    FromJob, FromRef, JobFunction, JobRegistry, JobRequest, JobService, Payload, State,
};
pub use verdict::{IntoVerdict, Returned, Verdict};
pub use worker::{
    DispatchedJob, Dispatcher, DispatcherBuilder, JobContext, JobFence, Settler, ShutdownReport,
    Worker, WorkerBuilder, WorkerSlots,
};

/// A job queue: typed jobs, retries, dead letters, delays, priorities, unique jobs, cron. Cheap to clone.
///
/// # Promises
///
/// - **At least once.** A job that was enqueued runs until it is done or becomes a dead letter. If its worker dies,
///   another takes the job when the lease ends. A job may therefore run twice; [`JobContext::once`] helps to make its
///   effect happen once.
/// - **Fenced.** A worker that lost its lease cannot finish, retry or bury a job that another worker has by now. Its
///   handler is told by [`JobContext::lost`].
/// - **Attempts are runs.** A worker takes no more than it can start at once. A job that was handed back unstarted is
///   not charged an attempt. A job that kills its process is dead after exactly the given attempts.
/// - **Unknown jobs are left to others.** A job of a kind that a worker does not know, or whose payload it cannot decode,
///   is parked for workers that can run it, under the same limits. It becomes a dead letter after
///   [a limit](QueueBuilder::park_for). Where the jobs of a group run one at a time, the group waits for it meanwhile.
/// - **Found by id.** [`Queue::job`] reads a job and all that is known of it, however many jobs there are.
/// - **Results.** `queue.enqueue(..).await?.result().await` is told of the end, in any process, and hears of death and
///   cancellation. Results are kept as long as the [queue](QueueBuilder::keep_done) or the [job](JobPolicy::keep) says.
/// - **Cancelled is cancelled.** A job that waits ends at once. One that runs is told, is dropped after a grace, and never
///   runs again, also if its worker dies.
/// - **Groups take turns.** A group with a million jobs delays the first job of another by one job: groups stand in a line,
///   and one that had its turn, or comes back from its limit, goes to the end. Limits of concurrency and rate, of the
///   queue, a kind or each group, hold over all workers and together: a job in a group starts when its group and its kind
///   have a place.
/// - **Parents run after their children**, once, with their results: see [`Flow`]. That holds for replayed ones too.
/// - **Ticks are kept.** Cron entries, delays and the jobs of dead workers are looked after while all workers are busy.
/// - **Nothing is trimmed.** At its capacity the queue refuses ([`Enqueued::Full`]); it never drops a job.
/// - **Nothing stays.** A done job leaves nothing behind, unless [done jobs are kept](QueueBuilder::keep_done).
/// - **Priorities age.** Jobs are ordered by their age plus `priority × boost`, so a job of low priority waits a bounded
///   time behind steady higher ones: at most the difference of priorities times the boost.
///
/// # Limits
///
/// Cancelling a parent does not cancel its children. Jobs of a group have no priority; where
/// groups and other jobs wait, each side gets half of the turns. A group that enters the line waits for one job of each
/// group before it.
///
/// A wake-up that goes to a worker which does not react is repeated when that worker's lease ends.
///
/// A rate limit counts jobs that were taken: one that is parked, or handed back unstarted, counts again when it is taken
/// again. If the server's clock is put back, delays last longer by that much; limits and groups recover at once.
///
/// A result is at most as large as a [payload](QueueBuilder::max_payload) may be; a job that returns more, where the
/// result is kept, becomes a dead letter. Reasons are cut after 4,000 bytes, and after 1,000 in events.
///
/// All programs of a queue must agree on its settings. While they do not, as during a roll-out, what a job leaves is what
/// its worker's settings say: a result that its worker does not keep is [unknown](Outcome::Unknown).
///
/// What the server acknowledged and then lost, in a failover without replication, did not happen: a cron tick that had
/// fired fires again, with the same job id, and a job that was done runs again.
///
/// Jobs that were running in a process that died are charged the attempt, even if another job killed the process. A run
/// that ended, and whose end the store did not accept before its worker was shut down or dropped, is not charged: its job
/// is handed back and runs again.
///
/// # Keys
///
/// All of `<namespace>:queue:{<name>}:…`, in one slot:
///
/// | part | type | what |
/// |---|---|---|
/// | `jobs` | hash | the record of every job that is not over, and of dead letters, by id |
/// | `ready` | list | jobs of priority 0, oldest first; the place of one that was deleted is passed over |
/// | `ranked` | sorted set | jobs of another priority, by due time − priority × boost |
/// | `grouped` | sorted set | jobs of groups, by group and time of enqueueing |
/// | `groups`, `resting` | sorted set | groups that may have a job to run, first in, first out; those that wait for their rate limit |
/// | `lines` | sorted set | groups whose first job waits for a place of its kind, by kind, first in, first out |
/// | `delayed` | sorted set | by due time: delayed jobs, and jobs between two attempts |
/// | `parents` | sorted set | jobs that wait for their children; what parents in other queues are to be told |
/// | `running:<worker>` | hash | what a worker holds; the field `''` is its epoch |
/// | `workers` | sorted set | by the end of their lease |
/// | `idle` | sorted set | registrations that wait for jobs, by since when |
/// | `parked`, `parked:<kind>` | sorted set | kinds with parked jobs; the parked jobs of a kind, by their limit |
/// | `unique`, `uniques` | hash, sorted set | unique keys and the jobs that hold them; those that are held for a time |
/// | `dead` | sorted set | dead letters, by time of death |
/// | `done`, `ended` | sorted set, hash | jobs that are over and kept, by the end of that; their records, results and details |
/// | `details` | hash | attempts, progress, log lines, results of children |
/// | `rates` | sorted set | rate limits that are not free yet |
/// | `events` | stream | what happened, if it is kept |
/// | `history`, `tallies` | sorted set, hash | counters per minute and kind, if they are kept |
/// | `cron`, `crontab`, `cron_paused` | sorted set, hash, set | next ticks; cron entries; those that are paused |
/// | `flows`, `staged:<flow>` | sorted set, hash | large flows that are being added or handed out; the jobs of one that is not handed out yet, with a TTL until it is complete |
/// | `meta` | hash | whether paused, how many run, turns, how the workers have the queue set |
/// | `once:…` | string | effects that were done once, with a TTL |
/// | `enqueued:<job>`, `flow:<job>` | string | a unique job, or a step of a flow, was added by this request, with a TTL |
///
/// A job is one record in one place, `jobs`, and its id is in exactly one container at any time: one script per move.
/// The lease belongs to the worker, not to each job: a heartbeat is one command however many jobs run.
///
/// # Round trips
///
/// Enqueue: one; plain jobs that are enqueued at the same time by many tasks of a process share it. Worker: one to take as
/// many jobs as can start (half of its slots at a time, if there are many), one to acknowledge up to 256 of them, or 17 to 40 that
/// leave something behind, fail, or have a group; each is O(log n) per job at most. A reservation is at most 1 MiB, or one job. Idle workers do not poll: they wait for a
/// message on a sharded channel of their own (`wake:<worker>`), and each enqueue wakes only as many as it added jobs.
/// What concerns all of them is published on `wake`.
///
/// # While the store is down
///
/// `enqueue` fails; if the error is [in doubt](crate::Error::is_in_doubt), the job may have been added. Workers keep
/// trying. Running jobs continue, are told by [`JobContext::lost`] when the lease ends, and are acknowledged if the
/// store comes back before another worker took them.
///
/// # Metrics
///
/// Operations `queue.enqueue`, `queue.enqueue_many`, `queue.flow`, `queue.reserve`, `queue.finish`, `queue.job`,
/// `queue.result`, `queue.cancel`, `queue.inspect`, `queue.oldest`, `queue.replay`, `queue.cron`; events `queue.cancelled`,
/// `queue.done`, `queue.retried`, `queue.dead`, `queue.reclaimed`,
/// `queue.parked`, `queue.refused`, `queue.lost`, `queue.handed_back`, `queue.duplicate`, `queue.full`.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, messaging::{Backoff, Job, JobContext, Queue}};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail { to: String }
/// impl Job for SendMail { const NAME: &'static str = "send_mail"; }
///
/// let store = Store::connect("memory://").await?;
/// let queue = Queue::new(&store, "shop", "mail")?;
/// queue.enqueue(&SendMail { to: "ann@example.com".into() }).await?;
///
/// let (sent, mut mails) = tokio::sync::mpsc::unbounded_channel();
/// let worker = queue
///     .worker(move |mail: SendMail, _: JobContext| { let sent = sent.clone(); async move { sent.send(mail.to).ok(); } })
///     .concurrency(8)
///     .retry(Backoff::default(), 5)
///     .start()
///     .await?;
/// assert_eq!(mails.recv().await.as_deref(), Some("ann@example.com"));
/// worker.shutdown(Duration::from_secs(5)).await?;
/// assert_eq!(queue.inspect().counts().await?.unfinished(), 0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

struct Inner {
    store: Store,
    entity: Entity,
    /// Namespace and name, by which workers of other queues find it; none with a layout of its own.
    address: Option<(Arc<str>, Arc<str>)>,
    /// Wakes idle workers.
    channel: Channel,
    /// The keys that most scripts have.
    places: Vec<Key>,
    /// In microseconds.
    boost: u64,
    capacity: u64,
    max_payload: usize,
    /// How many; 0 is no limit.
    keep_done: u64,
    /// Zero is for ever, `None` not at all.
    keep_done_for: Option<Duration>,
    /// How many, and for how long in milliseconds; 0 is no limit.
    keep_dead: (u64, u64),
    keep_events: u64,
    /// In minutes.
    history: u64,
    once_ttl: Duration,
    park_for: Duration,
    limit: JobLimit,
    group_limit: JobLimit,
    kind_limits: BTreeMap<String, JobLimit>,
    endings: handle::SharedEndings,
    combined: combine::Combined,
}

impl Inner {
    /// How long done jobs are kept as scripts take it.
    fn keep_millis(&self) -> i64 {
        self.keep_done_for
            .map_or(-1, |period| millis(period) as i64)
    }
}

impl Queue {
    /// A queue with default settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for an invalid namespace or name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Starts a queue's settings, from the defaults.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> QueueBuilder {
        QueueBuilder::new(store, namespace, name)
    }

    /// Starts a worker's settings with the handler of one kind of job.
    pub fn worker<J: Job, H: JobHandler<J>>(&self, handler: H) -> WorkerBuilder {
        WorkerBuilder::new(self.clone()).handler(handler)
    }

    /// Looks into the queue, and repairs it by hand.
    pub fn inspect(&self) -> QueueInspector {
        QueueInspector::new(self.clone())
    }

    /// Hands out no more jobs until [`resume`](Self::resume), on all workers. Running jobs finish.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    pub async fn pause(&self) -> Result<()> {
        self.set_paused(true).await
    }

    /// Hands out jobs again.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    pub async fn resume(&self) -> Result<()> {
        self.set_paused(false).await
    }

    async fn set_paused(&self, paused: bool) -> Result<()> {
        script::PAUSE
            .on(self.entity())
            .part("meta")
            .arg(&self.0.channel)
            .arg(u8::from(paused))
            .idempotent()
            .run::<u8>(self.store())
            .await
            .map(drop)
    }

    fn store(&self) -> &Store {
        &self.0.store
    }

    fn entity(&self) -> &Entity {
        &self.0.entity
    }

    fn namespace(&self) -> &Arc<str> {
        self.0.entity.namespace()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(self.0.entity.key()).finish()
    }
}
