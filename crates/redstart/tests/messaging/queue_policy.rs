//! Policies of a kind of job and of a single job.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use anyhow::{Result, ensure};
use redstart::{
    Store,
    messaging::{Backoff, Job, JobContext, JobPolicy, JobState, Queue, Verdict},
};
use redstart_testkit::{Backend, Kind, MonitorTap, Server, eventually, matrix};
use serde::{Deserialize, Serialize};

use crate::queue::{LONG, Log, Task, empty, logging, open, task};

const HOUR: Duration = Duration::from_secs(3600);

#[derive(Serialize, Deserialize)]
struct Fragile;

impl Job for Fragile {
    const NAME: &'static str = "fragile";

    fn policy() -> JobPolicy {
        JobPolicy::new()
            .attempts(2)
            .backoff(Backoff::fixed(Duration::from_millis(1)))
    }
}

matrix! {
    async fn a_job_has_the_attempts_of_its_policy_or_its_own(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let runs = Arc::new(AtomicU64::new(0));
        let worker = {
            let runs = runs.clone();
            queue
                .worker(move |_: Fragile, _: JobContext| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    async { Verdict::retry("no") }
                })
                // Neither is used.
                .retry(Backoff::fixed(HOUR), 1)
                .start()
                .await?
        };
        let dead = async |n: u64| eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.dead == n)).await;
        queue.enqueue(&Fragile).await?;
        ensure!(dead(1).await);
        assert_eq!(runs.load(Ordering::SeqCst), 2);
        queue.enqueue(&Fragile).attempts(5).await?;
        ensure!(dead(2).await);
        assert_eq!(runs.load(Ordering::SeqCst), 7);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_backoff_is_found_by_its_name(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let asked = Arc::new(AtomicU64::new(0));
        let worker = {
            let asked = asked.clone();
            queue
                .worker(|_: Task, cx: JobContext| async move {
                    if cx.attempt() < 3 { Verdict::retry("no") } else { Verdict::Done }
                })
                .retry(Backoff::fixed(HOUR), 5)
                .backoff("at once", move |attempt| {
                    asked.fetch_add(u64::from(attempt), Ordering::SeqCst);
                    Duration::ZERO
                })
                .start()
                .await?
        };
        queue.enqueue(&task(1)).policy(JobPolicy::new().backoff_named("at once")).await?;
        empty(&queue).await?;
        assert_eq!(asked.load(Ordering::SeqCst), 3, "after the first and the second attempt");
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn an_expired_job_does_not_start(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").keep_done(100, HOUR).build()?;
        let expiry = Duration::from_millis(if backend.is_embedded() { 60_000 } else { 5 });
        let late = [
            queue.enqueue(&task(1)).expires_after(expiry).await?.id().unwrap(),
            queue.enqueue(&task(2)).expires_after(expiry).priority(1).await?.id().unwrap(),
            queue.enqueue(&task(3)).expires_after(expiry).group("g").await?.id().unwrap(),
        ];
        queue.enqueue(&task(4)).expires_after(HOUR).await?;
        if backend.is_embedded() {
            store.advance(expiry + Duration::from_secs(1))?;
        } else {
            tokio::time::sleep(expiry * 2).await;
        }
        let log = Log::default();
        let worker = logging(&queue, &log, 4).await?;
        log.reaches(1).await?;
        empty(&queue).await?;
        assert_eq!(log.all(), [4]);
        for id in late {
            assert_eq!(queue.job(id).await?.unwrap().job.state, JobState::Expired);
        }
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_job_runs_at_its_time(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let now = store.time().await?;
        let at = |time: Duration| SystemTime::UNIX_EPOCH + time;
        let later = queue.enqueue(&task(1)).at(at(now + HOUR)).await?.id().unwrap();
        queue.enqueue(&task(2)).at(at(now.saturating_sub(HOUR))).await?;
        let found = queue.job(later).await?.unwrap().job;
        assert_eq!((found.state, found.due.as_micros()), (JobState::Delayed, (now + HOUR).as_micros()));
        let log = Log::default();
        let worker = logging(&queue, &log, 1).await?;
        log.reaches(1).await?;
        assert_eq!(log.all(), [2]);
        if backend.is_embedded() {
            store.advance(HOUR)?;
            log.reaches(2).await?;
        }
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn dead_letters_go_by_count_and_age(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let age = Duration::from_millis(if backend.is_embedded() { 60_000 } else { 3000 });
        let queue = Queue::builder(&store, backend.namespace(), "q").keep_dead(3, age).build()?;
        let worker = queue
            .worker(|_: Task, _: JobContext| async { Verdict::dead("no") })
            // Not lost on a busy machine; what is too old goes at each third of it.
            .lease(Duration::from_secs(2))
            .start()
            .await?;
        for n in 0..10 {
            queue.enqueue(&task(n)).await?;
        }
        empty(&queue).await?;
        let dead = async |n: u64| eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.dead == n)).await;
        if backend.is_embedded() {
            store.advance(Duration::from_secs(3))?;
            ensure!(dead(3).await);
            store.advance(age)?;
        }
        ensure!(dead(0).await);
        worker.shutdown(LONG).await?;
        let keys = store.scan(&format!("{}:*", backend.namespace())).await?;
        assert_eq!(keys, Vec::<String>::new());
        Ok(())
    }

    async fn events_and_history_tell_what_happened(backend: &Backend) -> Result<()> {
        use redstart::messaging::QueueEventKind as Kind;
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").keep_events(1000).history(HOUR).build()?;
        let mut follow = queue.inspect().follow_events(Some("0-0"));
        let worker = queue
            .worker(|job: Task, _: JobContext| async move {
                if job.n == 0 { Verdict::dead("zero") } else { Verdict::Done }
            })
            .start()
            .await?;
        let added = queue.enqueue_many((0..10).map(task)).await?.added;
        let gone = queue.enqueue(&task(11)).delay(HOUR).await?.id().unwrap();
        let _ = queue.cancel(gone).await?;
        let mut seen: std::collections::HashMap<Kind, Vec<redstart::messaging::JobId>> = Default::default();
        let all = eventually(LONG, async || {
            if let Ok(events) = follow.next(Duration::from_millis(200)).await {
                for event in events {
                    seen.entry(event.kind).or_default().extend(event.jobs);
                }
            }
            seen.get(&Kind::Done).is_some_and(|done| done.len() == 9) && seen.contains_key(&Kind::Dead)
        }).await;
        ensure!(all, "{seen:?}");
        assert_eq!(seen[&Kind::Added].len(), 11);
        assert_eq!(seen[&Kind::Started].len(), 10);
        assert_eq!(seen[&Kind::Dead], [added[0]]);
        assert_eq!(seen[&Kind::Failed], [added[0]]);
        assert_eq!(seen[&Kind::Cancelled], [gone]);
        let minutes = queue.inspect().history().await?;
        let total = |of: fn(&redstart::messaging::QueueMinute) -> u64| minutes.iter().map(of).sum::<u64>();
        assert_eq!((total(|m| m.done), total(|m| m.failed)), (9, 1));
        assert_eq!((total(|m| m.wait.count()), total(|m| m.run.count())), (10, 10));
        assert!(minutes.iter().all(|minute| minute.kind == "task"));
        worker.shutdown(LONG).await?;
        Ok(())
    }
}

