//! Unique jobs, cancelled jobs and limits of the job queue: one job per unique key, none that begins after it was cancelled,
//! no more at a time than the queue and each group may have, and a group of one in its order.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use redstart::{
    Store,
    messaging::{
        Backoff, Cancelled, Enqueued, Job, JobContext, JobId, JobLimit, Queue, UniqueUntil, Worker,
    },
    sim::{Process, current},
};
use serde::{Deserialize, Serialize};

use super::{
    Attempt, Work, Workload,
    survivor::{Survivors, until_over},
};
use crate::{
    client::Client,
    dice::Dice,
    world::{SUSPENDED, World},
};

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
const BACKOFF: Duration = Duration::from_millis(100);
/// Parts of a queue that exist only while there are jobs.
const JOBS: &[&str] = &[
    ":jobs", ":ranked", ":grouped", ":groups", ":delayed", ":details",
];

pub(super) struct Limiting {
    lease: Duration,
    /// How many run at a time, of all and of each group.
    most: (u32, u32),
    /// For how long a key is held, where that is a time.
    throttle: Duration,
    state: Arc<Mutex<State>>,
    /// Workers of clients that have done their work, with their processes.
    survivors: Survivors,
}

#[derive(Default)]
struct State {
    count: u64,
    jobs: BTreeMap<u64, Entry>,
    running: Vec<Run>,
    runs: u64,
    /// When each job began for the first time.
    begun: BTreeMap<u64, Duration>,
}

/// Until when a job holds its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Done,
    Time,
}

/// What is known of a job.
#[derive(Clone, Debug)]
struct Entry {
    group: Option<u64>,
    key: Option<(String, Until)>,
    sent: Duration,
    /// When it was surely taken.
    taken: Option<Duration>,
    id: Option<JobId>,
    failed: u16,
    /// It may be over: its handler has ended well, or its end was asked for.
    over: Option<Duration>,
    /// Its handler has ended well.
    ended: bool,
    /// How often its end was asked for.
    cancels: u32,
    /// When its cancellation was sent and answered.
    cancelled: Option<(Duration, Duration, Cancelled)>,
}

/// A handler that runs.
struct Run {
    run: u64,
    group: Option<u64>,
    /// When the job began for the first time.
    since: Duration,
    process: Option<Arc<Process>>,
    context: JobContext,
}

impl Run {
    /// Whether it runs, and cannot know that it lost its job.
    fn counts(&self) -> bool {
        let process = self.process.as_ref();
        process.is_none_or(|process| process.is_running())
            && self.context.lost().now_or_never().is_none()
    }
}

/// Takes a run off the list, also if the worker drops it half-way. A process that is killed drops nothing.
struct Running(Arc<Mutex<State>>, u64);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let ended = state.running.iter().position(|run| run.run == self.1);
        let ended = ended.map(|at| state.running.swap_remove(at));
        drop(state);
        drop(ended);
    }
}

/// Whether nothing goes wrong.
fn is_calm(world: &World) -> bool {
    world.plan.faults.is_empty() && world.plan.weather.slow.0 == 0
}

/// Whether what servers took since then may be gone, or is under another clock. A worker whose machine was suspended cannot know that
/// others have its jobs meanwhile.
fn is_excused(world: &World, since: Duration) -> bool {
    let now = world.now();
    world.may_have_lost(since, now)
        || world.clock_jumped(since, now)
        || world.was_suspended(since.saturating_sub(SUSPENDED), now)
}

impl State {
    /// Whether too many run once one more of this group does.
    fn crowds(&self, world: &World, limits: &Limits, group: Option<u64>) -> Vec<String> {
        let mut breaches = Vec::new();
        let (most, of_group) = limits.most;
        let counted = |of: Option<Option<u64>>| {
            let runs = self.running.iter().filter(|run| run.counts());
            let runs = runs.filter(|run| of.is_none_or(|of| of == run.group));
            let since = runs.clone().map(|run| run.since).min();
            let since = since.unwrap_or(world.now()).saturating_sub(limits.lease);
            (runs.count() as u32 + 1, since)
        };
        let (count, since) = counted(None);
        if count > most && !is_excused(world, since) {
            breaches.push(format!("{count} jobs run at a time, and {most} may"));
        }
        let (count, since) = counted(Some(group));
        if group.is_some() && count > of_group && !is_excused(world, since) {
            breaches.push(format!(
                "{count} jobs of group {group:?} run at a time, and {of_group} may"
            ));
        }
        breaches
    }

