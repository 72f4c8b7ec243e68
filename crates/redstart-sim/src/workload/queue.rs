//! The job queue: every job that was taken runs until it is done or dead after its attempts, not before its time, never
//! again after it was settled, and by one worker at a time; nothing is lost, nothing stays. A worker that was shut down
//! holds nothing any more.

mod run;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Store,
    messaging::{
        Backoff, DispatchedJob, Dispatcher, Job, JobContext, Queue, Settled, Verdict, Worker,
    },
    sim::current,
};
use serde::{Deserialize, Serialize};

use super::{
    Attempt, Work, Workload,
    survivor::{Survivors, until_over},
};
use crate::{
    client::Client,
    dice::Dice,
    world::{OLD_MASTER, World},
};
use run::{Doer, Holder, Leases, State, begin, held, is_calm};

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

/// How long a job waits after a failed attempt.
const BACKOFF: Duration = Duration::from_millis(200);
/// Parts of a queue that exist only while there are jobs.
const JOBS: &[&str] = &[":jobs", ":ranked", ":delayed", ":details"];
/// A hash for each registration of a worker: what it holds.
const RUNNING: &str = "sim:queue:{jobs}:running:";
/// The registered workers.
const WORKERS: &str = "sim:queue:{jobs}:workers";

pub(super) struct Queueing {
    lease: Duration,
    /// How many attempts a job has.
    attempts: u16,
    state: Arc<Mutex<State>>,
    /// Workers of clients that have done their work, with their processes: they must go on working after the faults.
    survivors: Survivors,
}

