//! Queues, topics and streams.
//!
//! | type | what it is | for |
//! |---|---|---|
//! | [`Queue`] | jobs with retries, dead letters, delays, priorities, cron | work that must be done even when processes fail |
//! | [`ReliableList`] | a list whose items survive their consumer | producers that `LPUSH` |
//! | [`PriorityQueue`] | the lowest number first | work ordered by urgency alone |
//! | [`Ring`] | items that are visited in rounds | feeds to poll, hosts to check |
//! | [`NotifySet`] | notices that merge | "this changed, rebuild it" |
//! | [`Topic`], [`Topics`] | messages to current listeners | live updates that may be missed |
//! | [`EventStream`] | events that several groups read at their own pace | a history that later readers need too |
//!
//! Each is made by `X::new(&store, namespace, name)` or, with settings, by `X::builder(&store, namespace, name)` and
//! `build()`. A queue's worker is made by [`Queue::worker`] and started by [`WorkerBuilder::start`].

mod notify;
mod priority;
mod queue;
mod reliable_list;
mod ring;
mod stream;
mod topic;
mod wake;

pub use notify::{NotifyConsumer, NotifySet, NotifySetBuilder};
pub use priority::{PriorityConsumer, PriorityQueue, PriorityQueueBuilder, Reservation};
pub use queue::{
    Backoff, Cancelled, ChildFailure, ChildResult, Children, CronEntry, CronPut, DeadGroup,
    DeadLetter, DeadLetters, DispatchedJob, Dispatcher, DispatcherBuilder, Enqueue, EnqueueMany,
    EnqueueRaw, Enqueued, EnqueuedMany, Flow, FlowAdded, FromJob, FromRef, IntoVerdict, Job,
    JobAttempt, JobContext, JobCursor, JobDetails, JobFence, JobFunction, JobHandle, JobHandler,
    JobId, JobInfo, JobLimit, JobOutput, JobPolicy, JobRegistry, JobRequest, JobService, JobState,
    MissedTicks, Outcome, Payload, Queue, QueueBuilder, QueueCounts, QueueEvent, QueueEventKind,
    QueueEvents, QueueInspector, QueueMinute, Returned, Settler, ShutdownReport, Spread, State,
    UniqueUntil, Verdict, Worker, WorkerBuilder, WorkerSlots, normalized_error,
};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use queue::{Outbox, OutboxDatabase, OutboxRelay};
pub use reliable_list::{ListConsumer, ListItem, ReliableList, ReliableListBuilder};
pub use ring::{Ring, RingBuilder, Visit};
pub use stream::{ConsumerGroup, DeadEvent, EventStream, EventStreamBuilder, StartAt, StreamEntry};
pub use topic::{Heard, Topic, TopicBuilder, TopicListener, Topics, TopicsBuilder};

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    error::Result,
    key::{Entity, Keys, Layout},
    script::Script,
};

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&Script] = &[
    &notify::ADD,
    &notify::TAKE,
    &priority::POP,
    &priority::PUSH,
    &priority::RESERVE,
    &priority::SETTLE,
    &queue::script::CANCEL,
    &queue::script::CRON_FIRE,
    &queue::script::CRON_PAUSE,
    &queue::script::CRON_PUT,
    &queue::script::CRON_REMOVE,
    &queue::script::ENQUEUE,
    &queue::script::ENQUEUE_PLAIN,
    &queue::script::EXPIRE_PARKED,
    &queue::script::FINISH,
    &queue::script::FLOW,
    &queue::script::FLOW_CLOSE,
    &queue::script::FLOW_COMPLETE,
    &queue::script::FLOW_HEAR,
    &queue::script::FLOW_PUBLISH,
    &queue::script::FLOW_STAGE,
    &queue::script::FLOW_TOLD,
    &queue::script::LEAVE,
    &queue::script::LOOKUP,
    &queue::script::PAUSE,
    &queue::script::PROGRESS,
    &queue::script::PURGE,
    &queue::script::RECLAIM,
    &queue::script::RECONCILE,
    &queue::script::REGISTER,
    &queue::script::RENEW,
    &queue::script::REPLAY,
    &queue::script::RESERVE,
    &queue::script::RUN_NOW,
    &queue::script::SCHEDULE,
    &queue::script::TIME,
    &reliable_list::GIVE_BACK,
    &reliable_list::REAP,
    &reliable_list::RENEW,
    &ring::ADD,
    &ring::NEXT,
    &ring::REMOVE,
    &stream::BURY,
    &stream::CLAIM,
    &stream::TRIM,
];

/// What became of an item that its consumer finished or gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the lease may have ended, so that another consumer has the item"]
pub enum Settled {
    /// The consumer still held the item, and what it asked for was done.
    Done,
    /// The consumer no longer held the item, and nothing was changed. Its lease had ended: the item went back, and may be
    /// with another consumer. Or this was a late copy of a request that settled an earlier delivery of the item.
    Lost,
}

/// The entity that a pattern of this family keeps under its name.
fn entity(
    pattern: &'static str,
    namespace: &str,
    name: &str,
    layout: Option<Layout>,
) -> Result<Entity> {
    let mut keys = Keys::new(namespace, pattern)?;
    if let Some(layout) = layout {
        keys = keys.layout(layout);
    }
    keys.entity(name)
}

/// The end of a wait. One that is too long to be written as a time never comes, in practice.
fn deadline(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait.min(crate::duration::LONGEST))
        .unwrap_or(now)
}

/// A wait as blocking commands take it, in seconds. 0 would wait for ever.
fn block_seconds(wait: Duration) -> f64 {
    wait.min(crate::duration::LONGEST).as_secs_f64().max(0.001)
}