matrix! {
    async fn events_tell_of_progress_and_of_jobs_whose_worker_died(backend: &Backend) -> Result<()> {
        use redstart::messaging::QueueEventKind as Kind;
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").keep_events(1000).build()?;
        let runs = Arc::new(AtomicU64::new(0));
        let start = async || {
            let runs = runs.clone();
            let run = move |_: Task, cx: JobContext| {
                let runs = runs.clone();
                async move {
                    runs.fetch_add(1, Ordering::SeqCst);
                    if cx.attempt() == 1 {
                        cx.progress(0.25).await?;
                        cx.lost().await;
                    }
                    Ok::<_, redstart::Error>(())
                }
            };
            queue.worker(run).lease(Duration::from_secs(3)).start().await
        };
        let first = start().await?;
        let id = queue.enqueue(&task(1)).await?.id().unwrap();
        let progressed = async || queue.job(id).await.is_ok_and(|job| job.is_some_and(|job| job.job.progress == Some(0.25)));
        ensure!(eventually(LONG, progressed).await);
        let workers = format!("{}:queue:{{q}}:workers", backend.namespace());
        let name: Vec<String> = store.query(redis::cmd("ZRANGE").arg(&workers).arg(0).arg(-1)).await?;
        let second = start().await?;
        ensure!(eventually(LONG, async || {
            // The server's view: its lease is long over. Renewals undo this, so it is said until the other has the job.
            let _ = store.query::<()>(redis::cmd("ZADD").arg(&workers).arg("XX").arg(1).arg(&name[0])).await;
            runs.load(Ordering::SeqCst) >= 2
        }).await);
        empty(&queue).await?;
        let events = queue.inspect().events(None).await?;
        let of = |kind| events.iter().filter(|event| event.kind == kind).map(|event| (&event.jobs[..], &*event.text)).collect::<Vec<_>>();
        assert_eq!(of(Kind::Progress), [(&[id][..], "0.25")]);
        assert_eq!(of(Kind::Stalled), [(&[id][..], &name[0][..32])], "by the name of the worker that had it");
        assert_eq!(of(Kind::Started).len(), 2);
        first.shutdown(LONG).await?;
        second.shutdown(LONG).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_replayed_job_has_its_time_to_expire_again() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = Queue::builder(&store, "replay", "q").build()?;
    let runs = Arc::new(AtomicU64::new(0));
    let seen = runs.clone();
    let worker = queue
        .worker(move |_: Task, _: JobContext| {
            let run = seen.fetch_add(1, Ordering::SeqCst);
            async move {
                if run < 2 {
                    Verdict::dead("at first")
                } else {
                    Verdict::Done
                }
            }
        })
        .start()
        .await?;
    queue.enqueue(&task(1)).expires_after(HOUR).await?;
    queue
        .enqueue(&task(2))
        .expires_after(HOUR)
        .group("g")
        .await?;
    let dead = async |n: u64| {
        eventually(LONG, async || {
            queue.inspect().counts().await.is_ok_and(|c| c.dead == n)
        })
        .await
    };
    ensure!(dead(2).await);
    store.advance(HOUR * 24)?;
    assert_eq!(queue.inspect().dead_letters().replay(|_| true).await?, 2);
    ensure!(
        eventually(LONG, async || runs.load(Ordering::SeqCst) == 4).await,
        "they expired"
    );
    empty(&queue).await?;
    worker.shutdown(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn old_minutes_of_an_idle_queue_go() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let minutes = |n: u64| Duration::from_secs(60 * n);
    let queue = Queue::builder(&store, "idle", "history")
        .history(minutes(10))
        .build()?;
    let log = Log::default();
    let worker = logging(&queue, &log, 1).await?;
    let look = queue.inspect();
    // More counters than one page has: each minute has three of each kind.
    queue.enqueue(&task(1)).await?;
    let counted = async |n: u64| {
        eventually(LONG, async || {
            let all = look.history().await.unwrap_or_default();
            all.iter().map(|minute| minute.done).sum::<u64>() == n
        })
        .await
    };
    ensure!(counted(1).await);
    store.advance(minutes(5))?;
    queue.enqueue(&task(2)).await?;
    ensure!(counted(2).await);
    let recent = look.recent_history(minutes(2)).await?;
    assert_eq!(recent.iter().map(|minute| minute.done).sum::<u64>(), 1);
    store.advance(minutes(20))?;
    let keys = [
        "idle:queue:{history}:history",
        "idle:queue:{history}:tallies",
    ];
    let gone = eventually(LONG, async || {
        // Whoever was just told when to look again may do so later if the clock jumps at that moment.
        let _ = store.advance(Duration::from_secs(1));
        let left = store.query::<u64>(redis::cmd("EXISTS").arg(&keys)).await;
        left.is_ok_and(|left| left == 0)
    });
    ensure!(gone.await, "nobody removes them");
    worker.shutdown(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_long_history_is_read_in_pages() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let queue = Queue::builder(&store, "pages", "q").history(HOUR).build()?;
    let (mut tallies, mut history) = (redis::cmd("HSET"), redis::cmd("ZADD"));
    tallies.arg("pages:queue:{q}:tallies");
    history.arg("pages:queue:{q}:history");
    for minute in 0..3500 {
        let name = format!("{minute}|task|done");
        tallies.arg(&name).arg(2);
        history.arg(minute).arg(&name);
    }
    store.query::<()>(&tallies).await?;
    store.query::<()>(&history).await?;
    let tap = MonitorTap::start(&server).await?;
    let minutes = queue.inspect().history().await?;
    assert!(minutes.is_sorted_by_key(|minute| minute.at));
    assert_eq!(minutes.iter().map(|minute| minute.done).sum::<u64>(), 7000);
    let seen = tap.commands().await?;
    assert!(
        seen.iter()
            .all(|seen| seen.name() != "HGETALL" && seen.words.len() <= 1002)
    );
    Ok(())
}

#[tokio::test]
async fn long_texts_are_cut_and_cancelled_jobs_are_kept_by_count() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = Queue::builder(&store, "texts", "q")
        .keep_events(1000)
        .keep_done(5, HOUR)
        .build()?;
    let long = "é".repeat(100_000);
    let worker = queue
        .worker(move |_: Task, _: JobContext| {
            let reason = long.clone();
            async move { Verdict::dead(reason) }
        })
        .start()
        .await?;
    queue.enqueue(&task(1)).await?;
    let look = queue.inspect();
    ensure!(
        eventually(LONG, async || look
            .counts()
            .await
            .is_ok_and(|c| c.dead == 1))
        .await
    );
    worker.shutdown(LONG).await?;
    let reason = &look.dead_letters().list(None).await?[0].reason;
    assert!(
        reason.len() == 4000 && reason.chars().all(|c| c == 'é'),
        "{} bytes",
        reason.len()
    );
    let events = look.events(None).await?;
    assert!(events.len() >= 4 && events.iter().all(|event| event.text.len() <= 1003));
    for n in 0..20 {
        let id = queue.enqueue(&task(n)).delay(HOUR).await?.id().unwrap();
        let _ = queue.cancel(id).await?;
    }
    assert_eq!(look.counts().await?.done, 5);
    Ok(())
}
