//! What a handler knows of the run it is in.

use std::{
    fmt,
    future::Future,
    sync::{Arc, atomic::Ordering},
};

use super::Delivery;
use crate::{
    duration::millis,
    error::{Error, Result},
    messaging::queue::{JobId, script::PROGRESS},
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
        let Delivery {
            shared,
            registration,
            ..
        } = &*self.0;
        if !(0.0..=1.0).contains(&progress) {
            return Err(Error::config("progress must be from 0 to 1"));
        }
        self.0.progressed.store(true, Ordering::Relaxed);
        let noted: u8 = PROGRESS
            .on(shared.queue.entity())
            .part(&registration.running)
            .part("progress")
            .arg(&self.0.key[..])
            .arg(&self.0.id.0[..])
            .arg(progress)
            .idempotent()
            .run(shared.queue.store())
            .await?;
        Ok(noted == 1)
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
