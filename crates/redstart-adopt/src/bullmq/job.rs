//! A job to be added, and its options as BullMQ writes them.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{BullQueue, worker::Keep};
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

/// What happens to its parent when a child fails for good. Without a rule the parent goes on waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForParent {
    /// The parent fails too.
    Fail,
    /// The parent runs at once, whatever other children do, and can ask which have failed.
    Continue,
    /// The parent does not wait for the child any more, and can ask why it failed.
    Ignore,
    /// The parent does not wait for the child any more, and knows nothing of it.
    Forget,
}

impl ForParent {
    /// As it stands in the options of the child, and with its parent.
    fn short(self) -> &'static str {
        match self {
            Self::Fail => "fpof",
            Self::Continue => "cpof",
            Self::Ignore => "idof",
            Self::Forget => "rdof",
        }
    }
}

/// When a job is not added because of another one.
///
/// ```
/// use std::time::Duration;
/// use redstart_adopt::bullmq::{Deduplication, NewJob};
///
/// # fn main() -> anyhow::Result<()> {
/// let minute = Duration::from_secs(60);
/// // The last of several changes within a minute of each other is sent.
/// let rule = Deduplication::new("index-17").ttl(minute).extend().replace();
/// let job = NewJob::new("index", &17)?.delay(minute).deduplicated(rule);
/// # let _ = job; Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deduplication {
    id: String,
    ttl: u64,
    extend: bool,
    replace: bool,
    keep_last: bool,
}

impl Deduplication {
    /// While a job with this id is unfinished, another one is not added.
    pub fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            ttl: 0,
            extend: false,
            replace: false,
            keep_last: false,
        }
    }

    /// For this long after a job with this id was added, another one is not, finished or not.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = u64::try_from(ttl.as_millis())
            .unwrap_or(u64::MAX >> 12)
            .max(1);
        self
    }

    /// Each job that is not added makes the [`ttl`](Self::ttl) begin again.
    #[must_use]
    pub fn extend(mut self) -> Self {
        self.extend = true;
        self
    }

    /// A job that is still delayed is replaced by the new one.
    #[must_use]
    pub fn replace(mut self) -> Self {
        self.replace = true;
        self
    }

    /// While the first job runs, the last of those that are not added is kept, and added when the first one ends. The
    /// [`ttl`](Self::ttl) does not count then.
    #[must_use]
    pub fn keep_last_if_active(mut self) -> Self {
        self.keep_last = true;
        self
    }

    fn json(&self) -> Value {
        let mut rules = Map::new();
        rules.insert("id".to_owned(), json!(self.id));
        if self.ttl > 0 {
            rules.insert("ttl".to_owned(), json!(self.ttl));
        }
        for (name, is_set) in [
            ("extend", self.extend),
            ("replace", self.replace),
            ("keepLastIfActive", self.keep_last),
        ] {
            if is_set {
                rules.insert(name.to_owned(), json!(true));
            }
        }
        Value::Object(rules)
    }
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
    jitter: Option<f64>,
    deduplication: Option<Deduplication>,
    keep_completed: Option<Keep>,
    keep_failed: Option<Keep>,
    keep_logs: Option<u32>,
    for_parent: Option<ForParent>,
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
            jitter: None,
            deduplication: None,
            keep_completed: None,
            keep_failed: None,
            keep_logs: None,
            for_parent: None,
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

    /// This share of the wait between attempts is random: with 0.5, a wait of 10 s is from 5 s to 10 s.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a share that is not from 0 to 1.
    pub fn jitter(mut self, share: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::invalid(
                "the jitter of a backoff must be from 0 to 1",
            ));
        }
        self.jitter = Some(share);
        Ok(self)
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
        self.deduplication = Some(Deduplication::new(id));
        self
    }

    /// Not added if another job is there to which this rule applies.
    #[must_use]
    pub fn deduplicated(mut self, rule: Deduplication) -> Self {
        self.deduplication = Some(rule);
        self
    }

    /// For this long after a job with this deduplication id was added, another one is not.
    #[must_use]
    pub fn deduplicate_for(mut self, id: &str, ttl: Duration) -> Self {
        self.deduplication = Some(Deduplication::new(id).ttl(ttl));
        self
    }

    /// The completed jobs of the queue that are kept when it completes (default as its worker says).
    #[must_use]
    pub fn keep_completed(mut self, keep: impl Into<Keep>) -> Self {
        self.keep_completed = Some(keep.into());
        self
    }

    /// The failed jobs of the queue that are kept when it fails (default as its worker says).
    #[must_use]
    pub fn keep_failed(mut self, keep: impl Into<Keep>) -> Self {
        self.keep_failed = Some(keep.into());
        self
    }

    /// The lines of its log that are kept, the last ones (default all).
    #[must_use]
    pub fn keep_logs(mut self, lines: u32) -> Self {
        self.keep_logs = Some(lines);
        self
    }

    /// If it fails for good, its parent fails too.
    #[must_use]
    pub fn fail_parent(self) -> Self {
        self.if_it_fails(ForParent::Fail)
    }

    /// What happens to its parent if it fails for good (default the parent goes on waiting for it).
    #[must_use]
    pub fn if_it_fails(mut self, rule: ForParent) -> Self {
        self.for_parent = Some(rule);
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
            Some(rule) => (&rule.id, rule.ttl),
            None => ("", 0),
        }
    }

    /// The options under the short names that BullMQ stores.
    pub(super) fn options(&self, parent: Option<(&str, &str)>) -> String {
        let mut options = self.own_options();
        options
            .entry("attempts")
            .or_insert_with(|| json!(self.attempts));
        if let Some((queue, id)) = parent {
            options.insert("parent".to_owned(), json!({"id": id, "queue": queue}));
        }
        Value::Object(options).to_string()
    }

    /// Those that were set.
    pub(super) fn own_options(&self) -> Map<String, Value> {
        let mut options = Map::new();
        let mut put = |name: &str, value: Value| options.insert(name.to_owned(), value);
        if self.attempts > 0 {
            put("attempts", json!(self.attempts));
        }
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
        if let Some(backoff) = self.backoff {
            let (kind, delay) = match backoff {
                Backoff::Fixed(delay) => ("fixed", delay),
                Backoff::Exponential(delay) => ("exponential", delay),
            };
            let mut backoff = json!({"type": kind, "delay": delay.as_millis() as u64});
            if let Some(jitter) = self.jitter {
                backoff["jitter"] = json!(jitter);
            }
            put("backoff", backoff);
        }
        if let Some(rule) = &self.deduplication {
            put("de", rule.json());
        }
        if let Some(keep) = self.keep_completed {
            put("removeOnComplete", keep.json());
        }
        if let Some(keep) = self.keep_failed {
            put("removeOnFail", keep.json());
        }
        if let Some(lines) = self.keep_logs {
            put("kl", json!(lines));
        }
        if let Some(rule) = self.for_parent {
            put(rule.short(), json!(true));
        }
        options
    }

    /// The parent as a child knows it.
    pub(super) fn parent_json(&self, base: &str, id: &str) -> String {
        let mut parent = Map::new();
        parent.insert("id".to_owned(), json!(id));
        parent.insert("queueKey".to_owned(), json!(base));
        if let Some(rule) = self.for_parent {
            parent.insert(rule.short().to_owned(), json!(true));
        }
        Value::Object(parent).to_string()
    }
}
