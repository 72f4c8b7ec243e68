//! The job queue: every job that was taken runs until it is done; nothing is lost, nothing stays.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{
    Store,
    messaging::{Backoff, Job, JobContext, Queue, Worker},
};
use serde::{Deserialize, Serialize};

use super::{Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

#[derive(Serialize, Deserialize)]
struct Task {
    number: u64,
    lasts: u64,
    /// How often it fails first.
    fails: u16,
}

impl Job for Task {
    const NAME: &'static str = "task";
}

pub(super) struct Queueing {
    lease: Duration,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Jobs that were surely taken, and when.
    taken: BTreeMap<u64, Duration>,
    /// Runs that ended well.
    done: BTreeMap<u64, u32>,
    failed: BTreeMap<u64, u16>,
    running: BTreeSet<u64>,
}

impl Queueing {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[14]);
        Self {
            lease: dice.millis(1000, 5000),
            state: Arc::default(),
        }
    }

    fn queue(&self, store: &Store) -> Queue {
        match Queue::new(store, "sim", "jobs") {
            Ok(queue) => queue,
            Err(error) => panic!("a queue cannot be made: {error}"),
        }
    }

    async fn worker(&self, world: &Arc<World>, queue: &Queue) -> Option<Worker> {
        for _ in 0..600 {
            let (state, world) = (self.state.clone(), world.clone());
            let handler = move |task: Task, _: JobContext| {
                let (state, world) = (state.clone(), world.clone());
                async move {
                    world
                        .trace
                        .note("job", format_args!("{} begins", task.number));
                    state.lock().running.insert(task.number);
                    tokio::time::sleep(Duration::from_millis(task.lasts)).await;
                    let mut state = state.lock();
                    state.running.remove(&task.number);
                    let failed = state.failed.entry(task.number).or_default();
                    if *failed < task.fails {
                        *failed += 1;
                        return Err("not yet");
                    }
                    *state.done.entry(task.number).or_default() += 1;
                    drop(state);
                    world
                        .trace
                        .note("job", format_args!("{} ends", task.number));
                    Ok(())
                }
            };
            let builder = queue
                .worker::<Task, _>(handler)
                .lease(self.lease)
                .concurrency(2)
                .retry(Backoff::fixed(Duration::from_millis(200)), 1000);
            match builder.start().await {
                Ok(worker) => return Some(worker),
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
        None
    }
}

impl Workload for Queueing {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let queue = self.queue(&store);
            let world = client.world.clone();
            let mut worker = match client.dice.per_mille(600) {
                true => self.worker(&world, &queue).await,
                false => None,
            };
            while client.next_operation() {
                client.rest(0, 800).await;
                let task = Task {
                    number: client.dice.next() >> 16,
                    lasts: client.dice.between(0, 2000),
                    fails: client.dice.below(4).saturating_sub(2) as u16,
                };
                let mut call = queue.enqueue(&task);
                if client.dice.per_mille(300) {
                    call = call.delay(client.dice.millis(10, 3000));
                }
                if client.dice.per_mille(300) {
                    call = call.priority(client.dice.below(5) as i16);
                }
                let at = world.now();
                let added = client.perhaps_dropped(100, call.into_future()).await;
                if let Some(Ok(added)) = added {
                    client.note(format_args!("job {} is {added:?}", task.number));
                    if added.is_new() {
                        self.state.lock().taken.insert(task.number, at);
                    }
                }
                if client.dice.per_mille(60)
                    && let Some(running) = worker.take()
                {
                    let grace = client.dice.millis(0, 1500);
                    let stopped = running.shutdown(grace).await;
                    client.note(format_args!("worker shut down: {}", stopped.is_ok()));
                    worker = self.worker(&world, &queue).await;
                }
            }
            client.rest(0, 3000).await;
            drop(worker);
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let queue = self.queue(&store);
            let Some(worker) = self.worker(&world, &queue).await else {
                return world.breach("no worker starts".to_owned());
            };
            // The leases of those who died end, and their jobs are taken over.
            let mut counts = None;
            for _ in 0..240 {
                tokio::time::sleep(Duration::from_millis(500)).await;
                match queue.inspect().counts().await {
                    Ok(now) => {
                        let over = now.unfinished() == 0;
                        counts = Some(now);
                        if over {
                            break;
                        }
                    }
                    Err(error) => world.breach(format!("the counts cannot be read: {error}")),
                }
            }
            let left = counts.as_ref().map_or(1, |counts| counts.unfinished());
            if left > 0 {
                world.breach(format!("{left} jobs are never finished: {counts:?}"));
            }
            self.judge(&world);
            drop(worker.shutdown(Duration::from_secs(1)).await);
        })
    }
}

impl Queueing {
    fn judge(&self, world: &World) {
        let state = self.state.lock();
        for (number, at) in &state.taken {
            if !state.done.contains_key(number) && !world.may_have_lost(*at, world.now()) {
                world.breach(format!("job {number} was taken at {at:?} and is lost"));
            }
        }
        if world.plan.faults.is_empty() && world.plan.weather.slow.0 == 0 {
            for (number, times) in state.done.iter().filter(|(_, times)| **times > 1) {
                world.breach(format!(
                    "job {number} was done {times} times although nothing went wrong"
                ));
            }
        }
    }
}
