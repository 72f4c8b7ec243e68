//! Queues, topics and streams: nothing lost, nothing twice, nothing early.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use redstart::{
    Error, Result,
    messaging::{
        Backoff, EventStream, Heard, Job, JobContext, NotifySet, PriorityQueue, Queue,
        ReliableList, Ring, StartAt, Topic, Verdict, Worker,
    },
};
use serde::{Deserialize, Serialize};
use tokio::{task::JoinSet, time::Instant};

use super::{Bed, Claims, Op, Tally, WAIT, Workload, counters, until};

super::patterns! { "messaging":
    "job_queue", "job", 1.0,
    "every job that was accepted is run, once", Jobs::open;
    "dead_letter", "dead letter", 1.0,
    "every job that always fails becomes a dead letter after exactly two attempts", DeadJobs::open;
    "delayed_jobs", "job", 1.0,
    "every delayed job is run, and none before it is due", DelayedJobs::open;
    "priority_queue", "item", 0.5,
    "every item that was pushed is popped once", Priorities::open;
    "reliable_list", "item", 1.0,
    "every item that was pushed is taken once", List::open;
    "ring", "item", 0.0,
    "no item is visited twice in a lap, and no lap skips one", Laps::open;
    "notification", "member", 1.0,
    "every new notice is taken once", Notices::open;
    "topic", "message", 1.0,
    "listeners hear every message in its publisher's order, or are told of a gap", Goals::open;
    "event_stream", "event", 1.0,
    "the group reads every event once, in the order of the stream", Events::open;
}

/// What consumers got: how many, and the sum of their numbers.
#[derive(Default)]
struct Got {
    count: AtomicU64,
    sum: AtomicU64,
}

impl Got {
    fn add(&self, number: u64) {
        self.sum.fetch_add(number, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }
}

/// What producers sent, and whether consumers got exactly that.
#[derive(Default)]
struct Sent {
    tally: Tally,
    sum: AtomicU64,
}

impl Sent {
    fn add<T>(&self, number: u64, outcome: &Result<T>) {
        if outcome.is_ok() {
            self.sum.fetch_add(number, Ordering::Relaxed);
        }
        self.tally.add(1, outcome);
    }

    /// Waits until everything has arrived, and a moment longer for what comes twice.
    async fn arrived(&self, what: &str, got: &Got, claims: &Claims) -> Result<()> {
        until(|| async { Ok(got.count() >= self.tally.done()) }).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let count = got.count();
        claims.hold(self.tally.explains(count), || {
            format!("{count} of {} {what} arrived", self.tally.text())
        });
        let sums = (
            got.sum.load(Ordering::Relaxed),
            self.sum.load(Ordering::Relaxed),
        );
        claims.hold(count != self.tally.done() || sums.0 == sums.1, || {
            format!("as many {what} arrived as were sent, but not the same ones")
        });
        Ok(())
    }
}

/// Consumers beside the clients; they end with the workload.
#[derive(Default)]
struct Beside {
    tasks: tokio::sync::Mutex<JoinSet<Result<()>>>,
    stop: Arc<AtomicBool>,
}

impl Beside {
    async fn spawn<F>(&self, task: impl FnOnce(Arc<AtomicBool>) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let task = task(self.stop.clone());
        self.tasks.lock().await.spawn(task);
    }

    /// Stops them; an error of a consumer is one of the run.
    async fn stop(&self) -> Result<()> {
        self.stop.store(true, Ordering::SeqCst);
        let mut tasks = self.tasks.lock().await;
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok(result) => result?,
                Err(error) if error.is_cancelled() => {}
                Err(error) => return Err(panicked(&error)),
            }
        }
        Ok(())
    }
}

fn panicked(error: &tokio::task::JoinError) -> Error {
    redstart::redis::RedisError::from((
        redstart::redis::ErrorKind::Client,
        "a consumer panicked",
        error.to_string(),
    ))
    .into()
}

/// Consumers beside the clients.
const CONSUMERS: usize = 4;
/// How long a consumer waits before it looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

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

struct Jobs {
    queue: Queue,
    worker: Mutex<Option<Worker>>,
    sent: Sent,
    got: Arc<Got>,
    body: String,
    claims: Claims,
}

