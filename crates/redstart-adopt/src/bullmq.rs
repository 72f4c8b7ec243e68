//! BullMQ, both ways: a producer whose jobs Node workers run, and a worker beside Node's.
//!
//! ```text
//! bullmq.rs          the queue: its keys, pause and resume, mixed versions
//! bullmq/job.rs      a job to be added; options as BullMQ writes them
//! bullmq/scheduler.rs  job schedulers
//! bullmq/worker.rs   takes jobs and runs them
//! bullmq/taken.rs    a job that a worker holds, and its end
//! bullmq/hold.rs     the lease of a job, and its renewal
//! bullmq/ending.rs   the end of a job, written through an outage
//! bullmq/watch.rs    keeps the jobs of a queue that two versions pause and resume
//! bullmq/*.lua       our own scripts on BullMQ's layout; layout.lua is in front of each
//! ```
//!
//! The layout is the contract, not BullMQ's scripts: their arguments change between releases. Versions 5 and 6 are supported.
//!
//! # Promises
//!
//! - A job that was added here is, field by field, what Node would have written (times are the server's).
//! - A job that is taken is locked and renewed; if this process dies, any worker gives it back by its stalled check.
//! - Only the holder of the lock can complete or fail a job: [`Taken::complete`] says if the hold was lost.
//! - A list is never renamed over another. [`BullQueue::resume`] merges what both versions left.
//! - While versions 5 and 6 share a paused queue, a running worker and each [`add`](BullQueue::add) move its jobs to the list that
//!   survives a pause or resume by either version, and warn once. A running worker, however busy, hears of a pause and of a job that was added
//!   within milliseconds (a tenth of a second after a pause on a queue that is never idle); a pause or resume by version 5 in between can still lose it.
//! - What a handler returned is written when the store is back, if that is before the lease has ended.
//! - A job of a scheduler with a fixed period (`every`) is followed by its next one in the same step in which it is taken.
//! - A worker takes no job that it could not end as Node would. Jobs of schedulers with a cron pattern, of repeatable jobs from
//!   before there were schedulers, and jobs that can be retried with a backoff of the application's own (unless the worker has
//!   a [rule](BullWorkerBuilder::backoff) for it) stay where they are, for Node.
//!
//! # Limits
//!
//! A job can run twice: when its worker stops for longer than the lease and goes on. The second to end it is told. Sandboxed processors,
//! groups and metrics are Node's business. While a queue has schedulers with cron patterns, at least
//! one Node worker must run on it: their jobs wait for it, and with them all later jobs of these schedulers. A worker looks past
//! at most 100 jobs that it leaves to Node. On a Cluster the prefix needs a hash tag (`{bull}`), as BullMQ itself requires.
//!
//! # Why not `bullmq-official`
//!
//! The official Rust port (1.4) is made for programs that talk to a server of their own accord: its documented constructors take a
//! name and options, not a [`Store`]. What a store promises for each call (its deadline, the report of doubt, the embedded engine)
//! would not hold for calls that do not go through it. This is a judgement from its documentation; it was not benchmarked.

mod ending;
mod flow;
mod hold;
mod job;
mod scheduler;
mod taken;
mod watch;
mod worker;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redis::cmd;
use redstart::{Store, key::slot};

use crate::{
    error::{Error, Result},
    script::{Arg, Lua},
};

pub use job::{Added, Backoff, Deduplication, Flow, ForParent, NewJob};
pub use scheduler::Repeat;
pub use taken::{Ended, JobError, Taken};
pub use worker::{BullWorker, BullWorkerBuilder, Keep};

macro_rules! script {
    ($($name:literal),+) => {
        Lua::new(concat!(
            include_str!("bullmq/layout.lua"),
            $(include_str!(concat!("bullmq/", $name))),+
        ))
    };
}

