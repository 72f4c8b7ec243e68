//! One job: all that is known of it, and its cancellation.

use std::time::Duration;

use redis::Value;
use serde::de::DeserializeOwned;

use super::{
    JobId, JobInfo, Queue, parked,
    record::Record,
    script::{CANCEL, LOOKUP},
};
use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
    observe,
    script::Batch,
};

/// All that is known of a job; from [`Queue::job`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobDetails {
    /// The job itself.
    pub job: JobInfo,
    /// The attempts that have ended, the last twenty at most, oldest first.
    pub attempts: Vec<JobAttempt>,
    /// The last hundred lines that its handler [logged](super::JobContext::log).
    pub log: Vec<String>,
    /// What it returned, as JSON.
    pub result: Option<Vec<u8>>,
    /// Why it is dead.
    pub reason: Option<String>,
    /// When it ended since the Unix epoch, if it is done, cancelled, expired or dead.
    pub ended: Option<Duration>,
    /// How long it is kept after its end, if the job says so itself; zero is for ever.
    pub keep: Option<Duration>,
}

/// An attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobAttempt {
    /// When it began, since the Unix epoch.
    pub started: Duration,
    /// When it ended.
    pub ended: Duration,
    /// The worker.
    pub worker: String,
    /// Why it failed; `None` if it did not.
    pub error: Option<String>,
}

impl JobDetails {
    /// The result as a type; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the result is not a `T`.
    pub fn decode_result<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        match self.result.as_deref() {
            None | Some([]) => Ok(None),
            Some(result) => Json::decode(result).map(Some),
        }
    }
}

/// What became of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a job that runs may still be done"]
pub enum Cancelled {
    /// It waited, and will not run.
    Ended,
    /// It runs, and its worker was told. The handler hears of it by
    /// [`JobContext::cancelled`](super::JobContext::cancelled), and is dropped after the worker's
    /// [grace](super::WorkerBuilder::cancel_grace). It will not be tried again; if it is done before, it counts as done.
    Told,
    /// There is no such job, or it is over.
    NotFound,
}

