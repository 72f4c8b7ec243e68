//! What workers outside of this process say of their jobs.

use std::{
    fmt,
    ops::ControlFlow,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use super::{
    Delivery, Registration, Shared,
    acknowledge::Batch,
    dispatcher::{JobFence, registration},
    heartbeat::renew,
    run::{Ended, Ending},
};
use crate::{
    error::{Error, Result},
    messaging::{
        Settled,
        queue::{Verdict, record::Record, script::PROGRESS},
    },
    observe,
};

/// Settles jobs that a [`Dispatcher`](super::Dispatcher) of the same queue handed out, in this process or another: a [`JobFence`] is all
/// that is needed. It takes no jobs, has no subscription, and nothing runs in the background. Cheap to make and to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, messaging::{Queue, Settled, Verdict}};
/// let store = Store::connect("memory://").await?;
/// let queue = Queue::new(&store, "shop", "mail")?;
/// queue.enqueue_raw("send_mail", b"{}").await?;
/// let jobs = queue.dispatcher(["send_mail"]).start().await?.take(1, Duration::ZERO).await?;
///
/// let settler = queue.dispatcher(None::<String>).lease(Duration::from_secs(60)).settler()?;
/// assert!(settler.extend(&jobs[0].fence).await?);
/// assert_eq!(settler.settle(&jobs[0].fence, Verdict::Done).await?, Settled::Done);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Settler(pub(super) Arc<Shared>);

impl Settler {
    /// Says how a delivery ended. [`Settled::Lost`] if the worker no longer held the job: its lease had ended, or it had
    /// settled the job before.
    ///
    /// # Errors
    ///
    /// Those of the store. Saying it again is harmless.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the ending may have been written.
    pub async fn settle(&self, fence: &JobFence, verdict: Verdict) -> Result<Settled> {
        let shared = &self.0;
        let registration = registration(&fence.lease);
        let running = shared.queue.entity().part(&registration.running);
        let mut look = redis::pipe();
        look.cmd("HEXISTS").arg(&running).arg(&fence.delivery[..]);
        look.cmd("HLEN").arg(&running);
        let jobs = shared.queue.entity().part("jobs");
        look.cmd("HGET").arg(jobs).arg(&fence.delivery[..16]);
        let store = shared.queue.store();
        let (looked, time) = tokio::join!(store.pipeline(&look), self.time());
        let (is_held, held, record): (bool, u64, Option<Vec<u8>>) = looked?;
        let (true, Some(record)) = (is_held, record) else {
            observe::event("queue.refused");
            return Ok(Settled::Lost);
        };
        let record = Record::parse(&record);
        let delivery = self.delivery(&registration, fence, record.as_ref(), time);
        let ending = match verdict {
            Verdict::Done => Ending::Done(Vec::new()),
            Verdict::DoneWith { result } => Ending::Done(result),
            Verdict::Retry { after, reason } => shared.after_failure(&delivery, after, reason),
            Verdict::Dead { reason } => Ending::Dead(reason),
        };
        let ended = self.ended(delivery, ending)?;
        if !self.write(&registration, &[ended]).await? {
            observe::event("queue.refused");
            return Ok(Settled::Lost);
        }
        // One field of the hash is the registration's own.
        if held <= 2 {
            let (shared, store) = (shared.clone(), store.clone());
            store.defer(async move {
                if let Err(error) = shared.leave(&registration).await {
                    tracing::debug!(%error, "a worker elsewhere could not unregister");
                }
            });
        }
        Ok(Settled::Done)
    }

    /// Renews the worker's lease; `false` if it has expired.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease may have been extended.
    pub async fn extend(&self, fence: &JobFence) -> Result<bool> {
        let registration = registration(&fence.lease);
        Ok(renew(&self.0, &registration).await?.0 >= 0)
    }

    /// Records how far a job is, from 0 to 1; `false` if the worker no longer holds it.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a number outside 0 to 1; otherwise those of the store.
    pub async fn progress(&self, fence: &JobFence, progress: f64) -> Result<bool> {
        if !(0.0..=1.0).contains(&progress) {
            return Err(Error::config("progress must be from 0 to 1"));
        }
        let queue = &self.0.queue;
        let noted: u8 = queue
            .call(&PROGRESS, &[&format!("running:{}", fence.lease)])
            .arg(&fence.delivery[..])
            .arg("progress")
            .arg(progress)
            .idempotent()
            .run(queue.store())
            .await?;
        Ok(noted == 1)
    }

    /// Whether somebody [cancelled](crate::messaging::Queue::cancel) a job that is held: its worker should stop. It is not tried again,
    /// whatever the worker says of it.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn is_cancelled(&self, fence: &JobFence) -> Result<bool> {
        let queue = &self.0.queue;
        let mut look = redis::cmd("HEXISTS");
        look.arg(queue.entity().part("meta"))
            .arg([b"c:", &fence.delivery[..16]].concat());
        queue.store().query(&look).await
    }

    /// For how long a worker may be silent.
    pub fn lease(&self) -> Duration {
        self.0.lease
    }

    /// The server's time, where it is needed: for the history of how long jobs wait and run.
    async fn time(&self) -> Option<Duration> {
        match self.0.queue.0.history {
            0 => None,
            _ => self.0.queue.time().await.ok(),
        }
    }

    /// A delivery that another process may have handed out, some time before this.
    pub(super) fn delivery(
        &self,
        registration: &Arc<Registration>,
        fence: &JobFence,
        record: Option<&Record>,
        now: Option<Duration>,
    ) -> Delivery {
        let since = record.and_then(|record| record.held.as_ref());
        let since = since.map_or(0, |(_, since)| *since);
        let delivery = Delivery::new(&self.0, registration, fence.delivery, record, since);
        let since = Duration::from_micros(since);
        let ran = now.map_or(Duration::ZERO, |now| now.saturating_sub(since));
        Delivery {
            started: delivery
                .started
                .checked_sub(ran)
                .unwrap_or(delivery.started),
            // It may have recorded some by another dispatcher.
            progressed: AtomicBool::new(true),
            ..delivery
        }
    }

    pub(super) fn ended(&self, delivery: Delivery, ending: Ending) -> Result<Ended> {
        let permit = self.0.room.try_permit();
        let permit = permit.ok_or_else(|| Error::unavailable("too many jobs end at once"))?;
        Ok(Ended::new(Arc::new(delivery), ending, permit))
    }

    /// Writes endings of one registration; `false` if it is lost.
    pub(super) async fn write(&self, registration: &Registration, ended: &[Ended]) -> Result<bool> {
        let shared = &self.0;
        let batch = Batch::new(ended, shared);
        let write = async {
            let mut written = 0;
            loop {
                let call = batch.call(shared, registration, written);
                let reply = call.run::<usize>(shared.queue.store()).await?;
                match batch.after(written, reply) {
                    ControlFlow::Break(written) => return Ok(written),
                    ControlFlow::Continue(more) => written = more,
                }
            }
        };
        let written = observe::operation("queue.finish", shared.queue.namespace(), write).await?;
        batch.count(shared, &written);
        Ok(written.all)
    }
}

impl fmt::Debug for Settler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settler")
            .field("queue", &self.0.queue)
            .finish_non_exhaustive()
    }
}
