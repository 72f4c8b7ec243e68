//! Random histories: whatever happens, a job is in exactly one place until it has ended, and what is counted is what is
//! there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use redstart::{
    Store,
    messaging::{
        Backoff, Cancelled, ChildFailure, Enqueue, Flow, Job, JobContext, JobId, JobLimit,
        JobPolicy, Queue, UniqueUntil, Verdict, Worker,
    },
    testing::Faults,
};
use redstart_testkit::{Backend, Proxy, eventually, figure, matrix, scale};
use serde::{Deserialize, Serialize};

use crate::queue::LONG;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Step {
    n: u64,
    fate: Fate,
}

/// What the handler does with it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Fate {
    Done,
    FailsOnce,
    Dies,
    Hangs,
}

/// Of the workers.
const LEASE: Duration = Duration::from_secs(3);
/// Connections of replaced workers that are kept.
const MOST_LEFT: usize = 8;

impl Job for Step {
    const NAME: &'static str = "step";
}

/// Of a kind with limits, which not every worker knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
struct Leap(Step);

impl Job for Leap {
    const NAME: &'static str = "leap";
}

/// What a test knows of the jobs that it added.
#[derive(Default)]
struct Model {
    /// Those that may be gone: they were done, cancelled, deleted, purged as dead letters, or have a time to expire.
    ended: HashSet<JobId>,
    /// Confirmed as cancelled while they waited: they must not run after that.
    cancelled: BTreeSet<u64>,
    ran_after_cancel: Vec<u64>,
    /// What happened to each job, for the report of one that is lost.
    stories: HashMap<JobId, Vec<String>>,
}

impl Model {
    fn note(&mut self, id: JobId, what: impl std::fmt::Display) {
        self.stories.entry(id).or_default().push(what.to_string());
    }
}

/// Options by chance, and whether the job expires. Each kind has unique keys of its own.
fn with_options<'a, J: Job>(
    mut enqueue: Enqueue<'a, J>,
    random: &mut StdRng,
) -> (Enqueue<'a, J>, bool) {
    if random.random_bool(0.3) {
        enqueue = enqueue.delay(Duration::from_millis(random.random_range(0..30)));
    }
    match random.random_range(0..4) {
        0 => enqueue = enqueue.group(["a", "b", "c"].choose(random).unwrap()),
        1 => enqueue = enqueue.priority(random.random_range(-3..=3)),
        _ => {}
    }
    let key = format!("{}{}", J::NAME, random.random_range(0..4));
    match random.random_range(0..8) {
        0 => enqueue = enqueue.unique(&key, UniqueUntil::Done),
        1 => enqueue = enqueue.unique(&key, UniqueUntil::Started).replace_waiting(),
        2 => enqueue = enqueue.throttle(&key, Duration::from_millis(20)),
        3 => enqueue = enqueue.debounce(&key, Duration::from_millis(10)),
        _ => {}
    }
    if random.random_bool(0.2) {
        enqueue = enqueue.keep(Duration::from_millis(100));
    }
    let expires = random.random_bool(0.1);
    if expires {
        enqueue = enqueue.expires_after(Duration::from_millis(50));
    }
    (enqueue, expires)
}

struct World {
    store: Store,
    queue: Queue,
    namespace: String,
    seed: u64,
    prefix: String,
    random: StdRng,
    model: Arc<Mutex<Model>>,
    /// No run hangs any more.
    calm: Arc<AtomicBool>,
    /// On a server, each with the network between it and the server.
    workers: Vec<(Worker, Option<Proxy>)>,
    added: Vec<(JobId, u64)>,
    /// All jobs and nodes of flows, with their numbers.
    account: HashMap<JobId, u64>,
    next: u64,
    /// Of the embedded store: replies that are lost, and a clock that jumps.
    faults: Option<Faults>,
    /// The server's URL, and the network between it and the test.
    network: Option<(String, Proxy)>,
    /// Of workers that may still hand back what they hold.
    left: VecDeque<Proxy>,
}

/// A proxy in front of the server of a URL, and the URL through it.
async fn behind_proxy(url: &str) -> Result<(String, Proxy)> {
    let host = "127.0.0.1:";
    let at = url.find(host).context("a server on this machine")?;
    let port = url[at + host.len()..].split(|c: char| !c.is_ascii_digit());
    let addr = format!("{host}{}", port.into_iter().next().context("a port")?);
    let proxy = Proxy::to(&addr).await?;
    Ok((url.replace(&addr, &proxy.addr()), proxy))
}