    /// Why a job may not begin now.
    fn objections(&self, world: &World, limits: &Limits, number: u64, id: JobId) -> Vec<String> {
        let now = world.now();
        let mut breaches = Vec::new();
        let Some(entry) = self.jobs.get(&number) else {
            return breaches;
        };
        if entry.id.is_some_and(|known| known != id) && !is_excused(world, entry.sent) {
            breaches.push(format!("job {number} was added twice"));
        }
        if let Some((sent, answered, outcome)) = entry.cancelled
            && !is_excused(world, sent)
        {
            // One that runs may be with its worker, and not have begun.
            let late = match outcome {
                Cancelled::Ended => true,
                Cancelled::Told => now > answered + limits.lease,
                Cancelled::NotFound => false,
            };
            if late {
                breaches.push(format!("job {number} begins after it was {outcome:?}"));
            }
        }
        // A group of one runs in its order.
        if let (Some(group), 1) = (entry.group, limits.most.1) {
            let before = self.jobs.iter().find(|(other, known)| {
                **other != number
                    && known.group == Some(group)
                    && known.taken.is_some_and(|taken| taken < entry.sent)
                    && known.over.is_none()
                    && !is_excused(world, known.sent)
            });
            if let Some((other, _)) = before {
                breaches.push(format!(
                    "job {number} of group {group} begins before job {other}, which came earlier"
                ));
            }
        }
        breaches
    }
}

#[derive(Clone, Copy)]
struct Limits {
    most: (u32, u32),
    lease: Duration,
}

fn begin(
    world: &World,
    state: &Arc<Mutex<State>>,
    limits: &Limits,
    number: u64,
    context: JobContext,
) -> Running {
    let mut guard = state.lock();
    let group = guard.jobs.get(&number).and_then(|entry| entry.group);
    let mut breaches = guard.objections(world, limits, number, context.id());
    breaches.extend(guard.crowds(world, limits, group));
    if guard.running.iter().any(Run::counts) {
        world.met();
    }
    if let Some(entry) = guard.jobs.get_mut(&number) {
        entry.id.get_or_insert(context.id());
    }
    guard.runs += 1;
    let run = guard.runs;
    // If the server lost an earlier reservation, the end of that run, which is told for as long as it takes, ends this one.
    let since = *guard.begun.entry(number).or_insert(world.now());
    guard.running.push(Run {
        run,
        group,
        since,
        process: current(),
        context,
    });
    drop(guard);
    breaches.into_iter().for_each(|breach| world.breach(breach));
    Running(state.clone(), run)
}

