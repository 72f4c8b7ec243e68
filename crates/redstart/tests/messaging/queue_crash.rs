//! The job queue when processes, connections and servers die.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    key::{Key, Keys},
    messaging::{
        Backoff, Job, JobContext, JobId, JobLimit, JobState, MissedTicks, Queue, Verdict, Worker,
    },
    store::Dedicated,
};
use redstart_testkit::{
    Backend, Child, Cluster, Kind, Sentinel, Server, child, eventually, figure, key_slot, matrix,
    scale, unique_namespace,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::queue::LONG;

#[derive(Serialize, Deserialize)]
struct Step {
    n: u64,
}

impl Job for Step {
    const NAME: &'static str = "step";
}

/// Long enough that a busy machine does not cost a live worker its lease.
const LEASE: Duration = Duration::from_secs(3);

/// The machine's clock, which all processes of a test share.
fn micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_micros() as u64
}

/// The longest that the machine let a task and a server's answer wait, over all processes of a test: what a bound on
/// time has to allow for.
struct Stalls {
    store: Store,
    key: String,
    task: tokio::task::JoinHandle<()>,
}

impl Stalls {
    fn watch(store: &Store, namespace: &str) -> Self {
        let (store, key) = (store.clone(), format!("{namespace}:stalls"));
        let task = tokio::spawn({
            let (store, key) = (store.clone(), key.clone());
            async move {
                let mut worst = 0;
                loop {
                    let before = tokio::time::Instant::now();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    let _ = store.time().await;
                    let took = before.elapsed().as_micros() as u64;
                    if took > worst {
                        worst = took;
                        let mut note = redis::cmd("HSET");
                        note.arg(&key).arg(std::process::id()).arg(worst);
                        let _ = store.query::<()>(&note).await;
                    }
                }
            }
        });
        Self { store, key, task }
    }