impl Queue {
    /// A job and all that is known of it, by its id, however many jobs there are. `None` if the queue does not know it:
    /// a job that is done is known for as long as it is [kept](super::QueueBuilder::keep_done).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::{Job, JobState, Queue}};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Report { month: u8 }
    /// # impl Job for Report { const NAME: &'static str = "report"; }
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "reports")?;
    /// let id = queue.enqueue(&Report { month: 5 }).await?.id().unwrap();
    /// let found = queue.job(id).await?.unwrap();
    /// assert_eq!((found.job.state, found.attempts.len()), (JobState::Ready, 0));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn job(&self, id: JobId) -> Result<Option<JobDetails>> {
        let call = self
            .call(&LOOKUP, &[])
            .arg(&id.0[..])
            .idempotent()
            .run::<Vec<Value>>(self.store());
        let reply = observe::operation("queue.job", self.namespace(), call).await?;
        JobDetails::read(reply)
    }

    /// Ends a job that waits, at once, or tells the worker that runs it. A job that waits for its next attempt is
    /// ended too.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::{Cancelled, Job, Queue}};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Report { month: u8 }
    /// # impl Job for Report { const NAME: &'static str = "report"; }
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "reports")?;
    /// let id = queue.enqueue(&Report { month: 5 }).await?.id().unwrap();
    /// assert_eq!(queue.cancel(id).await?, Cancelled::Ended);
    /// assert_eq!(queue.cancel(id).await?, Cancelled::NotFound);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the store. [In doubt](crate::Error::is_in_doubt) if the reply was lost and the job is gone.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, the job may or may not have been cancelled.
    pub async fn cancel(&self, id: JobId) -> Result<Cancelled> {
        let cancel = self.end_by_hand(id, "cancel");
        Ok(
            match observe::operation("queue.cancel", self.namespace(), cancel).await? {
                1 => {
                    observe::event("queue.cancelled");
                    Cancelled::Ended
                }
                2 => Cancelled::Told,
                _ => Cancelled::NotFound,
            },
        )
    }

    /// Runs `cancel.lua`. A parked job lies under its kind, which has to be known first.
    pub(super) async fn end_by_hand(&self, id: JobId, how: &str) -> Result<u8> {
        let ended = self.end_many_by_hand(&[id], how).await?;
        Ok(ended.first().copied().unwrap_or(0))
    }

    /// Runs `cancel.lua` for several jobs, in two round trips. Where a reply was lost, it asks again: a job that is still
    /// there tells what becomes of it. One that is gone by then may have been ended by the first request or by anything else,
    /// and that is in doubt.
    pub(super) async fn end_many_by_hand(&self, ids: &[JobId], how: &str) -> Result<Vec<u8>> {
        let ends = self.store().ends();
        let lost = match self.ask_to_end(ids, how).await {
            Err(error) if error.is_in_doubt() => error,
            answered => return answered,
        };
        let again = self.ask_to_end(ids, how);
        match tokio::time::timeout_at(ends, again).await {
            Ok(Ok(ended)) if !ended.contains(&0) => Ok(ended),
            _ => Err(lost),
        }
    }

    async fn ask_to_end(&self, ids: &[JobId], how: &str) -> Result<Vec<u8>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut get = redis::cmd("HMGET");
        get.arg(&self.0.places[0]);
        for id in ids {
            get.arg(&id.0[..]);
        }
        let records: Vec<Option<Vec<u8>>> = self.store().query(&get).await?;
        let mut ended = vec![0; ids.len()];
        let mut batch = Batch::new();
        let mut asked = Vec::new();
        for (at, (id, record)) in ids.iter().zip(records).enumerate() {
            let Some(record) = record.as_deref().and_then(Record::parse) else {
                continue;
            };
            asked.push(at);
            batch.push(
                self.call(&CANCEL, &[&parked::part(&record.name)])
                    .arg(&id.0[..])
                    .arg(id.to_string())
                    .arg(how),
            );
        }
        for (at, result) in asked.into_iter().zip(batch.run(self.store()).await?) {
            ended[at] = result?;
        }
        Ok(ended)
    }
}

impl JobDetails {
    fn read(reply: Vec<Value>) -> Result<Option<Self>> {
        let mut reply = reply.into_iter();
        let (Some(record), Some(progress), Some(reason), Some(result), Some(attempts), Some(log)) = (
            reply.next(),
            reply.next(),
            reply.next(),
            reply.next(),
            reply.next(),
            reply.next(),
        ) else {
            return Ok(None);
        };
        let record: Vec<u8> = redis::from_redis_value(record)?;
        let Some(mut job) = JobInfo::read(record) else {
            return Err(Error::codec("the job's record is corrupt"));
        };
        job.progress = redis::from_redis_value(progress)?;
        let attempts: Vec<Vec<u8>> = redis::from_redis_value(attempts)?;
        let log: Vec<Vec<u8>> = redis::from_redis_value(log)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Some(Self {
            attempts: attempts
                .iter()
                .filter_map(|a| JobAttempt::read(a))
                .collect(),
            log: log.iter().map(|line| text(line)).collect(),
            result: redis::from_redis_value(result)?,
            reason: redis::from_redis_value::<Option<Vec<u8>>>(reason)?.map(|r| text(&r)),
            ended: job.state.is_over().then_some(job.due),
            keep: job.policy.keep,
            job,
        }))
    }
}

impl JobAttempt {
    fn read(bytes: &[u8]) -> Option<Self> {
        let time = |from: usize| -> Option<Duration> {
            let digits = std::str::from_utf8(bytes.get(from..from + 16)?).ok()?;
            Some(Duration::from_micros(digits.parse().ok()?))
        };
        let error = String::from_utf8_lossy(bytes.get(64..)?).into_owned();
        Some(Self {
            started: time(0)?,
            ended: time(16)?,
            worker: String::from_utf8_lossy(&bytes[32..64]).into_owned(),
            error: (!error.is_empty()).then_some(error),
        })
    }
}