impl Jobs {
    async fn open(bed: &Bed) -> Result<Self> {
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

#[async_trait]
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
        self.sent.arrived("jobs", &self.got, &self.claims).await?;
        let worker = self.worker.lock().take();
        if let Some(worker) = worker {
            let _ = worker.shutdown(WAIT).await?;
        }
        let left = self.queue.inspect().counts().await?.unfinished();
        self.claims
            .hold(left == 0, || format!("{left} jobs are left in the queue"));
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}

const ATTEMPTS: u16 = 2;

struct DeadJobs {
    queue: Queue,
    worker: Mutex<Option<Worker>>,
    sent: Sent,
    tries: Arc<AtomicU64>,
    claims: Claims,
}

impl DeadJobs {
    async fn open(bed: &Bed) -> Result<Self> {
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

#[async_trait]
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

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}

struct DelayedJobs {
    queue: Queue,
    worker: Mutex<Option<Worker>>,
    sent: Sent,
    got: Arc<Got>,
    early: Arc<AtomicU64>,
    started: Instant,
    claims: Claims,
}

impl DelayedJobs {
    async fn open(bed: &Bed) -> Result<Self> {
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

#[async_trait]
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
        self.sent.arrived("jobs", &self.got, &self.claims).await?;
        let worker = self.worker.lock().take();
        if let Some(worker) = worker {
            let _ = worker.shutdown(WAIT).await?;
        }
        let early = self.early.load(Ordering::Relaxed);
        self.claims.hold(early == 0, || {
            format!("{early} jobs ran before they were due")
        });
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}

struct Priorities {
    queue: PriorityQueue<u64>,
    sent: Sent,
    got: Got,
    claims: Claims,
}

impl Priorities {
    async fn open(bed: &Bed) -> Result<Self> {
        Ok(Self {
            queue: PriorityQueue::new(&bed.store, &bed.namespace, "items")?,
            sent: Sent::default(),
            got: Got::default(),
            claims: Claims::default(),
        })
    }
}

#[async_trait]
impl Workload for Priorities {
    async fn operate(&self, op: Op) -> Result<()> {
        if op.write {
            let pushed = self.queue.push(&op.number, (op.random % 10) as i32).await;
            self.sent.add(op.number, &pushed);
            return pushed.map(|_| ());
        }
        if let Some(number) = self.queue.pop(Duration::ZERO).await? {
            self.got.add(number);
        }
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        while let Some(number) = self.queue.pop(Duration::ZERO).await? {
            self.got.add(number);
        }
        self.sent.arrived("items", &self.got, &self.claims).await
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}

struct List {
    list: ReliableList,
    beside: Beside,
    sent: Sent,
    got: Arc<Got>,
    claims: Claims,
}

impl List {
    async fn open(bed: &Bed) -> Result<Self> {
        let list = ReliableList::builder(&bed.store, &bed.namespace, "items")
            .lease(Duration::from_secs(60))
            .build()?;
        let (beside, got) = (Beside::default(), Arc::new(Got::default()));
        for _ in 0..CONSUMERS {
            let (mut consumer, got) = (list.consumer().await?, got.clone());
            beside
                .spawn(|stop| async move {
                    while !stop.load(Ordering::SeqCst) {
                        if let Some(item) = consumer.take(LOOK).await? {
                            let text = String::from_utf8_lossy(item.payload()).into_owned();
                            let _ = item.done().await?;
                            got.add(text.parse().unwrap_or(u64::MAX));
                        }
                    }
                    consumer.close().await.map(|_| ())
                })
                .await;
        }
        Ok(Self {
            list,
            beside,
            sent: Sent::default(),
            got,
            claims: Claims::default(),
        })
    }
}

#[async_trait]
impl Workload for List {
    async fn operate(&self, op: Op) -> Result<()> {
        let pushed = self.list.push(op.number.to_string()).await;
        self.sent.add(op.number, &pushed);
        pushed.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        self.sent.arrived("items", &self.got, &self.claims).await?;
        self.beside.stop().await
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}

struct Laps {
    ring: Ring,
    items: usize,
    /// The visits of laps that are not complete yet.
    open: Mutex<BTreeMap<u64, BTreeSet<String>>>,
    failures: AtomicU64,
    claims: Claims,
}

impl Laps {
    async fn open(bed: &Bed) -> Result<Self> {
        let ring = Ring::new(&bed.store, &bed.namespace, "items")?;
        let items = bed.entities(100);
        for n in 0..items {
            ring.add(&format!("e{n}")).await?;
        }
        Ok(Self {
            ring,
            items,
            open: Mutex::default(),
            failures: AtomicU64::new(0),
            claims: Claims::default(),
        })
    }
}

#[async_trait]
impl Workload for Laps {
    async fn operate(&self, _: Op) -> Result<()> {
        let visit = self.ring.next().await;
        if visit.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        let Some(visit) = visit? else {
            self.claims.hold(false, || "the ring is empty".to_owned());
            return Ok(());
        };
        let mut open = self.open.lock();
        let lap = open.entry(visit.lap).or_default();
        let first = lap.insert(visit.item.clone());
        if lap.len() == self.items {
            open.remove(&visit.lap);
        }
        self.claims.hold(first, || {
            format!("{} was visited twice in lap {}", visit.item, visit.lap)
        });
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        // Complete laps were removed; only the last one may be incomplete.
        let open = self.open.lock();
        let incomplete = open.len().saturating_sub(1) as u64;
        let failures = self.failures.load(Ordering::Relaxed);
        self.claims.hold(incomplete <= failures, || {
            format!("{incomplete} laps skipped an item")
        });
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.items as u64
    }
}

struct Notices {
    set: NotifySet,
    members: usize,
    beside: Beside,
    fresh: Tally,
    taken: Arc<AtomicU64>,
    claims: Claims,
}

impl Notices {
    async fn open(bed: &Bed) -> Result<Self> {
        let set = NotifySet::new(&bed.store, &bed.namespace, "changed")?;
        let (beside, taken) = (Beside::default(), Arc::new(AtomicU64::new(0)));
        for _ in 0..2 {
            let (mut consumer, taken) = (set.consumer(), taken.clone());
            beside
                .spawn(|stop| async move {
                    while !stop.load(Ordering::SeqCst) {
                        let members = consumer.take(100, LOOK).await?;
                        taken.fetch_add(members.len() as u64, Ordering::SeqCst);
                    }
                    Ok(())
                })
                .await;
        }
        Ok(Self {
            set,
            members: bed.entities(1_000_000),
            beside,
            fresh: Tally::default(),
            taken,
            claims: Claims::default(),
        })
    }
}

#[async_trait]
impl Workload for Notices {
    async fn operate(&self, op: Op) -> Result<()> {
        let member = format!("e{}", op.index(self.members));
        let added = self.set.add(&[member]).await;
        match &added {
            Ok(fresh) => self.fresh.add(*fresh, &added),
            Err(_) => self.fresh.add(1, &added),
        }
        added.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        let taken = || self.taken.load(Ordering::SeqCst);
        until(|| async { Ok(taken() >= self.fresh.done()) }).await?;
        self.beside.stop().await?;
        self.claims.hold(self.fresh.explains(taken()), || {
            format!("{} notices were taken of {}", taken(), self.fresh.text())
        });
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.members as u64
    }
}

/// What a listener of a topic got from each publisher.
struct Ear {
    /// The next number that is expected of each publisher.
    next: Vec<AtomicU64>,
    heard: AtomicU64,
    gaps: AtomicU64,
    claims: Claims,
}

struct Goals {
    topic: Topic<(u64, u64)>,
    beside: Beside,
    ears: Vec<Arc<Ear>>,
    published: Vec<AtomicU64>,
    sent: Sent,
    claims: Claims,
}

impl Goals {
    async fn open(bed: &Bed) -> Result<Self> {
        let topic = Topic::<(u64, u64)>::builder(&bed.store, &bed.namespace, "goals")
            .buffer(1 << 16)
            .build()?;
        let (beside, mut ears) = (Beside::default(), Vec::new());
        for _ in 0..2 {
            let ear = Arc::new(Ear {
                next: counters(bed.clients),
                heard: AtomicU64::new(0),
                gaps: AtomicU64::new(0),
                claims: Claims::default(),
            });
            ears.push(ear.clone());
            let mut listener = topic.listen().await?;
            beside
                .spawn(|stop| async move {
                    while !stop.load(Ordering::SeqCst) {
                        match tokio::time::timeout(LOOK, listener.next()).await {
                            Ok(Some(Heard::Message { message, .. })) => ear.hear(message),
                            Ok(Some(Heard::Gap)) => {
                                ear.gaps.fetch_add(1, Ordering::SeqCst);
                            }
                            Ok(Some(_)) | Err(_) => {}
                            Ok(None) => break,
                        }
                    }
                    Ok(())
                })
                .await;
        }
        Ok(Self {
            topic,
            beside,
            ears,
            published: counters(bed.clients),
            sent: Sent::default(),
            claims: Claims::default(),
        })
    }
}

impl Ear {
    fn hear(&self, (client, number): (u64, u64)) {
        self.heard.fetch_add(1, Ordering::SeqCst);
        let next = self.next[client as usize].swap(number + 1, Ordering::SeqCst);
        // After a gap numbers may be missing; they never go back.
        let right = match self.gaps.load(Ordering::SeqCst) {
            0 => number == next,
            _ => number >= next,
        };
        self.claims.hold(right, || {
            format!("message {number} of publisher {client} came where {next} was due")
        });
    }
}

#[async_trait]
impl Workload for Goals {
    async fn operate(&self, op: Op) -> Result<()> {
        // A client has one operation at a time, so its numbers are in order.
        let number = self.published[op.client].fetch_add(1, Ordering::SeqCst);
        let published = self.topic.publish(&(op.client as u64, number)).await;
        self.sent.add(number, &published);
        published.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        for ear in &self.ears {
            let heard = || ear.heard.load(Ordering::SeqCst);
            let gaps = || ear.gaps.load(Ordering::SeqCst);
            until(|| async { Ok(gaps() > 0 || heard() >= self.sent.tally.done()) }).await?;
            self.claims
                .hold(gaps() > 0 || self.sent.tally.explains(heard()), || {
                    format!(
                        "a listener heard {} of {} messages and was told of no gap",
                        heard(),
                        self.sent.tally.text()
                    )
                });
            if let Some(first) = ear.claims.first() {
                self.claims.hold(false, || first);
            }
        }
        self.beside.stop().await
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        0
    }

