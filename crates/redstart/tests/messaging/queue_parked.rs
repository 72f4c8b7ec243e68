//! Two versions of a program side by side: jobs that a worker cannot run are left to those that can.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use redstart::{
    Store,
    messaging::{
        Cancelled, Job, JobContext, JobLimit, JobState, Outcome, Queue, UniqueUntil, Worker,
    },
};
use redstart_testkit::{Backend, eventually, matrix};
use serde::{Deserialize, Serialize};

use crate::{
    queue::{LONG, Log, Other, empty, logging, open, task},
    queue_group::Gauge,
};

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

matrix! {
    async fn dead_letters_have_the_panics_message_and_the_field_that_could_not_be_decoded(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        for (name, limit) in [("taken", Duration::ZERO), ("parked", Duration::from_millis(300))] {
            let queue = Queue::builder(&store, backend.namespace(), name).park_for(limit).build()?;
            let look = queue.inspect();
            queue.enqueue(&NewTask { number: 77_077 }).await?;
            queue.enqueue(&task(1)).await?;
            let worker = queue
                .worker(|job: crate::queue::Task, _| async move {
                    assert_eq!(job.n, 2, "the printer is on fire");
                    redstart::messaging::Verdict::Done
                })
                .retry(redstart::messaging::Backoff::fixed(Duration::from_millis(1)), 1)
                .start()
                .await?;
            if limit > Duration::ZERO && backend.is_embedded() {
                ensure!(eventually(LONG, async || look.counts().await.is_ok_and(|c| c.parked == 1)).await);
                store.advance(limit)?;
            }
            ensure!(eventually(LONG, async || look.counts().await.is_ok_and(|c| c.dead == 2)).await, "{:?}", look.counts().await?);
            let letters = look.dead_letters().list(None).await?;
            let has = |text: &str| letters.iter().any(|letter| letter.reason.contains(text));
            assert!(has("panicked: ") && has("the printer is on fire"), "{letters:?}");
            assert!(has("field n is missing") && !has("77077"), "{letters:?}");
            worker.shutdown(LONG).await?;
        }
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

/// Parks jobs: a worker that does not know `Other` takes them, until so many are parked.
async fn park(queue: &Queue, count: u64) -> Result<()> {
    let old = logging(queue, &Log::default(), 4).await?;
    let look = queue.inspect();
    let parked = eventually(LONG, async || {
        look.counts().await.is_ok_and(|c| c.parked == count)
    });
    ensure!(parked.await, "{:?}", look.counts().await?);
    old.shutdown(LONG).await?;
    Ok(())
}

matrix! {
    async fn parked_jobs_run_under_the_limits_of_their_queue_and_kind(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let limit = || JobLimit::concurrency(2);
        for (name, builder) in [
            ("queue", Queue::builder(&store, backend.namespace(), "q").limit(limit())),
            ("kind", Queue::builder(&store, backend.namespace(), "k").kind_limit("other", limit())),
        ] {
            let queue = builder.build()?;
            for _ in 0..30 {
                queue.enqueue(&Other).await?;
            }
            park(&queue, 30).await?;
            let (gauge, ran) = (Arc::new(Gauge::default()), Log::default());
            let (most, log) = (gauge.clone(), ran.clone());
            let worker = queue
                .worker(move |_: Other, _: JobContext| {
                    let (gauge, log) = (gauge.clone(), log.clone());
                    async move {
                        gauge.pass().await;
                        log.push(1);
                    }
                })
                .concurrency(20)
                // A worker that is not told when it may go on would wait for this.
                .lease(Duration::from_secs(3600))
                .start()
                .await?;
            ran.reaches(30).await?;
            empty(&queue).await?;
            assert!(most.most() <= 2, "{name}: {} ran at a time", most.most());
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }

    async fn a_parked_job_keeps_the_order_of_its_group(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q")
            .group_limit(JobLimit::concurrency(1))
            .build()?;
        let (log, look) = (Log::default(), queue.inspect());
        let parked = async |count: u64| eventually(LONG, async || look.counts().await.is_ok_and(|c| c.parked == count)).await;
        let old = logging(&queue, &log, 4).await?;
        queue.enqueue(&Other).group("a").await?;
        for n in 2..5 {
            queue.enqueue(&task(n)).group("a").await?;
        }
        let cancelled = queue.enqueue(&Other).group("b").await?.id().unwrap();
        queue.enqueue(&task(9)).group("b").await?;
        ensure!(parked(2).await);
        // The next in the group runs when the parked one is over, whoever ends it.
        assert_eq!(queue.cancel(cancelled).await?, Cancelled::Ended);
        log.reaches(1).await?;
        assert_eq!(log.all(), [9]);
        let worker = new_version_of_both(&queue, &log).await?;
        log.reaches(5).await?;
        empty(&queue).await?;
        assert_eq!(log.all(), [9, 1000, 2, 3, 4]);
        old.shutdown(LONG).await?;
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_debounced_job_that_was_parked_holds_its_key_and_gets_the_last_payload(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let log = Log::default();
        // It knows another kind only.
        let other = queue.worker(|_: Other, _: JobContext| async {}).start().await?;
        let first = queue.enqueue(&task(1)).debounce("u", Duration::from_millis(1)).await?.id().unwrap();
        let look = queue.inspect();
        ensure!(eventually(LONG, async || look.counts().await.is_ok_and(|c| c.parked == 1)).await);
        let again = queue.enqueue(&task(2)).debounce("u", Duration::from_millis(1)).await?;
        assert_eq!((again.is_new(), again.id()), (false, Some(first)), "its key was given away");
        let worker = logging(&queue, &log, 1).await?;
        log.reaches(1).await?;
        empty(&queue).await?;
        assert_eq!(log.all(), [2]);
        ensure!(queue.enqueue(&task(3)).debounce("u", Duration::from_millis(1)).await?.is_new(), "it has started");
        other.shutdown(LONG).await?;
        worker.shutdown(LONG).await?;
        Ok(())
    }
}

/// Both kinds of job, of which the old version knows one.
async fn new_version_of_both(queue: &Queue, log: &Log) -> Result<Worker> {
    let (tasks, others) = (log.clone(), log.clone());
    Ok(queue
        .worker(move |job: crate::queue::Task, _: JobContext| {
            let log = tasks.clone();
            async move { log.push(job.n) }
        })
        .handler(move |_: Other, _: JobContext| {
            let log = others.clone();
            async move { log.push(1000) }
        })
        .start()
        .await?)
}

#[tokio::test]
async fn a_parked_job_that_expired_does_not_run_and_its_group_goes_on() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = Queue::builder(&store, "parked", "q")
        .group_limit(JobLimit::concurrency(1))
        .keep_done(10, Duration::from_secs(3600))
        .park_for(Duration::from_secs(1000))
        .build()?;
    let soon = Duration::from_secs(100);
    let late = queue.enqueue(&Other).expires_after(soon).group("a").await?;
    park(&queue, 1).await?;
    let unknown = queue.enqueue(&Other).group("b").await?;
    park(&queue, 2).await?;
    store.advance(soon * 2)?;
    queue.enqueue(&task(2)).group("a").await?;
    let log = Log::default();
    let worker = new_version_of_both(&queue, &log).await?;
    assert_eq!(late.ended().await?, Outcome::Expired);
    log.reaches(2).await?;
    assert_eq!(unknown.ended().await?, Outcome::Done(()));
    let mut ran = log.all();
    ran.sort_unstable();
    assert_eq!(ran, [2, 1000]);
    worker.shutdown(LONG).await?;

    // No worker ever knows it: its group goes on when it is a dead letter.
    queue.enqueue(&Other).group("c").await?;
    park(&queue, 1).await?;
    queue.enqueue(&task(3)).group("c").await?;
    let old = logging(&queue, &log, 4).await?;
    store.advance(Duration::from_secs(2000))?;
    // Whoever was just told when to look again may do so later if the clock jumps at that moment.
    let went_on = eventually(LONG, async || {
        store.advance(Duration::from_secs(1)).is_ok() && log.len() == 3
    });
    ensure!(went_on.await, "the group waits for a dead letter");
    assert_eq!(queue.inspect().counts().await?.dead, 1);
    old.shutdown(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn parked_jobs_run_at_the_rate_of_their_queue() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let day = Duration::from_secs(86_400);
    let queue = Queue::builder(&store, "rate", "q")
        .limit(JobLimit::per(4, day).burst(4))
        .park_for(day * 1000)
        .build()?;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.extend(queue.enqueue(&Other).keep(day * 1000).await?.id());
    }
    park(&queue, 4).await?;
    // To be taken and parked counts as a start, so that all of them are late.
    let parked_at = store.time().await?;
    let log = Log::default();
    let worker = new_version_of_both(&queue, &log).await?;
    let ran = eventually(LONG, async || {
        store.advance(Duration::from_secs(1800)).is_ok() && log.len() == 4
    });
    ensure!(ran.await, "{} of 4 ran", log.len());
    empty(&queue).await?;
    let mut starts = Vec::new();
    for id in ids {
        let found = queue.job(id).await?.unwrap();
        starts.push(found.attempts[0].started);
    }
    starts.sort_unstable();
    for (number, start) in starts.iter().enumerate() {
        // A minute for what passed while they were parked.
        let earliest = parked_at + day / 4 * (number as u32 + 1) - Duration::from_secs(60);
        assert!(*start >= earliest, "number {number}: {starts:?}");
    }
    worker.shutdown(LONG).await?;
    Ok(())
}
