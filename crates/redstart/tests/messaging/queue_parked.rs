//! Two versions of a program side by side: jobs that a worker cannot run are left to those that can.

use std::time::Duration;

use anyhow::{Result, ensure};
use redstart::{
    Store,
    messaging::{Job, JobContext, JobState, Queue, UniqueUntil, Worker},
};
use redstart_testkit::{Backend, eventually, matrix};
use serde::{Deserialize, Serialize};

use crate::queue::{LONG, Log, Other, empty, logging, open, task};

/// The next version of [`Task`](crate::queue::Task): the old one cannot decode it.
#[derive(Serialize, Deserialize)]
struct NewTask {
    number: u64,
}

impl Job for NewTask {
    const NAME: &'static str = "task";
}

async fn new_version(queue: &Queue, log: &Log) -> Result<Worker> {
    let (tasks, others) = (log.clone(), log.clone());
    Ok(queue
        .worker(move |job: NewTask, _: JobContext| {
            let log = tasks.clone();
            async move { log.push(job.number) }
        })
        .handler(move |_: Other, _: JobContext| {
            let log = others.clone();
            async move { log.push(1000) }
        })
        .start()
        .await?)
}

matrix! {
    async fn jobs_that_a_worker_cannot_run_wait_for_one_that_can(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let (old, new) = (Log::default(), Log::default());
        let old_worker = logging(&queue, &old, 4).await?;
        let id = queue.enqueue(&Other).await?.id().unwrap();
        queue.enqueue(&NewTask { number: 1 }).unique("u", UniqueUntil::Done).await?;
        queue.enqueue(&task(7)).await?;
        old.reaches(1).await?;
        let look = queue.inspect();
        ensure!(eventually(LONG, async || look.counts().await.is_ok_and(|c| c.parked == 2)).await);
        assert_eq!(look.find(id).await?.unwrap().state, JobState::Parked);
        assert_eq!(look.list(JobState::Parked, None).await?.0.len(), 1, "a page has one kind");
        assert!(!queue.enqueue(&NewTask { number: 2 }).unique("u", UniqueUntil::Done).await?.is_new());

        let new_worker = new_version(&queue, &new).await?;
        new.reaches(2).await?;
        empty(&queue).await?;
        // Both run now; most jobs are first taken by one that cannot run them.
        for n in 0..50 {
            queue.enqueue(&Other).await?;
            queue.enqueue(&NewTask { number: n }).await?;
        }
        new.reaches(102).await?;
        empty(&queue).await?;
        assert_eq!(look.counts().await?.dead, 0);
        assert_eq!((old.all(), new.len()), (vec![7], 102));
        old_worker.shutdown(LONG).await?;
        new_worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_job_that_no_worker_can_run_becomes_a_dead_letter_after_the_limit(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limit = Duration::from_millis(if backend.is_embedded() { 3_600_000 } else { 500 });
        let queue = Queue::builder(&store, backend.namespace(), "q").park_for(limit).build()?;
        let log = Log::default();
        let first = logging(&queue, &log, 4).await?;
        queue.enqueue(&NewTask { number: 1 }).unique("u", UniqueUntil::Done).await?;
        let deleted = queue.enqueue(&Other).delay(Duration::from_millis(1)).await?.id().unwrap();
        let look = queue.inspect();
        if backend.is_embedded() {
            store.advance(Duration::from_millis(1))?;
            ensure!(eventually(LONG, async || look.counts().await.is_ok_and(|c| c.parked == 2)).await);
            assert!(look.delete(deleted).await?);
            // One more worker that cannot run it does not prolong its time.
            store.advance(limit / 2)?;
            let second = logging(&queue, &log, 4).await?;
            store.advance(limit / 2)?;
            ensure!(eventually(LONG, async || look.counts().await.is_ok_and(|c| c.dead == 1)).await);
            second.shutdown(LONG).await?;
        }
        ensure!(eventually(LONG, async || look.counts().await.is_ok_and(|c| c.unfinished() == 0)).await);
        let letters = look.dead_letters().list(None).await?;
        assert!(letters.iter().all(|letter| ["no worker could run it", "cannot be decoded", "no handler"].iter().any(|why| letter.reason.contains(why))), "{letters:?}");
        assert!(queue.enqueue(&Other).unique("u", UniqueUntil::Done).await?.is_new(), "the key is free");
        first.shutdown(LONG).await?;
        Ok(())
    }
}

/// A version of [`Task`](crate::queue::Task) that can decode neither the old nor the new one.
#[derive(Serialize, Deserialize)]
struct ForeignTask {
    foreign: u64,
}

impl Job for ForeignTask {
    const NAME: &'static str = "task";
}

#[tokio::test]
async fn a_parked_job_behind_one_that_nobody_can_decode_still_runs() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let lease = Duration::from_secs(3600);
    let queue = Queue::builder(&store, "behind", "q")
        .park_for(1000 * lease)
        .build()?;
    let look = queue.inspect();
    // Both are parked, first the one that no worker of this test can decode.
    let foreign = queue
        .worker(|_: ForeignTask, _: JobContext| async {})
        .concurrency(1)
        .start()
        .await?;
    queue.enqueue(&NewTask { number: 1 }).await?;
    ensure!(
        eventually(LONG, async || look
            .counts()
            .await
            .is_ok_and(|c| c.parked == 1))
        .await
    );
    store.advance(Duration::from_secs(1))?;
    queue.enqueue(&task(7)).await?;
    ensure!(
        eventually(LONG, async || look
            .counts()
            .await
            .is_ok_and(|c| c.parked == 2))
        .await
    );
    foreign.shutdown(LONG).await?;

    let log = Log::default();
    let ran = log.clone();
    let worker = queue
        .worker(move |job: crate::queue::Task, _: JobContext| {
            let log = ran.clone();
            async move { log.push(job.n) }
        })
        .concurrency(1)
        .lease(lease)
        .start()
        .await?;
    // It takes one job at a time, and leaves the kind to others for a minute when it cannot decode one.
    let runs = eventually(LONG, async || {
        store.advance(Duration::from_secs(61)).is_ok() && log.len() == 1
    });
    ensure!(runs.await, "the parked job was never looked at");
    assert_eq!(log.all(), [7]);
    let counts = look.counts().await?;
    assert_eq!((counts.dead, counts.ready), (0, 0));
    worker.shutdown(LONG).await?;
    assert_eq!(look.counts().await?.parked, 1);
    Ok(())
}
