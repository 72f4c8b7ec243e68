//! Settings of a queue.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Inner, JobLimit, Queue, script::PLACES};
use crate::{
    duration::{micros, millis},
    error::{Error, Result},
    key::Layout,
    store::Store,
};

const MAX_PAYLOAD: usize = 1024 * 1024;

/// Settings of a [`Queue`]. All programs that use a queue should agree on them.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct QueueBuilder {
    store: Store,
    namespace: String,
    name: String,
    layout: Option<Layout>,
    boost: Duration,
    capacity: u64,
    max_payload: usize,
    keep_done: Option<(u64, Duration)>,
    keep_dead: (u64, Duration),
    keep_events: u64,
    history: Duration,
    once_ttl: Duration,
    park_for: Duration,
    limit: JobLimit,
    group_limit: JobLimit,
    kind_limits: BTreeMap<String, JobLimit>,
}

impl QueueBuilder {
    pub(super) const BOOST: Duration = Duration::from_secs(60);

    pub(super) fn new(store: &Store, namespace: &str, name: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            layout: None,
            boost: Self::BOOST,
            capacity: 0,
            max_payload: MAX_PAYLOAD,
            keep_done: None,
            keep_dead: (0, Duration::ZERO),
            keep_events: 0,
            history: Duration::ZERO,
            once_ttl: Duration::from_secs(86_400),
            park_for: Duration::from_secs(3600),
            limit: JobLimit::default(),
            group_limit: JobLimit::default(),
            kind_limits: BTreeMap::new(),
        }
    }

    /// How many jobs may wait; beyond that [`Enqueued::Full`](super::Enqueued::Full) (default: no limit).
    pub fn capacity(mut self, jobs: u64) -> Self {
        self.capacity = jobs;
        self
    }

    /// How much age one step of priority is worth (default: a minute).
    pub fn boost(mut self, boost: Duration) -> Self {
        self.boost = boost;
        self
    }

    /// The longest payload in bytes (default: 1 MiB).
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// Keeps the last `jobs` jobs that are done, cancelled or expired, with their results, for `period` at most (zero:
    /// no limit), so that they can be [looked up](super::Queue::job) and listed (default: none are kept). A job may
    /// have [a period of its own](super::JobPolicy::keep).
    pub fn keep_done(mut self, jobs: u64, period: Duration) -> Self {
        self.keep_done = (jobs > 0).then_some((jobs, period));
        self
    }

    /// Keeps at most the last `jobs` dead letters (zero: no limit), for `period` at most (zero: no limit). By default
    /// all are kept. It holds while any worker runs.
    pub fn keep_dead(mut self, jobs: u64, period: Duration) -> Self {
        self.keep_dead = (jobs, period);
        self
    }

    /// Keeps about the last `entries` of the queue's [events](super::QueueInspector::events) (default: none).
    pub fn keep_events(mut self, entries: u64) -> Self {
        self.keep_events = entries;
        self
    }

    /// For how long counters per minute and kind of job are [kept](super::QueueInspector::history), a week at most
    /// (default: not at all).
    pub fn history(mut self, period: Duration) -> Self {
        self.history = period;
        self
    }

    /// How long [`JobContext::once`](super::JobContext::once) remembers an effect (default: a day).
    pub fn once_ttl(mut self, period: Duration) -> Self {
        self.once_ttl = period;
        self
    }

    /// How long a job that no worker knows, or can decode, waits for one that does before it becomes a dead letter
    /// (default: an hour; zero: at once). While a new version of a program is rolled out, workers of the old version
    /// leave the new jobs to the new ones.
    pub fn park_for(mut self, period: Duration) -> Self {
        self.park_for = period;
        self
    }

    /// How many jobs of this queue run at a time, and start in a time, over all workers (default: no limit).
    pub fn limit(mut self, limit: JobLimit) -> Self {
        self.limit = limit;
        self
    }

    /// The same for the jobs of one kind. They wait in a line of their own, so that other jobs pass them, and their
    /// priority does not count. Those in a [group](super::Enqueue::group) wait in their group: it stands in that line while
    /// its first job needs a place, and its later jobs wait with it, of whatever kind, also if the first one expires meanwhile.
    pub fn kind_limit(mut self, kind: &str, limit: JobLimit) -> Self {
        self.kind_limits.insert(kind.to_owned(), limit);
        self
    }

    /// The same for each [group](super::Enqueue::group) of jobs. With a concurrency of one, the jobs of a group run
    /// strictly in the order in which they were enqueued: one that failed is tried again before the next one runs.
    pub fn group_limit(mut self, limit: JobLimit) -> Self {
        self.group_limit = limit;
        self
    }

    /// Uses the application's own keys instead of the [usual ones](crate::key).
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    fn check(&self) -> Result<()> {
        if self.boost > Duration::from_secs(30 * 86_400) {
            return Err(Error::config("boost must be at most 30 days"));
        }
        if self.max_payload == 0 || self.max_payload > 64 * MAX_PAYLOAD {
            return Err(Error::config("max_payload must be from 1 byte to 64 MiB"));
        }
        if self.once_ttl < Duration::from_millis(1) {
            return Err(Error::config("once_ttl must be at least 1 ms"));
        }
        if self.history > Duration::from_secs(7 * 86_400) {
            return Err(Error::config("history must be at most a week"));
        }
        for kind in self.kind_limits.keys() {
            if kind.is_empty() || kind.len() > 255 || kind.bytes().any(|byte| byte < b' ') {
                return Err(Error::config(
                    "a kind with a limit must have 1 to 255 bytes and no control characters",
                ));
            }
        }
        for limit in [&self.limit, &self.group_limit]
            .into_iter()
            .chain(self.kind_limits.values())
        {
            limit.check()?;
        }
        Ok(())
    }

    /// The queue. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace, name or setting.
    pub fn build(self) -> Result<Queue> {
        self.check()?;
        let address = match self.layout {
            None => Some((Arc::from(&*self.namespace), Arc::from(&*self.name))),
            Some(_) => None,
        };
        let entity = crate::messaging::entity("queue", &self.namespace, &self.name, self.layout)?;
        Ok(Queue(Arc::new(Inner {
            channel: entity.channel("wake"),
            places: PLACES.iter().map(|part| entity.part(part)).collect(),
            store: self.store,
            entity,
            address,
            boost: micros(self.boost),
            capacity: self.capacity,
            max_payload: self.max_payload,
            keep_done: self.keep_done.map_or(0, |(jobs, _)| jobs),
            keep_done_for: self.keep_done.map(|(_, period)| period),
            keep_dead: (self.keep_dead.0, millis(self.keep_dead.1)),
            keep_events: self.keep_events,
            history: self.history.as_secs().div_ceil(60),
            once_ttl: self.once_ttl,
            park_for: self.park_for,
            limit: self.limit,
            group_limit: self.group_limit,
            kind_limits: self.kind_limits,
            endings: Default::default(),
            combined: Default::default(),
        })))
    }
}