static ADD: Lua = script!("adding.lua", "add.lua");
static ADD_FLOW: Lua = script!("adding.lua", "add_flow.lua");
static TAKE: Lua = script!("take.lua");
static FINISH: Lua = script!("finish.lua");
static RETRY: Lua = script!("retry.lua");
static EXTEND: Lua = script!("extend.lua");
static STALLED: Lua = script!("stalled.lua");
static PAUSE: Lua = script!("pause.lua");
static SETTLE: Lua = script!("settle.lua");
static NOTE: Lua = script!("note.lua");
static REMOVE_CHILDREN: Lua = script!("remove_children.lua");
static SCHEDULE: Lua = script!("schedule.lua");
static UNSCHEDULE: Lua = script!("unschedule.lua");

/// More would hold up the server.
const MOST_IN_FLOW: usize = 1000;

/// The fixed keys, in the order in which the scripts expect them.
const PARTS: [&str; 17] = [
    "wait",
    "active",
    "paused",
    "meta",
    "id",
    "delayed",
    "prioritized",
    "pc",
    "completed",
    "failed",
    "events",
    "marker",
    "stalled",
    "stalled-check",
    "limiter",
    "waiting-children",
    "repeat",
];

/// A queue of BullMQ.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use redstart::Store;
/// use redstart_adopt::bullmq::{BullQueue, NewJob};
///
/// let store = Store::connect("memory://").await?;
/// let mail = BullQueue::new(&store, "mail")?;
/// let added = mail.add(NewJob::new("welcome", &serde_json::json!({"to": "ann"}))?).await?;
/// assert_eq!(added.id(), "1");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct BullQueue {
    store: Store,
    base: String,
    prefix: String,
    keys: Vec<String>,
    major: u32,
    /// Whether it was said that two major versions share the queue.
    has_warned: Arc<AtomicBool>,
}

/// Makes a [`BullQueue`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct BullQueueBuilder {
    store: Store,
    name: String,
    prefix: String,
    major: u32,
}

impl BullQueueBuilder {
    /// What BullMQ calls the prefix (default `bull`). On a Cluster it needs a hash tag, such as `{bull}`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// The major version of the Node processes, while the queue does not declare one (default 5: version 6 always declares
    /// itself, and early releases of 5 do not).
    pub fn major(mut self, major: u32) -> Self {
        self.major = major;
        self
    }

    /// Makes the queue. Nothing is written.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an empty name, a name with a colon (BullMQ refuses it too), or a version other than
    /// 5 and 6.
    pub fn build(self) -> Result<BullQueue> {
        if self.name.is_empty() || self.name.contains(':') {
            return Err(Error::invalid(
                "a queue of BullMQ needs a name without colons",
            ));
        }
        if self.prefix.is_empty() {
            return Err(Error::invalid("a queue of BullMQ needs a prefix"));
        }
        if !(5..=6).contains(&self.major) {
            return Err(Error::invalid("only BullMQ 5 and 6 are supported"));
        }
        let base = format!("{}:{}", self.prefix, self.name);
        let prefix = format!("{base}:");
        Ok(BullQueue {
            keys: PARTS.iter().map(|part| format!("{prefix}{part}")).collect(),
            store: self.store,
            base,
            prefix,
            major: self.major,
            has_warned: Arc::default(),
        })
    }
}

/// What is known after some jobs were moved.
struct Settled {
    /// Ids that are still to be moved.
    left: u64,
    is_paused: bool,
    /// The id of the queue's last event.
    last: String,
}

/// Which versions have left their traces on a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Versions {
    /// What the queue declares: the version that wrote last. Of another family, such as `bullmq-pro:7.1.0`, the whole.
    pub declared: Option<String>,
    /// Ids in the list that only version 5 fills.
    pub in_paused: u64,
    /// Ids in the list that version 6 fills even while the queue is paused.
    pub in_wait: u64,
    /// Whether the queue is paused.
    pub paused: bool,
}

