//! A job's type, its id and its handler.

use std::{fmt, future::Future, str::FromStr, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use super::{IntoVerdict, JobContext, JobPolicy, Verdict};
use crate::error::{Error, Result};

/// A kind of job: its payload, and the name that says which handler it is for.
///
/// The payload is stored as JSON, so that a job enqueued by one version of a program can be read by the next
/// and by other languages.
///
/// ```
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail { to: String }
///
/// impl redstart::messaging::Job for SendMail {
///     const NAME: &'static str = "send_mail";
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The name, 1 to 255 bytes, unique among the jobs of a queue.
    const NAME: &'static str;

    /// How jobs of this kind are run, unless one is enqueued with something else (default: as the worker says).
    fn policy() -> JobPolicy {
        JobPolicy::new()
    }
}

/// A kind of job whose handler returns something. The result is kept for as long as the
/// [queue](super::QueueBuilder::keep_done) or the [job](JobPolicy::keep) says, as JSON.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, messaging::{Job, JobContext, JobOutput, Outcome, Queue, Returned}};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Square(u64);
/// impl Job for Square { const NAME: &'static str = "square"; }
/// impl JobOutput for Square { type Output = u64; }
///
/// let store = Store::connect("memory://").await?;
/// let queue = Queue::builder(&store, "docs", "math").keep_done(1000, Duration::from_secs(60)).build()?;
/// let worker = queue
///     .worker(|Square(n): Square, _: JobContext| async move { Returned::<Square>(n * n) })
///     .start()
///     .await?;
/// let outcome = queue.enqueue(&Square(12)).await?.result().await?;
/// assert_eq!(outcome, Outcome::Done(144));
/// # worker.shutdown(Duration::from_secs(5)).await?;
/// # Ok(()) }
/// ```
///
/// A handler cannot return what another kind of job returns:
///
/// ```compile_fail,E0277
/// # use redstart::messaging::{Job, JobContext, JobOutput, Queue, Returned};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Square(u64);
/// # impl Job for Square { const NAME: &'static str = "square"; }
/// # impl JobOutput for Square { type Output = u64; }
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Name(u64);
/// # impl Job for Name { const NAME: &'static str = "name"; }
/// # impl JobOutput for Name { type Output = String; }
/// # fn worker(queue: &Queue) {
/// queue.worker(|_: Square, _: JobContext| async move { Returned::<Name>("twelve".into()) });
/// # }
/// ```
pub trait JobOutput: Job {
    /// What a run returns.
    type Output: Serialize + DeserializeOwned + Send + 'static;
}

/// A job's id: 128 bits that sort by the enqueuing client's clock, to the millisecond.
///
/// ```
/// use redstart::messaging::JobId;
///
/// let id: JobId = "019a8b5c2f4e000102030405060708ff".parse()?;
/// assert_eq!(id.to_string(), "019a8b5c2f4e000102030405060708ff");
/// assert!("mail".parse::<JobId>().is_err());
/// # Ok::<(), redstart::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub(crate) [u8; 16]);

impl JobId {
    pub(crate) fn generate() -> Self {
        let mut bytes: [u8; 16] = crate::chance::random();
        // For people who read lists of ids; no decision depends on it.
        let millis = crate::chance::unix_millis();
        bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
        Self(bytes)
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut id = [0; 16];
        if text.len() != 32 || !text.is_ascii() {
            return Err(Error::config("a job id must be 32 hexadecimal digits"));
        }
        for (byte, pair) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = std::str::from_utf8(pair)
                .ok()
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
                .ok_or_else(|| Error::config("a job id must be 32 hexadecimal digits"))?;
        }
        Ok(Self(id))
    }
}

/// How long a job holds its unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UniqueUntil {
    /// Until the job is done, dead or deleted.
    Done,
    /// Until a worker takes the job: a job enqueued while it runs is a new one. A job that is handed back, parked or replayed
    /// holds the key again, unless another job has it by then; see
    /// [`replace_waiting`](super::Enqueue::replace_waiting) for what that means for a new payload.
    Started,
    /// For this time from the enqueue on, even if the job is done, dead, cancelled or deleted before.
    For(Duration),
}

/// Runs the jobs of one type. Every `Fn(J, JobContext)` that returns a future is one.
pub trait JobHandler<J: Job>: Send + Sync + 'static {
    /// Runs a job.
    ///
    /// A job may run more than once: if its worker dies, or is cut off for longer than its lease. Make the
    /// effect idempotent, by [`JobContext::once`] or by the job's id.
    fn run(&self, job: J, context: JobContext) -> impl Future<Output = Verdict> + Send;
}

impl<J, F, Fut> JobHandler<J> for F
where
    J: Job,
    F: Fn(J, JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future + Send,
    Fut::Output: IntoVerdict<J>,
{
    async fn run(&self, job: J, context: JobContext) -> Verdict {
        self(job, context).await.into_verdict()
    }
}
