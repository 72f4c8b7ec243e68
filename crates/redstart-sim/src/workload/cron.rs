//! Schedules of the job queue: each tick is enqueued once over all workers, also while all of them are busy.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Store,
    messaging::{Job, JobContext, MissedTicks, Queue, Worker},
};
use serde::{Deserialize, Serialize};

use super::{Attempt, Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

#[derive(Serialize, Deserialize)]
struct Tick;

impl Job for Tick {
    const NAME: &'static str = "tick";
}

#[derive(Serialize, Deserialize)]
struct Long {
    lasts: u64,
}

impl Job for Long {
    const NAME: &'static str = "long";
}

/// How many ticks pass while all workers are busy.
const BUSY_TICKS: u32 = 6;

pub(super) struct Ticking {
    period: Duration,
    missed: MissedTicks,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// When the entry was first sent.
    since: Option<Duration>,
    /// The jobs of all ticks that ran.
    ran: BTreeSet<String>,
}

impl Ticking {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[19]);
        Self {
            period: dice.millis(300, 1500),
            missed: *dice.pick(&[MissedTicks::RunOnce, MissedTicks::Skip, MissedTicks::RunAll]),
            state: Arc::default(),
        }
    }

    fn queue(&self, store: &Store) -> Queue {
        match Queue::new(store, "sim", "ticks") {
            Ok(queue) => queue,
            Err(error) => panic!("a queue cannot be made: {error}"),
        }
    }

    async fn worker(&self, queue: &Queue) -> redstart::Result<Worker> {
        let state = self.state.clone();
        let tick = move |_: Tick, context: JobContext| {
            state.lock().ran.insert(context.id().to_string());
            async { Ok::<_, &str>(()) }
        };
        let long = |job: Long, _: JobContext| async move {
            tokio::time::sleep(Duration::from_millis(job.lasts)).await;
            Ok::<_, &str>(())
        };
        queue
            .worker::<Tick, _>(tick)
            .handler::<Long, _>(long)
            .lease(Duration::from_secs(2))
            .concurrency(1)
            .start()
            .await
    }

    async fn put(&self, queue: &Queue) -> redstart::Result<()> {
        let entry = queue.every("tick", self.period, &Tick, self.missed);
        entry.await.map(drop)
    }

    /// Ticks since the entry was sent, by the world's clock; one more for each end.
    fn most(&self, world: &World) -> u128 {
        let since = self.state.lock().since.unwrap_or_else(|| world.now());
        (world.now() - since).as_millis() / self.period.as_millis() + 2
    }
}

impl Workload for Ticking {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let queue = self.queue(&store);
            let mut worker = None;
            while client.next_operation() {
                client.rest(0, 600).await;
                match client.dice.below(4) {
                    0 => {
                        self.state.lock().since.get_or_insert(world.now());
                        // The time of the server, and the entry.
                        drop(client.call("every", 2, self.put(&queue)).await);
                    }
                    1 => {
                        let lasts = client.dice.between(0, 2500);
                        let job = Long { lasts };
                        let added = queue.enqueue(&job).into_future();
                        let added = client.call("enqueue", 1, added).await;
                        let well = matches!(added, Some(Ok(_)));
                        client.note(format_args!("a long job: {well}"));
                    }
                    2 if worker.is_some() => {
                        let running: Option<Worker> = worker.take();
                        if let Some(running) = running {
                            drop(running.shutdown(Duration::from_millis(500)).await);
                        }
                    }
                    _ if worker.is_none() => worker = self.worker(&queue).await.ok(),
                    _ => {}
                }
            }
            drop(worker);
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let queue = self.queue(store);
        let now = client.world.now();
        Box::pin(async move {
            self.state.lock().since.get_or_insert(now);
            self.put(&queue).await.map_err(|error| error.to_string())
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let queue = self.queue(&store);
            let failed = |what: &str, error: &redstart::Error| {
                world.breach(format!("{what} after the faults: {error}"));
            };
            if let Err(error) = self.put(&queue).await {
                return failed("no entry can be put", &error);
            }
            let worker = match self.worker(&queue).await {
                Ok(worker) => worker,
                Err(error) => return failed("no worker starts", &error),
            };
            // A long job of a call that failed may still arrive.
            tokio::time::sleep(world.slowest()).await;
            // Leases of those who died end, and what was missed is made up for.
            for _ in 0..120 {
                tokio::time::sleep(Duration::from_millis(500)).await;
                let counts = queue.inspect().counts().await;
                if counts.is_ok_and(|counts| counts.unfinished() == 0) {
                    break;
                }
            }
            let excused =
                world.plan.clocks_differ || world.may_have_lost(Duration::ZERO, world.now());
            let before = self.state.lock().ran.len();
            world.count(|tally| tally.contended += before as u64);
            let lasts = (self.period * BUSY_TICKS).as_millis() as u64;
            if let Err(error) = queue.enqueue(&Long { lasts }).await {
                return failed("no job is taken", &error);
            }
            tokio::time::sleep(self.period * (BUSY_TICKS + 2)).await;
            let ran = self.state.lock().ran.len();
            // One may be on its way at each end.
            if ran < before + BUSY_TICKS as usize {
                world.breach(format!(
                    "{} ticks ran while a worker was busy for {BUSY_TICKS} periods and two more passed",
                    ran - before
                ));
            }
            let most = self.most(&world);
            if ran as u128 > most && !excused {
                world.breach(format!("{ran} ticks ran, and at most {most} have passed"));
            }
            drop(worker.shutdown(Duration::from_secs(1)).await);
        })
    }
}
