//! What a handler decides about the run that it ends.

use std::{fmt, time::Duration};

use super::{Job, JobOutput};
use crate::codec::{Codec, Json};

/// What a handler decides about its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The job is done and leaves the queue.
    Done,
    /// The job is done, and this is its result as JSON. See [`Returned`].
    DoneWith {
        /// The result.
        result: Vec<u8>,
    },
    /// The run failed. The job is tried again after the given time, or else after the worker's backoff. After the
    /// last attempt it becomes a dead letter.
    Retry {
        /// When, if not by the backoff.
        after: Option<Duration>,
        /// Why; kept with the dead letter if it becomes one.
        reason: String,
    },
    /// The job can never succeed: it becomes a dead letter at once.
    Dead {
        /// Why.
        reason: String,
    },
}

impl Verdict {
    /// Try again after the backoff.
    pub fn retry(reason: impl fmt::Display) -> Self {
        Self::Retry {
            after: None,
            reason: reason.to_string(),
        }
    }

    /// Try again after this time.
    pub fn retry_after(after: Duration, reason: impl fmt::Display) -> Self {
        Self::Retry {
            after: Some(after),
            reason: reason.to_string(),
        }
    }

    /// Give up.
    pub fn dead(reason: impl fmt::Display) -> Self {
        Self::Dead {
            reason: reason.to_string(),
        }
    }
}

/// The job is done, and this is its result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a handler returns this"]
pub struct Returned<J: JobOutput>(pub J::Output);

/// What the handler of a job `J` may return: a [`Verdict`], nothing (done), its [result](Returned), or a `Result` whose
/// error means "try again".
///
/// A run has one verdict, because a handler returns once; there is nothing else to acknowledge by. (A
/// [`Settler`](super::Settler) works by fences, from anywhere, so there the second verdict is refused at run time:
/// [`Settled::Lost`](crate::messaging::Settled::Lost).) Two of them are not a verdict:
///
/// ```compile_fail,E0277
/// # async fn f(queue: redstart::messaging::Queue) -> redstart::Result<()> {
/// # use redstart::messaging::{Job, JobContext, Verdict};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail;
/// # impl Job for Mail { const NAME: &'static str = "mail"; }
/// queue.worker(|_: Mail, _: JobContext| async { (Verdict::Done, Verdict::Done) }).start().await?;
/// # Ok(()) }
/// ```
///
/// One is:
///
/// ```
/// # async fn f(queue: redstart::messaging::Queue) -> redstart::Result<()> {
/// # use redstart::messaging::{Job, JobContext, Verdict};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail;
/// # impl Job for Mail { const NAME: &'static str = "mail"; }
/// queue.worker(|_: Mail, _: JobContext| async { Verdict::Done }).start().await?;
/// # Ok(()) }
/// ```
pub trait IntoVerdict<J> {
    /// The verdict.
    fn into_verdict(self) -> Verdict;
}

impl<J> IntoVerdict<J> for Verdict {
    fn into_verdict(self) -> Verdict {
        self
    }
}

impl<J> IntoVerdict<J> for () {
    fn into_verdict(self) -> Verdict {
        Verdict::Done
    }
}

impl<J: Job + JobOutput> IntoVerdict<J> for Returned<J> {
    fn into_verdict(self) -> Verdict {
        match Json::encode(&self.0) {
            Ok(result) => Verdict::DoneWith { result },
            Err(error) => Verdict::dead(error),
        }
    }
}

impl<J, T: IntoVerdict<J>, E: fmt::Display> IntoVerdict<J> for Result<T, E> {
    fn into_verdict(self) -> Verdict {
        match self {
            Ok(value) => value.into_verdict(),
            Err(error) => Verdict::retry(error),
        }
    }
}
