//! What a handler knows of the run it is in.

use std::{
    fmt,
    future::Future,
    sync::{Arc, atomic::Ordering},
};

use serde::de::DeserializeOwned;

use super::Delivery;
use crate::{
    duration::millis,
    error::{Error, Result},
    messaging::queue::{ChildResult, JobId, flow::child_results, script::PROGRESS},
};

/// What a handler knows of the run it is in, and what it can do about it. Cheap to clone.
///
/// ```
/// use redstart::messaging::{Job, JobContext};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Charge { cents: u64 }
/// # impl Job for Charge { const NAME: &'static str = "charge"; }
/// # async fn pay(_: u64, _: &str) -> redstart::Result<()> { Ok(()) }
///
/// async fn charge(job: Charge, cx: JobContext) -> redstart::Result<()> {
///     cx.once("pay", async { pay(job.cents, &cx.id().to_string()).await }).await?;
///     cx.progress(0.5).await?;
///     tokio::select! {
///         () = cx.lost() => {}   // another worker has this job by now: stop
///         () = tokio::task::yield_now() => {}
///     }
///     Ok(())
/// }
/// # let _ = charge;
/// ```
#[derive(Clone)]
pub struct JobContext(pub(super) Arc<Delivery>);

impl JobContext {
    /// The job's id.
    pub fn id(&self) -> JobId {
        self.0.id
    }

    /// Which attempt this is; the first is 1. Runs that were handed back do not count.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Waits until the lease is lost: another worker has the job, or will have it soon. The verdict of this run is
    /// then refused.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped and called again.
    pub async fn lost(&self) {
        self.0.registration.lost.cancelled().await;
    }

    /// Records how far the job is, from 0 to 1, for the [inspector](crate::messaging::QueueInspector). `false` if this
    /// worker no longer holds the job.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a number outside 0 to 1; otherwise those of the store.
    pub async fn progress(&self, progress: f64) -> Result<bool> {
        if !(0.0..=1.0).contains(&progress) {
            return Err(Error::config("progress must be from 0 to 1"));
        }
        self.note("progress", &progress.to_string()).await
    }

    /// Adds a line to the job's log, which [`Queue::job`](crate::messaging::Queue::job) shows: the last hundred lines,
    /// of up to 4,000 bytes each. They go with the job. `false` if this worker no longer holds the job.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn log(&self, line: &str) -> Result<bool> {
        let mut end = line.len().min(4000);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        self.note("log", &line[..end]).await
    }

    async fn note(&self, what: &str, value: &str) -> Result<bool> {
        let Delivery {
            shared,
            registration,
            ..
        } = &*self.0;
        self.0.progressed.store(true, Ordering::Relaxed);
        let mut call = shared
            .queue
            .call(&PROGRESS, &[&registration.running])
            .arg(&self.0.key[..])
            .arg(what)
            .arg(value);
        // A line would be there twice.
        if what == "progress" {
            call = call.idempotent();
        }
        let noted: u8 = call.run(shared.queue.store()).await?;
        Ok(noted == 1)
    }

    /// Waits until somebody [cancels](crate::messaging::Queue::cancel) this job. A handler that goes on is dropped after
    /// the worker's [grace](crate::messaging::WorkerBuilder::cancel_grace). If it returns that it is done, it is done;
    /// otherwise it is cancelled, whatever it returns.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped and called again.
    pub async fn cancelled(&self) {
        self.0.cancelled.cancelled().await;
    }

    /// Whether somebody cancelled this job.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.is_cancelled()
    }

    /// How many [children](crate::messaging::Flow) of this job failed, other than those that made it fail.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn failed_children(&self) -> Result<u64> {
        let queue = &self.0.shared.queue;
        let mut get = redis::cmd("HGET");
        get.arg(queue.entity().part("details"))
            .arg([&self.0.id.0[..], b"f"].concat());
        let failed: Option<u64> = queue.store().query(&get).await?;
        Ok(failed.unwrap_or(0))
    }

    /// What became of the [children](crate::messaging::Flow) of this job, in the order in which they were added. All of
    /// them are over.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if a child returned something else than a `T`; otherwise those of the store.
    pub async fn children<T: DeserializeOwned>(&self) -> Result<Vec<ChildResult<T>>> {
        let numbers: Vec<u32> = (0..self.0.children).collect();
        child_results(&self.0.shared.queue, self.0.id, &numbers).await
    }

    /// Runs an effect unless a run of this job has completed it before under the same key.
    ///
    /// `None` means that it was done before. If the process dies between the effect and the note about it, the effect
    /// happens again: pass the job's [id](Self::id) on as an idempotency key where that matters.
    ///
    /// # Errors
    ///
    /// The effect's own, and those of the store by `From`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while the effect runs, the effect is dropped and not noted.
    pub async fn once<T, E: From<Error>>(
        &self,
        key: &str,
        effect: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<Option<T>, E> {
        let queue = &self.0.shared.queue;
        let mark = queue.entity().part(&format!("once:{}:{key}", self.0.id));
        let store = queue.store();
        if store.query(redis::cmd("EXISTS").arg(&mark)).await? {
            return Ok(None);
        }
        let value = effect.await?;
        let ttl = millis(queue.0.once_ttl);
        store
            .query::<()>(redis::cmd("SET").arg(&mark).arg(1).arg("PX").arg(ttl))
            .await?;
        Ok(Some(value))
    }
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext")
            .field("id", &self.0.id)
            .field("attempt", &self.0.attempt)
            .finish_non_exhaustive()
    }
}
