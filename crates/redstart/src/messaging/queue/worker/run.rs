//! Running one job, and how that ended.

use std::{future::Future, panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::{Delivery, JobContext, Shared};
use crate::{
    codec::{Codec, Json},
    duration::LONGEST,
    error::Result,
    messaging::queue::{Job, JobHandler, Verdict, record::Record},
};

/// A handler whose job type is erased.
pub(super) trait Runner: Send + Sync {
    /// Runs the job whose payload begins at this byte of the record; an error if the payload cannot be decoded.
    fn run(
        &self,
        record: Vec<u8>,
        payload: usize,
        context: JobContext,
    ) -> Result<Pin<Box<dyn Future<Output = Verdict> + Send + '_>>>;
}

pub(super) struct Typed<J, H>(pub(super) H, pub(super) std::marker::PhantomData<fn(J)>);

impl<J: Job, H: JobHandler<J>> Runner for Typed<J, H> {
    fn run(
        &self,
        record: Vec<u8>,
        payload: usize,
        context: JobContext,
    ) -> Result<Pin<Box<dyn Future<Output = Verdict> + Send + '_>>> {
        let job = Json::decode::<J>(&record[payload..])?;
        drop(record);
        Ok(Box::pin(self.0.run(job, context)))
    }
}

/// How a delivery ended.
pub(super) struct Ended {
    pub(super) delivery: Arc<Delivery>,
    pub(super) ending: Ending,
    /// Held until the ending is written, so that no more than `concurrency` jobs are ever in doubt.
    pub(super) _permit: OwnedSemaphorePermit,
}

pub(super) enum Ending {
    Done,
    Retry(Duration),
    Dead(String),
    HandBack,
    /// Left to a worker that can run it.
    Park {
        kind: String,
        reason: String,
    },
}

/// Runs a job to its ending and passes that to the acknowledger.
pub(super) async fn run(
    runner: Arc<dyn Runner>,
    kind: String,
    record: Vec<u8>,
    payload: usize,
    delivery: Arc<Delivery>,
    timeout: Option<Duration>,
    permit: OwnedSemaphorePermit,
) {
    let shared = delivery.shared.clone();
    let context = JobContext(delivery.clone());
    let attempt = delivery.attempt;
    let was_parked = Record::was_parked(&record);
    let work = AssertUnwindSafe(async {
        match runner.run(record, payload, context) {
            Ok(work) => Ok(work.await),
            Err(error) => Err(error),
        }
    })
    .catch_unwind();
    let limited = async {
        match timeout {
            None => Some(work.await),
            Some(timeout) => tokio::time::timeout(timeout, work).await.ok(),
        }
    };
    let verdict = tokio::select! {
        biased;
        verdict = limited => Some(verdict),
        () = shared.abort.cancelled() => None,
    };
    let ending = match verdict {
        None => Ending::HandBack,
        Some(None) => shared.after_failure(attempt, None, "timed out".to_owned()),
        Some(Some(Err(_))) => shared.after_failure(attempt, None, "panicked".to_owned()),
        Some(Some(Ok(Err(error)))) => {
            shared.signals.could_not_decode(&kind, was_parked);
            shared.cannot_run(kind, error.to_string())
        }
        Some(Some(Ok(Ok(Verdict::Done)))) => Ending::Done,
        Some(Some(Ok(Ok(Verdict::Retry { after, reason })))) => {
            shared.after_failure(attempt, after, reason)
        }
        Some(Some(Ok(Ok(Verdict::Dead { reason })))) => Ending::Dead(reason),
    };
    // The acknowledger outlives the jobs.
    let _ = shared
        .ended
        .send(Ended {
            delivery,
            ending,
            _permit: permit,
        })
        .await;
}

impl Shared {
    /// For a job that another worker may be able to run.
    pub(super) fn cannot_run(&self, kind: String, reason: String) -> Ending {
        if self.queue.0.park_for.is_zero() {
            return Ending::Dead(reason);
        }
        Ending::Park { kind, reason }
    }

    /// The next attempt, or a dead letter after the last.
    pub(super) fn after_failure(
        &self,
        attempt: u32,
        after: Option<Duration>,
        reason: String,
    ) -> Ending {
        if attempt >= u32::from(self.max_attempts) {
            return Ending::Dead(reason);
        }
        let wait = after.unwrap_or_else(|| self.backoff.wait(attempt));
        Ending::Retry(wait.min(LONGEST))
    }
}