    async fn worst(&self) -> Result<Duration> {
        let all: Vec<u64> = self.store.query(redis::cmd("HVALS").arg(&self.key)).await?;
        Ok(Duration::from_micros(all.into_iter().max().unwrap_or(0)))
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Every run of a job is noted in the store, where it outlives the process.
fn notes_key(namespace: &str) -> String {
    format!("{namespace}:notes")
}

/// A worker whose jobs note that they began, take a little while, and note that they ended.
async fn noting(
    queue: &Queue,
    store: &Store,
    namespace: &str,
    concurrency: usize,
    takes: Duration,
) -> Result<Worker> {
    let (store, notes) = (store.clone(), notes_key(namespace));
    Ok(queue
        .worker(move |job: Step, cx: JobContext| {
            let (store, notes) = (store.clone(), notes.clone());
            async move {
                let note = async |what: &str| {
                    let note = format!("{what} {} {} {}", job.n, cx.attempt(), micros());
                    store
                        .query::<()>(redis::cmd("RPUSH").arg(&notes).arg(note))
                        .await
                };
                note("began").await?;
                tokio::time::sleep(takes).await;
                note("ended").await?;
                Ok::<_, redstart::Error>(Verdict::Done)
            }
        })
        .concurrency(concurrency)
        .lease(LEASE)
        .retry(Backoff::fixed(Duration::from_millis(20)), 1000)
        .start()
        .await?)
}

/// What was noted of a job.
#[derive(Debug, Default)]
struct Ran {
    /// When its runs began, by [`micros`].
    began: Vec<u64>,
    ended: u32,
    /// When the first of its runs ended.
    first_end: Option<u64>,
}

async fn ran(store: &Store, namespace: &str) -> Result<HashMap<u64, Ran>> {
    let (mut ran, mut at) = (HashMap::<u64, Ran>::new(), 0);
    loop {
        let mut range = redis::cmd("LRANGE");
        range.arg(notes_key(namespace)).arg(at).arg(at + 9999);
        let notes: Vec<String> = store.query(&range).await?;
        for note in &notes {
            let words: Vec<&str> = note.split(' ').collect();
            let entry = ran.entry(words[1].parse()?).or_default();
            match words[0] {
                "began" => entry.began.push(words[3].parse()?),
                _ => {
                    let end = words[3].parse()?;
                    entry.first_end = Some(entry.first_end.map_or(end, |first| first.min(end)));
                    entry.ended += 1;
                }
            }
        }
        if notes.len() < 10_000 {
            return Ok(ran);
        }
        at += 10_000;
    }
}

async fn drained(queue: &Queue, within: Duration) -> Result<()> {
    let look = queue.inspect();
    let came = eventually(within, async || {
        look.counts()
            .await
            .is_ok_and(|counts| counts.unfinished() == 0)
    })
    .await;
    ensure!(came, "the queue does not drain: {:?}", look.counts().await);
    Ok(())
}

fn plain(store: &Store, namespace: &str) -> redstart::Result<Queue> {
    Queue::new(store, namespace, "q")
}

/// With limits that two workers reach.
fn limited(store: &Store, namespace: &str) -> redstart::Result<Queue> {
    Queue::builder(store, namespace, "q")
        .limit(JobLimit::concurrency(20))
        .group_limit(JobLimit::concurrency(4))
        .kind_limit(
            Step::NAME,
            JobLimit::concurrency(14).rate(2000, Duration::from_secs(1)),
        )
        .build()
}

/// A child process: one worker until it is killed or told to stop.
async fn serve(
    backend: &Backend,
    queue: fn(&Store, &str) -> redstart::Result<Queue>,
    concurrency: usize,
    takes: Duration,
) -> Result<()> {
    let store = Store::connect(backend.url()).await?;
    let queue = queue(&store, backend.namespace())?;
    let worker = noting(&queue, &store, backend.namespace(), concurrency, takes).await?;
    let _stalls = Stalls::watch(&store, backend.namespace());
    child::say("ready");
    tokio::task::spawn_blocking(child::hear).await?;
    worker.shutdown(LONG).await?;
    Ok(())
}

/// A worker's process, and the name under which it registered.
struct Process {
    child: Child,
    name: String,
}

impl Process {
    async fn start(backend: &Backend, store: &Store) -> Result<Self> {
        let workers = format!("{}:queue:{{q}}:workers", backend.namespace());
        let registered = async || -> Result<BTreeSet<String>> {
            Ok(store
                .query(redis::cmd("ZRANGE").arg(&workers).arg(0).arg(-1))
                .await?)
        };
        let before = registered().await?;
        let mut child = Child::of(backend.test())
            .role("worker")
            .namespace(backend.namespace())
            .spawn()?;
        assert_eq!(child.line().await?, "ready");
        let after = registered().await?;
        let name = after.difference(&before).next().context("no new worker")?;
        Ok(Self {
            child,
            name: name.clone(),
        })
    }
}

/// The jobs that a worker holds.
async fn held(queue: &Queue, worker: &str) -> Result<BTreeSet<u64>> {
    let (mut held, mut from) = (BTreeSet::new(), None);
    loop {
        let (jobs, next) = queue.inspect().list(JobState::Running, from).await?;
        for job in jobs {
            let n = job.decode::<Step>()?.n;
            // A worker's name begins with the one that its jobs show.
            if job
                .worker
                .is_some_and(|held_by| worker.starts_with(&held_by))
            {
                held.insert(n);
            }
        }
        match next {
            Some(next) => from = Some(next),
            None => return Ok(held),
        }
    }
}

matrix! {
    processes:
    async fn killed_workers_lose_no_job_and_repeat_no_more_than_was_in_flight(backend: &Backend) -> Result<()> {
        const CONCURRENCY: usize = 64;
        let takes = Duration::from_millis(15);
        if child::role().is_some() {
            return serve(backend, plain, CONCURRENCY, takes).await;
        }
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let stalls = Stalls::watch(&store, backend.namespace());
        let kills = scale(3, "worker kills");
        let mut workers = [Process::start(backend, &store).await?, Process::start(backend, &store).await?];
        let (mut jobs, mut in_flight, mut orphans) = (0, 0, Vec::new());
        for kill in 0..kills {
            queue.enqueue_many((jobs..jobs + 400).map(|n| Step { n })).await?;
            jobs += 400;
            // In the middle of the load, at no particular point of it.
            let target = 2 * (jobs - 400) + rand::random_range(1..600);
            let notes = notes_key(backend.namespace());
            ensure!(eventually(LONG, async || {
                store.query::<u64>(redis::cmd("LLEN").arg(&notes)).await.is_ok_and(|n| n >= target)
            }).await, "the load does not move on after kill {kill}");
            let at = rand::random_range(0..workers.len());
            workers[at].child.kill9();
            let killed = micros();
            // What it had sent before it died may still arrive.
            let mut left = held(&queue, &workers[at].name).await?;
            ensure!(eventually(LONG, async || {
                match held(&queue, &workers[at].name).await {
                    Ok(now) => std::mem::replace(&mut left, now) == left,
                    Err(_) => false,
                }
            }).await);
            in_flight += left.len() as u64;
            assert!(left.len() <= CONCURRENCY);
            orphans.extend(left.into_iter().map(|n| (n, killed)));
            workers[at] = Process::start(backend, &store).await?;
        }
        drained(&queue, LEASE * 4 + LONG).await?;
        assert_eq!(queue.inspect().counts().await?.dead, 0);
        let ran = ran(&store, backend.namespace()).await?;
        assert_eq!(ran.values().filter(|ran| ran.ended > 0).count() as u64, jobs, "jobs were lost");
        let repeats: u64 = ran.values().map(|ran| ran.began.len() as u64 - 1).sum();
        assert!(repeats <= in_flight, "{repeats} repeats, but {in_flight} were in flight");
        // The first run that began after the kill is by the worker that took the orphan over; if that one was killed before
        // it began, it is the later kill's orphan.
        let took = orphans.iter().filter_map(|(n, killed)| {
            let again = *ran[n].began.iter().filter(|began| *began > killed).min()?;
            let later = orphans.iter().any(|(m, at)| m == n && (killed + 1..again).contains(at));
            (!later).then(|| Duration::from_micros(again - killed))
        });
        let slowest = took.max().unwrap_or_default();
        let stall = stalls.worst().await?;
        figure(format!(
            "{}: {kills} kills, {jobs} jobs, 0 lost, {in_flight} in flight when killed, {repeats} repeated, \
             orphans began again within {slowest:?} (lease {LEASE:?}, worst stall {stall:?})",
            backend.test()
        ));
        let bound = LEASE + Duration::from_secs(2) + stalls.worst().await?;
        assert!(slowest <= bound, "an orphan waited {slowest:?} of {bound:?}");
        for mut worker in workers {
            worker.child.tell("stop")?;
            assert!(worker.child.wait().await?.success());
        }
        Ok(())
    }

    async fn orphans_run_again_soon_after_the_lease(backend: &Backend) -> Result<()> {
        if child::role().is_some() {
            return serve(backend, plain, 8, LONG * 10).await;
        }
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let stalls = Stalls::watch(&store, backend.namespace());
        let victim = Process::start(backend, &store).await?;
        queue.enqueue_many((0..8).map(|n| Step { n })).await?;
        ensure!(eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.running == 8)).await);
        // It is idle, and learns of the orphans only by the end of their lease.
        let idle = noting(&queue, &store, backend.namespace(), 8, Duration::ZERO).await?;
        victim.child.kill9();
        let killed = micros();
        drained(&queue, LONG).await?;
        let ran = ran(&store, backend.namespace()).await?;
        assert_eq!(ran.values().filter(|ran| ran.ended == 1).count(), 8);
        let last = ran.values().flat_map(|ran| &ran.began).max().context("none ran")?;
        let took = Duration::from_micros(last - killed);
        let bound = LEASE + Duration::from_secs(2) + stalls.worst().await?;
        assert!(took < bound, "orphans took {took:?} of {bound:?}");
        idle.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_stopped_and_resumed_worker_is_refused_and_its_handler_hears_of_the_loss(backend: &Backend) -> Result<()> {
        let lease = Duration::from_millis(600);
        if child::role().is_some() {
            let store = Store::connect(backend.url()).await?;
            let queue = Queue::new(&store, backend.namespace(), "q")?;
            let worker = queue
                .worker(move |_: Step, cx: JobContext| async move {
                    child::say(format!("began {}", cx.attempt()));
                    cx.lost().await;
                    child::say("lost");
                    // As a zombie would, it says that all is well.
                    Verdict::Done
                })
                .lease(lease)
                .start()
                .await?;
            tokio::task::spawn_blocking(child::hear).await?;
            let report = worker.shutdown(LONG).await?;
            child::say(format!("done {}", report.done));
            return Ok(());
        }
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        for round in 0..scale(1, "worker stops") {
            let id = queue.enqueue(&Step { n: round }).await?.id().context("new")?;
            let mut zombie = Child::of(backend.test()).role("zombie").namespace(backend.namespace()).spawn()?;
            assert_eq!(zombie.line().await?, "began 1");
            zombie.pause()?;
            // Another worker takes the job when the lease is over, and keeps it.
            let (gate, attempts) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU64::new(0)));
            let other = {
                let (gate, attempts) = (gate.clone(), attempts.clone());
                queue
                    .worker(move |_: Step, cx: JobContext| {
                        let (gate, attempts) = (gate.clone(), attempts.clone());
                        async move {
                            attempts.fetch_add(u64::from(cx.attempt()), Ordering::SeqCst);
                            let _ = gate.acquire().await.map(|permit| permit.forget());
                        }
                    })
                    .start()
                    .await?
            };
            ensure!(eventually(LONG, async || attempts.load(Ordering::SeqCst) == 2).await, "nobody took the job over");
            zombie.resume()?;
            assert_eq!(zombie.line().await?, "lost");
            zombie.tell("stop")?;
            assert_eq!(zombie.line().await?, "done 0", "its ending was taken although it had lost the job");
            ensure!(zombie.wait().await?.success());
            let job = queue.inspect().find(id).await?.context("the zombie's ending removed the job")?;
            assert_eq!((job.state, job.attempts), (JobState::Running, 1));
            gate.add_permits(1);
            drained(&queue, LONG).await?;
            assert_eq!(other.shutdown(LONG).await?.done, 1);
            assert_eq!(attempts.load(Ordering::SeqCst), 2, "it ran once more");
        }
        Ok(())
    }

    async fn a_job_that_kills_its_process_dies_after_exactly_its_attempts_alone(backend: &Backend) -> Result<()> {
        const ATTEMPTS: u16 = 3;
        if child::role().is_some() {
            let store = Store::connect(backend.url()).await?;
            let queue = Queue::new(&store, backend.namespace(), "q")?;
            let notes = notes_key(backend.namespace());
            let _worker = queue
                .worker(move |job: Step, cx: JobContext| {
                    let (store, notes) = (store.clone(), notes.clone());
                    async move {
                        let note = format!("{} {}", job.n, cx.attempt());
                        let noted = store.query::<()>(redis::cmd("RPUSH").arg(&notes).arg(note)).await;
                        if job.n == 5 {
                            std::process::abort();
                        }
                        noted.map(|()| Verdict::Done)
                    }
                })
                .concurrency(1)
                .lease(Duration::from_millis(300))
                .retry(Backoff::fixed(Duration::ZERO), ATTEMPTS)
                .start()
                .await?;
            // Until a job or the parent ends it.
            return std::future::pending().await;
        }
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        queue.enqueue_many((0..10).map(|n| Step { n })).await?;
        let spawn = || Child::of(backend.test()).role("worker").namespace(backend.namespace()).spawn();
        let letters = queue.inspect().dead_letters();
        for _ in 0..ATTEMPTS {
            let mut worker = spawn()?;
            assert!(!worker.wait().await?.success());
        }
        // The next one finds the third orphan and buries it.
        let mut last = spawn()?;
        drained(&queue, LONG).await?;
        let dead = letters.list(None).await?;
        assert_eq!(dead.len(), 1);
        let job = dead[0].job.as_ref().context("readable")?;
        assert_eq!((job.decode::<Step>()?.n, job.attempts), (5, 3));
        let notes: Vec<String> = store
            .query(redis::cmd("LRANGE").arg(notes_key(backend.namespace())).arg(0).arg(-1))
            .await?;
        let of_five: Vec<&str> = notes.iter().filter_map(|note| note.strip_prefix("5 ")).collect();
        assert_eq!(of_five, ["1", "2", "3"]);
        for n in (0..10).filter(|n| *n != 5) {
            assert!(notes.contains(&format!("{n} 1")), "a neighbour was charged: {notes:?}");
        }
        assert_eq!(notes.len(), 12);
        // Replayed, it has all its attempts again, and kills the process at once.
        assert_eq!(letters.replay(|_| true).await?, 1);
        assert!(!last.wait().await?.success());
        let again: String = store.query(redis::cmd("LINDEX").arg(notes_key(backend.namespace())).arg(-1)).await?;
        assert_eq!(again, "5 1");
        Ok(())
    }
}

