//! Workers with a registry of handlers, layers and shared slots.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use redstart::{
    Store,
    messaging::{
        Backoff, FromRef, JobContext, JobId, JobRegistry, Payload, Queue, State, Verdict, Worker,
        WorkerSlots,
    },
    testing::Faults,
};
use redstart_testkit::{Backend, eventually, matrix};
use tower::{ServiceBuilder, timeout::TimeoutLayer};

use crate::queue::{LONG, Log, Other, Task, empty, open, task};

#[derive(Clone, Default)]
struct App {
    log: Log,
    others: Counter,
}

#[derive(Clone, Default)]
struct Counter(Arc<AtomicU64>);

impl FromRef<App> for Counter {
    fn from_ref(app: &App) -> Self {
        app.others.clone()
    }
}

async fn run(Payload(job): Payload<Task>, State(app): State<App>, id: JobId, cx: JobContext) {
    assert_eq!(id, cx.id());
    app.log.push(job.n);
}

async fn count(Payload(_): Payload<Other>, State(counter): State<Counter>) -> Verdict {
    counter.0.fetch_add(1, Ordering::SeqCst);
    Verdict::Done
}

matrix! {
    async fn a_registry_runs_each_kind_with_the_state_it_asks_for(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let app = App::default();
        let registry = JobRegistry::new(app.clone()).on(run).on(count);
        let worker = queue.serve(&registry).start().await?;
        for n in 0..10 {
            queue.enqueue(&task(n)).await?;
            queue.enqueue(&Other).await?;
        }
        app.log.reaches(10).await?;
        empty(&queue).await?;
        assert_eq!(app.others.0.load(Ordering::SeqCst), 10);
        // An undecodable job is parked, not failed.
        queue.enqueue_raw("task", b"{}").await?;
        ensure!(eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.parked == 1)).await);
        worker.shutdown(LONG).await?;
        assert!(queue.serve(&JobRegistry::new(app).on(run).on(run)).start().await.unwrap_err().is_config());
        Ok(())
    }

    async fn layers_of_tower_apply_as_they_are(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let runs = Arc::new(AtomicU64::new(0));
        let seen = runs.clone();
        async fn hang(Payload(_): Payload<Task>) {
            std::future::pending().await
        }
        let layers = ServiceBuilder::new()
            .map_request(move |request: redstart::messaging::JobRequest| {
                assert_eq!(request.kind(), "task");
                seen.fetch_add(1, Ordering::SeqCst);
                request
            })
            .layer(TimeoutLayer::new(Duration::from_millis(10)))
            .into_inner();
        let registry = JobRegistry::new(()).on(hang).layer(layers);
        let worker = queue.serve(&registry).retry(Backoff::fixed(Duration::from_millis(1)), 3).start().await?;
        queue.enqueue(&task(1)).await?;
        ensure!(eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.dead == 1)).await);
        assert_eq!(runs.load(Ordering::SeqCst), 3);
        let letters = queue.inspect().dead_letters().list(None).await?;
        assert!(letters[0].reason.contains("timed out"), "{}", letters[0].reason);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn queues_share_slots_by_weight_and_idle_ones_leave_theirs(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let (heavy, light) = (
            Queue::new(&store, backend.namespace(), "heavy")?,
            Queue::new(&store, backend.namespace(), "light")?,
        );
        heavy.enqueue_many((0..300).map(task)).await?;
        light.enqueue_many((1000..1300).map(task)).await?;
        let log = Log::default();
        let registry = JobRegistry::new(log.clone()).on(async |Payload(job): Payload<Task>, State(log): State<Log>| {
            tokio::time::sleep(Duration::from_millis(2)).await;
            log.push(job.n);
        });
        let slots = WorkerSlots::new(4);
        let weight = |n| NonZeroU32::new(n).unwrap();
        let workers = [
            heavy.serve(&registry).share(&slots, weight(3)).start().await?,
            light.serve(&registry).share(&slots, weight(1)).start().await?,
        ];
        log.reaches(600).await?;
        let first = log.all().into_iter().take(240).filter(|n| *n < 1000).count();
        assert!((140..=220).contains(&first), "{first} of 240 are of weight 3 against 1");
        for worker in workers {
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }
}