/// With limits, and for half of the seeds one job of a group at a time: those keep their place between two attempts.
fn limited(store: &Store, namespace: &str, seed: u64) -> redstart::Result<Queue> {
    let of_groups = JobLimit::concurrency(1 + (seed % 2) as u32);
    Queue::builder(store, namespace, "q")
        .limit(JobLimit::concurrency(12))
        .group_limit(of_groups.rate(1000, Duration::from_secs(1)).burst(5))
        .kind_limit(
            "leap",
            JobLimit::concurrency(3)
                .rate(400, Duration::from_secs(1))
                .burst(5),
        )
        .build()
}

impl World {
    async fn worker(&self, knows_leaps: bool) -> Result<(Worker, Option<Proxy>)> {
        let Some((url, _)) = &self.network else {
            return Ok((self.worker_of(&self.queue, knows_leaps).await?, None));
        };
        let (url, proxy) = behind_proxy(url).await?;
        let queue = limited(&Store::connect(&url).await?, &self.namespace, self.seed)?;
        Ok((self.worker_of(&queue, knows_leaps).await?, Some(proxy)))
    }

    async fn worker_of(&self, queue: &Queue, knows_leaps: bool) -> Result<Worker> {
        let (model, calm) = (self.model.clone(), self.calm.clone());
        let run = move |step: Step, cx: JobContext| {
            let (model, calm) = (model.clone(), calm.clone());
            async move {
                {
                    let mut model = model.lock().unwrap();
                    model.note(cx.id(), format_args!("runs, attempt {}", cx.attempt()));
                    if model.cancelled.contains(&step.n) {
                        model.ran_after_cancel.push(step.n);
                    }
                }
                if step.n.is_multiple_of(3) {
                    let _ = cx.progress(0.5).await;
                }
                match step.fate {
                    Fate::Done => {}
                    Fate::FailsOnce if cx.attempt() > 1 => {}
                    Fate::FailsOnce => return Verdict::retry("once"),
                    Fate::Dies => return Verdict::dead("by fate"),
                    Fate::Hangs => {
                        // Not for ever: those that hang must not take all places of the queue.
                        for _ in 0..8 {
                            if calm.load(Ordering::SeqCst) || cx.is_cancelled() {
                                break;
                            }
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                    }
                }
                if cx.is_cancelled() {
                    return Verdict::retry("told to stop");
                }
                model.lock().unwrap().ended.insert(cx.id());
                Verdict::Done
            }
        };
        let mut worker = queue.worker(run.clone());
        if knows_leaps {
            worker = worker.handler(move |Leap(step): Leap, cx: JobContext| run(step, cx));
        }
        Ok(worker
            .retry(Backoff::fixed(Duration::from_millis(3)), 3)
            .cancel_grace(Duration::from_millis(20))
            .lease(LEASE)
            .concurrency(8)
            .start()
            .await?)
    }

    fn step(&mut self) -> Step {
        self.next += 1;
        let fate = [
            (80, Fate::Done),
            (90, Fate::FailsOnce),
            (95, Fate::Dies),
            (100, Fate::Hangs),
        ];
        let dice = self.random.random_range(0..100);
        let (_, fate) = fate.into_iter().find(|(to, _)| dice < *to).unwrap();
        Step { n: self.next, fate }
    }

    async fn enqueue(&mut self) -> Result<()> {
        let step = self.step();
        let random = &mut self.random;
        let (added, expires) = if random.random_bool(0.25) {
            let leap = Leap(step.clone());
            let (enqueue, expires) = with_options(self.queue.enqueue(&leap), random);
            let handle = enqueue.await?;
            (handle.id().filter(|_| handle.is_new()), expires)
        } else {
            let (enqueue, expires) = with_options(self.queue.enqueue(&step), random);
            let handle = enqueue.await?;
            (handle.id().filter(|_| handle.is_new()), expires)
        };
        if let Some(id) = added {
            let mut model = self.model.lock().unwrap();
            model.note(id, format_args!("added: {:?} at {}", step.fate, self.next));
            drop(model);
            self.added.push((id, step.n));
            self.account.insert(id, step.n);
            if expires {
                self.may_end(id);
            }
        }
        Ok(())
    }

    fn may_end(&self, id: JobId) {
        self.model.lock().unwrap().ended.insert(id);
    }

    /// One of the jobs that were added lately.
    fn recent(&mut self) -> Option<(JobId, u64)> {
        let from = self.added.len().saturating_sub(50);
        self.added[from..].choose(&mut self.random).copied()
    }

    /// A node of a flow, which may expire.
    fn node(&mut self, expires: bool) -> Result<Flow> {
        let step = self.step();
        let flow = match self.random.random_bool(0.25) {
            true => Flow::new(&Leap(step.clone()))?,
            false => Flow::new(&step)?,
        };
        self.account.insert(flow.id(), step.n);
        let what = format!("in a flow: {:?} at {}", step.fate, self.next);
        self.model.lock().unwrap().note(flow.id(), what);
        if expires {
            self.may_end(flow.id());
        }
        Ok(flow)
    }

    async fn purge(&self) -> Result<u64> {
        let letters = self.queue.inspect().dead_letters();
        let purged = letters.purge(|letter| {
            if let Some(job) = &letter.job {
                self.may_end(job.id);
            }
            true
        });
        Ok(purged.await?)
    }

    async fn flow(&mut self) -> Result<()> {
        let before = self.next;
        let mut root = self.node(false)?;
        for _ in 0..self.random.random_range(1..5) {
            let failure = [
                ChildFailure::FailParent,
                ChildFailure::Continue,
                ChildFailure::Ignore,
            ];
            let expires = self.random.random_bool(0.1);
            let mut child = self.node(expires)?;
            child = child.on_failure(*failure.choose(&mut self.random).unwrap());
            if self.random.random_bool(0.3) {
                child = child.child(self.node(false)?);
            }
            if expires {
                let policy = JobPolicy::new().priority(self.random.random_range(-3..=3));
                child = child.policy(policy.expires_after(Duration::from_millis(20)));
            } else if self.random.random_bool(0.3) {
                child = child.group("b").policy(JobPolicy::new().attempts(1));
            } else if self.random.random_bool(0.5) {
                let policy = JobPolicy::new().priority(self.random.random_range(-3..=3));
                child = child.policy(policy);
            }
            root = root.child(child);
        }
        if self.random.random_bool(0.5) {
            let priority = self.random.random_range(-3..=3);
            root = root.policy(JobPolicy::new().priority(priority));
        }
        let id = root.id();
        let added = self.queue.add_flow(root).await;
        let what = format!("root, added: {:?}", added.as_ref().map(drop));
        let mut model = self.model.lock().unwrap();
        model.note(id, what);
        if added.is_err() {
            // It may not be there.
            let nodes = self.account.iter().filter(|(_, n)| **n > before);
            model.ended.extend(nodes.map(|(id, _)| *id));
        }
        drop(model);
        let _ = added?;
        Ok(())
    }

    async fn act(&mut self) -> Result<()> {
        match self.random.random_range(0..100) {
            0..60 => self.enqueue().await?,
            60..68 => self.flow().await?,
            68..80 => {
                if let Some((id, n)) = self.recent() {
                    let cancelled = self.queue.cancel(id).await;
                    let what = format!("cancelled: {cancelled:?} at {}", self.next);
                    self.model.lock().unwrap().note(id, what);
                    match cancelled {
                        // A duplicate may have put its payload there.
                        Ok(Cancelled::Ended) => {
                            let mut model = self.model.lock().unwrap();
                            model.cancelled.insert(n);
                            model.ended.insert(id);
                        }
                        Ok(Cancelled::NotFound) => {}
                        other => {
                            self.may_end(id);
                            let _ = other?;
                        }
                    }
                }
            }
            80..84 => {
                if let Some((id, _)) = self.recent() {
                    let look = self.queue.inspect();
                    match self.random.random_bool(0.5) {
                        true => {
                            let made = look.run_now(id).await;
                            let what = format!("run now: {made:?} at {}", self.next);
                            self.model.lock().unwrap().note(id, what);
                            made?;
                        }
                        false => {
                            let deleted = look.delete(id).await;
                            let what = format!("deleted: {deleted:?} at {}", self.next);
                            self.model.lock().unwrap().note(id, what);
                            if !matches!(deleted, Ok(false)) {
                                self.may_end(id);
                            }
                            deleted?;
                        }
                    };
                }
            }
            84..88 => {
                let letters = self.queue.inspect().dead_letters();
                match self.random.random_bool(0.5) {
                    true => {
                        letters
                            .replay(|letter| letter.at.as_micros() % 2 == 0)
                            .await?
                    }
                    false => self.purge().await?,
                };
            }
            88..90 => self.queue.pause().await?,
            90..94 => self.queue.resume().await?,
            94..97 => {
                // One goes, with grace or without, and another comes.
                let at = self.random.random_range(0..self.workers.len());
                let (worker, network) = self.workers.swap_remove(at);
                match self.random.random_range(0..3) {
                    // As if its process were killed: it can tell the server nothing any more.
                    0 => drop((network, worker)),
                    1 => {
                        drop(worker);
                        self.left.extend(network);
                        if self.left.len() > MOST_LEFT {
                            // It has had its time to hand back; a long history must not keep a connection of each.
                            self.left.pop_front();
                        }
                    }
                    _ => {
                        worker.shutdown(Duration::from_millis(1)).await?;
                    }
                }
                let knows_leaps = self.random.random_bool(0.7);
                let worker = self.worker(knows_leaps).await?;
                self.workers.push(worker);
            }
            _ => match &self.faults {
                None => match &self.network {
                    Some((_, own)) if self.random.random_bool(0.5) => {
                        let of_workers = self
                            .workers
                            .iter()
                            .filter_map(|(_, network)| network.as_ref());
                        let networks: Vec<&Proxy> = of_workers.chain([own]).collect();
                        // Of the next script that goes this way.
                        if let Some(network) = networks.choose(&mut self.random) {
                            network.drop_reply_to("EVALSHA");
                        }
                    }
                    _ => tokio::time::sleep(Duration::from_millis(2)).await,
                },
                Some(faults) => match self.random.random_range(0..10) {
                    0 => self.store.advance(LEASE * 2)?,
                    1..4 => faults.lose_next_reply(),
                    _ => self.store.advance(Duration::from_millis(15))?,
                },
            },
        }
        Ok(())
    }

    /// A step; one whose reply was lost is in doubt.
    async fn act_or_doubt(&mut self) -> Result<()> {
        match self.act().await {
            Err(error)
                if (self.faults.is_some() || self.network.is_some())
                    && error
                        .downcast_ref::<redstart::Error>()
                        .is_some_and(redstart::Error::is_in_doubt) =>
            {
                Ok(())
            }
            done => done,
        }
    }

    /// All that is stored, at one moment.
    async fn look(&self) -> Result<Snapshot> {
        loop {
            let key = |part: &str| format!("{}:{part}", self.prefix);
            let workers: BTreeSet<String> = self
                .store
                .query(redis::cmd("ZRANGE").arg(key("workers")).arg(0).arg(-1))
                .await?;
            let mut all = redis::pipe();
            all.atomic();
            all.cmd("ZRANGE").arg(key("workers")).arg(0).arg(-1);
            all.cmd("HGETALL").arg(key("jobs"));
            all.cmd("LRANGE").arg(key("ready")).arg(0).arg(-1);
            for part in [
                "ranked",
                "delayed",
                "grouped",
                "parents",
                "dead",
                "parked:step",
                "parked:leap",
                "lines",
            ] {
                all.cmd("ZRANGE").arg(key(part)).arg(0).arg(-1);
            }
            for part in ["unique", "meta", "details"] {
                all.cmd("HGETALL").arg(key(part));
            }
            for worker in &workers {
                all.cmd("HKEYS").arg(key(&format!("running:{worker}")));
            }
            let replies: Vec<redis::Value> = self.store.pipeline(&all).await?;
            let mut replies = replies.into_iter();
            let mut list = || -> Result<Vec<Vec<u8>>> {
                Ok(redis::from_redis_value(replies.next().context("a reply")?)?)
            };
            let now: BTreeSet<String> = list()?
                .into_iter()
                .map(|name| String::from_utf8_lossy(&name).into_owned())
                .collect();
            if now != workers {
                continue;
            }
            let pairs = |flat: Vec<Vec<u8>>| -> BTreeMap<Vec<u8>, Vec<u8>> {
                flat.chunks(2)
                    .map(|pair| (pair[0].clone(), pair[1].clone()))
                    .collect()
            };
            return Ok(Snapshot {
                jobs: pairs(list()?),
                ready: list()?,
                scored: [
                    (b'r', list()?),
                    (b'l', list()?),
                    (b'r', list()?),
                    (b'w', list()?),
                    (b'z', list()?),
                    (b'p', list()?),
                    (b'p', list()?),
                ],
                lines: list()?.into_iter().collect(),
                unique: pairs(list()?),
                meta: pairs(list()?),
                details: pairs(list()?),
                running: {
                    let mut running = Vec::new();
                    for _ in &workers {
                        running.extend(list()?.into_iter().filter(|name| !name.is_empty()));
                    }
                    running
                },
            });
        }
    }
}

struct Snapshot {
    jobs: BTreeMap<Vec<u8>, Vec<u8>>,
    ready: Vec<Vec<u8>>,
    /// With the state of what is in it.
    scored: [(u8, Vec<Vec<u8>>); 7],
    /// Groups that wait for a place of a kind, and a mark for each.
    lines: BTreeSet<Vec<u8>>,
    unique: BTreeMap<Vec<u8>, Vec<u8>>,
    meta: BTreeMap<Vec<u8>, Vec<u8>>,
    details: BTreeMap<Vec<u8>, Vec<u8>>,
    running: Vec<Vec<u8>>,
}

impl Snapshot {
    fn number(&self, field: &str) -> i64 {
        let value = self.meta.get(field.as_bytes());
        value.map_or(0, |value| {
            String::from_utf8_lossy(value).parse().unwrap_or(-1)
        })
    }

