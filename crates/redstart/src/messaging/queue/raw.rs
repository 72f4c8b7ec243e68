//! Jobs whose kind and payload are known only at run time.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    time::{Duration, SystemTime},
};

use super::{
    Enqueued, JobPolicy, Queue, UniqueUntil,
    record::{Body, Duplicate, Options, RunAt, Unique},
};
use crate::{
    error::{Error, Result},
    observe,
};

impl Queue {
    /// Adds a job whose kind is known only at run time. The payload must be JSON: workers of this library decode it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::Queue};
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "mail")?;
    /// queue.enqueue_raw("send_mail", br#"{"to":"ann@example.com"}"#).priority(3).await?;
    /// assert_eq!(queue.inspect().counts().await?.ready, 1);
    /// # Ok(()) }
    /// ```
    pub fn enqueue_raw<'a>(&'a self, kind: &'a str, payload: &'a [u8]) -> EnqueueRaw<'a> {
        EnqueueRaw {
            queue: self,
            kind,
            payload,
            options: self.options_of(kind, JobPolicy::new()),
        }
    }
}

/// A job to be added; made by [`Queue::enqueue_raw`], sent when it is awaited.
#[must_use = "a job is added when this is awaited"]
pub struct EnqueueRaw<'a> {
    queue: &'a Queue,
    kind: &'a str,
    payload: &'a [u8],
    options: Options,
}

impl EnqueueRaw<'_> {
    /// Runs the job no earlier than this from now, by the server's clock.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.run_at = RunAt::After(delay);
        self
    }

    /// Runs the job no earlier than at this time, by the server's clock.
    pub fn at(mut self, time: SystemTime) -> Self {
        let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH);
        self.options.run_at = RunAt::At(since_epoch.unwrap_or_default());
        self
    }

    /// From -1000 to 1000; a higher priority runs earlier. The default is 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.options.policy.priority = priority;
        self
    }

    /// Adds the job only if no other job holds this key.
    pub fn unique(mut self, key: &str, until: UniqueUntil) -> Self {
        self.options.unique = Some(Unique {
            key: key.to_owned(),
            until,
            duplicate: Duplicate::Keep,
        });
        self
    }

    /// With [`unique`](Self::unique): if the job that holds the key has not started yet, it gets the new payload.
    pub fn replace_waiting(mut self) -> Self {
        if let Some(unique) = &mut self.options.unique {
            unique.duplicate = Duplicate::Replace;
        }
        self
    }

    /// Runs one job for all that are enqueued with this key, `period` after the last of them, with its payload; see
    /// [`Enqueue::debounce`](super::Enqueue::debounce).
    pub fn debounce(mut self, key: &str, period: Duration) -> Self {
        self.options.run_at = RunAt::After(period);
        self.options.unique = Some(Unique {
            key: key.to_owned(),
            until: UniqueUntil::Started,
            duplicate: Duplicate::Restart,
        });
        self
    }

    /// Adds the job unless one was added with this key within `period` before, whatever became of that one.
    pub fn throttle(self, key: &str, period: Duration) -> Self {
        self.unique(key, UniqueUntil::For(period))
    }

    /// The group that the job belongs to; see [`Enqueue::group`](super::Enqueue::group).
    pub fn group(mut self, group: &str) -> Self {
        self.options.group = Some(group.to_owned());
        self
    }

    /// All of a policy at once: attempts, waits, expiry, how long it is kept.
    pub fn policy(mut self, policy: JobPolicy) -> Self {
        self.options.policy = policy;
        self
    }

    /// How long one run may take; after that it is dropped and retried.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.policy.timeout = Some(timeout);
        self
    }

    /// Whether the job could be added, as far as that is known without asking the store.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config), as when it is awaited.
    pub fn check(&self) -> Result<()> {
        self.options.check()?;
        check_job(self.kind, self.payload)?;
        let (limit, length) = (self.queue.0.max_payload, self.payload.len());
        if length > limit {
            return Err(Error::config(format!(
                "the payload has {length} bytes; the queue accepts at most {limit}"
            )));
        }
        Ok(())
    }
}

/// Whether workers of this library could take such a job.
pub(super) fn check_job(kind: &str, payload: &[u8]) -> Result<()> {
    if kind.is_empty() || kind.len() > 255 {
        return Err(Error::config("the kind of a job must have 1 to 255 bytes"));
    }
    if serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_err() {
        return Err(Error::config("the payload of a job must be JSON"));
    }
    Ok(())
}

/// # Errors
///
/// As for [`Queue::enqueue`], and [`is_config`](Error::is_config) for a kind that is empty or over 255 bytes, or a payload
/// that is not JSON.
///
/// # Cancel safety
///
/// If the future is dropped early, the job may or may not have been added.
impl<'a> IntoFuture for EnqueueRaw<'a> {
    type Output = Result<Enqueued>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(observe::operation(
            "queue.enqueue",
            self.queue.namespace(),
            async move {
                self.check()?;
                let body = Body::raw(self.kind, self.payload, &self.options);
                self.queue.add(body, &self.options).await
            },
        ))
    }
}