impl Versions {
    /// Whether two major versions have written to a paused queue, so that a resume by version 5 would lose what stands in
    /// `wait`. [`BullQueue::resume`] loses nothing.
    pub fn is_mixed(&self) -> bool {
        let six = self
            .declared
            .as_deref()
            .is_some_and(|version| version.split('.').next() == Some("6"));
        self.in_paused > 0 && (six || !self.paused || self.in_wait > 0)
    }
}

impl BullQueue {
    /// The queue of this name with BullMQ's default prefix.
    ///
    /// # Errors
    ///
    /// Those of [`BullQueueBuilder::build`].
    pub fn new(store: &Store, name: &str) -> Result<Self> {
        Self::builder(store, name).build()
    }

    /// Starts to set up a queue.
    pub fn builder(store: &Store, name: &str) -> BullQueueBuilder {
        BullQueueBuilder {
            store: store.clone(),
            name: name.to_owned(),
            prefix: "bull".to_owned(),
            major: 5,
        }
    }

    /// Its keys begin with this: `bull:mail`.
    pub fn base(&self) -> &str {
        &self.base
    }

    fn key(&self, part: &str) -> String {
        format!("{}{part}", self.prefix)
    }

    /// Adds a job. One round trip.
    ///
    /// # Errors
    ///
    /// Those of the store: after [`is_in_doubt`](redstart::Error::is_in_doubt) the job may have been added, so give it an
    /// [id](NewJob::id) if that matters: the second time it is [`Added::Exists`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the job may have been added.
    pub async fn add(&self, job: NewJob) -> Result<Added> {
        self.add_alone(&job).await
    }

    /// Adds a parent and its children, in this queue or others of the same store, all of them or none. The parent waits until its
    /// children are completed. Returns the parent. As in Node, jobs of a flow without an [id](NewJob::id) get a UUID.
    ///
    /// A child whose id exists is not added again: if it is completed it counts as done, otherwise the parent
    /// waits for it. One that has failed must be retried by somebody before the parent goes on.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid), and nothing was written, if a child exists and has another parent, or would be
    /// deduplicated: the parent would wait for a job that never reports to it; if there are more than 1,000 jobs, which would hold up
    /// the server; and if the queues are in different slots of a Cluster. Otherwise those of [`add`](Self::add).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the flow may have been added, as a whole.
    pub async fn add_flow(&self, flow: Flow) -> Result<Added> {
        let mut rows = Vec::new();
        flow::flatten(self, flow, None, false, &mut rows);
        if rows.len() > MOST_IN_FLOW {
            return Err(Error::invalid("a flow must have at most 1,000 jobs"));
        }
        let mut keys = self.keys.clone();
        for row in &rows {
            if !keys.contains(&row.queue.keys[0]) {
                keys.extend_from_slice(&row.queue.keys);
            }
        }
        let slots: BTreeSet<u16> = keys.iter().map(|key| slot(key.as_bytes())).collect();
        if self.store.is_cluster() && slots.len() > 1 {
            return Err(Error::invalid(
                "on a Cluster the queues of a flow need prefixes with the same hash tag",
            ));
        }
        let count = rows.len();
        let fields: Vec<_> = rows.iter().map(flow::Row::fields).collect();
        let mut args: Vec<&(dyn Arg + Sync)> = vec![&self.prefix, &self.major, &count];
        for field in fields.iter().flatten() {
            args.push(field);
        }
        let reply = ADD_FLOW.run(&self.store, &keys, &args).await?;
        self.added(reply)
    }

    async fn add_alone(&self, job: &NewJob) -> Result<Added> {
        let fields = flow::fields(job, job.id_text(), None, false, false);
        let mut args: Vec<&(dyn Arg + Sync)> = vec![&self.prefix, &self.major];
        for field in &fields {
            args.push(field);
        }
        let reply = ADD.run(&self.store, &self.keys, &args).await?;
        self.added(reply)
    }

    fn added(&self, reply: (i64, String, u8)) -> Result<Added> {
        let (outcome, id, mixed) = reply;
        self.warn_if_mixed(mixed > 0);
        match outcome {
            0 => Ok(Added::New(id)),
            1 => Ok(Added::Exists(id)),
            2 => Ok(Added::Deduplicated(id)),
            code => Err(refused(code)),
        }
    }