impl Queueing {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[14]);
        Self {
            lease: dice.millis(1000, 5000),
            attempts: *dice.pick(&[3, 1000, 1000]),
            state: Arc::default(),
            survivors: Survivors::default(),
        }
    }

    fn queue(&self, store: &Store) -> Queue {
        match Queue::new(store, "sim", "jobs") {
            Ok(queue) => queue,
            Err(error) => panic!("a queue cannot be made: {error}"),
        }
    }

    /// A process of another version may have another lease.
    fn leases(&self, client: &Client) -> Leases {
        let own = match client.has_other_settings() {
            true => self.lease / 2,
            false => self.lease,
        };
        Leases {
            own,
            longest: self.lease,
            attempts: self.attempts,
        }
    }

    /// Starts a worker; with its number.
    async fn worker(&self, client: &Client, queue: &Queue) -> Option<(u64, Worker)> {
        let world = &client.world;
        let leases = self.leases(client);
        let number = {
            let mut state = self.state.lock();
            state.workers += 1;
            state.workers
        };
        for _ in 0..600 {
            let (state, world) = (self.state.clone(), world.clone());
            let handler = move |task: Task, context: JobContext| {
                let (state, world) = (state.clone(), world.clone());
                async move {
                    world
                        .trace
                        .note("job", format_args!("{} begins", task.number));
                    let holder = Holder::Handler(number, context);
                    let began = world.now();
                    let running = begin(&world, &state, leases, task.number, holder);
                    tokio::time::sleep(Duration::from_millis(task.lasts)).await;
                    drop(running);
                    let mut state = state.lock();
                    let failed = state.failed.entry(task.number).or_default();
                    if *failed < task.fails {
                        *failed += 1;
                        state.failed_by.insert(task.number, number);
                        // Otherwise the lease may end before that is written down.
                        if is_calm(&world, leases.own) {
                            state.rests.insert(task.number, world.now());
                        }
                        return Err("not yet");
                    }
                    *state.done.entry(task.number).or_default() += 1;
                    if let Some(process) = current() {
                        let doer = Doer {
                            worker: number,
                            process,
                            began,
                            lease: leases.own,
                        };
                        state.done_by.insert(task.number, doer);
                    }
                    drop(state);
                    world
                        .trace
                        .note("job", format_args!("{} ends", task.number));
                    Ok(())
                }
            };
            let builder = queue
                .worker::<Task, _>(handler)
                .lease(leases.own)
                .concurrency(2)
                .retry(Backoff::fixed(BACKOFF), self.attempts);
            let asked = client.world.now();
            let started = builder.start().await;
            client.heard(&started, asked);
            match started {
                Ok(worker) => return Some((number, worker)),
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
        None
    }

    /// Shuts a worker down. If that succeeded, others may have at once what it held, and it is not registered any more.
    async fn shut_down(&self, client: &mut Client, number: u64, worker: Worker) {
        let world = client.world.clone();
        let began = world.now();
        // Those of handlers that do not know of a loss.
        let names: BTreeSet<String> = {
            let state = self.state.lock();
            let of_worker = state.running.iter().filter(|run| {
                let own = matches!(run.holder, Holder::Handler(of, _) if of == number);
                own && !run.holder.is_told(began)
            });
            of_worker
                .filter_map(|run| run.registration.clone())
                .collect()
        };
        self.state.lock().left.insert(number);
        let grace = client.dice.millis(0, 1500);
        let stopped = worker.shutdown(grace).await;
        client.heard(&stopped, began);
        client.note(format_args!("worker shut down: {}", stopped.is_ok()));
        let now = world.now();
        // What it took just before may come back with an older copy of the data, and an old master that nobody has told
        // keeps what it had.
        let since = began.saturating_sub(self.lease + OLD_MASTER);
        if stopped.is_err() || world.may_have_lost(since, now) {
            return;
        }
        let registered = world.members(WORKERS);
        let holding = held(&world);
        for name in names {
            if let Some(jobs) = holding.get(&name)
                && !jobs.is_empty()
            {
                world.breach(format!("a worker was shut down and still holds {jobs:?}"));
            } else if registered.contains(&name) {
                world.breach("a worker was shut down and is still registered".to_owned());
            }
        }
    }

    /// Whether a client takes jobs for workers outside of its process.
    async fn dispatcher(&self, client: &Client, queue: &Queue) -> Option<Dispatcher> {
        let mut dice = Dice::of(client.world.plan.seed, &[27, client.index as u64]);
        if !dice.per_mille(300) {
            return None;
        }
        let builder = queue
            .dispatcher([Task::NAME])
            .lease(self.leases(client).own)
            .retry(Backoff::fixed(BACKOFF), self.attempts);
        let asked = client.world.now();
        let started = builder.start().await;
        client.heard(&started, asked);
        started.ok()
    }

    /// Takes some jobs and carries them out outside. The taking may be dropped: what was taken is handed back then.
    async fn dispatch(&self, client: &mut Client, dispatcher: &Dispatcher) {
        let world = client.world.clone();
        let asked = world.now();
        let (most, wait) = (
            client.dice.between(1, 3) as usize,
            client.dice.millis(0, 1000),
        );
        // It registers, asks, and asks again if jobs may be due; if its lease was lost, it begins again.
        let limit = client.longest(wait) + 6 * world.plan.deadline;
        let take = dispatcher.take(most, wait);
        let taken = client.call_within(400, "take", limit, take).await;
        let Some(Ok(jobs)) = taken else {
            return;
        };
        let until = asked + self.leases(client).own;
        for job in jobs {
            self.run_outside(client, dispatcher, job, until).await;
        }
    }

    async fn run_outside(
        &self,
        client: &mut Client,
        dispatcher: &Dispatcher,
        job: DispatchedJob,
        until: Duration,
    ) {
        let world = client.world.clone();
        let Ok(task) = serde_json::from_slice::<Task>(&job.payload) else {
            return world.breach("a job has another payload than it was given".to_owned());
        };
        // Its worker knows when its lease ends.
        if world.now() >= until {
            // It is taken for dead, and charged an attempt that never began.
            self.state.lock().unsettled.insert(task.number);
            return;
        }
        let (leases, holder) = (self.leases(client), Holder::Outside(until));
        client.note(format_args!("runs job {} outside", task.number));
        let running = begin(&world, &self.state, leases, task.number, holder);
        client.rest(0, task.lasts.min(500)).await;
        drop(running);
        let verdict = {
            let mut state = self.state.lock();
            let failed = state.failed.entry(task.number).or_default();
            if *failed < task.fails {
                *failed += 1;
                let outside = u64::MAX - client.index as u64;
                state.failed_by.insert(task.number, outside);
                state.left.insert(outside);
                Verdict::retry("not yet")
            } else {
                *state.done.entry(task.number).or_default() += 1;
                Verdict::Done
            }
        };
        let (sent, done) = (world.now(), verdict == Verdict::Done);
        let settle = dispatcher.settle(&job.fence, verdict);
        // The record of the job, and its ending.
        let settled = client.call("settle", 2, settle).await;
        client.note(format_args!("job {} settled: {settled:?}", task.number));
        let mut state = self.state.lock();
        match settled {
            Some(Ok(Settled::Done)) if done => {
                state.settled.insert(task.number, sent);
            }
            Some(Ok(Settled::Done)) => {
                state.failed_by.remove(&task.number);
                state.rests.insert(task.number, sent);
            }
            _ => {
                state.unsettled.insert(task.number);
            }
        }
    }
}

impl Workload for Queueing {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let queue = self.queue(&store);
            let world = client.world.clone();
            let mut worker = match client.dice.per_mille(600) {
                true => self.worker(&client, &queue).await,
                false => None,
            };
            let dispatcher = self.dispatcher(&client, &queue).await;
            while client.next_operation() {
                if let Some(dispatcher) = &dispatcher {
                    self.dispatch(&mut client, dispatcher).await;
                }
                client.rest(0, 800).await;
                let task = Task {
                    number: client.dice.next() >> 16,
                    lasts: match world.plan.provokes && client.dice.per_mille(200) {
                        // Longer than the lease of a worker that is cut off.
                        true => client.dice.between(0, 2 * self.lease.as_millis() as u64),
                        false => client.dice.between(0, 2000),
                    },
                    fails: match self.attempts {
                        1000 => client.dice.below(4).saturating_sub(2) as u16,
                        _ => client.dice.below(5) as u16,
                    },
                };
                self.state.lock().sent.insert(task.number, world.now());
                let mut call = queue.enqueue(&task);
                if client.dice.per_mille(300) {
                    let delay = client.dice.millis(10, 3000);
                    call = call.delay(delay);
                    let now = world.now();
                    let due = now + delay - Duration::from_millis(2);
                    self.state.lock().due.insert(task.number, (now, due));
                }
                if client.dice.per_mille(300) {
                    call = call.priority(client.dice.below(5) as i16);
                }
                let at = world.now();
                let added = client.call("enqueue", 1, call.into_future()).await;
                if let Some(Ok(added)) = added {
                    client.note(format_args!("job {} is {added:?}", task.number));
                    if added.is_new() {
                        self.state.lock().taken.insert(task.number, at);
                    }
                }
                if client.dice.per_mille(100)
                    && let Some((number, running)) = worker.take()
                {
                    self.shut_down(&mut client, number, running).await;
                    worker = self.worker(&client, &queue).await;
                }
            }
            client.rest(0, 3000).await;
            match worker {
                Some((_, worker)) if client.dice.per_mille(700) => {
                    let process = client.process().clone();
                    self.survivors.add(process, worker);
                }
                worker => {
                    let number = worker.as_ref().map(|(number, _)| *number);
                    self.state.lock().left.extend(number);
                    drop(worker);
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let queue = self.queue(store);
        let world = client.world.clone();
        // Another one each time: it may have been taken although an error came back.
        let number = world.now().as_micros() as u64 * 8 + client.index as u64;
        Box::pin(async move {
            let task = Task {
                number,
                lasts: 0,
                fails: 0,
            };
            let at = world.now();
            let added = queue.enqueue(&task).await;
            added.map_err(|error| error.to_string())?;
            self.state.lock().taken.insert(number, at);
            Ok(())
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let queue = self.queue(&store);
            // Those that lived through the faults must do; a new one is started only if there are none.
            let none = self.survivors.are_gone();
            let worker = match none {
                true => self.worker(&client, &queue).await,
                false => None,
            };
            if none && worker.is_none() {
                return world.breach("no worker starts".to_owned());
            }
            // The leases of those who died end, and their jobs are taken over.
            let counts = until_over(&world, &queue).await;
            let left = counts.as_ref().map_or(1, |counts| counts.unfinished());
            if left > 0 {
                world.breach(format!("{left} jobs are never finished: {counts:?}"));
            }
            let letters = queue.inspect().dead_letters();
            let dead = match letters.list(None).await {
                Ok(dead) => dead,
                Err(error) => return world.breach(format!("dead letters cannot be read: {error}")),
            };
            let dead = dead.iter().filter_map(|letter| letter.job.as_ref());
            let dead: BTreeSet<u64> = dead
                .filter_map(|job| Some(job.decode::<Task>().ok()?.number))
                .collect();
            self.judge(&world, &dead);
            let purged = letters.purge(|_| true).await;
            client.note(format_args!("{} are dead, {purged:?}", dead.len()));
            // Its keys have no TTL: what they hold is data. But nothing is kept of jobs that are over.
            let left = world.keys().into_iter().map(|(key, _)| key);
            let left = left.filter(|key| JOBS.iter().any(|part| key.ends_with(part)));
            for key in left.filter(|_| !world.may_be_torn()) {
                world.breach(format!("{key} is left although all jobs are over"));
            }
            if let Some((_, worker)) = worker {
                drop(worker.shutdown(Duration::from_secs(1)).await);
            }
            self.survivors.end();
        })
    }
}

impl Queueing {
    fn judge(&self, world: &World, dead: &BTreeSet<u64>) {
        let state = self.state.lock();
        for (number, at) in &state.taken {
            let over = state.done.contains_key(number) || dead.contains(number);
            if !over && !world.may_have_lost(*at, world.now()) {
                world.breach(format!("job {number} was taken at {at:?} and is lost"));
            }
        }
        for number in dead {
            if let Some(sent) = state.settled.get(number)
                && !world.may_have_lost(*sent, world.now())
            {
                world.breach(format!("job {number} is dead after it was settled as done"));
            }
            let failed = state.failed.get(number).copied().unwrap_or_default();
            if is_calm(world, self.lease / 2)
                && failed < self.attempts
                && !state.unsettled.contains(number)
            {
                let most = self.attempts;
                world.breach(format!(
                    "job {number} is dead after {failed} of {most} attempts"
                ));
            }
        }
        if is_calm(world, self.lease / 2) {
            let twice =
                |(number, times): &(&u64, &u32)| **times > 1 && !state.unsettled.contains(*number);
            for (number, times) in state.done.iter().filter(twice) {
                world.breach(format!(
                    "job {number} was done {times} times although nothing went wrong"
                ));
            }
        }
    }
}
