//! The job queue when processes, connections and servers die.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    messaging::queue::{Backoff, Context, Job, Outcome, Queue, Worker},
};
use redstart_testkit::{
    Backend, Child, Cluster, Kind, Sentinel, Server, child, eventually, key_slot, matrix, scale,
    unique_namespace,
};
use serde::{Deserialize, Serialize};

use crate::queue::LONG;

#[derive(Serialize, Deserialize)]
struct Step {
    n: u64,
}

impl Job for Step {
    const NAME: &'static str = "step";
}

const LEASE: Duration = Duration::from_millis(1500);

/// Every run of a job is noted in the store, where it outlives the process.
fn runs_key(namespace: &str) -> String {
    format!("{namespace}:runs")
}

/// A worker whose jobs note their run and then take a little while.
async fn noting(
    store: &Store,
    namespace: &str,
    concurrency: usize,
    takes: Duration,
) -> Result<Worker> {
    let queue = Queue::new(store, namespace, "q")?;
    let (store, runs) = (store.clone(), runs_key(namespace));
    Ok(queue
        .worker(move |job: Step, cx: Context| {
            let (store, runs) = (store.clone(), runs.clone());
            async move {
                tokio::time::sleep(takes).await;
                let note = format!("{} {}", job.n, cx.attempt());
                store
                    .query::<()>(redis::cmd("RPUSH").arg(&runs).arg(note))
                    .await
                    .map(|()| Outcome::Done)
            }
        })
        .concurrency(concurrency)
        .lease(LEASE)
        .retry(Backoff::fixed(Duration::from_millis(20)), 1000)
        .run()
        .await?)
}

/// How often each job ran.
async fn runs(store: &Store, namespace: &str) -> Result<HashMap<u64, u32>> {
    let notes: Vec<String> = store
        .query(redis::cmd("LRANGE").arg(runs_key(namespace)).arg(0).arg(-1))
        .await?;
    let mut runs = HashMap::new();
    for note in notes {
        let n = note.split(' ').next().context("a note without a number")?;
        *runs.entry(n.parse()?).or_default() += 1;
    }
    Ok(runs)
}

async fn drained(queue: &Queue, within: Duration) -> Result<()> {
    let look = queue.inspect();
    let came = eventually(within, async || {
        look.counts()
            .await
            .is_ok_and(|counts| counts.waiting() == 0)
    })
    .await;
    ensure!(came, "the queue does not drain: {:?}", look.counts().await);
    Ok(())
}

/// A child process: one worker until it is killed or told to stop.
async fn serve(backend: &Backend, concurrency: usize, takes: Duration) -> Result<()> {
    let store = Store::connect(backend.url()).await?;
    let worker = noting(&store, backend.namespace(), concurrency, takes).await?;
    child::say("ready");
    tokio::task::spawn_blocking(child::hear).await?;
    worker.shutdown(LONG).await?;
    Ok(())
}