    /// Says once that two major versions share the queue.
    fn warn_if_mixed(&self, mixed: bool) {
        if mixed && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                queue = self.base(),
                "versions 5 and 6 of BullMQ share this queue: a pause or resume by version 5 loses jobs that are not moved before it; move all processes to one version, and resume by BullQueue::resume until then"
            );
        }
    }

    /// Pauses the queue for all workers, Node's too. Jobs that are running go on.
    ///
    /// # Errors
    ///
    /// Those of the store. Calling it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the queue may be paused; nothing is lost.
    pub async fn pause(&self) -> Result<()> {
        self.set_paused(true).await
    }

    /// Resumes the queue. What versions 5 and 6 left in their different lists is merged.
    ///
    /// # Errors
    ///
    /// Those of the store. Calling it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the queue may be resumed and some ids still to be moved: call it again.
    pub async fn resume(&self) -> Result<()> {
        self.set_paused(false).await
    }

    async fn set_paused(&self, paused: bool) -> Result<()> {
        let mut first = 1_u8;
        loop {
            let left: u64 = PAUSE
                .run(
                    &self.store,
                    &self.keys,
                    &[&self.prefix, &self.major, &u8::from(paused), &first],
                )
                .await?;
            if left == 0 {
                return Ok(());
            }
            first = 0;
        }
    }

    /// Moves jobs that versions 5 and 6 left in different lists to the one that a pause or resume by either version keeps. A running worker
    /// and each [`add`](Self::add) do so too. The queue stays paused, or not.
    ///
    /// # Errors
    ///
    /// Those of the store. Calling it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some ids may still have to be moved: call it again.
    pub async fn settle(&self) -> Result<()> {
        while self.settle_some().await?.left > 0 {}
        Ok(())
    }

    async fn settle_some(&self) -> Result<Settled> {
        let args: [&(dyn Arg + Sync); 2] = [&self.prefix, &self.major];
        let (left, mixed, paused, last): (u64, u8, u8, String) =
            SETTLE.run(&self.store, &self.keys, &args).await?;
        self.warn_if_mixed(mixed > 0);
        Ok(Settled {
            left,
            is_paused: paused > 0,
            last,
        })
    }

    /// Which versions have left their traces.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn versions(&self) -> Result<Versions> {
        let mut pipeline = redis::pipe();
        pipeline
            .cmd("HMGET")
            .arg(self.key("meta"))
            .arg("version")
            .arg("paused");
        pipeline.cmd("LLEN").arg(self.key("paused"));
        pipeline.cmd("LLEN").arg(self.key("wait"));
        let (meta, in_paused, in_wait): ((Option<String>, Option<String>), u64, u64) =
            self.store.pipeline(&pipeline).await?;
        let declared = meta.0.map(|text| match text.strip_prefix("bullmq:") {
            Some(version) => version.to_owned(),
            None => text,
        });
        Ok(Versions {
            declared,
            in_paused,
            in_wait,
            paused: meta.1.is_some(),
        })
    }

    /// The fields of a job as they are stored; `None` if there is no such job.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn job(&self, id: &str) -> Result<Option<BTreeMap<String, String>>> {
        let fields: BTreeMap<String, String> =
            self.store.query(cmd("HGETALL").arg(self.key(id))).await?;
        Ok((!fields.is_empty()).then_some(fields))
    }

    /// Starts to set up a worker.
    pub fn worker(&self) -> BullWorkerBuilder {
        BullWorkerBuilder::new(self.clone())
    }
}

/// Why a job was not added.
fn refused(code: i64) -> Error {
    Error::invalid(match code {
        -7 => "a child of the flow exists and belongs to another parent",
        -8 => "a child of the flow would be deduplicated, so its parent would wait for ever",
        _ => "the parent of the job does not exist",
    })
}
