//! Jobs that run, die, and wait for their time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{
    Result,
    messaging::{Backoff, Job, JobContext, Queue, Verdict, Worker},
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Got, Sent};
use crate::workload::{Bed, Claims, Op, WAIT, Workload, grows_to, until};

#[derive(Serialize, Deserialize)]
struct Task {
    number: u64,
    /// Microseconds after the start of the run before which it must not run.
    due: u64,
    body: String,
}

impl Job for Task {
    const NAME: &'static str = "task";
}

/// Whether every job that was accepted was run, once. While replies are lost, that of a worker that has run a job may be too:
/// then it is run at least once.
fn compare(sent: &Sent, got: &Got, claims: &Claims) {
    sent.compare("jobs", got, 0, claims);
    if sent.tally.most() == sent.tally.done() {
        sent.once("jobs", got, claims);
    }
}

pub(super) struct Jobs {
    queue: Queue,
    worker: Mutex<Option<Worker>>,
    sent: Sent,
    got: Arc<Got>,
    body: String,
    claims: Claims,
}

impl Jobs {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let queue = Queue::new(&bed.store, &bed.namespace, "tasks")?;
        let got = Arc::new(Got::default());
        let seen = got.clone();
        let worker = queue
            .worker(move |task: Task, _: JobContext| {
                let seen = seen.clone();
                async move { seen.add(task.number) }
            })
            .concurrency(16)
            .start()
            .await?;
        Ok(Self {
            queue,
            worker: Mutex::new(Some(worker)),
            sent: Sent::default(),
            got,
            body: "x".repeat(bed.payload),
            claims: Claims::default(),
        })
    }
}

impl Workload for Jobs {
    async fn operate(&self, op: Op) -> Result<()> {
        let task = Task {
            number: op.number,
            due: 0,
            body: self.body.clone(),
        };
        let enqueued = self.queue.enqueue(&task).await;
        self.sent.add(op.number, &enqueued);
        enqueued.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        self.sent.arrive(&self.got, 0).await?;
        let worker = self.worker.lock().take();
        if let Some(worker) = worker {
            let _ = worker.shutdown(WAIT).await?;
        }
        compare(&self.sent, &self.got, &self.claims);
        let left = self.queue.inspect().counts().await?.unfinished();
        self.claims
            .hold(left == 0, || format!("{left} jobs are left in the queue"));
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    crate::workload::one_target!("{tasks}");

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}

const ATTEMPTS: u16 = 2;

pub(super) struct DeadJobs {
    queue: Queue,
    worker: Mutex<Option<Worker>>,
    sent: Sent,
    tries: Arc<AtomicU64>,
    claims: Claims,
}

impl DeadJobs {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let queue = Queue::new(&bed.store, &bed.namespace, "tasks")?;
        let tries = Arc::new(AtomicU64::new(0));
        let tried = tries.clone();
        let worker = queue
            .worker(move |_: Task, _: JobContext| {
                tried.fetch_add(1, Ordering::SeqCst);
                async { Verdict::retry("down") }
            })
            .retry(Backoff::fixed(Duration::from_millis(1)), ATTEMPTS)
            .concurrency(16)
            .start()
            .await?;
        Ok(Self {
            queue,
            worker: Mutex::new(Some(worker)),
            sent: Sent::default(),
            tries,
            claims: Claims::default(),
        })
    }
}

impl Workload for DeadJobs {
    async fn operate(&self, op: Op) -> Result<()> {
        let task = Task {
            number: op.number,
            due: 0,
            body: String::new(),
        };
        let enqueued = self.queue.enqueue(&task).await;
        self.sent.add(op.number, &enqueued);
        enqueued.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        let inspect = self.queue.inspect();
        let dead = || async { Ok(inspect.counts().await?.dead) };
        grows_to(self.sent.tally.done(), dead).await?;
        until(|| async { Ok(inspect.counts().await?.unfinished() == 0) }).await?;
        let worker = self.worker.lock().take();
        if let Some(worker) = worker {
            let _ = worker.shutdown(WAIT).await?;
        }
        let counts = inspect.counts().await?;
        self.claims.hold(self.sent.tally.explains(counts.dead), || {
            format!(
                "{} dead letters of {} jobs",
                counts.dead,
                self.sent.tally.text()
            )
        });
        let tries = self.tries.load(Ordering::SeqCst);
        self.claims
            .hold(tries == counts.dead * u64::from(ATTEMPTS), || {
                format!(
                    "{tries} attempts for {} dead letters, expected {ATTEMPTS} each",
                    counts.dead
                )
            });
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    crate::workload::one_target!("{tasks}");

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}

pub(super) struct DelayedJobs {
    queue: Queue,
    worker: Mutex<Option<Worker>>,
    sent: Sent,
    got: Arc<Got>,
    early: Arc<AtomicU64>,
    started: Instant,
    claims: Claims,
}

impl DelayedJobs {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let queue = Queue::new(&bed.store, &bed.namespace, "tasks")?;
        let (got, early) = (Arc::new(Got::default()), Arc::new(AtomicU64::new(0)));
        let (seen, too_early) = (got.clone(), early.clone());
        let started = Instant::now();
        let worker = queue
            .worker(move |task: Task, _: JobContext| {
                // The delay follows the server's clock, this is our own: a little tolerance.
                let now = started.elapsed() + Duration::from_millis(50);
                if now < Duration::from_micros(task.due) {
                    too_early.fetch_add(1, Ordering::Relaxed);
                }
                let seen = seen.clone();
                async move { seen.add(task.number) }
            })
            .concurrency(16)
            .start()
            .await?;
        Ok(Self {
            queue,
            worker: Mutex::new(Some(worker)),
            sent: Sent::default(),
            got,
            early,
            started,
            claims: Claims::default(),
        })
    }
}

impl Workload for DelayedJobs {
    async fn operate(&self, op: Op) -> Result<()> {
        let delay = Duration::from_millis(op.random % 200);
        let due = self.started.elapsed() + delay;
        let task = Task {
            number: op.number,
            due: due.as_micros() as u64,
            body: String::new(),
        };
        let enqueued = self.queue.enqueue(&task).delay(delay).await;
        self.sent.add(op.number, &enqueued);
        enqueued.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        self.sent.arrive(&self.got, 0).await?;
        let worker = self.worker.lock().take();
        if let Some(worker) = worker {
            let _ = worker.shutdown(WAIT).await?;
        }
        compare(&self.sent, &self.got, &self.claims);
        let early = self.early.load(Ordering::Relaxed);
        self.claims.hold(early == 0, || {
            format!("{early} jobs ran before they were due")
        });
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    crate::workload::one_target!("{tasks}");

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}