/// Workers run and jobs are enqueued, one by one, while something is being broken; `fault` says when it is enough.
/// Each job whose enqueue was confirmed, and that `acks` replicas had by then, must run. Returns how many those were.
async fn under_faults(
    url: &str,
    acks: u32,
    mut fault: impl AsyncFnMut() -> Result<bool>,
) -> Result<u64> {
    let namespace = unique_namespace("faults");
    let store = || {
        Store::builder(url)
            .deadline(Duration::from_secs(5))
            .connect()
    };
    let (mine, theirs) = (store().await?, store().await?);
    let queue = Queue::new(&mine, &namespace, "q")?;
    let mut workers = Vec::new();
    for _ in 0..2 {
        let queue = plain(&theirs, &namespace)?;
        let takes = Duration::from_millis(2);
        workers.push(noting(&queue, &theirs, &namespace, 32, takes).await?);
    }
    let enough = Arc::new(AtomicBool::new(false));
    let enqueuing = {
        let (queue, store, enough) = (queue.clone(), mine.clone(), enough.clone());
        let marker = Keys::new(&namespace, "marker")?
            .entity("last")?
            .part("written");
        tokio::spawn(async move {
            let (mut jobs, mut confirmed) = (0, Vec::new());
            let mut own = store.dedicated(&marker);
            while !enough.load(Ordering::SeqCst) {
                // What is in doubt may be there or not, so each attempt has its own number.
                let before = connection(&store).await;
                match queue.enqueue(&Step { n: jobs }).await {
                    Ok(_) if acks == 0 => confirmed.push(jobs),
                    Ok(_) => {
                        // All of it must be the server that took the job.
                        if let Some((_, server)) = &before
                            && have_all(&mut own, &marker, acks, server).await
                            && before == connection(&store).await
                        {
                            confirmed.push(jobs);
                        }
                    }
                    Err(error) if error.is_in_doubt() => {}
                    Err(error) if error.is_unavailable() || error.is_timeout() => {}
                    Err(error) => return Err(error),
                }
                jobs += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok((jobs, confirmed))
        })
    };
    while !fault().await? {}
    enough.store(true, Ordering::SeqCst);
    let (jobs, mut must) = enqueuing.await??;
    // The last fault may have left a dead connection, which the next request finds out.
    let back = eventually(LONG, async || queue.inspect().counts().await.is_ok());
    ensure!(back.await, "the queue does not come back");
    let last = queue
        .enqueue_many((jobs..jobs + 100).map(|n| Step { n }))
        .await?;
    assert_eq!(last.added.len(), 100);
    must.extend(jobs..jobs + 100);
    drained(&queue, LONG * 2).await?;
    for worker in workers {
        worker.shutdown(LONG).await?;
    }
    let ran = ran(&mine, &namespace).await?;
    let lost: Vec<u64> = must
        .iter()
        .filter(|n| ran.get(n).is_none_or(|ran| ran.ended == 0))
        .copied()
        .collect();
    assert_eq!(lost, [0; 0], "of {} confirmed jobs", must.len());
    Ok(must.len() as u64)
}

/// Whether so many replicas have everything that was written at this server before now. A write that all of them have is
/// the last of it.
async fn have_all(own: &mut Dedicated, key: &Key, replicas: u32, server: &str) -> bool {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(1);
    let written: redstart::Result<()> = own.query(&set, Duration::ZERO).await;
    let mut wait = redis::cmd("WAIT");
    wait.arg(replicas).arg(300);
    let have: redstart::Result<u32> = own.query(&wait, Duration::from_millis(300)).await;
    let mut info = redis::cmd("CLIENT");
    info.arg("INFO");
    let info: redstart::Result<String> = own.query(&info, Duration::ZERO).await;
    written.is_ok()
        && have.is_ok_and(|have| have >= replicas)
        && info.is_ok_and(|info| {
            info.split(' ')
                .any(|word| word == format!("laddr={server}"))
        })
}

/// Which connection to which server a store has now.
async fn connection(store: &Store) -> Option<(String, String)> {
    let info: String = store.query(redis::cmd("CLIENT").arg("INFO")).await.ok()?;
    let field = |name: &str| {
        let field = info.split(' ').find_map(|word| word.strip_prefix(name));
        field.map(str::to_owned)
    };
    Some((field("id=")?, field("laddr=")?))
}

/// All connections of these servers are killed every 100 ms.
async fn clients_are_killed(url: &str, servers: &[Server]) -> Result<u64> {
    let seconds = Duration::from_secs(scale(2, "client kill seconds"));
    let began = tokio::time::Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let confirmed = under_faults(url, 0, async || {
        tick.tick().await;
        for server in servers {
            for kind in ["normal", "pubsub"] {
                let _ = server
                    .command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"])
                    .await;
            }
        }
        Ok(began.elapsed() >= seconds)
    })
    .await?;
    figure(format!(
        "connections killed every 100 ms for {seconds:?}: {confirmed} jobs confirmed, 0 lost"
    ));
    Ok(confirmed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_go_on_while_connections_are_killed() -> Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        clients_are_killed(&server.url(), std::slice::from_ref(&server)).await?;
    }
    let cluster = Cluster::start(Kind::Redis, 2, 0).await?;
    clients_are_killed(&cluster.url(), cluster.nodes()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_follow_sentinel_failovers_and_lose_nothing_that_was_replicated() -> Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    let failovers = scale(1, "queue failovers");
    let mut round = 0;
    let confirmed = under_faults(&group.url(), 2, async || {
        // Some jobs before, between and after.
        tokio::time::sleep(Duration::from_millis(300)).await;
        if round == failovers {
            return Ok(true);
        }
        let old = group.master().await?;
        if round % 2 == 0 {
            group.failover().await?;
        } else {
            group.server(old).kill9();
            group.wait_promotion(old).await?;
            group.server(old).restart().await?;
        }
        round += 1;
        if round < failovers {
            group.wait_replica(old).await?;
        }
        Ok(false)
    })
    .await?;
    figure(format!(
        "{failovers} failovers: {confirmed} jobs confirmed by both replicas, 0 lost"
    ));
    // The hundred at the end, and some that were enqueued before or between.
    assert!(confirmed > 110, "only {confirmed} jobs were confirmed");
    Ok(())
}

/// When a tick is, in milliseconds: the id of its job begins with that.
fn tick_of(id: JobId) -> Result<u64> {
    Ok(u64::from_str_radix(&id.to_string()[..12], 16)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ticks_go_on_through_sentinel_failovers_and_each_has_one_job() -> Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    let namespace = unique_namespace("ticks");
    let store = Store::builder(&group.url())
        .deadline(Duration::from_secs(5))
        .connect()
        .await?;
    let queue = plain(&store, &namespace)?;
    let ran: Arc<Mutex<BTreeMap<u64, HashMap<JobId, u32>>>> = Arc::default();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let ran = ran.clone();
        let run = move |_: Step, cx: JobContext| {
            let ran = ran.clone();
            async move {
                let mut ran = ran.lock().unwrap();
                *ran.entry(tick_of(cx.id())?)
                    .or_default()
                    .entry(cx.id())
                    .or_default() += 1;
                anyhow::Ok(())
            }
        };
        workers.push(queue.worker(run).lease(LEASE).start().await?);
    }
    let period = Duration::from_millis(200);
    queue
        .every("beat", period, &Step { n: 0 }, MissedTicks::RunAll)
        .await?;
    // Ten more than there are now.
    let go_on = async || {
        let before = ran.lock().unwrap().len();
        let more = || ran.lock().unwrap().len() >= before + 10;
        ensure!(eventually(LONG * 2, async || more()).await, "no more ticks");
        anyhow::Ok(())
    };
    go_on().await?;
    for round in 0..scale(2, "failovers under ticks") {
        let old = group.master().await?;
        if round % 2 == 0 {
            group.server(old).kill9();
            group.wait_promotion(old).await?;
            group.server(old).restart().await?;
        } else {
            group.failover().await?;
        }
        go_on().await?;
        group.wait_replica(old).await?;
    }
    ensure!(queue.remove_cron("beat").await?);
    drained(&queue, LONG).await?;
    for worker in workers {
        worker.shutdown(LONG).await?;
    }
    let ran = ran.lock().unwrap();
    let several: Vec<_> = ran.iter().filter(|(_, jobs)| jobs.len() > 1).collect();
    ensure!(several.is_empty(), "ticks with several jobs: {several:?}");
    let ticks: Vec<u64> = ran.keys().copied().collect();
    let period = period.as_millis() as u64;
    let gaps: Vec<_> = ticks
        .windows(2)
        .filter(|two| two[1] - two[0] != period)
        .collect();
    ensure!(gaps.is_empty(), "ticks were passed over: {gaps:?}");
    let again = ran.values().flat_map(HashMap::values).filter(|n| **n > 1);
    figure(format!(
        "{} ticks through failovers, each one job; {} of them ran twice",
        ticks.len(),
        again.count()
    ));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_follow_a_slot_that_migrates() -> Result<()> {
    let migrations = scale(2, "queue migrations");
    for kind in [Kind::Redis, Kind::Valkey] {
        let cluster = Cluster::start(kind, 2, 0).await?;
        let slot = key_slot(b"q");
        let mut round = 0;
        let confirmed = under_faults(&cluster.url(), 0, async || {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if round == migrations {
                return Ok(true);
            }
            let owner = cluster.owner(slot).await?;
            cluster.migrate_slot(slot, 1 - owner).await?;
            round += 1;
            Ok(false)
        })
        .await?;
        figure(format!(
            "{migrations} slot migrations: {confirmed} jobs confirmed, 0 lost"
        ));
    }
    Ok(())
}

matrix! {
    processes:
    async fn an_idle_worker_in_another_process_starts_at_once(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        if child::role().is_some() {
            let worker = queue
                .worker(|job: Step, _: JobContext| async move { child::say(micros() - job.n) })
                // Nothing but the message can wake it.
                .lease(Duration::from_secs(3600))
                .start()
                .await?;
            child::say("ready");
            tokio::task::spawn_blocking(child::hear).await?;
            worker.shutdown(LONG).await?;
            return Ok(());
        }
        let mut idle = Child::of(backend.test()).role("idle").namespace(backend.namespace()).spawn()?;
        assert_eq!(idle.line().await?, "ready");
        let waiting = format!("{}:queue:{{q}}:idle", backend.namespace());
        let mut took = Vec::new();
        for _ in 0..scale(50, "idle starts") {
            // It has looked, found nothing and waits.
            ensure!(eventually(LONG, async || {
                store.query::<bool>(redis::cmd("EXISTS").arg(&waiting)).await.unwrap_or(false)
            }).await);
            queue.enqueue(&Step { n: micros() }).await?;
            took.push(idle.line().await?.parse::<u64>()?);
        }
        took.sort_unstable();
        let at = |share: usize| Duration::from_micros(took[(took.len() - 1) * share / 100]);
        figure(format!("{}: from enqueue to start, {} times: median {:?}, p99 {:?}, worst {:?}", backend.test(), took.len(), at(50), at(99), at(100)));
        // Far above what it takes, far below any interval of polling that would not be noticed.
        assert!(at(50) < Duration::from_millis(200), "{:?}", at(50));
        idle.tell("stop")?;
        ensure!(idle.wait().await?.success());
        Ok(())
    }
}

/// Children note their end before their parent begins; nothing that was cancelled while it waited begins after that.
#[derive(Default)]
struct Plan {
    /// Children of each parent.
    flows: HashMap<u64, Vec<u64>>,
    /// When the cancellation of a job was confirmed.
    cancelled: HashMap<u64, u64>,
    /// When those that ran were told.
    told: HashMap<u64, u64>,
    next: u64,
}

impl Plan {
    fn step(&mut self) -> Step {
        self.next += 1;
        Step { n: self.next }
    }
}

matrix! {
    processes:
    async fn killed_workers_lose_nothing_of_flows_groups_limits_and_cancels(backend: &Backend) -> Result<()> {
        let takes = Duration::from_millis(10);
        if child::role().is_some() {
            return serve(backend, limited, 16, takes).await;
        }
        let store = Store::connect(backend.url()).await?;
        let queue = limited(&store, backend.namespace())?;
        let kills = scale(2, "worker kills with flows");
        let mut workers = [Process::start(backend, &store).await?, Process::start(backend, &store).await?];
        let mut plan = Plan::default();
        for kill in 0..kills {
            for _ in 0..10 {
                let parent = plan.step();
                let mut flow = redstart::messaging::Flow::new(&parent)?;
                let mut children = Vec::new();
                for _ in 0..5 {
                    let child = plan.step();
                    children.push(child.n);
                    flow = flow.child(redstart::messaging::Flow::new(&child)?.group(["a", "b"][child.n as usize % 2]));
                }
                plan.flows.insert(parent.n, children);
                let _ = queue.add_flow(flow).await?;
            }
            for _ in 0..30 {
                let step = plan.step();
                let id = queue.enqueue(&step).group("c").await?.id().context("an id")?;
                if step.n % 3 == 0 {
                    match queue.cancel(id).await? {
                        redstart::messaging::Cancelled::Ended => { plan.cancelled.insert(step.n, micros()); }
                        // It was running, and may be done or not.
                        _ => { plan.told.insert(step.n, micros()); }
                    }
                }
            }
            // Of each round at least 80 jobs begin; the others may be cancelled before that.
            let begun = (kill * 80 + rand::random_range(1..60)) as usize;
            ensure!(eventually(LONG, async || ran(&store, backend.namespace()).await.is_ok_and(|ran| ran.len() >= begun)).await);
            let at = rand::random_range(0..workers.len());
            workers[at].child.kill9();
            workers[at] = Process::start(backend, &store).await?;
        }
        drained(&queue, LEASE * 4 + LONG).await?;
        assert_eq!(queue.inspect().counts().await?.dead, 0);
        let ran = ran(&store, backend.namespace()).await?;
        for n in 1..=plan.next {
            let ended = ran.get(&n).map_or(0, |ran| ran.ended);
            match plan.cancelled.get(&n) {
                Some(at) => {
                    let late = ran.get(&n).is_some_and(|ran| ran.began.iter().any(|began| began > at));
                    assert!(!late, "job {n} began after its cancellation");
                }
                None => match plan.told.get(&n) {
                    None => assert!(ended > 0, "job {n} was lost"),
                    // It may begin after that once, if it had just been handed out.
                    Some(told) => {
                        let later = ran.get(&n).map_or(0, |ran| ran.began.iter().filter(|began| *began > told).count());
                        assert!(later <= 1, "job {n} was run again after its cancellation");
                    }
                },
            }
        }
        for (parent, children) in &plan.flows {
            let begun = ran[parent].began.iter().min().context("it ran")?;
            for child in children {
                let ended = ran[child].first_end.context("it ended")?;
                assert!(ended <= *begun, "parent {parent} began before its child {child} had ended");
            }
        }
        // All places are free again, and nobody stands in a line.
        let meta = format!("{}:queue:{{q}}:meta", backend.namespace());
        let mut places = Vec::new();
        let free = eventually(LONG, async || {
            let fields: Vec<String> = store.query(redis::cmd("HKEYS").arg(&meta)).await.unwrap_or_default();
            places = fields.into_iter().filter(|field| field.starts_with("n:") || field.starts_with("w:")).collect();
            places.is_empty()
        });
        ensure!(free.await, "places are left: {places:?}");
        figure(format!("{kills} kills with flows, groups, limits and cancels, {} jobs, 0 lost", plan.next));
        Ok(())
    }
}
