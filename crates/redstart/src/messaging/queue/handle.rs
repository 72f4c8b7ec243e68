//! Waiting for what becomes of a job, in any process.
//!
//! The script that ends a job tells so on one channel of the queue. All handles of a [`Queue`] share one subscription to
//! it, which lasts while anyone waits. A handle subscribes first and looks then, and looks again after a gap. It also looks
//! again at a slow pace: a worker whose queue keeps no done jobs does not tell of them.

use std::{
    collections::HashMap,
    fmt,
    marker::PhantomData,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinHandle};

use super::{Enqueued, Job, JobId, JobOutput, JobState, Queue};
use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
    messaging::deadline,
    observe,
    store::{Event, Listen},
};

/// How often a handle looks that was told nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// What became of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the job may be dead or cancelled"]
pub enum Outcome<T> {
    /// It is done, and returned this.
    Done(T),
    /// It failed for good.
    Dead {
        /// Why.
        reason: String,
    },
    /// It was cancelled or deleted.
    Cancelled,
    /// It had [expired](super::JobPolicy::expires_after) before a worker was free.
    Expired,
    /// The queue does not know the job: it was refused because the queue is full, or ended too long ago.
    Unknown,
}

/// A job that was enqueued: its id, and a way to wait for its result.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use redstart::{Store, messaging::{Enqueued, Job, Queue}};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Report { month: u8 }
/// # impl Job for Report { const NAME: &'static str = "report"; }
/// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "reports")?;
/// let handle = queue.enqueue(&Report { month: 5 }).await?;
/// assert!(handle.is_new());
/// assert_eq!(handle, Enqueued::New(handle.id().unwrap()));
/// # Ok(()) }
/// ```
pub struct JobHandle<J> {
    queue: Queue,
    enqueued: Enqueued,
    job: PhantomData<fn() -> J>,
}

impl<J> JobHandle<J> {
    pub(super) fn new(queue: Queue, enqueued: Enqueued) -> Self {
        Self {
            queue,
            enqueued,
            job: PhantomData,
        }
    }

    /// What became of the enqueue.
    pub fn enqueued(&self) -> Enqueued {
        self.enqueued
    }

    /// The id of the new job, or of the one that holds the unique key; `None` if the queue is full.
    pub fn id(&self) -> Option<JobId> {
        self.enqueued.id()
    }

    /// Whether the job was added.
    pub fn is_new(&self) -> bool {
        self.enqueued.is_new()
    }

    /// Waits until the job is over, whether or not it returns something. Needs that the queue or the job
    /// [keeps done jobs](super::QueueBuilder::keep_done).
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the job is not kept when it is done, so that nothing could be told of it;
    /// otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped and called again.
    pub async fn ended(&self) -> Result<Outcome<()>> {
        Ok(match self.wait().await? {
            Outcome::Done(_) => Outcome::Done(()),
            Outcome::Dead { reason } => Outcome::Dead { reason },
            Outcome::Cancelled => Outcome::Cancelled,
            Outcome::Expired => Outcome::Expired,
            Outcome::Unknown => Outcome::Unknown,
        })
    }

    async fn wait(&self) -> Result<Outcome<Vec<u8>>> {
        match self.id() {
            None => Ok(Outcome::Unknown),
            Some(id) => {
                let wait = self.queue.wait_for(id);
                observe::operation("queue.result", self.queue.namespace(), wait).await
            }
        }
    }
}

impl<J: JobOutput> JobHandle<J> {
    /// Waits for the job's result for as long as it takes. It is told of the end; in case a program with other settings
    /// ends the job without a word, it looks again every 30 seconds.
    ///
    /// # Errors
    ///
    /// As for [`ended`](Self::ended), and [`is_codec`](Error::is_codec) if the result is not of this type.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped and called again.
    pub async fn result(&self) -> Result<Outcome<J::Output>> {
        Ok(match self.wait().await? {
            Outcome::Done(result) => Outcome::Done(Json::decode(&result)?),
            Outcome::Dead { reason } => Outcome::Dead { reason },
            Outcome::Cancelled => Outcome::Cancelled,
            Outcome::Expired => Outcome::Expired,
            Outcome::Unknown => Outcome::Unknown,
        })
    }

    /// The same, for a time at most.
    ///
    /// # Errors
    ///
    /// Also [`is_timeout`](Error::is_timeout) if the job is not over by then.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped and called again.
    pub async fn result_within(&self, wait: Duration) -> Result<Outcome<J::Output>> {
        match tokio::time::timeout_at(deadline(wait), self.result()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::timeout("the job is not over yet")),
        }
    }
}

impl<J> Clone for JobHandle<J> {
    fn clone(&self) -> Self {
        Self::new(self.queue.clone(), self.enqueued)
    }
}