matrix! {
    servers only:
    async fn killed_workers_lose_no_job_and_repeat_no_more_than_was_in_flight(backend: &Backend) -> Result<()> {
        const CONCURRENCY: usize = 64;
        let takes = Duration::from_millis(15);
        if child::role().is_some() {
            return serve(backend, CONCURRENCY, takes).await;
        }
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let kills = scale(3, "worker kills");
        let spawn = || Child::of(backend.test()).role("worker").namespace(backend.namespace()).spawn();
        let mut workers = vec![spawn()?, spawn()?];
        for worker in &mut workers {
            assert_eq!(worker.line().await?, "ready");
        }
        let mut jobs = 0;
        for kill in 0..kills {
            let _ = queue.enqueue_many((jobs..jobs + 400).map(|n| Step { n })).await?;
            jobs += 400;
            // In the middle of the load, at no particular point of it.
            let target = jobs - 400 + rand::random_range(1..300);
            let ran = runs_key(backend.namespace());
            ensure!(eventually(LONG, async || {
                store.query::<u64>(redis::cmd("LLEN").arg(&ran)).await.is_ok_and(|n| n >= target)
            }).await, "the load does not move on after kill {kill}");
            let victim = rand::random_range(0..workers.len());
            workers[victim].kill9();
            workers[victim] = spawn()?;
            assert_eq!(workers[victim].line().await?, "ready");
        }
        // Orphans come back with the end of the lease, and quickly from then on.
        drained(&queue, LEASE * 4 + LONG).await?;
        let ran = runs(&store, backend.namespace()).await?;
        assert_eq!(ran.len() as u64, jobs, "jobs were lost");
        let repeats: u64 = ran.values().map(|times| u64::from(*times - 1)).sum();
        assert!(repeats <= kills * CONCURRENCY as u64, "{repeats} repeats of {kills} kills");
        for mut worker in workers {
            worker.tell("stop")?;
            assert!(worker.wait().await?.success());
        }
        Ok(())
    }

    async fn orphans_run_again_soon_after_the_lease(backend: &Backend) -> Result<()> {
        if child::role().is_some() {
            return serve(backend, 8, LONG * 10).await;
        }
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let mut victim = Child::of(backend.test()).role("worker").namespace(backend.namespace()).spawn()?;
        assert_eq!(victim.line().await?, "ready");
        let _ = queue.enqueue_many((0..8).map(|n| Step { n })).await?;
        ensure!(eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.running == 8)).await);
        let idle = noting(&store, backend.namespace(), 8, Duration::ZERO).await?;
        victim.kill9();
        let killed = store.time().await?;
        drained(&queue, LONG).await?;
        let took = store.time().await? - killed;
        assert!(took < LEASE + Duration::from_secs(2), "orphans took {took:?}");
        assert_eq!(runs(&store, backend.namespace()).await?.len(), 8);
        idle.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_stopped_and_resumed_worker_is_refused_and_its_handler_hears_of_the_loss(backend: &Backend) -> Result<()> {
        if child::role().is_some() {
            let store = Store::connect(backend.url()).await?;
            let queue = Queue::new(&store, backend.namespace(), "q")?;
            let worker = queue
                .worker(move |_: Step, cx: Context| async move {
                    child::say(format!("began {}", cx.attempt()));
                    cx.lost().await;
                    child::say("lost");
                    Outcome::Done
                })
                .lease(LEASE)
                .run()
                .await?;
            tokio::task::spawn_blocking(child::hear).await?;
            let report = worker.shutdown(LONG).await?;
            child::say(format!("done {}", report.done));
            return Ok(());
        }
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let id = queue.enqueue(&Step { n: 1 }).await?.id().context("new")?;
        let mut zombie = Child::of(backend.test()).role("zombie").namespace(backend.namespace()).spawn()?;
        assert_eq!(zombie.line().await?, "began 1");
        zombie.pause()?;
        // Another worker takes the job when the lease is over, and keeps it.
        let other = noting(&store, backend.namespace(), 4, Duration::from_secs(4)).await?;
        ensure!(eventually(LONG, async || {
            matches!(queue.inspect().find(id).await, Ok(Some(job)) if job.attempts == 1)
        }).await, "nobody took the job over");
        zombie.resume()?;
        assert_eq!(zombie.line().await?, "lost");
        zombie.tell("stop")?;
        assert_eq!(zombie.line().await?, "done 0", "its ending was taken although it had lost the job");
        drained(&queue, LONG).await?;
        assert_eq!(runs(&store, backend.namespace()).await?, HashMap::from([(1, 1)]));
        other.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_job_that_kills_its_process_dies_after_exactly_its_attempts_alone(backend: &Backend) -> Result<()> {
        const ATTEMPTS: u16 = 3;
        if child::role().is_some() {
            let store = Store::connect(backend.url()).await?;
            let queue = Queue::new(&store, backend.namespace(), "q")?;
            let runs = runs_key(backend.namespace());
            let _worker = queue
                .worker(move |job: Step, cx: Context| {
                    let (store, runs) = (store.clone(), runs.clone());
                    async move {
                        let note = format!("{} {}", job.n, cx.attempt());
                        let noted = store.query::<()>(redis::cmd("RPUSH").arg(&runs).arg(note)).await;
                        if job.n == 5 {
                            std::process::abort();
                        }
                        noted.map(|()| Outcome::Done)
                    }
                })
                .concurrency(1)
                .lease(Duration::from_millis(300))
                .retry(Backoff::fixed(Duration::ZERO), ATTEMPTS)
                .run()
                .await?;
            // Until a job or the parent ends it.
            return std::future::pending().await;
        }
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let _ = queue.enqueue_many((0..10).map(|n| Step { n })).await?;
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
            .query(redis::cmd("LRANGE").arg(runs_key(backend.namespace())).arg(0).arg(-1))
            .await?;
        let of_five: Vec<&str> = notes.iter().filter_map(|note| note.strip_prefix("5 ")).collect();
        assert_eq!(of_five, ["1", "2", "3"]);
        for n in (0..10).filter(|n| *n != 5) {
            assert!(notes.contains(&format!("{n} 1")), "a neighbour was charged: {notes:?}");
        }
        assert_eq!(notes.len(), 12);
        last.kill9();
        let _ = last.wait().await;
        Ok(())
    }
}

