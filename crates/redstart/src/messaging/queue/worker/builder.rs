//! Settings of a worker, and its start.

use std::{collections::HashMap, fmt, num::NonZeroU32, sync::Arc, time::Duration};

use tokio::sync::{Notify, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    NamedBackoff, Shared, Tasks, Totals, Worker,
    acknowledge::acknowledge,
    fetch::Fetcher,
    run::{Runner, Typed},
    schedule::schedule,
    signal::Signals,
    slots::{Room, Share, WorkerSlots},
};
use crate::{
    error::{Error, Result},
    messaging::{
        queue::{Backoff, Job, JobHandler, Queue},
        wake::Wake,
    },
    token::token,
};

pub(super) const MAX_CONCURRENCY: usize = 10_000;

/// Settings of a [`Worker`]; made by [`Queue::worker`].
#[must_use = "a worker runs only after `start`"]
pub struct WorkerBuilder {
    queue: Queue,
    handlers: HashMap<&'static str, Arc<dyn Runner>>,
    /// A kind of job with two handlers.
    twice: Option<&'static str>,
    concurrency: usize,
    lease: Duration,
    backoff: Backoff,
    max_attempts: u16,
    backoffs: HashMap<String, Arc<NamedBackoff>>,
    timeout: Option<Duration>,
    cancel_grace: Duration,
    share: Option<Share>,
}

impl WorkerBuilder {
    pub(in crate::messaging::queue) fn new(queue: Queue) -> Self {
        Self {
            queue,
            handlers: HashMap::new(),
            twice: None,
            concurrency: 16,
            lease: Duration::from_secs(30),
            backoff: Backoff::default(),
            max_attempts: 10,
            backoffs: HashMap::new(),
            timeout: None,
            cancel_grace: Duration::from_secs(10),
            share: None,
        }
    }

    /// Handles another kind of job too. A job of a kind without a handler is left to workers that have one; see
    /// [`park_for`](crate::messaging::QueueBuilder::park_for).
    pub fn handler<J: Job, H: JobHandler<J>>(self, handler: H) -> Self {
        let runner = Arc::new(Typed(handler, std::marker::PhantomData::<fn(J)>));
        self.runner(J::NAME, runner)
    }

    pub(in crate::messaging::queue) fn runner(
        mut self,
        kind: &'static str,
        runner: Arc<dyn Runner>,
    ) -> Self {
        if self.handlers.insert(kind, runner).is_some() {
            self.twice = Some(kind);
        }
        self
    }