    fn figure(&self) -> Option<String> {
        let gaps: u64 = self
            .ears
            .iter()
            .map(|ear| ear.gaps.load(Ordering::SeqCst))
            .sum();
        Some(format!("{gaps} gaps were reported to 2 listeners"))
    }
}

struct Events {
    stream: EventStream<u64>,
    beside: Beside,
    sent: Sent,
    got: Arc<Got>,
    disorder: Arc<AtomicU64>,
    claims: Claims,
}

impl Events {
    async fn open(bed: &Bed) -> Result<Self> {
        let stream = EventStream::<u64>::new(&bed.store, &bed.namespace, "events")?;
        let mut group = stream.group("readers", StartAt::Beginning).await?;
        let (beside, got) = (Beside::default(), Arc::new(Got::default()));
        let disorder = Arc::new(AtomicU64::new(0));
        let (seen, wrong) = (got.clone(), disorder.clone());
        beside
            .spawn(|stop| async move {
                let mut last = (0u64, 0u64);
                while !stop.load(Ordering::SeqCst) {
                    let events = group.read("one", 500, LOOK).await?;
                    for entry in &events {
                        let id = entry.id.split_once('-');
                        let id = id.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                        let id = id.unwrap_or_default();
                        if id <= last {
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                        last = id;
                        seen.add(entry.event);
                    }
                    let ids: Vec<&String> = events.iter().map(|entry| &entry.id).collect();
                    if !ids.is_empty() {
                        group.ack(&ids).await?;
                    }
                }
                Ok(())
            })
            .await;
        Ok(Self {
            stream,
            beside,
            sent: Sent::default(),
            got,
            disorder,
            claims: Claims::default(),
        })
    }
}

#[async_trait]
impl Workload for Events {
    async fn operate(&self, op: Op) -> Result<()> {
        let appended = self.stream.append(&op.number).await;
        self.sent.add(op.number, &appended);
        appended.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        self.sent.arrived("events", &self.got, &self.claims).await?;
        self.beside.stop().await?;
        let disorder = self.disorder.load(Ordering::Relaxed);
        self.claims.hold(disorder == 0, || {
            format!("{disorder} events were read out of order")
        });
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.sent.tally.done()
    }
}