impl<J> fmt::Debug for JobHandle<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.enqueued.fmt(f)
    }
}

impl<J> PartialEq<Enqueued> for JobHandle<J> {
    fn eq(&self, other: &Enqueued) -> bool {
        self.enqueued == *other
    }
}

impl Queue {
    /// A handle to a job that was enqueued before, perhaps by another process.
    pub fn handle<J: Job>(&self, id: JobId) -> JobHandle<J> {
        JobHandle::new(self.clone(), Enqueued::Duplicate(id))
    }

    async fn wait_for(&self, id: JobId) -> Result<Outcome<Vec<u8>>> {
        let endings = self.endings().await?;
        let waiter = endings.wait_for(id);
        let clock = self.store().clock();
        loop {
            if let Some(outcome) = self.look_for_end(id).await? {
                return Ok(outcome);
            }
            tokio::select! {
                biased;
                () = waiter.notify.notified() => {}
                () = clock.sleep_until(clock.now() + LOOK_AGAIN) => {}
            }
        }
    }

    /// What became of a job, if it is over.
    async fn look_for_end(&self, id: JobId) -> Result<Option<Outcome<Vec<u8>>>> {
        let Some(found) = self.job(id).await? else {
            return Ok(Some(Outcome::Unknown));
        };
        Ok(match found.job.state {
            JobState::Done => Some(Outcome::Done(found.result.unwrap_or_default())),
            JobState::Dead => Some(Outcome::Dead {
                reason: found.reason.unwrap_or_default(),
            }),
            JobState::Cancelled => Some(Outcome::Cancelled),
            JobState::Expired => Some(Outcome::Expired),
            _ if self.0.keep_done_for.is_none() && found.keep.is_none() => {
                return Err(Error::config(
                    "this job is not kept when it is done: set `keep_done` on the queue, or `keep` on the job",
                ));
            }
            _ => None,
        })
    }

    async fn endings(&self) -> Result<Arc<Endings>> {
        let mut shared = self.0.endings.lock().await;
        if let Some(endings) = shared.upgrade() {
            return Ok(endings);
        }
        let endings = Endings::open(self).await?;
        *shared = Arc::downgrade(&endings);
        Ok(endings)
    }
}

/// The subscription that all handles of a queue share.
pub(super) struct Endings {
    waiters: Arc<Waiters>,
    reader: JoinHandle<()>,
}

type Waiters = Mutex<HashMap<JobId, Vec<Weak<Notify>>>>;

/// Where the subscription of a queue is found, if there is one.
pub(super) type SharedEndings = tokio::sync::Mutex<Weak<Endings>>;

struct Waiter {
    notify: Arc<Notify>,
    endings: Arc<Endings>,
    id: JobId,
}

impl Endings {
    async fn open(queue: &Queue) -> Result<Arc<Self>> {
        let channel = queue.entity().channel("wake:ended");
        let mut subscription = queue.store().subscribe([Listen::Sharded(channel)]).await?;
        // Nobody waits by it yet, so nothing that comes earlier matters.
        let late = "the channel of results did not open in time";
        subscription
            .established(queue.store().deadline() * 5, late, drop)
            .await?;
        let waiters = Arc::new(Waiters::default());
        let reader = crate::task::spawn({
            let waiters = waiters.clone();
            async move {
                while let Some(event) = subscription.next().await {
                    match event {
                        Event::Message(message) => {
                            let id = message.payload.get(1..).and_then(JobId::read);
                            let waiting = waiters.lock();
                            let of_job = id.and_then(|id| waiting.get(&id)).into_iter().flatten();
                            of_job
                                .filter_map(Weak::upgrade)
                                .for_each(|n| n.notify_one());
                        }
                        // Messages may have been missed.
                        Event::Resubscribed => {
                            let waiting = waiters.lock();
                            let all = waiting.values().flatten();
                            all.filter_map(Weak::upgrade).for_each(|n| n.notify_one());
                        }
                        _ => {}
                    }
                }
            }
        });
        Ok(Arc::new(Self { waiters, reader }))
    }

    fn wait_for(self: Arc<Self>, id: JobId) -> Waiter {
        let notify = Arc::new(Notify::new());
        let mut waiters = self.waiters.lock();
        waiters.entry(id).or_default().push(Arc::downgrade(&notify));
        drop(waiters);
        Waiter {
            notify,
            endings: self,
            id,
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiters = self.endings.waiters.lock();
        if let Some(of_job) = waiters.get_mut(&self.id) {
            let own = Arc::as_ptr(&self.notify);
            of_job.retain(|other| !std::ptr::eq(other.as_ptr(), own));
            if of_job.is_empty() {
                waiters.remove(&self.id);
            }
        }
    }
}

impl Drop for Endings {
    fn drop(&mut self) {
        self.reader.abort();
    }
}