    /// How many jobs the worker holds at a time, from taken to acknowledged (default 16, at most 10,000). When a worker
    /// leaves or dies, or a job that it has is cancelled, one script goes through all jobs that it holds, about 10 µs of
    /// the server's time for each, and half of them are taken at a time, about 4 µs for each: several workers are better than
    /// one with thousands of jobs.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.concurrency = jobs;
        self
    }

    /// Shares slots with the workers of other queues, instead of a [concurrency](Self::concurrency) of its own. Where all
    /// of them have jobs, each gets a part in proportion to its weight; where some have none, the others get all. A job has its slot while it runs;
    /// as many finished jobs again may wait until the store has recorded their outcome.
    pub fn share(mut self, slots: &WorkerSlots, weight: NonZeroU32) -> Self {
        self.concurrency = slots.count();
        self.share = Some(Share::weighted(slots, weight));
        self
    }

    /// Shares slots in strict order, instead of a [concurrency](Self::concurrency) of its own: this worker takes a job only
    /// while no worker of a lower rank on the same slots has one to take. Jobs that run are not interrupted, so a job of
    /// rank 0 waits for at most one job of another rank to end. A queue whose store does not answer, that is paused or at
    /// its limit holds up no other.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::{Job, JobRegistry, Payload, Queue, WorkerSlots}};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail;
    /// # impl Job for Mail { const NAME: &'static str = "mail"; }
    /// # let store = Store::connect("memory://").await?;
    /// # let registry = JobRegistry::new(()).on(async |_: Payload<Mail>| {});
    /// let (urgent, bulk) = (Queue::new(&store, "shop", "urgent")?, Queue::new(&store, "shop", "bulk")?);
    /// let slots = WorkerSlots::new(32);
    /// let first = urgent.serve(&registry).share_in_order(&slots, 0).start().await?;
    /// let second = bulk.serve(&registry).share_in_order(&slots, 1).start().await?;
    /// # drop((first, second));
    /// # Ok(()) }
    /// ```
    pub fn share_in_order(mut self, slots: &WorkerSlots, rank: u32) -> Self {
        self.concurrency = slots.count();
        self.share = Some(Share::ranked(slots, rank));
        self
    }

    /// How long the worker may be silent before others take its jobs (default 30 s). It is renewed every third of
    /// that time.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The waits between attempts, and how many attempts a job has in all (default 10).
    pub fn retry(mut self, backoff: Backoff, max_attempts: u16) -> Self {
        self.backoff = backoff;
        self.max_attempts = max_attempts;
        self
    }

    /// How long one run may take if the job itself has no timeout (default: no limit).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// A function for the waits between attempts, for jobs that ask for it
    /// [by name](crate::messaging::JobPolicy::backoff_named). It is given the attempt that failed; the first is 1.
    pub fn backoff(
        mut self,
        name: &str,
        wait: impl Fn(u32) -> Duration + Send + Sync + 'static,
    ) -> Self {
        self.backoffs.insert(name.to_owned(), Arc::new(wait));
        self
    }

    /// How long a handler may go on after its job was [cancelled](crate::messaging::Queue::cancel), before it is dropped
    /// (default 10 s).
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = grace;
        self
    }

    fn check(&self) -> Result<()> {
        if let Some(name) = self.twice {
            return Err(Error::config(format!("the job {name:?} has two handlers")));
        }
        if !(1..=MAX_CONCURRENCY).contains(&self.concurrency) {
            return Err(Error::config(format!(
                "a worker's concurrency must be from 1 to {MAX_CONCURRENCY}"
            )));
        }
        if let Some(share) = &self.share
            && share.turn() as usize > self.concurrency
        {
            return Err(Error::config("a worker's weight must not exceed the slots"));
        }
        if self.lease < Duration::from_millis(100) || self.lease > Duration::from_secs(86_400) {
            return Err(Error::config("a lease must be from 100 ms to a day"));
        }
        if self.max_attempts == 0 {
            return Err(Error::config("max_attempts must be at least 1"));
        }
        Ok(())
    }

    /// Registers the worker and starts it on the current runtime.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for invalid settings or a store that cannot subscribe; otherwise those of the
    /// store, if it cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, nothing runs; a registration may remain until its lease ends.
    pub async fn start(self) -> Result<Worker> {
        self.check()?;
        let (room, held) = match self.share {
            Some(share) => (Room::shared(self.concurrency, share), 2 * self.concurrency),
            None => (Room::new(self.concurrency), self.concurrency),
        };
        let (ended, endings) = mpsc::channel(held);
        let clock = self.queue.store().clock();
        let kinds = self.handlers.keys().map(|kind| Arc::from(*kind)).collect();
        let shared = Arc::new(Shared {
            id: token(),
            current: parking_lot::Mutex::default(),
            former: parking_lot::Mutex::default(),
            signals: Arc::new(Signals::new(clock, kinds)),
            room,
            queue: self.queue,
            handlers: self.handlers,
            concurrency: self.concurrency,
            lease: self.lease,
            backoff: self.backoff,
            backoffs: self.backoffs,
            max_attempts: self.max_attempts,
            timeout: self.timeout,
            cancel_grace: self.cancel_grace,
            jobs: TaskTracker::new(),
            ended,
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            drained: CancellationToken::new(),
            suspect: Notify::new(),
            answers: Notify::new(),
            totals: Totals::default(),
        });
        // Subscribe first: a job enqueued after the first look must wake this worker.
        let queue = &shared.queue;
        let own = queue.entity().channel(&format!("wake:{}", shared.id));
        let signals = shared.signals.clone();
        let wake = Wake::open(
            queue.store(),
            [queue.0.channel.clone(), own],
            move |event| signals.hear(event),
        )
        .await?;
        let registration = shared.register().await?;
        // From here on those of a higher rank wait, whichever task runs first.
        shared.wants_slots(true);
        let fetcher = Fetcher {
            shared: shared.clone(),
            registration,
            wake: Arc::new(wake),
        };
        Ok(Worker {
            tasks: Some(Tasks {
                fetcher: crate::task::spawn(fetcher.run()),
                acknowledger: crate::task::spawn(acknowledge(shared.clone(), endings)),
                scheduler: crate::task::spawn(schedule(shared.clone())),
            }),
            shared,
        })
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("queue", &self.queue)
            .field("handlers", &self.handlers.keys())
            .finish_non_exhaustive()
    }
}
