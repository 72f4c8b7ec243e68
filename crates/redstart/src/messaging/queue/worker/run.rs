//! Running one job, and how that ended.

use std::{any::Any, future::Future, panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};

use super::{Delivery, JobContext, Shared, slots::Permits};
use crate::{
    codec::{Codec, Json},
    duration::LONGEST,
    error::Result,
    messaging::queue::{Job, JobHandler, Verdict, policy::JobBackoff, record::Record},
};
use futures_util::FutureExt as _;

/// A handler whose job type is erased.
pub(in crate::messaging::queue) trait Runner: Send + Sync {
    /// Runs the job whose payload begins at this byte of the record; an error if the payload cannot be decoded.
    fn run(
        &self,
        record: Vec<u8>,
        payload: usize,
        context: JobContext,
    ) -> Pin<Box<dyn Future<Output = Result<Verdict>> + Send + '_>>;
}

pub(super) struct Typed<J, H>(pub(super) H, pub(super) std::marker::PhantomData<fn(J)>);

impl<J: Job, H: JobHandler<J>> Runner for Typed<J, H> {
    fn run(
        &self,
        record: Vec<u8>,
        payload: usize,
        context: JobContext,
    ) -> Pin<Box<dyn Future<Output = Result<Verdict>> + Send + '_>> {
        Box::pin(async move {
            let job = Json::decode::<J>(&record[payload..])?;
            drop(record);
            Ok(self.0.run(job, context).await)
        })
    }
}

/// How a delivery ended.
pub(super) struct Ended {
    pub(super) delivery: Arc<Delivery>,
    pub(super) ending: Ending,
    /// Held until the ending is written, so that only so many jobs are ever in doubt.
    pub(super) permit: Permits,
}

impl Ended {
    /// The job runs no longer, so its slot is free.
    pub(super) fn new(delivery: Arc<Delivery>, ending: Ending, mut permit: Permits) -> Self {
        permit.free_slot();
        Self {
            delivery,
            ending,
            permit,
        }
    }
}

pub(super) enum Ending {
    /// With the result, if it has one.
    Done(Vec<u8>),
    Retry {
        wait: Duration,
        reason: String,
    },
    Cancelled,
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
    record: Vec<u8>,
    payload: usize,
    delivery: Arc<Delivery>,
    timeout: Option<Duration>,
    permit: Permits,
) {
    let shared = delivery.shared.clone();
    // The process may have stood still since the job was handed out: another worker has it by now.
    if delivery.registration.has_ended() && !crate::mend::is_missing("a late job does not begin") {
        delivery.registration.lost.cancel();
        return;
    }
    let context = JobContext(delivery.clone());
    let was_parked = Record::was_parked(&record);
    let work =
        AssertUnwindSafe(async { runner.run(record, payload, context).await }).catch_unwind();
    let limited = async {
        match timeout {
            None => Some(work.await),
            Some(timeout) => tokio::time::timeout(timeout, work).await.ok(),
        }
    };
    let too_late = async {
        delivery.cancelled.cancelled().await;
        tokio::time::sleep(shared.cancel_grace).await;
    };
    let verdict = tokio::select! {
        biased;
        verdict = limited => Some(verdict),
        () = shared.abort.cancelled() => None,
        () = too_late => None,
    };
    let failed = |after, reason| shared.after_failure(&delivery, after, reason);
    let ending = match verdict {
        None => Ending::HandBack,
        Some(None) => failed(None, "timed out".to_owned()),
        Some(Some(Err(panic))) => failed(None, panicked(&*panic)),
        Some(Some(Ok(Err(error)))) => {
            shared.signals.could_not_decode(&delivery.kind, was_parked);
            shared.cannot_run(delivery.kind.clone(), error.to_string())
        }
        Some(Some(Ok(Ok(Verdict::Done)))) => Ending::Done(Vec::new()),
        Some(Some(Ok(Ok(Verdict::DoneWith { result })))) => Ending::Done(result),
        Some(Some(Ok(Ok(Verdict::Retry { after, reason })))) => failed(after, reason),
        Some(Some(Ok(Ok(Verdict::Dead { reason })))) => Ending::Dead(reason),
    };
    // It must not run again.
    let ending = match ending {
        Ending::Retry { .. } | Ending::Dead(_) | Ending::HandBack
            if delivery.cancelled.is_cancelled() =>
        {
            Ending::Cancelled
        }
        ending => ending,
    };
    shared.pass_on(Ended::new(delivery, ending, permit)).await;
}

impl Shared {
    /// Passes an ending to the acknowledger, which outlives the jobs.
    pub(super) async fn pass_on(&self, ended: Ended) {
        ended.delivery.registration.has_ended_one();
        let _ = self.ended.send(ended).await;
    }

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
        delivery: &Delivery,
        after: Option<Duration>,
        reason: String,
    ) -> Ending {
        let attempt = delivery.attempt;
        if attempt >= delivery.max_attempts {
            return Ending::Dead(reason);
        }
        let wait = after.unwrap_or_else(|| match &delivery.backoff {
            Some(JobBackoff::These(backoff)) => backoff.wait(attempt),
            Some(JobBackoff::Named(name)) => match self.backoffs.get(name) {
                Some(wait) => wait(attempt),
                None => self.backoff.wait(attempt),
            },
            None => self.backoff.wait(attempt),
        });
        Ending::Retry {
            wait: wait.min(LONGEST),
            reason,
        }
    }
}

/// What a panic said.
fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    match text {
        Some(text) => format!("panicked: {text}"),
        None => "panicked".to_owned(),
    }
}