matrix! {
    async fn a_queue_runs_nothing_while_one_of_a_lower_rank_has_jobs(backend: &Backend) -> Result<()> {
        // A store that does not answer in time would hold up no other queue.
        let store = Store::builder(backend.url()).deadline(LONG).connect().await?;
        let (urgent, bulk) = (
            Queue::new(&store, backend.namespace(), "urgent")?,
            Queue::new(&store, backend.namespace(), "bulk")?,
        );
        let log = Log::default();
        let registry = JobRegistry::new(log.clone()).on(async |Payload(job): Payload<Task>, State(log): State<Log>| {
            log.push(job.n);
            tokio::time::sleep(Duration::from_millis(2)).await;
        });
        bulk.enqueue_many((1000..1300).map(task)).await?;
        urgent.enqueue_many((0..60).map(task)).await?;
        let slots = WorkerSlots::new(2);
        // The lower rank is the first, whoever starts later.
        let workers = [
            urgent.serve(&registry).share_in_order(&slots, 0).start().await?,
            bulk.serve(&registry).share_in_order(&slots, 7).start().await?,
        ];
        log.reaches(100).await?;
        // The last ones may have been taken, and not begun yet, when the first of the others begin.
        let others = log.all()[..60].iter().filter(|n| **n >= 1000).count();
        assert!(others <= 2, "{:?}", log.all());
        // Those of the higher rank run now. What comes before them gets each slot that comes free.
        urgent.enqueue_many((100..120).map(task)).await?;
        let all_urgent = eventually(LONG, async || log.all().iter().filter(|n| **n < 1000).count() == 80).await;
        ensure!(all_urgent, "{:?}", log.all());
        let order = log.all();
        let urgent_at: Vec<usize> = (0..order.len()).filter(|at| (100..120).contains(&order[*at])).collect();
        let between = urgent_at[19] - urgent_at[0] + 1 - 20;
        assert!(between <= 2, "{between} jobs of the higher rank began in between");
        // A queue that hands out nothing holds up no other.
        urgent.pause().await?;
        urgent.enqueue(&task(200)).await?;
        log.reaches(380).await?;
        empty(&bulk).await?;
        urgent.resume().await?;
        log.reaches(381).await?;
        for worker in workers {
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_worker_without_slots_leaves_the_job_to_another() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let (urgent, bulk) = (
        Queue::new(&store, "slots", "urgent")?,
        Queue::new(&store, "slots", "bulk")?,
    );
    // A worker that is not woken looks again after this.
    let lease = Duration::from_secs(3600);
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (log, blocked) = (Log::default(), gate.clone());
    let logging = JobRegistry::new(log.clone())
        .on(async |Payload(job): Payload<Task>, State(log): State<Log>| log.push(job.n));
    let blocking = JobRegistry::new(blocked).on(
        async |_: Payload<Task>, State(gate): State<Arc<tokio::sync::Semaphore>>| {
            gate.acquire().await.unwrap().forget();
        },
    );
    let slots = WorkerSlots::new(1);
    let weight = NonZeroU32::MIN;
    let first = urgent
        .serve(&logging)
        .share(&slots, weight)
        .lease(lease)
        .start()
        .await?;
    let idle = async |count: u64| {
        eventually(LONG, async || {
            let idle = store
                .query::<u64>(redis::cmd("ZCARD").arg("slots:queue:{urgent}:idle"))
                .await;
            idle.is_ok_and(|idle| idle == count)
        })
        .await
    };
    ensure!(idle(1).await);
    // The other queue takes the only slot.
    let busy = bulk
        .serve(&blocking)
        .share(&slots, weight)
        .lease(lease)
        .start()
        .await?;
    bulk.enqueue(&task(1)).await?;
    ensure!(
        eventually(LONG, async || bulk
            .inspect()
            .counts()
            .await
            .is_ok_and(|c| c.running == 1))
        .await
    );
    // It has been idle for a shorter time, so it is not the one that is woken.
    let second = urgent.serve(&logging).lease(lease).start().await?;
    ensure!(idle(2).await);
    urgent.enqueue(&task(7)).await?;
    log.reaches(1).await?;
    gate.add_permits(1);
    for worker in [first, busy, second] {
        worker.shutdown(LONG).await?;
    }
    Ok(())
}

/// Two queues in stores of their own that share two slots; `bulk` comes after `urgent`.
struct Sharing {
    urgent: Queue,
    bulk: Queue,
    faults: Faults,
    log: Log,
    gate: Arc<tokio::sync::Semaphore>,
    workers: [Worker; 2],
}

impl Sharing {
    async fn start(lease: Duration) -> Result<Self> {
        let (first, second) = (
            Store::connect("memory://").await?,
            Store::connect("memory://").await?,
        );
        let (urgent, bulk) = (
            Queue::new(&first, "slots", "urgent")?,
            Queue::new(&second, "slots", "bulk")?,
        );
        let (log, gate) = (Log::default(), Arc::new(tokio::sync::Semaphore::new(0)));
        let logging = JobRegistry::new(log.clone())
            .on(async |Payload(job): Payload<Task>, State(log): State<Log>| log.push(job.n));
        let blocking = JobRegistry::new(gate.clone()).on(
            async |_: Payload<Task>, State(gate): State<Arc<tokio::sync::Semaphore>>| {
                gate.acquire().await.unwrap().forget();
            },
        );
        let slots = WorkerSlots::new(2);
        let workers = [
            urgent
                .serve(&logging)
                .share_in_order(&slots, 0)
                .lease(lease)
                .start()
                .await?,
            bulk.serve(&blocking)
                .share_in_order(&slots, 1)
                .lease(lease)
                .start()
                .await?,
        ];
        Ok(Self {
            faults: Faults::of(&second)?,
            urgent,
            bulk,
            log,
            gate,
            workers,
        })
    }

    /// The store of `bulk` hangs: for this time, and longer than calls take, jobs of `urgent` run all the same. Then it is
    /// back.
    async fn urgent_jobs_run(self, time: Duration) -> Result<()> {
        let begun = Instant::now();
        while self.log.len() < 10 || begun.elapsed() < time {
            let ran = self.log.len();
            self.urgent.enqueue(&task(1)).await?;
            self.log.reaches(ran + 1).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.faults.resume();
        self.gate.add_permits(100);
        self.bulk.enqueue(&task(1)).await?;
        empty(&self.bulk).await?;
        for worker in self.workers {
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_worker_that_cannot_register_again_holds_no_slots() -> Result<()> {
    let lease = Duration::from_millis(300);
    let sharing = Sharing::start(lease).await?;
    sharing.faults.hang();
    // Long enough that the lease ends and the worker tries to register.
    sharing.urgent_jobs_run(lease * 8).await
}

#[tokio::test]
async fn jobs_whose_endings_cannot_be_written_hold_no_slots() -> Result<()> {
    let sharing = Sharing::start(Duration::from_secs(3600)).await?;
    sharing.bulk.enqueue_many([1, 2].map(task)).await?;
    let counts = async || sharing.bulk.inspect().counts().await;
    ensure!(eventually(LONG, async || counts().await.is_ok_and(|c| c.running == 2)).await);
    sharing.faults.hang();
    sharing.gate.add_permits(2);
    sharing.urgent_jobs_run(Duration::from_secs(2)).await
}
