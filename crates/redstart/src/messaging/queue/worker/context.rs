//! What a handler knows of the run it is in.

use std::{
    fmt,
    future::Future,
    sync::{Arc, atomic::Ordering},
};

use super::{Delivered, PROGRESS};
use crate::{
    error::{Error, Result},
    messaging::queue::JobId,
};

/// What a handler knows of the run it is in, and can do about it. Cheap to clone.
///
/// ```
/// use redstart::messaging::queue::{Context, Job, Outcome};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Charge { cents: u64 }
/// # impl Job for Charge { const NAME: &'static str = "charge"; }
/// # async fn pay(_: u64, _: &str) -> redstart::Result<()> { Ok(()) }
///
/// async fn charge(job: Charge, cx: Context) -> redstart::Result<()> {
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
pub struct Context(pub(super) Arc<Delivered>);

impl Context {
    /// The job's id.
    pub fn id(&self) -> JobId {
        self.0.id
    }

    /// Which attempt this is; the first is 1. Runs that were handed back do not count.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Waits until the lease is lost: another worker has the job, or will have it soon. What this run returns
    /// is then refused.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped and called again.
    pub async fn lost(&self) {
        self.0.term.lost.cancelled().await;
    }

    /// Whether the lease is lost.
    pub fn is_lost(&self) -> bool {
        self.0.term.lost.is_cancelled()
    }

    /// Notes how far the job is, from 0 to 1, for those who [look](crate::messaging::queue::Inspector). `false` if the job is no
    /// longer this worker's.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a number outside 0 to 1; otherwise those of the store.
    pub async fn progress(&self, progress: f64) -> Result<bool> {
        let Delivered { crew, term, .. } = &*self.0;
        if !(0.0..=1.0).contains(&progress) {
            return Err(Error::config("progress is a number from 0 to 1"));
        }
        self.0.progressed.store(true, Ordering::Relaxed);
        let noted: u8 = PROGRESS
            .on(crew.queue.entity())
            .part(&term.running)
            .part("progress")
            .arg(&self.0.delivery[..])
            .arg(&self.0.id.0[..])
            .arg(progress)
            .idempotent()
            .run(crew.queue.store())
            .await?;
        Ok(noted == 1)
    }

    /// Runs an effect unless a run of this job has completed it before under the same key.
    ///
    /// `None` means that it was done before. When the process dies between the effect and the note about it,
    /// the effect happens again: hand the job's [id](Self::id) on as an idempotency key where that matters.
    ///
    /// # Errors
    ///
    /// The effect's own; and those of the store, by `From`.
    ///
    /// # Cancel safety
    ///
    /// Dropped while the effect runs, the effect is dropped and not noted.
    pub async fn once<T, E: From<Error>>(
        &self,
        key: &str,
        effect: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<Option<T>, E> {
        let queue = &self.0.crew.queue;
        let mark = queue.entity().part(&format!("once:{}:{key}", self.0.id));
        let store = queue.store();
        if store.query(redis::cmd("EXISTS").arg(&mark)).await? {
            return Ok(None);
        }
        let value = effect.await?;
        let millis = queue.0.once_for.as_millis() as u64;
        store
            .query::<()>(redis::cmd("SET").arg(&mark).arg(1).arg("PX").arg(millis))
            .await?;
        Ok(Some(value))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("id", &self.0.id)
            .field("attempt", &self.0.attempt)
            .finish_non_exhaustive()
    }
}
