//! Looking jobs up, waiting for their results, cancelling them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    messaging::{
        Backoff, Cancelled, Job, JobContext, JobOutput, JobState, Outcome, Queue, Returned,
        UniqueUntil, Verdict, Worker,
    },
};
use redstart_testkit::{
    Backend, Kind, MonitorTap, Server, child, child::Child, eventually, matrix,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::queue::{LONG, Log, empty, logging, open, task};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Square(pub(crate) u64);

impl Job for Square {
    const NAME: &'static str = "square";
}

impl JobOutput for Square {
    type Output = u64;
}

const KEEP: Duration = Duration::from_secs(3600);

async fn keeping(backend: &Backend) -> Result<Queue> {
    let store = Store::connect(backend.url()).await?;
    Ok(Queue::builder(&store, backend.namespace(), "q")
        .keep_done(1000, KEEP)
        .build()?)
}

/// Even numbers are squared, odd ones fail; 13 is retried for a while.
async fn squaring(queue: &Queue) -> Result<Worker> {
    Ok(queue
        .worker(|Square(n): Square, cx: JobContext| async move {
            cx.log(&format!("attempt {}", cx.attempt())).await?;
            if n == 13 && cx.attempt() == 3 {
                return Ok(Returned::<Square>(n * n));
            }
            match n % 2 {
                0 => Ok(Returned::<Square>(n * n)),
                _ => anyhow::bail!("{n} is odd"),
            }
        })
        .retry(Backoff::fixed(Duration::from_millis(1)), 3)
        .start()
        .await?)
}

matrix! {
    async fn a_handle_gets_the_result_and_hears_of_death(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        // One waits before the job runs, one is too late to hear of it.
        let early = queue.enqueue(&Square(12)).await?;
        let waiting = tokio::spawn({
            let early = early.clone();
            async move { early.result_within(LONG).await }
        });
        let worker = squaring(&queue).await?;
        assert_eq!(waiting.await??, Outcome::Done(144));
        assert_eq!(early.result_within(LONG).await?, Outcome::Done(144));
        let dead = queue.enqueue(&Square(7)).await?.result_within(LONG).await?;
        assert_eq!(dead, Outcome::Dead { reason: "7 is odd".into() });
        let retried = queue.enqueue(&Square(13)).await?;
        assert_eq!(retried.result_within(LONG).await?, Outcome::Done(169));

        let found = queue.job(retried.id().unwrap()).await?.context("it is kept")?;
        assert_eq!(found.job.state, JobState::Done);
        assert_eq!(found.decode_result::<u64>()?, Some(169));
        assert_eq!(found.log, ["attempt 1", "attempt 2", "attempt 3"]);
        let errors: Vec<_> = found.attempts.iter().map(|attempt| attempt.error.as_deref()).collect();
        assert_eq!(errors, [Some("13 is odd"), Some("13 is odd"), None]);
        for attempt in &found.attempts {
            assert!(attempt.started >= found.job.created && attempt.ended >= attempt.started);
            assert_eq!(attempt.worker.len(), 32);
        }
        assert_eq!(queue.inspect().counts().await?.done, 2);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_wait_for_a_result_ends_at_its_deadline_and_can_begin_again(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        // Nobody runs it.
        let handle = queue.enqueue(&Square(4)).await?;
        let begun = std::time::Instant::now();
        let wait = Duration::from_millis(300);
        let error = handle.result_within(wait).await.unwrap_err();
        assert!(error.is_timeout(), "{error}");
        ensure!(begun.elapsed() >= wait, "it gave up after {:?}", begun.elapsed());
        let error = handle.result_within(Duration::ZERO).await.unwrap_err();
        assert!(error.is_timeout(), "{error}");
        let waits = tokio::spawn({
            let handle = handle.clone();
            async move { handle.result_within(LONG).await }
        });
        let worker = squaring(&queue).await?;
        assert_eq!(waits.await??, Outcome::Done(16));
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn many_handles_wait_for_many_jobs_over_one_subscription(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        let mut waits = tokio::task::JoinSet::new();
        for n in 0..100 {
            let handle = queue.enqueue(&Square(2 * n)).await?;
            waits.spawn(async move { (n, handle.result_within(LONG).await) });
        }
        let worker = squaring(&queue).await?;
        while let Some(waited) = waits.join_next().await {
            let (n, outcome) = waited?;
            assert_eq!(outcome?, Outcome::Done(4 * n * n));
        }
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_job_is_found_wherever_it_is_and_leaves_nothing_when_it_is_not_kept(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let state = async |id| anyhow::Ok(queue.job(id).await?.map(|found| found.job.state));
        let ready = queue.enqueue(&task(1)).await?.id().unwrap();
        let delayed = queue.enqueue(&task(2)).delay(KEEP).await?.id().unwrap();
        let ranked = queue.enqueue(&task(3)).priority(5).await?.id().unwrap();
        let grouped = queue.enqueue(&task(4)).group("tenant").await?.id().unwrap();
        for (id, expected) in [
            (ready, JobState::Ready),
            (delayed, JobState::Delayed),
            (ranked, JobState::Ready),
            (grouped, JobState::Ready),
        ] {
            assert_eq!(state(id).await?, Some(expected));
        }
        assert_eq!(queue.inspect().counts().await?.ready, 3);
        // Nothing tells of a job that is not kept, so waiting for it would never end.
        assert!(queue.handle::<Square>(ready).result().await.unwrap_err().is_config());
        ensure!(queue.inspect().run_now(delayed).await?);
        let (gate, runs) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU64::new(0)));
        let worker = {
            let (gate, runs) = (gate.clone(), runs.clone());
            queue.worker(move |_: crate::queue::Task, cx: JobContext| {
                let (gate, runs) = (gate.clone(), runs.clone());
                async move {
                    cx.progress(0.5).await?;
                    cx.log("half").await?;
                    runs.fetch_add(1, Ordering::SeqCst);
                    let _ = gate.acquire().await;
                    anyhow::Ok(())
                }
            }).start().await?
        };
        ensure!(eventually(LONG, async || runs.load(Ordering::SeqCst) == 4).await);
        for id in [ready, delayed, ranked, grouped] {
            let found = queue.job(id).await?.context("it runs")?;
            assert_eq!(found.job.state, JobState::Running);
            assert_eq!((found.job.progress, &found.log[..]), (Some(0.5), &["half".to_owned()][..]));
            assert!(found.job.started.is_some() && found.job.worker.is_some());
        }
        gate.close();
        empty(&queue).await?;
        for id in [ready, delayed, ranked, grouped] {
            assert_eq!(state(id).await?, None);
        }
        worker.shutdown(LONG).await?;
        // A group's turn and its clock are all that is left.
        let keys = store.scan(&format!("{}:*", backend.namespace())).await?;
        assert!(keys.iter().all(|key| key.ends_with(":meta")), "{keys:?}");
        Ok(())
    }

    async fn a_waiting_job_is_cancelled_at_once(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        let mut cancelled = Vec::new();
        for n in 0..12 {
            let job = task(n);
            let enqueue = queue.enqueue(&job);
            let enqueue = match n % 4 {
                0 => enqueue.delay(KEEP),
                1 => enqueue.priority(3),
                2 => enqueue.group("tenant"),
                _ => enqueue,
            };
            let id = enqueue.unique(&format!("u{n}"), UniqueUntil::Done).await?.id().unwrap();
            if n < 8 {
                assert_eq!(queue.cancel(id).await?, Cancelled::Ended);
                assert_eq!(queue.cancel(id).await?, Cancelled::NotFound);
                assert_eq!(queue.job(id).await?.unwrap().job.state, JobState::Cancelled);
                ensure!(queue.enqueue(&task(100 + n)).unique(&format!("u{n}"), UniqueUntil::Done).await?.is_new());
                cancelled.push(id);
            } else if n % 4 == 0 {
                ensure!(queue.inspect().run_now(id).await?);
            }
        }
        assert_eq!(queue.inspect().counts().await?.ready, 12);
        let log = Log::default();
        let worker = logging(&queue, &log, 3).await?;
        log.reaches(12).await?;
        empty(&queue).await?;
        let mut ran = log.all();
        ran.sort_unstable();
        assert_eq!(ran, [8, 9, 10, 11, 100, 101, 102, 103, 104, 105, 106, 107]);
        for id in cancelled {
            assert_eq!(queue.handle::<Square>(id).result_within(LONG).await?, Outcome::Cancelled);
        }
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_running_job_is_told_to_stop_and_is_dropped_after_the_grace(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        let started = Arc::new(AtomicU64::new(0));
        let worker = {
            let started = started.clone();
            queue.worker(move |Square(n): Square, cx: JobContext| {
                let started = started.clone();
                async move {
                    started.fetch_add(1, Ordering::SeqCst);
                    match n {
                        // Obeys, and says that it failed.
                        0 => { cx.cancelled().await; Verdict::retry("stopped") }
                        // Obeys, but was done.
                        1 => { cx.cancelled().await; Verdict::DoneWith { result: b"1".to_vec() } }
                        // Does not listen.
                        _ => std::future::pending().await,
                    }
                }
            })
            .cancel_grace(Duration::from_millis(50))
            .start()
            .await?
        };
        let mut handles = Vec::new();
        for n in 0..3 {
            handles.push(queue.enqueue(&Square(n)).await?);
        }
        ensure!(eventually(LONG, async || started.load(Ordering::SeqCst) == 3).await);
        for handle in &handles {
            assert_eq!(queue.cancel(handle.id().unwrap()).await?, Cancelled::Told);
        }
        let mut outcomes = Vec::new();
        for handle in &handles {
            outcomes.push(handle.result_within(LONG).await?);
        }
        assert_eq!(outcomes, [Outcome::Cancelled, Outcome::Done(1), Outcome::Cancelled]);
        empty(&queue).await?;
        assert_eq!(started.load(Ordering::SeqCst), 3, "a cancelled job ran again");
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn the_newest_attempt_of_a_job_that_is_cancelled_between_two_is_the_last(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        // More attempts than are kept, then fewer.
        for failures in [23, 20, 19, 3] {
            let worker = queue
                .worker(move |_: Square, cx: JobContext| async move {
                    let wait = if cx.attempt() < failures { Duration::from_millis(1) } else { KEEP };
                    Verdict::retry_after(wait, format!("failure {}", cx.attempt()))
                })
                .retry(Backoff::fixed(Duration::from_millis(1)), 1000)
                .start()
                .await?;
            let id = queue.enqueue(&Square(1)).await?.id().context("added")?;
            let rests = eventually(LONG, async || {
                let found = queue.job(id).await.ok().flatten();
                found.is_some_and(|found| {
                    found.job.state == JobState::Delayed && found.attempts.last().and_then(|a| a.error.clone()) == Some(format!("failure {failures}"))
                })
            });
            ensure!(rests.await, "it does not rest after {failures} attempts");
            assert_eq!(queue.cancel(id).await?, Cancelled::Ended);
            let found = queue.job(id).await?.context("it is kept")?;
            let kept = failures.min(20);
            let expected: Vec<_> = (failures - kept + 1..=failures).map(|n| Some(format!("failure {n}"))).collect();
            let errors: Vec<_> = found.attempts.into_iter().map(|attempt| attempt.error).collect();
            assert_eq!(errors, expected);
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }

    async fn kept_jobs_go_by_count(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").keep_done(5, KEEP).build()?;
        let log = Log::default();
        let worker = logging(&queue, &log, 2).await?;
        let mut ids = Vec::new();
        for n in 0..20 {
            ids.push(queue.enqueue(&task(n)).await?.id().unwrap());
            log.reaches(n as usize + 1).await?;
            empty(&queue).await?;
        }
        assert_eq!(queue.inspect().counts().await?.done, 5);
        let mut kept = 0;
        for id in &ids {
            kept += u32::from(queue.job(*id).await?.is_some());
        }
        assert_eq!(kept, 5);
        assert!(queue.job(ids[19]).await?.is_some(), "the last one is kept");
        worker.shutdown(LONG).await?;
        Ok(())
    }
}

matrix! {
    processes:
    async fn a_result_is_heard_in_another_process(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        if child::role().is_some() {
            let worker = squaring(&queue).await?;
            child::say("ready");
            std::future::pending::<()>().await;
            worker.shutdown(LONG).await?;
            return Ok(());
        }
        let handle = queue.enqueue(&Square(12)).await?;
        let mut child = Child::of(backend.test()).role("worker").namespace(backend.namespace()).spawn()?;
        assert_eq!(child.line().await?, "ready");
        assert_eq!(handle.result_within(LONG).await?, Outcome::Done(144));
        child.kill9();
        Ok(())
    }
}

/// The producer keeps results, the worker is of a version that does not: it ends the job without a word.
#[tokio::test]
async fn a_result_that_no_worker_keeps_is_unknown_not_waited_for_in_vain() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let producer = Queue::builder(&store, "old", "q")
        .keep_done(10, KEEP)
        .build()?;
    let old = Queue::new(&store, "old", "q")?;
    let handle = producer.enqueue(&Square(2)).await?;
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { handle.result().await }
    });
    // It waits before the job ends.
    let key = "old:queue:{q}:jobs";
    let listening = eventually(LONG, async || {
        let mut count = redis::cmd("PUBSUB");
        count.arg("SHARDNUMSUB").arg("old:queue:{q}:wake:ended");
        let listeners: Vec<(String, u64)> = store.query(&count).await.unwrap_or_default();
        listeners.iter().any(|(_, listeners)| *listeners > 0)
    });
    ensure!(listening.await, "nobody waits");
    let worker = squaring(&old).await?;
    ensure!(
        eventually(LONG, async || store
            .query::<u64>(redis::cmd("EXISTS").arg(key))
            .await
            .is_ok_and(|n| n == 0))
        .await
    );
    let told = eventually(LONG, async || {
        let _ = store.advance(Duration::from_secs(31));
        waiting.is_finished()
    });
    ensure!(told.await, "it waits for ever");
    assert_eq!(waiting.await??, Outcome::Unknown);
    worker.shutdown(LONG).await?;
    Ok(())
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Picture(usize);

impl Job for Picture {
    const NAME: &'static str = "picture";
}

impl JobOutput for Picture {
    type Output = String;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_results_are_written_in_pieces_and_too_large_ones_are_dead_letters() -> Result<()> {
    const JOBS: usize = 8;
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_secs(20))
        .connect()
        .await?;
    let queue = Queue::builder(&store, "large", "results")
        .keep_done(1000, KEEP)
        .build()?;
    // All of them end together.
    let together = Arc::new(tokio::sync::Barrier::new(JOBS));
    let worker = queue
        .worker(move |Picture(size): Picture, _: JobContext| {
            let together = together.clone();
            async move {
                if size < 1 << 20 {
                    together.wait().await;
                }
                Returned::<Picture>("x".repeat(size))
            }
        })
        .concurrency(JOBS)
        .start()
        .await?;
    let tap = MonitorTap::start(&server).await?;
    let mut handles = Vec::new();
    for _ in 0..JOBS {
        handles.push(queue.enqueue(&Picture(300_000)).await?);
    }
    for handle in handles {
        assert_eq!(
            handle.result_within(LONG).await?,
            Outcome::Done("x".repeat(300_000))
        );
    }
    let seen = tap.commands().await?;
    let sizes = seen
        .iter()
        .filter(|seen| !seen.is_from_script())
        .map(|seen| seen.words.iter().map(String::len).sum::<usize>());
    let largest = sizes.max().unwrap_or(0);
    assert!(
        (300_000..1_000_000).contains(&largest),
        "one request has {largest} bytes"
    );

    let Outcome::Dead { reason } = queue
        .enqueue(&Picture(2 << 20))
        .await?
        .result_within(LONG)
        .await?
    else {
        panic!("it is not dead")
    };
    assert!(reason.contains("the result has"), "{reason}");
    worker.shutdown(LONG).await?;

    // Where nobody can ask for it, a result is not sent, however large it is.
    let queue = Queue::new(&store, "large", "none")?;
    queue.enqueue(&Picture(2 << 20)).group("g").await?;
    let worker = queue
        .worker(|Picture(size): Picture, _: JobContext| async move {
            Returned::<Picture>("x".repeat(size))
        })
        .start()
        .await?;
    empty(&queue).await?;
    assert_eq!(queue.inspect().counts().await?.dead, 0);
    worker.shutdown(LONG).await?;
    Ok(())
}
