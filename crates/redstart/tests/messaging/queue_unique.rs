//! Unique keys: how long they are held, and what happens to duplicates.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use redstart::{
    Store,
    messaging::{Cancelled, JobContext, JobState, Outcome, Queue, Settled, UniqueUntil, Verdict},
};
use redstart_testkit::{Backend, eventually, matrix};
use tokio::sync::Semaphore;

use crate::queue::{LONG, Log, Task, empty, logging, open, task};

/// So long that it does not end by itself while a test runs on a server.
const HOUR: Duration = Duration::from_secs(3600);

/// A worker takes a job, begins to run it, and hands it back when it is shut down.
async fn run_and_hand_back(queue: &Queue) -> Result<()> {
    let started = Arc::new(Semaphore::new(0));
    let seen = started.clone();
    let worker = queue
        .worker(move |_: Task, _: JobContext| {
            seen.add_permits(1);
            std::future::pending::<()>()
        })
        .start()
        .await?;
    let _ = tokio::time::timeout(LONG, started.acquire()).await??;
    let report = worker.shutdown(Duration::ZERO).await?;
    ensure!(report.handed_back == 1, "{report:?}");
    Ok(())
}

matrix! {
    async fn a_waiting_duplicate_gets_the_new_payload_and_a_running_one_does_not(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let first = queue.enqueue(&task(1)).unique("u", UniqueUntil::Done).await?.id().unwrap();
        let again = queue.enqueue(&task(2)).unique("u", UniqueUntil::Done).await?;
        assert_eq!((again.is_new(), again.id()), (false, Some(first)));
        assert_eq!(queue.job(first).await?.unwrap().job.decode::<Task>()?.n, 1, "the payload is kept by default");
        ensure!(!queue.enqueue(&task(3)).unique("u", UniqueUntil::Done).replace_waiting().await?.is_new());
        assert_eq!(queue.job(first).await?.unwrap().job.decode::<Task>()?.n, 3);
        let log = Log::default();
        let worker = logging(&queue, &log, 1).await?;
        log.reaches(1).await?;
        empty(&queue).await?;
        assert_eq!(log.all(), [3]);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_job_between_two_attempts_keeps_its_payload(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let hands = queue.dispatcher(["task"]).start().await?;
        let first = queue.enqueue(&task(1)).unique("u", UniqueUntil::Done).await?.id().unwrap();
        let taken = hands.take(1, LONG).await?;
        assert_eq!(taken[0].id, first);
        // What this run did once under the job's id, it did for this payload.
        assert_eq!(hands.settle(&taken[0].fence, Verdict::retry_after(HOUR, "later")).await?, Settled::Done);
        let again = queue.enqueue(&task(2)).unique("u", UniqueUntil::Done).replace_waiting().await?;
        assert_eq!((again.is_new(), again.id()), (false, Some(first)));
        assert_eq!(queue.job(first).await?.unwrap().job.decode::<Task>()?.n, 1);
        ensure!(queue.inspect().run_now(first).await?);
        ensure!(!queue.enqueue(&task(3)).unique("u", UniqueUntil::Done).replace_waiting().await?.is_new());
        let taken = hands.take(1, LONG).await?;
        assert_eq!((taken[0].attempt, &taken[0].payload[..]), (2, &serde_json::to_vec(&task(1))?[..]));
        assert_eq!(hands.settle(&taken[0].fence, Verdict::Done).await?, Settled::Done);
        Ok(())
    }

    async fn a_job_that_was_handed_back_or_replayed_after_it_ran_keeps_its_payload(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let first = queue.enqueue(&task(1)).unique("u", UniqueUntil::Done).await?.id().unwrap();
        let keeps = async |n: u64| -> Result<()> {
            let job = task(n);
            let again = queue.enqueue(&job).unique("u", UniqueUntil::Done).replace_waiting().await?;
            assert_eq!((again.is_new(), again.id()), (false, Some(first)));
            assert_eq!(queue.job(first).await?.unwrap().job.decode::<Task>()?.n, 1, "it ran with that payload");
            Ok(())
        };
        // No attempt was charged, but what this run did once under the job's id, it did for this payload.
        run_and_hand_back(&queue).await?;
        keeps(2).await?;
        let hands = queue.dispatcher(["task"]).start().await?;
        let taken = hands.take(1, LONG).await?;
        assert_eq!(hands.settle(&taken[0].fence, Verdict::dead("no")).await?, Settled::Done);
        assert_eq!(queue.inspect().dead_letters().replay(|_| true).await?, 1);
        keeps(3).await?;
        Ok(())
    }

    async fn a_debounced_job_that_was_handed_back_takes_no_payload_away(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let first = queue.enqueue(&task(1)).debounce("u", HOUR).await?.id().unwrap();
        ensure!(queue.inspect().run_now(first).await?);
        run_and_hand_back(&queue).await?;
        // It has started, so the last payload is another job's.
        let second = queue.enqueue(&task(2)).debounce("u", HOUR).await?;
        ensure!(second.is_new());
        let again = queue.enqueue(&task(3)).debounce("u", HOUR).await?;
        assert_eq!((again.is_new(), again.id()), (false, second.id()));
        ensure!(queue.inspect().run_now(second.id().unwrap()).await?);
        let log = Log::default();
        let worker = logging(&queue, &log, 1).await?;
        log.reaches(2).await?;
        empty(&queue).await?;
        assert_eq!(log.all(), [1, 3]);
        ensure!(queue.enqueue(&task(4)).debounce("u", HOUR).await?.is_new());
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_debounced_job_runs_once_with_the_last_payload_after_the_last_call(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let first = queue.enqueue(&task(0)).debounce("save:5", HOUR).await?.id().unwrap();
        let due = queue.job(first).await?.unwrap().job.due;
        for n in 1..10 {
            let again = queue.enqueue(&task(n)).debounce("save:5", HOUR).await?;
            assert_eq!((again.is_new(), again.id()), (false, Some(first)));
        }
        let found = queue.job(first).await?.unwrap().job;
        assert_eq!((found.state, found.decode::<Task>()?.n), (JobState::Delayed, 9));
        assert!(found.due > due, "the delay begins again");
        assert_eq!(queue.inspect().counts().await?.delayed, 1);
        ensure!(queue.inspect().run_now(first).await?);
        let log = Log::default();
        let worker = logging(&queue, &log, 1).await?;
        log.reaches(1).await?;
        empty(&queue).await?;
        assert_eq!(log.all(), [9]);
        // It has started: the next one is a new job.
        ensure!(queue.enqueue(&task(10)).debounce("save:5", HOUR).await?.is_new());
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_throttled_key_is_held_for_its_time_and_then_leaves_nothing(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let period = if backend.is_embedded() { HOUR } else { Duration::from_millis(1500) };
        let log = Log::default();
        let worker = logging(&queue, &log, 1).await?;
        ensure!(queue.enqueue(&task(1)).throttle("digest", period).await?.is_new());
        log.reaches(1).await?;
        empty(&queue).await?;
        if backend.is_embedded() {
            ensure!(!queue.enqueue(&task(2)).throttle("digest", period).await?.is_new(), "the job is done, the time is not over");
            store.advance(period)?;
            ensure!(queue.enqueue(&task(3)).throttle("digest", period).await?.is_new());
            log.reaches(2).await?;
            store.advance(period)?;
        }
        let unique = format!("{}:queue:{{q}}:unique", backend.namespace());
        let timed = format!("{}:queue:{{q}}:uniques", backend.namespace());
        ensure!(eventually(LONG, async || {
            let left = store.query::<u64>(redis::cmd("EXISTS").arg(&unique).arg(&timed)).await;
            left.is_ok_and(|left| left == 0)
        }).await, "keys of the past are left");
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_throttled_key_is_held_whatever_becomes_of_its_job(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let cancelled = queue.enqueue(&task(1)).throttle("a", HOUR).await?.id().unwrap();
        assert_eq!(queue.cancel(cancelled).await?, Cancelled::Ended);
        let deleted = queue.enqueue(&task(1)).throttle("b", HOUR).await?.id().unwrap();
        ensure!(queue.inspect().delete(deleted).await?);
        let expired = queue.enqueue(&task(1)).throttle("c", HOUR).expires_after(Duration::from_millis(1)).await?;
        let log = Log::default();
        let worker = logging(&queue, &log, 1).await?;
        // Whether it runs or expires first makes no difference.
        empty(&queue).await?;
        for (key, holder) in [("a", Some(cancelled)), ("b", Some(deleted)), ("c", expired.id())] {
            let again = queue.enqueue(&task(2)).throttle(key, HOUR).await?;
            assert_eq!((again.is_new(), again.id()), (false, holder), "{key}");
        }
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_key_held_until_started_is_free_while_the_job_runs(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        ensure!(queue.enqueue(&task(1)).unique("u", UniqueUntil::Started).await?.is_new());
        ensure!(!queue.enqueue(&task(2)).unique("u", UniqueUntil::Started).await?.is_new());
        let log = Log::default();
        let worker = logging(&queue, &log, 1).await?;
        log.reaches(1).await?;
        ensure!(queue.enqueue(&task(3)).unique("u", UniqueUntil::Started).await?.is_new());
        log.reaches(2).await?;
        worker.shutdown(LONG).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_debounced_job_does_not_expire_while_it_is_restarted() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = Queue::builder(&store, "debounce", "q")
        .keep_done(10, HOUR)
        .build()?;
    let (period, expiry) = (Duration::from_secs(300), Duration::from_secs(500));
    let log = Log::default();
    let worker = logging(&queue, &log, 1).await?;
    for group in [None, Some("g")] {
        let mut last = None;
        for n in 0..5 {
            let job = task(n);
            let mut enqueue = queue.enqueue(&job);
            if let Some(group) = group {
                enqueue = enqueue.group(group);
            }
            let handle = enqueue.debounce("u", period).expires_after(expiry).await?;
            assert_eq!(handle.is_new(), n == 0);
            last = Some(handle);
            store.advance(Duration::from_secs(200))?;
        }
        store.advance(Duration::from_secs(101))?;
        assert_eq!(last.unwrap().ended().await?, Outcome::Done(()));
    }
    assert_eq!(log.all(), [4, 4]);
    let never = queue
        .enqueue(&task(1))
        .delay(HOUR)
        .expires_after(HOUR)
        .await;
    assert!(never.unwrap_err().is_config(), "it could never run");
    worker.shutdown(LONG).await?;
    Ok(())
}
