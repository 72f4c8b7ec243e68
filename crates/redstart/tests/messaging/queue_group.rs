//! Groups take turns, and limits hold over all workers.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use redstart::{
    Store,
    messaging::{Backoff, JobContext, JobLimit, Queue, QueueEventKind, Verdict},
};
use redstart_testkit::{Backend, eventually, matrix, scale};

use crate::queue::{LONG, Log, Other, Task, empty, logging, open, task};

/// How many run at a time, and how many did at most.
#[derive(Default)]
pub(crate) struct Gauge {
    now: AtomicI64,
    most: AtomicI64,
}

impl Gauge {
    pub(crate) async fn pass(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn most(&self) -> i64 {
        self.most.load(Ordering::SeqCst)
    }
}

matrix! {
    async fn a_noisy_group_delays_the_first_job_of_another_by_one_job(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let noisy = scale(3000, "jobs of a noisy group");
        queue.enqueue_many((0..noisy).map(task)).group("noisy").await?;
        queue.enqueue_many((0..10).map(|n| task(1_000_000 + n))).group("quiet").await?;
        let log = Log::default();
        let worker = logging(&queue, &log, 1).await?;
        log.reaches(30).await?;
        let ran = log.all();
        let first = ran.iter().position(|n| *n >= 1_000_000).unwrap();
        assert!(first <= 1, "{first} jobs of the noisy group came first");
        let last = ran.iter().position(|n| *n == 1_000_009).unwrap();
        assert!(last <= 20, "they do not take turns: {ran:?}");
        // One that comes while the others wait has its turn at once, and jobs without a group are not starved.
        let before = log.len();
        queue.enqueue(&task(2_000_000)).group("new").await?;
        queue.enqueue(&task(3_000_000)).await?;
        ensure!(eventually(LONG, async || {
            let ran = log.all();
            ran.contains(&2_000_000) && ran.contains(&3_000_000)
        }).await);
        let ran = log.all();
        // The worker may have taken some in the meantime.
        let after = ran.iter().skip(before).filter(|n| **n < 1_000_000).count();
        assert!(noisy < 2000 || after < noisy as usize / 2, "{after} came first");
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn limited_groups_take_turns_whatever_their_names(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q")
            .group_limit(JobLimit::concurrency(1))
            .kind_limit("other", JobLimit::concurrency(1))
            .build()?;
        // The line of a kind and the first group by name have many jobs each; of the last group there is one.
        for n in 0..50 {
            queue.enqueue(&Other).await?;
            queue.enqueue(&task(n)).group("a").await?;
        }
        queue.enqueue(&task(1000)).group("z").await?;
        let log = Log::default();
        let (tasks, others) = (log.clone(), log.clone());
        let worker = queue
            .worker(move |job: Task, _: JobContext| {
                let log = tasks.clone();
                async move { log.push(job.n) }
            })
            .handler(move |_: Other, _: JobContext| {
                let log = others.clone();
                async move { log.push(2000) }
            })
            .concurrency(1)
            .start()
            .await?;
        log.reaches(10).await?;
        let ran = log.all();
        let first = ran.iter().position(|n| *n == 1000);
        assert!(first.is_some_and(|first| first <= 2), "the last group waits for more than its turn: {ran:?}");
        let others = ran[..10].iter().filter(|n| **n == 2000).count();
        assert!((3..=7).contains(&others), "they do not take turns: {ran:?}");
        worker.shutdown(LONG).await?;

        // More groups than there are slots: each has its turn before any has its second. The queue's events tell which
        // jobs were taken when; a run may be held up by its thread.
        let queue = Queue::builder(&store, backend.namespace(), "slots")
            .group_limit(JobLimit::concurrency(1))
            .keep_events(1000)
            .build()?;
        let mut groups = HashMap::new();
        for group in 0..4 {
            let jobs = (0..20).map(|n| task(100 * group + n));
            let added = queue.enqueue_many(jobs).group(&format!("g{group}")).await?;
            groups.extend(added.added.into_iter().map(|id| (id, group)));
        }
        assert_eq!(groups.len(), 80);
        let log = Log::default();
        let worker = logging(&queue, &log, 2).await?;
        log.reaches(12).await?;
        let events = queue.inspect().events(None).await?;
        let started = events.iter().filter(|event| event.kind == QueueEventKind::Started);
        let taken: Vec<_> = started.flat_map(|event| &event.jobs).map(|id| groups[id]).collect();
        assert_eq!(taken.get(..4), Some(&[0, 1, 2, 3][..]), "a group waits for more than its turn: {taken:?}");
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_group_of_one_at_a_time_runs_in_order_through_failures(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q")
            .group_limit(JobLimit::concurrency(1))
            .build()?;
        type Runs = Arc<Mutex<HashMap<u64, Vec<u64>>>>;
        let (runs, gauges): (Runs, Arc<[Gauge; 3]>) = Default::default();
        let mut workers = Vec::new();
        for _ in 0..2 {
            let (runs, gauges) = (runs.clone(), gauges.clone());
            workers.push(queue
                .worker(move |job: Task, cx: JobContext| {
                    let (runs, gauges) = (runs.clone(), gauges.clone());
                    async move {
                        let (group, n) = (job.n % 3, job.n / 3);
                        gauges[group as usize].pass().await;
                        if n % 5 == 0 && cx.attempt() == 1 {
                            return Verdict::retry("once");
                        }
                        runs.lock().unwrap().entry(group).or_default().push(n);
                        Verdict::Done
                    }
                })
                .retry(Backoff::fixed(Duration::from_millis(5)), 5)
                .concurrency(8)
                .start()
                .await?);
        }
        for n in 0..60 {
            queue.enqueue(&task(n)).group(&format!("g{}", n % 3)).await?;
        }
        empty(&queue).await?;
        let runs = runs.lock().unwrap().clone();
        for group in 0..3 {
            assert!(runs[&group].iter().copied().eq(0..20), "group {group}: {:?}", runs[&group]);
            assert_eq!(gauges[group as usize].most.load(Ordering::SeqCst), 1);
        }
        for worker in workers {
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }

    async fn limits_of_queue_kind_and_group_hold_over_all_workers(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q")
            .limit(JobLimit::concurrency(5))
            .group_limit(JobLimit::concurrency(3))
            .kind_limit("other", JobLimit::concurrency(2))
            .build()?;
        let gauges: Arc<[Gauge; 3]> = Default::default();
        let mut workers = Vec::new();
        for _ in 0..2 {
            let (tasks, others) = (gauges.clone(), gauges.clone());
            workers.push(queue
                .worker(move |job: Task, _: JobContext| {
                    let gauges = tasks.clone();
                    async move {
                        let group = async { if job.n.is_multiple_of(2) { gauges[1].pass().await } };
                        tokio::join!(gauges[0].pass(), group);
                    }
                })
                .handler(move |_: Other, _: JobContext| {
                    let gauges = others.clone();
                    async move { tokio::join!(gauges[0].pass(), gauges[2].pass()); }
                })
                .concurrency(10)
                .start()
                .await?);
        }
        for n in 0..60 {
            match n % 2 {
                0 => { queue.enqueue(&task(n)).group("g").await?; }
                _ => { queue.enqueue(&task(n)).await?; }
            }
            queue.enqueue(&Other).await?;
        }
        empty(&queue).await?;
        let most: Vec<i64> = gauges.iter().map(|gauge| gauge.most.load(Ordering::SeqCst)).collect();
        assert!(most[0] <= 5 && most[1] <= 3 && most[2] <= 2, "{most:?}");
        assert!(most[0] >= 2, "they run side by side: {most:?}");
        for worker in workers {
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }

    async fn rates_of_queue_and_group_hold_and_everything_runs(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        for (name, builder) in [
            ("queue", Queue::builder(&store, backend.namespace(), "rate").limit(JobLimit::per(2, Duration::from_secs(60)).burst(3))),
            ("group", Queue::builder(&store, backend.namespace(), "group").group_limit(JobLimit::per(2, Duration::from_secs(60)).burst(3))),
        ] {
            let queue = builder.build()?;
            let log = Log::default();
            let worker = logging(&queue, &log, 10).await?;
            let mut ids = Vec::new();
            for n in 0..7 {
                ids.extend(queue.enqueue(&task(n)).group("g").keep(LONG * 1000).await?.id());
            }
            log.reaches(3).await?;
            if backend.is_embedded() {
                // The clock moves on until all have run: a worker that has just been told how long to rest may rest for
                // longer if the clock jumps at that moment.
                let came = eventually(LONG, async || {
                    let _ = store.advance(Duration::from_secs(1));
                    log.len() == 7
                });
                ensure!(came.await, "{name}: {} of 7 ran", log.len());
                empty(&queue).await?;
                // One more every thirty seconds by the server's clock, never earlier.
                let mut starts = Vec::new();
                for id in ids {
                    starts.push(queue.job(id).await?.unwrap().attempts[0].started);
                }
                starts.sort_unstable();
                for (number, start) in starts.iter().enumerate() {
                    let earliest = starts[0] + Duration::from_secs(30) * number.saturating_sub(2) as u32;
                    assert!(*start >= earliest, "{name}: {starts:?}");
                }
            } else {
                assert_eq!(log.len(), 3, "{name}");
                assert_eq!(queue.inspect().counts().await?.ready, 4);
            }
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_job_between_two_attempts_takes_no_place_of_its_kind() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = Queue::builder(&store, "between", "q")
        .kind_limit("other", JobLimit::concurrency(2))
        .group_limit(JobLimit::concurrency(1))
        .build()?;
    let runs = Arc::new(AtomicI64::new(0));
    let seen = runs.clone();
    let worker = queue
        .worker(move |_: Other, _: JobContext| {
            let run = seen.fetch_add(1, Ordering::SeqCst);
            async move {
                match run {
                    0 | 1 => Verdict::retry("not yet"),
                    _ => Verdict::Done,
                }
            }
        })
        .retry(Backoff::fixed(Duration::from_secs(3600)), 5)
        .start()
        .await?;
    for _ in 0..3 {
        queue.enqueue(&Other).await?;
    }
    let ran = eventually(LONG, async || runs.load(Ordering::SeqCst) == 3);
    ensure!(ran.await, "two jobs that do not run take both places");
    worker.shutdown(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn no_group_is_the_line_of_a_kind() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = Queue::builder(&store, "line", "q")
        .kind_limit("task", JobLimit::concurrency(1))
        .build()?;
    for group in ["\u{1}x", "\u{1}task", "", "a\nb"] {
        let refused = queue.enqueue(&task(1)).group(group).await.unwrap_err();
        assert!(refused.is_config(), "{group:?}: {refused}");
        let refused = queue.enqueue_raw("task", b"{}").group(group).await;
        assert!(refused.unwrap_err().is_config());
        let flow = redstart::messaging::Flow::new(&task(1))?.group(group);
        assert!(queue.add_flow(flow).await.unwrap_err().is_config());
    }
    // Its kind has a line of its own all the same, and a priority does no harm there.
    let id = queue.enqueue(&task(2)).priority(3).await?.id().unwrap();
    assert_eq!(queue.job(id).await?.unwrap().job.group, None);
    assert_eq!(queue.inspect().counts().await?.ready, 1);
    Ok(())
}

/// A clock that was put back, or a larger burst of another version: the limit is free long after it should be.
#[tokio::test]
async fn a_rate_limit_that_is_free_too_late_is_corrected() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let rate = || JobLimit::per(10, Duration::from_secs(1)).burst(10);
    for (name, builder) in [
        ("", Queue::builder(&store, "late", "queue").limit(rate())),
        (
            "g",
            Queue::builder(&store, "late", "group").group_limit(rate()),
        ),
        (
            "resting",
            Queue::builder(&store, "late", "resting").group_limit(rate()),
        ),
    ] {
        let queue = builder.build()?;
        let kind = if name.is_empty() {
            "queue"
        } else if name == "g" {
            "group"
        } else {
            "resting"
        };
        let later = store.time().await? + Duration::from_secs(86_400);
        let part = if name == "resting" {
            "resting"
        } else {
            "rates"
        };
        let member = if name == "resting" { "g" } else { name };
        let mut put = redis::cmd("ZADD");
        put.arg(format!("late:queue:{{{kind}}}:{part}"))
            .arg(later.as_micros() as u64)
            .arg(member);
        store.query::<()>(&put).await?;
        let log = Log::default();
        queue.enqueue(&task(1)).group("g").await?;
        if name == "resting" {
            // It is in the line because it was not resting when the job came.
            let mut out = redis::cmd("ZREM");
            out.arg("late:queue:{resting}:groups").arg("g");
            store.query::<()>(&out).await?;
        }
        let worker = logging(&queue, &log, 1).await?;
        log.reaches(1).await?;
        worker.shutdown(LONG).await?;
    }
    Ok(())
}