impl Limiting {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[44]);
        Self {
            lease: dice.millis(1000, 4000),
            most: (dice.between(2, 4) as u32, dice.between(1, 2) as u32),
            throttle: dice.millis(1000, 4000),
            state: Arc::default(),
            survivors: Survivors::default(),
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            most: self.most,
            lease: self.lease,
        }
    }

    fn queue(&self, store: &Store) -> Queue {
        let (most, of_group) = self.most;
        let builder = Queue::builder(store, "sim", "jobs")
            .limit(JobLimit::concurrency(most))
            .group_limit(JobLimit::concurrency(of_group));
        match builder.build() {
            Ok(queue) => queue,
            Err(error) => panic!("a queue cannot be made: {error}"),
        }
    }

    async fn worker(&self, client: &Client, queue: &Queue) -> Option<Worker> {
        let limits = self.limits();
        for _ in 0..600 {
            let (state, world) = (self.state.clone(), client.world.clone());
            let handler = move |task: Task, context: JobContext| {
                let (state, world) = (state.clone(), world.clone());
                async move {
                    world
                        .trace
                        .note("job", format_args!("{} begins", task.number));
                    let running = begin(&world, &state, &limits, task.number, context);
                    tokio::time::sleep(Duration::from_millis(task.lasts)).await;
                    drop(running);
                    let mut state = state.lock();
                    let Some(entry) = state.jobs.get_mut(&task.number) else {
                        return Ok(());
                    };
                    if entry.failed < task.fails {
                        entry.failed += 1;
                        return Err("not yet");
                    }
                    entry.over.get_or_insert(world.now());
                    entry.ended = true;
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
                .concurrency(3)
                .cancel_grace(Duration::from_millis(100))
                .retry(Backoff::fixed(BACKOFF), 1000);
            let asked = client.world.now();
            let started = builder.start().await;
            client.heard(&started, asked);
            match started {
                Ok(worker) => return Some(worker),
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
        None
    }

    /// A new job is to be sent; its number.
    fn sends(&self, world: &World, group: Option<u64>, key: Option<(String, Until)>) -> u64 {
        let mut state = self.state.lock();
        state.count += 1;
        let number = state.count;
        let entry = Entry {
            group,
            key,
            sent: world.now(),
            taken: None,
            id: None,
            failed: 0,
            over: None,
            ended: false,
            cancels: 0,
            cancelled: None,
        };
        state.jobs.insert(number, entry);
        number
    }

    async fn enqueue(&self, client: &mut Client, queue: &Queue) {
        let world = client.world.clone();
        let group = match client.dice.below(4) {
            0 => None,
            other => Some(other % 2),
        };
        let key = match client.dice.below(5) {
            0 | 1 => Some((format!("key{}", client.dice.below(2)), Until::Done)),
            2 => Some((format!("time{}", client.dice.below(2)), Until::Time)),
            _ => None,
        };
        let number = self.sends(&world, group, key.clone());
        let task = Task {
            number,
            lasts: client.dice.between(0, 1200),
            fails: client.dice.below(4).saturating_sub(2) as u16,
        };
        let mut call = queue.enqueue(&task);
        if let Some(group) = group {
            call = call.group(&format!("group{group}"));
        }
        if let Some((key, until)) = &key {
            call = call.unique(
                key,
                match until {
                    Until::Done => UniqueUntil::Done,
                    Until::Time => UniqueUntil::For(self.throttle),
                },
            );
        }
        let added = client.call("enqueue", 1, call.into_future()).await;
        if let Some(Ok(added)) = added {
            client.note(format_args!(
                "job {number} {key:?} is {:?}",
                added.enqueued()
            ));
            self.added(&world, number, added.enqueued());
        }
    }

    /// The answer to an enqueue: does anybody else hold the key?
    fn added(&self, world: &World, number: u64, added: Enqueued) {
        let now = world.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(mine) = state.jobs.get(&number).cloned() else {
            return;
        };
        let mut breaches = Vec::new();
        let same = |entry: &&Entry| entry.key.is_some() && entry.key == mine.key;
        match added {
            Enqueued::New(id) => {
                for other in state.jobs.values().filter(same) {
                    let Some(taken) = other.taken.filter(|taken| *taken < mine.sent) else {
                        continue;
                    };
                    let held = match &mine.key {
                        Some((_, Until::Time)) => {
                            now + Duration::from_millis(2) < other.sent + self.throttle
                        }
                        _ => other.over.is_none(),
                    };
                    if held && !is_excused(world, other.sent) {
                        breaches.push(format!(
                            "job {number} was added under {:?}, which a job has since {taken:?}",
                            mine.key
                        ));
                    }
                }
                if let Some(entry) = state.jobs.get_mut(&number) {
                    if entry.id.is_some_and(|known| known != id) && !is_excused(world, mine.sent) {
                        breaches.push(format!("job {number} was added twice"));
                    }
                    (entry.id, entry.taken) = (Some(id), Some(now));
                }
            }
            Enqueued::Duplicate(id) => {
                world.met();
                let other = state.jobs.values().find(|entry| entry.id == Some(id));
                if let Some(other) = other
                    && other.key != mine.key
                {
                    breaches.push(format!("job {number} is a duplicate of one of another key"));
                }
                // It is over when that was written down.
                let rests = Duration::from_secs(1) + 2 * world.plan.deadline;
                if let (Some(other), Some((_, Until::Done))) = (other, &mine.key)
                    && is_calm(world)
                    && other.over.is_some_and(|over| over + rests < mine.sent)
                {
                    breaches.push(format!("job {number} is a duplicate of one that is over"));
                }
                state.jobs.remove(&number);
            }
            Enqueued::Full => breaches.push("a queue without a capacity is full".to_owned()),
        }
        drop(guard);
        breaches.into_iter().for_each(|breach| world.breach(breach));
    }

    async fn cancel(&self, client: &mut Client, queue: &Queue) {
        let world = client.world.clone();
        let (number, id, before) = {
            let state = self.state.lock();
            let known = state.jobs.iter().filter_map(|(number, entry)| {
                entry.taken?;
                Some((*number, entry.id?, entry.clone()))
            });
            // One of the last.
            let mut known: Vec<_> = known.collect();
            let at = client.dice.below(3) as usize;
            match known.len() > at {
                true => known.swap_remove(known.len() - 1 - at),
                false => return,
            }
        };
        let sent = world.now();
        if let Some(entry) = self.state.lock().jobs.get_mut(&number) {
            entry.over.get_or_insert(sent);
            entry.cancels += 1;
        }
        let Some(Ok(outcome)) = client.call("cancel", 2, queue.cancel(id)).await else {
            return;
        };
        client.note(format_args!("job {number} is cancelled: {outcome:?}"));
        let mut state = self.state.lock();
        let Some(entry) = state.jobs.get_mut(&number) else {
            return;
        };
        let over = before.over.is_some() || entry.ended;
        let lost = is_excused(&world, before.sent);
        if outcome != Cancelled::NotFound && entry.cancelled.is_none() {
            entry.cancelled = Some((sent, world.now(), outcome));
        }
        // Sent again, the second request finds nothing; and so does that of another client.
        let ended = entry.cancels > 1 || !world.plan.faults.is_empty();
        drop(state);
        if outcome == Cancelled::NotFound && !over && !lost && !ended {
            world.breach(format!("job {number} waits or runs, and is not found"));
        }
    }
}

impl Workload for Limiting {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let queue = self.queue(&store);
            let worker = match client.dice.per_mille(700) {
                true => self.worker(&client, &queue).await,
                false => None,
            };
            while client.next_operation() {
                client.rest(0, 500).await;
                match client.dice.below(6) {
                    0 => self.cancel(&mut client, &queue).await,
                    _ => {
                        self.enqueue(&mut client, &queue).await;
                        self.enqueue(&mut client, &queue).await;
                    }
                }
            }
            client.rest(0, 3000).await;
            if let Some(worker) = worker {
                let process = client.process().clone();
                self.survivors.add(process, worker);
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let queue = self.queue(store);
        let world = client.world.clone();
        let number = self.sends(&world, Some(1), None);
        Box::pin(async move {
            let task = Task {
                number,
                lasts: 0,
                fails: 0,
            };
            let call = queue.enqueue(&task).group("group1");
            let added = call.await.map_err(|error| error.to_string())?;
            self.added(&world, number, added.enqueued());
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
            let counts = until_over(&world, &queue).await;
            let left = counts.as_ref().map_or(1, |counts| counts.unfinished());
            // Of keys that are of different times, a limit may count jobs that are lost.
            if left > 0 && !world.may_be_torn() {
                world.breach(format!("{left} jobs are never finished: {counts:?}"));
            }
            self.judge(&world);
            self.keys_are_free(&world, &queue).await;
            if let Some(worker) = worker {
                drop(worker.shutdown(Duration::from_secs(1)).await);
            }
            self.survivors.end();
        })
    }
}

impl Limiting {
    fn judge(&self, world: &World) {
        for (number, entry) in &self.state.lock().jobs {
            let lost = world.may_have_lost(entry.sent, world.now()) || world.may_be_torn();
            if entry.taken.is_some() && entry.over.is_none() && !lost {
                world.breach(format!("job {number} was taken and is lost"));
            }
        }
        let left = world.keys().into_iter().map(|(key, _)| key);
        let left = left.filter(|key| JOBS.iter().any(|part| key.ends_with(part)));
        for key in left.filter(|_| !world.may_be_torn()) {
            world.breach(format!("{key} is left although all jobs are over"));
        }
    }

    /// Jobs that are over hold no key.
    async fn keys_are_free(&self, world: &World, queue: &Queue) {
        for key in 0..2 {
            let key = format!("key{key}");
            let number = self.sends(world, None, Some((key.clone(), Until::Done)));
            let task = Task {
                number,
                lasts: 0,
                fails: 0,
            };
            let call = queue.enqueue(&task).unique(&key, UniqueUntil::Done);
            match call.await {
                Ok(added) if added.is_new() => {}
                // The job that holds it was lost, and the key was elsewhere then.
                Ok(_) if world.may_be_torn() => {}
                other => world.breach(format!(
                    "{key} is held although all jobs are over: {:?}",
                    other.map(|added| added.enqueued())
                )),
            }
        }
    }
}
