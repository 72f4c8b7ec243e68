//! A job to be added, and its options as BullMQ writes them.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::BullQueue;
use crate::error::{Error, Result};

/// How long a job waits after an attempt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backoff {
    /// Always as long.
    Fixed(Duration),
    /// Twice as long each time.
    Exponential(Duration),
}

/// The outcome of a job that was added.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a job may not have been added, because there is one of its id"]
pub enum Added {
    /// It is new.
    New(String),
    /// There was a job of this id, and nothing was changed.
    Exists(String),
    /// A job with the same deduplication id exists: this one.
    Deduplicated(String),
}

impl Added {
    /// The id of the job that there is now.
    pub fn id(&self) -> &str {
        match self {
            Self::New(id) | Self::Exists(id) | Self::Deduplicated(id) => id,
        }
    }
}

/// A job with children.
#[derive(Clone, Debug)]
pub struct Flow {
    pub(super) job: NewJob,
    pub(super) children: Vec<(BullQueue, Flow)>,
}

impl Flow {
    /// A job that waits for its children.
    pub fn new(job: NewJob) -> Self {
        Self {
            job,
            children: Vec::new(),
        }
    }

    /// Adds a child, which goes to `queue` and may have children itself.
    #[must_use]
    pub fn child(mut self, queue: &BullQueue, child: impl Into<Self>) -> Self {
        self.children.push((queue.clone(), child.into()));
        self
    }
}

impl From<NewJob> for Flow {
    fn from(job: NewJob) -> Self {
        Self::new(job)
    }
}

/// A job to be added.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub(super) name: String,
    pub(super) data: String,
    id: Option<String>,
    delay: u64,
    priority: u32,
    attempts: u32,
    backoff: Option<Backoff>,
    lifo: bool,
    deduplication: Option<(String, u64)>,
    keep_completed: Option<u64>,
    keep_failed: Option<u64>,
    fail_parent: bool,
}

/// The largest priority that BullMQ accepts: above it a score has no room for the order within a priority.
const LOWEST: u32 = (1 << 21) - 1;

impl NewJob {
    /// A job with a name and data that becomes JSON.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the data cannot be JSON.
    pub fn new(name: &str, data: &impl Serialize) -> Result<Self> {
        let data = serde_json::to_string(data)
            .map_err(|_| Error::invalid("the data of a job must be representable as JSON"))?;
        Ok(Self {
            name: name.to_owned(),
            data,
            id: None,
            delay: 0,
            priority: 0,
            attempts: 0,
            backoff: None,
            lifo: false,
            deduplication: None,
            keep_completed: None,
            keep_failed: None,
            fail_parent: false,
        })
    }

    /// An id of the application's own: adding a second job of this id changes nothing. BullMQ refuses ids that are whole numbers and
    /// ids with colons.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for such an id, or an empty one.
    pub fn id(mut self, id: &str) -> Result<Self> {
        let number = id.bytes().all(|b| b.is_ascii_digit());
        if id.is_empty() || number || id.contains(':') {
            return Err(Error::invalid(
                "the id of a job must not be empty, a whole number, or contain a colon",
            ));
        }
        self.id = Some(id.to_owned());
        Ok(self)
    }

    /// Not before this time has passed.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX >> 12);
        self
    }

    /// From 1, which comes first, to 2,097,151. Jobs without a priority come before all of them.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for any other number.
    pub fn priority(mut self, priority: u32) -> Result<Self> {
        if priority == 0 || priority > LOWEST {
            return Err(Error::invalid(
                "the priority of a job must be from 1 to 2097151",
            ));
        }
        self.priority = priority;
        Ok(self)
    }

    /// How often it is tried altogether (default once).
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// How long it waits between attempts (default not at all).
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Before all that wait, instead of after them.
    #[must_use]
    pub fn lifo(mut self) -> Self {
        self.lifo = true;
        self
    }

    /// While a job with this deduplication id is unfinished, another one is not added.
    #[must_use]
    pub fn deduplicate(mut self, id: &str) -> Self {
        self.deduplication = Some((id.to_owned(), 0));
        self
    }

    /// For this long after a job with this deduplication id was added, another one is not.
    #[must_use]
    pub fn deduplicate_for(mut self, id: &str, ttl: Duration) -> Self {
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX >> 12);
        self.deduplication = Some((id.to_owned(), ttl.max(1)));
        self
    }

    /// How many completed jobs of the queue are kept when it completes (default all).
    #[must_use]
    pub fn keep_completed(mut self, count: u64) -> Self {
        self.keep_completed = Some(count);
        self
    }

    /// How many failed jobs of the queue are kept when it fails (default all).
    #[must_use]
    pub fn keep_failed(mut self, count: u64) -> Self {
        self.keep_failed = Some(count);
        self
    }

    /// If it fails for good, its parent fails too.
    #[must_use]
    pub fn fail_parent(mut self) -> Self {
        self.fail_parent = true;
        self
    }

    pub(super) fn id_text(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    pub(super) fn delay_ms(&self) -> u64 {
        self.delay
    }

    pub(super) fn priority_level(&self) -> u32 {
        self.priority
    }

    pub(super) fn push(&self) -> &'static str {
        if self.lifo { "RPUSH" } else { "LPUSH" }
    }

    pub(super) fn deduplication(&self) -> (&str, u64) {
        match &self.deduplication {
            Some((id, ttl)) => (id, *ttl),
            None => ("", 0),
        }
    }

    /// The options under the short names that BullMQ stores.
    pub(super) fn options(&self, parent: Option<(&str, &str)>) -> String {
        let mut options = Map::new();
        let mut put = |name: &str, value: Value| options.insert(name.to_owned(), value);
        put("attempts", json!(self.attempts));
        if self.delay > 0 {
            put("delay", json!(self.delay));
        }
        if self.priority > 0 {
            put("priority", json!(self.priority));
        }
        if let Some(id) = &self.id {
            put("jobId", json!(id));
        }
        if self.lifo {
            put("lifo", json!(true));
        }
        match self.backoff {
            Some(Backoff::Fixed(delay)) => {
                put(
                    "backoff",
                    json!({"type": "fixed", "delay": delay.as_millis() as u64}),
                );
            }
            Some(Backoff::Exponential(delay)) => {
                put(
                    "backoff",
                    json!({"type": "exponential", "delay": delay.as_millis() as u64}),
                );
            }
            None => {}
        }
        match &self.deduplication {
            Some((id, 0)) => drop(put("de", json!({"id": id}))),
            Some((id, ttl)) => drop(put("de", json!({"id": id, "ttl": ttl}))),
            None => {}
        }
        if let Some(count) = self.keep_completed {
            put("removeOnComplete", json!(count));
        }
        if let Some(count) = self.keep_failed {
            put("removeOnFail", json!(count));
        }
        if self.fail_parent {
            put("fpof", json!(true));
        }
        if let Some((queue, id)) = parent {
            put("parent", json!({"id": id, "queue": queue}));
        }
        Value::Object(options).to_string()
    }

    /// The parent as a child knows it.
    pub(super) fn parent_json(&self, base: &str, id: &str) -> String {
        let mut parent = Map::new();
        parent.insert("id".to_owned(), json!(id));
        parent.insert("queueKey".to_owned(), json!(base));
        if self.fail_parent {
            parent.insert("fpof".to_owned(), json!(true));
        }
        Value::Object(parent).to_string()
    }
}
