//! How many workers are woken, and how much each takes.

use std::{collections::HashSet, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use redstart::{
    Store,
    messaging::{Job, JobContext, JobLimit, Queue, Verdict},
};
use redstart_testkit::{Kind, MonitorTap, Server, eventually};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::queue::{LONG, Log, Task, empty, task};

#[derive(Serialize, Deserialize)]
struct Large {
    text: String,
}

impl Job for Large {
    const NAME: &'static str = "large";
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enqueue_wakes_as_many_workers_as_it_added_jobs() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let queue = Queue::new(&store, "wake", "q")?;
    let (log, mut workers) = (Log::default(), Vec::new());
    for _ in 0..5 {
        let log = log.clone();
        let worker = queue
            .worker(move |job: Task, _: JobContext| {
                let log = log.clone();
                async move { log.push(job.n) }
            })
            // So long that no heartbeat comes while this runs.
            .lease(Duration::from_secs(3600))
            .start()
            .await?;
        workers.push(worker);
    }
    let idle = async |count: u64| {
        eventually(LONG, async || {
            let idle = redis::cmd("ZCARD").arg("wake:queue:{q}:idle").to_owned();
            store.query::<u64>(&idle).await.is_ok_and(|n| n == count)
        })
        .await
    };
    let mut ran = 0;
    for jobs in [1, 2, 1, 3] {
        ensure!(idle(5).await, "the workers are not idle");
        let tap = MonitorTap::start(&server).await?;
        queue.enqueue_many((0..jobs).map(task)).await?;
        ran += jobs as usize;
        log.reaches(ran).await?;
        empty(&queue).await?;
        // A worker that was woken before may ask once more, so what counts is whom the script called.
        let woken: HashSet<String> = tap
            .commands()
            .await?
            .into_iter()
            .filter(|seen| seen.is_from_script() && seen.name() == "SPUBLISH")
            .filter_map(|seen| seen.words.into_iter().nth(1))
            .filter(|channel| channel.contains(":wake:") && !channel.ends_with(":ended"))
            .collect();
        assert_eq!(woken.len(), jobs as usize, "woken: {woken:?}");
    }
    // A worker that is gone without a word is passed over.
    store
        .query::<()>(
            redis::cmd("ZADD")
                .arg("wake:queue:{q}:idle")
                .arg(1)
                .arg("gone"),
        )
        .await?;
    queue.enqueue(&task(0)).await?;
    log.reaches(ran + 1).await?;
    for worker in workers {
        worker.shutdown(LONG).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_of_large_jobs_is_bounded_in_bytes() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_secs(20))
        .connect()
        .await?;
    let queue = Queue::new(&store, "large", "q")?;
    let text = "x".repeat(300_000);
    for at in 0..24 {
        let job = Large { text: text.clone() };
        // Both ways that jobs are taken: in order, and merged by priority.
        queue
            .enqueue(&job)
            .priority(if at < 12 { 0 } else { 1 })
            .await?;
    }
    queue.enqueue_many((0..200).map(task)).await?;
    let tap = MonitorTap::start(&server).await?;
    let log = Log::default();
    let (large, small) = (log.clone(), log.clone());
    let worker = queue
        .worker(move |job: Large, _: JobContext| {
            let log = large.clone();
            async move { log.push(job.text.len() as u64) }
        })
        .handler(move |job: Task, _: JobContext| {
            let log = small.clone();
            async move { log.push(job.n) }
        })
        .concurrency(500)
        .start()
        .await?;
    log.reaches(224).await?;
    empty(&queue).await?;
    let reservations = tap
        .round_trips("large:queue:{q}:workers")
        .await?
        .into_iter()
        .filter(|seen| seen.mentions("large:queue:{q}:ready"))
        .count();
    // 24 times 300 KB, at most three of them at once.
    assert!(reservations >= 8, "{reservations} reservations");
    worker.shutdown(LONG).await?;
    Ok(())
}

/// Workers wait for a limit of the whole queue. One that takes the only free place must see to it that the next place that
/// comes free is known to another: nobody else would say so before a lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_place_that_comes_free_under_a_limit_is_taken_by_a_worker_that_waits() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let queue = Queue::builder(&store, "wake", "limited")
        .limit(JobLimit::concurrency(4))
        .build()?;
    queue.enqueue_many((0..4).map(task)).await?;
    // Somebody who takes no more has all places.
    let lease = Duration::from_secs(3600);
    let dispatcher = queue.dispatcher(["task"]).lease(lease).start().await?;
    let held = dispatcher.take(4, LONG).await?;
    assert_eq!(held.len(), 4);
    let (log, gate, mut workers) = (Log::default(), Arc::new(Semaphore::new(0)), Vec::new());
    for _ in 0..4 {
        let (log, gate) = (log.clone(), gate.clone());
        let worker = queue
            .worker(move |job: Task, _: JobContext| {
                let (log, gate) = (log.clone(), gate.clone());
                async move {
                    log.push(job.n);
                    gate.acquire().await.unwrap().forget();
                }
            })
            .concurrency(1)
            .lease(lease)
            .start()
            .await?;
        workers.push(worker);
    }
    queue.enqueue_many((10..14).map(task)).await?;
    for (number, job) in held.iter().enumerate() {
        let _ = dispatcher.settle(&job.fence, Verdict::Done).await?;
        // Before the next place comes free, this one is taken, and nobody else was told of it.
        log.reaches(number + 1).await?;
    }
    gate.add_permits(4);
    empty(&queue).await?;
    // Places that come free together are known to one worker; it tells the next.
    queue.enqueue_many((20..24).map(task)).await?;
    log.reaches(8).await?;
    gate.add_permits(4);
    empty(&queue).await?;
    for worker in workers {
        worker.shutdown(LONG).await?;
    }
    Ok(())
}