/// Enqueues while something is being broken; whoever breaks it says when it is enough. What was enqueued after
/// that must run; gives the jobs that were confirmed before and did not run.
async fn under_faults(
    url: &str,
    namespace: &str,
    mut fault: impl AsyncFnMut() -> Result<bool>,
) -> Result<Vec<u64>> {
    let store = Store::builder(url)
        .deadline(Duration::from_secs(5))
        .connect()
        .await?;
    let queue = Queue::new(&store, namespace, "q")?;
    let worker = noting(&store, namespace, 32, Duration::from_millis(2)).await?;
    let other = noting(&store, namespace, 32, Duration::from_millis(2)).await?;
    let (mut jobs, mut confirmed) = (0, Vec::new());
    loop {
        let enough = fault().await?;
        // What is in doubt may be there or not, so each attempt has its own number.
        for _ in 0..50 {
            match queue.enqueue(&Step { n: jobs }).await {
                Ok(_) => confirmed.push(jobs),
                Err(error) if error.is_in_doubt() => {}
                Err(error) if error.is_unavailable() || error.is_timeout() => {}
                Err(error) => return Err(error.into()),
            }
            jobs += 1;
        }
        if enough {
            break;
        }
    }
    let last = queue
        .enqueue_many((jobs..jobs + 100).map(|n| Step { n }))
        .await?;
    assert_eq!(last.added.len(), 100);
    drained(&queue, LONG * 2).await?;
    worker.shutdown(LONG).await?;
    other.shutdown(LONG).await?;
    let ran = runs(&store, namespace).await?;
    for n in jobs..jobs + 100 {
        assert!(ran.contains_key(&n), "job {n} was lost");
    }
    confirmed.retain(|n| !ran.contains_key(n));
    Ok(confirmed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_go_on_while_connections_are_killed() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let queue = Queue::new(&store, "kill", "q")?;
    let count = 1000;
    let worker = noting(&store, "kill", 32, Duration::from_millis(5)).await?;
    let _ = queue.enqueue_many((0..count).map(|n| Step { n })).await?;
    let until = tokio::time::Instant::now() + Duration::from_secs(scale(2, "client kill seconds"));
    let mut more = count;
    while tokio::time::Instant::now() < until {
        for kind in ["normal", "pubsub"] {
            let _ = server
                .command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"])
                .await;
        }
        if queue.enqueue(&Step { n: more }).await.is_ok() {
            more += 1;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drained(&queue, LONG).await?;
    worker.shutdown(LONG).await?;
    let ran = runs(&store, "kill").await?;
    for n in 0..more {
        assert!(ran.contains_key(&n), "job {n} was lost");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_follow_a_sentinel_failover() -> Result<()> {
    let sentinel = Sentinel::start(Kind::Redis).await?;
    let mut round = 0;
    // A server may forget the last moments before its failover; what it still knows must run.
    let forgotten = under_faults(&sentinel.url(), &unique_namespace("sentinel"), async || {
        round += 1;
        if round == 2 {
            sentinel.failover().await?;
        }
        Ok(round == 4)
    })
    .await?;
    assert!(
        forgotten.len() < 50,
        "more was lost than the failover can explain: {forgotten:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_follow_a_slot_that_migrates() -> Result<()> {
    let cluster = Cluster::start(Kind::Redis, 2, 0).await?;
    let namespace = unique_namespace("migration");
    let slot = key_slot(b"q");
    let mut round = 0;
    let lost = under_faults(&cluster.url(), &namespace, async || {
        round += 1;
        if round % 2 == 0 {
            let owner = cluster.owner(slot).await?;
            cluster.migrate_slot(slot, 1 - owner).await?;
        }
        Ok(round == 5)
    })
    .await?;
    assert_eq!(lost, Vec::<u64>::new());
    Ok(())
}
