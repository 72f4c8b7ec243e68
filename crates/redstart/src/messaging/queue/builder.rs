//! Settings of a queue.

use std::{sync::Arc, time::Duration};

use super::{Inner, Queue};
use crate::{
    duration::micros,
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
    keep_done: u64,
    keep_done_for: Duration,
    once_ttl: Duration,
    park_for: Duration,
}

impl QueueBuilder {
    pub(super) fn new(store: &Store, namespace: &str, name: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            layout: None,
            boost: Duration::from_secs(60),
            capacity: 0,
            max_payload: MAX_PAYLOAD,
            keep_done: 0,
            keep_done_for: Duration::ZERO,
            once_ttl: Duration::from_secs(86_400),
            park_for: Duration::from_secs(3600),
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

    /// Keeps about the last `jobs` done jobs, for `period` at most, so that
    /// [`JobState::Done`](super::JobState::Done) can be listed (default: none are kept).
    pub fn keep_done(mut self, jobs: u64, period: Duration) -> Self {
        self.keep_done = jobs;
        self.keep_done_for = period;
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

    /// Uses the application's own keys instead of the [usual ones](crate::key).
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// The queue. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace, name or setting.
    pub fn build(self) -> Result<Queue> {
        if self.boost > Duration::from_secs(30 * 86_400) {
            return Err(Error::config("boost must be at most 30 days"));
        }
        if self.max_payload == 0 || self.max_payload > 64 * MAX_PAYLOAD {
            return Err(Error::config("max_payload must be from 1 byte to 64 MiB"));
        }
        if self.once_ttl < Duration::from_millis(1) {
            return Err(Error::config("once_ttl must be at least 1 ms"));
        }
        let entity = crate::messaging::entity("queue", &self.namespace, &self.name, self.layout)?;
        Ok(Queue(Arc::new(Inner {
            channel: entity.channel("wake"),
            store: self.store,
            entity,
            boost: micros(self.boost),
            capacity: self.capacity,
            max_payload: self.max_payload,
            keep_done: self.keep_done,
            keep_done_for: self.keep_done_for,
            once_ttl: self.once_ttl,
            park_for: self.park_for,
        })))
    }
}
