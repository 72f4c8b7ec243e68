//! How a job is run: attempts, waits, limits of time. Set for a kind of job, or for one job.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Backoff;
use crate::duration::millis;

/// How a job is run. A kind of job has one ([`Job::policy`](super::Job::policy)), and an
/// [`enqueue`](super::Queue::enqueue) may differ from it. What it does not say is decided by the worker and the queue.
///
/// ```
/// use std::time::Duration;
/// use redstart::messaging::{Backoff, Job, JobPolicy};
/// # use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Charge { cents: u64 }
///
/// impl Job for Charge {
///     const NAME: &'static str = "charge";
///
///     fn policy() -> JobPolicy {
///         JobPolicy::new()
///             .attempts(3)
///             .backoff(Backoff::fixed(Duration::from_secs(60)))
///             .timeout(Duration::from_secs(30))
///             .expires_after(Duration::from_secs(3600))
///     }
/// }
/// ```
///
/// As text it is a map of what is set, with times in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredPolicy", into = "StoredPolicy")]
#[must_use = "a policy does nothing by itself"]
pub struct JobPolicy {
    pub(super) attempts: Option<u16>,
    pub(super) backoff: Option<JobBackoff>,
    pub(super) timeout: Option<Duration>,
    pub(super) expires_after: Option<Duration>,
    pub(super) keep: Option<Duration>,
    pub(super) priority: i16,
}

/// The waits between the attempts of a job, as its record has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobBackoff {
    These(Backoff),
    /// A function that the worker knows by this name.
    Named(String),
}

impl JobPolicy {
    /// Nothing is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many attempts the job has in all.
    pub fn attempts(mut self, attempts: u16) -> Self {
        self.attempts = Some(attempts);
        self
    }

    /// The waits between attempts.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(JobBackoff::These(backoff));
        self
    }

    /// The waits between attempts, by a function that workers have
    /// [under this name](super::WorkerBuilder::backoff). A worker that does not know the name uses its own waits.
    pub fn backoff_named(mut self, name: &str) -> Self {
        self.backoff = Some(JobBackoff::Named(name.to_owned()));
        self
    }

    /// How long one run may take; after that it is dropped and counts as failed.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The job is not started later than this after it was enqueued. It ends as
    /// [`Expired`](super::JobState::Expired) instead.
    pub fn expires_after(mut self, period: Duration) -> Self {
        self.expires_after = Some(period);
        self
    }

    /// How long the job and its result are kept after it is done or cancelled, instead of what the
    /// [queue](super::QueueBuilder::keep_done) says.
    pub fn keep(mut self, period: Duration) -> Self {
        self.keep = Some(period);
        self
    }

    /// From -1000 to 1000; a higher priority runs earlier. The default is 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }
}

/// A policy as text, in milliseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredPolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep: Option<u64>,
    priority: i16,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<StoredBackoff>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredBackoff {
    Exponential { first: u64, most: u64 },
    Fixed { wait: u64 },
    Named { name: String },
}

impl From<JobBackoff> for StoredBackoff {
    fn from(backoff: JobBackoff) -> Self {
        match backoff {
            JobBackoff::Named(name) => Self::Named { name },
            JobBackoff::These(backoff) => match backoff.parts() {
                (b'f', wait, _) => Self::Fixed { wait: millis(wait) },
                (_, first, most) => Self::Exponential {
                    first: millis(first),
                    most: millis(most),
                },
            },
        }
    }
}

impl From<StoredBackoff> for JobBackoff {
    fn from(stored: StoredBackoff) -> Self {
        let time = Duration::from_millis;
        match stored {
            StoredBackoff::Named { name } => Self::Named(name),
            StoredBackoff::Fixed { wait } => Self::These(Backoff::fixed(time(wait))),
            StoredBackoff::Exponential { first, most } => {
                Self::These(Backoff::exponential(time(first), time(most)))
            }
        }
    }
}

impl From<JobPolicy> for StoredPolicy {
    fn from(policy: JobPolicy) -> Self {
        Self {
            attempts: policy.attempts,
            timeout: policy.timeout.map(millis),
            expires_after: policy.expires_after.map(millis),
            keep: policy.keep.map(millis),
            priority: policy.priority,
            backoff: policy.backoff.map(StoredBackoff::from),
        }
    }
}

impl From<StoredPolicy> for JobPolicy {
    fn from(stored: StoredPolicy) -> Self {
        Self {
            attempts: stored.attempts,
            timeout: stored.timeout.map(Duration::from_millis),
            expires_after: stored.expires_after.map(Duration::from_millis),
            keep: stored.keep.map(Duration::from_millis),
            priority: stored.priority,
            backoff: stored.backoff.map(JobBackoff::from),
        }
    }
}