    /// The fields of `meta` with a prefix, without it.
    fn numbers(&self, prefix: &str) -> BTreeMap<Vec<u8>, i64> {
        let fields = self.meta.iter().filter_map(|(field, value)| {
            let name = field.strip_prefix(prefix.as_bytes())?.to_vec();
            Some((name, String::from_utf8_lossy(value).parse().unwrap_or(-1)))
        });
        fields.collect()
    }

    /// Each place of a group or a kind that is counted is a job's, and each group that is counted in a line stands there.
    fn check_places(&self) -> Result<()> {
        let mut taken: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
        for record in self.jobs.values() {
            let Some(group) = extra(record, b'g') else {
                continue;
            };
            let runs = record[1] == b'x';
            let is_marked = record[56 + shift(record)] & 32 != 0;
            ensure!(
                !(runs && is_marked),
                "a job that runs is said to wait in its place"
            );
            let keeps_its_place = matches!(record[1], b'l' | b'p') && is_marked;
            if runs || keeps_its_place {
                *taken.entry(group.to_vec()).or_default() += 1;
            }
            if runs && extra(record, b'l').is_some() {
                let line = [b"\x01", kind(record)].concat();
                *taken.entry(line).or_default() += 1;
            }
        }
        let shown = |map: &BTreeMap<Vec<u8>, i64>| -> Vec<(String, i64)> {
            let text = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
            map.iter().map(|(name, n)| (text(name), *n)).collect()
        };
        let counted = self.numbers("n:");
        ensure!(
            counted == taken,
            "jobs have places {:?}, {:?} are counted",
            shown(&taken),
            shown(&counted)
        );
        let mut standing: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
        for member in self.lines.iter().filter(|member| member[0] != 0) {
            let end = member
                .iter()
                .position(|byte| *byte == 0)
                .context("a line")?;
            let (line, group) = (&member[..end], &member[end + 17..]);
            *standing.entry(line.to_vec()).or_default() += 1;
            ensure!(
                self.lines.contains(&[b"\0", line, b"\0", group].concat()),
                "a group stands in a line without its mark"
            );
        }
        let counted = self.numbers("w:");
        ensure!(
            counted == standing && self.lines.len() as i64 == 2 * standing.values().sum::<i64>(),
            "groups stand in {:?}, {:?} are counted, {} members",
            shown(&standing),
            shown(&counted),
            self.lines.len()
        );
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.check_places()?;
        let mut places: BTreeMap<&[u8], Vec<u8>> = BTreeMap::new();
        let mut deleted = 0;
        for id in &self.ready {
            match self.jobs.get(id) {
                Some(record) if record[1] == b'r' => places.entry(id).or_default().push(b'r'),
                _ => deleted += 1,
            }
        }
        ensure!(
            deleted == self.number("deleted"),
            "{deleted} places of deleted jobs, {} counted",
            self.number("deleted")
        );
        for (state, members) in &self.scored {
            for member in members {
                let id = &member[member.len() - 16..];
                places.entry(id).or_default().push(*state);
            }
        }
        for delivery in &self.running {
            places.entry(&delivery[..16]).or_default().push(b'x');
        }
        for (id, states) in &places {
            let record = self.jobs.get(*id).map(|record| record[1] as char);
            ensure!(
                states.len() == 1 && record == Some(states[0] as char),
                "a job is {record:?}, and found in {:?}",
                states.iter().map(|s| *s as char).collect::<Vec<_>>()
            );
        }
        for (id, record) in &self.jobs {
            ensure!(
                places.contains_key(&id[..]),
                "a job in state {:?} is nowhere",
                record[1] as char
            );
        }
        ensure!(
            self.running.len() as i64 == self.number("running"),
            "{} run, {} counted",
            self.running.len(),
            self.number("running")
        );
        // Keys that are held until done or started belong to a job that is there.
        for (key, holder) in &self.unique {
            ensure!(
                holder.len() > 16 || self.jobs.contains_key(&holder[..16]),
                "the unique key {:?} is held by nobody",
                String::from_utf8_lossy(key)
            );
        }
        // Details belong to a job that is there.
        for field in self.details.keys() {
            ensure!(
                self.jobs.contains_key(&field[..16]),
                "details {:?} of a job that is gone",
                String::from_utf8_lossy(&field[16..])
            );
        }
        // A parent waits for as many as there are children of it, also for those that are dead and failed it: it was
        // replayed before them.
        let mut left: BTreeMap<&[u8], i64> = BTreeMap::new();
        for record in self.jobs.values() {
            if let Some(parent) = parent(record) {
                *left.entry(parent).or_default() += 1;
            }
        }
        for (id, record) in &self.jobs {
            if record[1] == b'w' {
                let counted = self.details.get(&[&id[..], b"w"].concat());
                let counted = counted.map(|n| String::from_utf8_lossy(n).parse::<i64>());
                let Some(Ok(counted)) = counted else {
                    bail!("a parent without a count");
                };
                let children = left.get(&id[..]).copied().unwrap_or(0);
                ensure!(
                    counted == children,
                    "a parent waits for {counted} of {children} children"
                );
            }
        }
        Ok(())
    }
}

/// How much further in the record of a running job everything is.
fn shift(record: &[u8]) -> usize {
    if record[1] == b'x' { 48 } else { 0 }
}

fn extras(record: &[u8]) -> &[u8] {
    let at = 63 + shift(record);
    let length = usize::from(u16::from_be_bytes([record[at], record[at + 1]]));
    &record[at + 2..at + 2 + length]
}

fn extra(record: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut rest = extras(record);
    while let [tag, high, low, after @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if *tag == wanted {
            return Some(&after[..length]);
        }
        rest = &after[length..];
    }
    None
}

fn kind(record: &[u8]) -> &[u8] {
    let at = 65 + shift(record) + extras(record).len();
    &record[at + 1..at + 1 + usize::from(record[at])]
}

/// The parent in a record's extras.
fn parent(record: &[u8]) -> Option<&[u8]> {
    // The parent counted it as failed, and does not wait for it.
    if record[56 + shift(record)] & 128 != 0 {
        return None;
    }
    extra(record, b'p').map(|link| &link[..16])
}

matrix! {
    async fn random_histories_keep_every_job_in_exactly_one_place(backend: &Backend) -> Result<()> {
        let seed = match std::env::var("REDSTART_SEED") {
            Ok(seed) => seed.parse()?,
            Err(_) => rand::random::<u64>(),
        };
        let (url, network) = match backend.is_embedded() || backend.is_cluster() {
            true => (backend.url().to_owned(), None),
            false => {
                let (url, proxy) = behind_proxy(backend.url()).await?;
                (url, Some((backend.url().to_owned(), proxy)))
            }
        };
        let store = Store::connect(&url).await?;
        let queue = limited(&store, backend.namespace(), seed)?;
        let mut world = World {
            namespace: backend.namespace().to_owned(),
            seed,
            network,
            left: VecDeque::new(),
            prefix: format!("{}:queue:{{q}}", backend.namespace()),
            random: StdRng::seed_from_u64(seed),
            model: Arc::default(),
            calm: Arc::default(),
            workers: Vec::new(),
            added: Vec::new(),
            account: HashMap::new(),
            next: 0,
            faults: match backend.is_embedded() {
                true => Some(Faults::of(&store)?),
                false => None,
            },
            queue,
            store,
        };
        for _ in 0..2 {
            let worker = world.worker(true).await?;
            world.workers.push(worker);
        }
        let steps = scale(600, "steps of a random history");
        for step in 0..steps {
            world.act_or_doubt().await.with_context(|| format!("step {step} of seed {seed}"))?;
            if step % 7 == 0 {
                world.look().await?.check().with_context(|| format!("step {step} of seed {seed}"))?;
            }
        }
        // At the end everything that can run has run, and nothing is left but dead letters.
        world.calm.store(true, Ordering::SeqCst);
        let of_workers = world.workers.iter().filter_map(|(_, network)| network.as_ref());
        for network in of_workers.chain(world.network.as_ref().map(|(_, own)| own)) {
            network.pass().await;
        }
        world.queue.resume().await?;
        // One at least knows all kinds.
        let worker = world.worker(true).await?;
        world.workers.push(worker);
        let came = eventually(LONG * 2, async || {
            if world.faults.is_some() {
                let _ = world.store.advance(Duration::from_millis(50));
            }
            let Ok(counts) = world.queue.inspect().counts().await else { return false };
            // A parent that was replayed waits for dead children.
            if counts.unfinished() == counts.waiting {
                let _ = world.purge().await;
            }
            counts.unfinished() == 0
        }).await;
        ensure!(came, "left over with seed {seed}: {:?}", world.queue.inspect().counts().await?);
        world.look().await?.check().with_context(|| format!("at the end of seed {seed}"))?;
        for (worker, _network) in std::mem::take(&mut world.workers) {
            worker.shutdown(LONG).await?;
        }
        let ran = std::mem::take(&mut world.model.lock().unwrap().ran_after_cancel);
        ensure!(ran.is_empty(), "ran after their cancellation, seed {seed}: {ran:?}");
        // Those that are parents go after their children.
        while world.purge().await? > 0 {}
        let last = world.look().await?;
        assert!(last.jobs.is_empty() && last.details.is_empty(), "seed {seed}");
        // Keys that are held for a time go with it; no other is left.
        assert!(last.unique.values().all(|holder| holder.len() > 16), "seed {seed}: a unique key is left");
        let model = std::mem::take(&mut *world.model.lock().unwrap());
        let lost = world.account.iter().filter(|(id, _)| !model.ended.contains(*id));
        let lost: Vec<_> = lost.map(|(id, n)| (n, model.stories.get(id))).collect();
        ensure!(lost.is_empty(), "lost of {} jobs with seed {seed}: {lost:?}", world.account.len());
        last.check().with_context(|| format!("after the purge of seed {seed}"))?;
        // The marks of requests that are not sent again go by their TTL.
        let mut bytes = 0;
        let returned = eventually(LONG * 2, async || {
            if world.faults.is_some() {
                let _ = world.store.advance(Duration::from_secs(1));
            }
            let Ok(keys) = world.store.scan(&format!("{}:*", world.prefix)).await else { return false };
            bytes = 0;
            for key in keys {
                let usage = world.store.query::<Option<u64>>(redis::cmd("MEMORY").arg("USAGE").arg(key)).await;
                bytes += usage.ok().flatten().unwrap_or(0);
            }
            bytes < 1 << 18
        }).await;
        ensure!(returned, "{bytes} bytes are left with seed {seed}");
        figure(format!("{steps} steps, {} jobs, none lost or in two places, {bytes} bytes left at the end", world.account.len()));
        // A group that needs nothing any more may stand in a line until its turn.
        let usual = ["turn", "stamp", "side", "deleted", "hungry", "crowded", "settings"];
        let is_usual = |field: &Vec<u8>| field.starts_with(b"w:") || usual.contains(&&*String::from_utf8_lossy(field));
        assert!(last.meta.keys().all(is_usual),
            "seed {seed}: {:?}", last.meta.keys().map(|f| String::from_utf8_lossy(f).into_owned()).collect::<Vec<_>>());
        Ok(())
    }
}
