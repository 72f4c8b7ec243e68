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
    messaging::{
        Backoff, Cancelled, JobContext, JobLimit, Queue, QueueEventKind, Settled, Verdict,
    },
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
        let rate = || JobLimit::per(2, Duration::from_secs(60)).burst(3);
        for (name, builder, groups) in [
            ("queue", Queue::builder(&store, backend.namespace(), "rate").limit(rate()), 1),
            ("group", Queue::builder(&store, backend.namespace(), "group").group_limit(rate()), 1),
            ("kind", Queue::builder(&store, backend.namespace(), "kind").kind_limit("task", rate()), 7),
        ] {
            let queue = builder.build()?;
            let log = Log::default();
            let worker = logging(&queue, &log, 10).await?;
            let mut ids = Vec::new();
            for n in 0..7 {
                let group = format!("g{}", n % groups);
                ids.extend(queue.enqueue(&task(n)).group(&group).keep(LONG * 1000).await?.id());
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

/// The fields of a queue that count places and those who wait for them.
async fn places(store: &Store, backend: &Backend) -> Result<Vec<String>> {
    let mut fields = redis::cmd("HKEYS");
    fields.arg(format!("{}:queue:{{q}}:meta", backend.namespace()));
    let fields: Vec<String> = store.query(&fields).await?;
    Ok(fields
        .into_iter()
        .filter(|field| field.starts_with("n:") || field.starts_with("w:"))
        .collect())
}

matrix! {
    async fn a_job_that_is_run_now_gives_no_place_of_its_kind_back(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q")
            .kind_limit("mail", JobLimit::concurrency(1))
            .group_limit(JobLimit::concurrency(1))
            .build()?;
        let hands = queue.dispatcher(["mail"]).lease(LONG * 4).start().await?;
        let first = queue.enqueue_raw("mail", b"1").group("g").await?.id().unwrap();
        let failed = hands.take(1, LONG).await?;
        assert_eq!(failed[0].id, first);
        // It keeps its place in its group, which goes on in order, and none of its kind.
        assert_eq!(hands.settle(&failed[0].fence, Verdict::retry_after(LONG * 100, "later")).await?, Settled::Done);
        let second = queue.enqueue_raw("mail", b"2").group("h").await?.id().unwrap();
        let held = hands.take(1, LONG).await?;
        assert_eq!(held[0].id, second);
        assert!(queue.inspect().run_now(first).await?);
        let more = hands.take(1, Duration::from_millis(100)).await?;
        assert!(more.is_empty(), "two jobs of a kind at a time: {more:?}");
        assert_eq!(hands.settle(&held[0].fence, Verdict::Done).await?, Settled::Done);
        let last = hands.take(1, LONG).await?;
        assert_eq!(last[0].id, first);
        assert_eq!(hands.settle(&last[0].fence, Verdict::Done).await?, Settled::Done);
        Ok(())
    }

    /// A place that nobody gives back: a script of an older version did not, or a failover lost that.
    async fn a_place_of_a_kind_that_nobody_holds_is_free_again_when_no_job_runs(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").kind_limit("task", JobLimit::concurrency(1)).build()?;
        let (log, other) = (Log::default(), queue.worker(|_: Other, _: JobContext| async {}).start().await?);
        let worker = logging(&queue, &log, 4).await?;
        let meta = format!("{}:queue:{{q}}:meta", backend.namespace());
        for (n, group) in [Some("g"), None].into_iter().enumerate() {
            store.query::<()>(redis::cmd("HSET").arg(&meta).arg("n:\x01task").arg(1)).await?;
            let jobs = [task(2 * n as u64), task(2 * n as u64 + 1)];
            for job in &jobs {
                let enqueue = queue.enqueue(job);
                match group { Some(group) => enqueue.group(group).await?, None => enqueue.await? };
            }
            log.reaches(2 * (n + 1)).await?;
            empty(&queue).await?;
        }
        let held: Option<u64> = store.query(redis::cmd("HGET").arg(&meta).arg("n:\x01task")).await?;
        assert_eq!(held, None);
        worker.shutdown(LONG).await?;
        other.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_group_whose_first_job_is_another_one_waits_for_that_ones_kind(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q")
            .kind_limit("slow", JobLimit::concurrency(1))
            .kind_limit("mail", JobLimit::concurrency(1))
            .build()?;
        let hands = queue.dispatcher(["slow", "mail"]).lease(LONG * 4).start().await?;
        let brief = Duration::from_millis(100);
        // The place of the slow kind is taken for the whole test.
        queue.enqueue_raw("slow", b"0").group("x").await?;
        assert_eq!(hands.take(1, LONG).await?.len(), 1);
        let mail = queue.enqueue_raw("mail", b"1").group("g").await?.id().unwrap();
        queue.enqueue_raw("slow", b"2").group("g").await?;
        let running = hands.take(1, LONG).await?;
        assert_eq!(running[0].id, mail);
        // Now the first job of the group is a slow one: it stands in that line.
        assert!(hands.take(1, brief).await?.is_empty());
        // The mail comes back in front of it while another one has the place of its kind.
        let other = queue.enqueue_raw("mail", b"3").group("y").await?.id().unwrap();
        assert_eq!(hands.settle(&running[0].fence, Verdict::retry_after(brief, "again")).await?, Settled::Done);
        let taken = hands.take(1, LONG).await?;
        assert_eq!(taken[0].id, other);
        let promoted = eventually(LONG, async || {
            let nothing = hands.take(1, brief).await.is_ok_and(|jobs| jobs.is_empty());
            nothing && queue.inspect().counts().await.is_ok_and(|counts| counts.delayed == 0)
        });
        assert!(promoted.await);
        assert!(hands.take(1, brief).await?.is_empty());
        assert_eq!(hands.settle(&taken[0].fence, Verdict::Done).await?, Settled::Done);
        let last = hands.take(1, LONG).await?;
        assert_eq!(last.first().map(|job| job.id), Some(mail), "it waits for a kind that it is not of");
        assert_eq!(hands.settle(&last[0].fence, Verdict::Done).await?, Settled::Done);
        Ok(())
    }

    async fn a_group_whose_first_job_is_another_one_waits_behind_those_of_that_ones_kind(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q")
            .kind_limit("bulk", JobLimit::concurrency(1))
            .kind_limit("mail", JobLimit::concurrency(1))
            .build()?;
        let hands = queue.dispatcher(["bulk", "mail"]).lease(LONG * 4).start().await?;
        // Somebody has the place of each kind.
        queue.enqueue_raw("bulk", b"0").group("x").await?;
        queue.enqueue_raw("mail", b"0").group("y").await?;
        let running = hands.take(2, LONG).await?;
        assert_eq!((&*running[0].kind, &*running[1].kind), ("bulk", "mail"));
        // Lines are looked at by name. One group stands in the line of the bulk kind, two in that of mails.
        let bulk = queue.enqueue_raw("bulk", b"1").group("g").await?.id().unwrap();
        let late = queue.enqueue_raw("mail", b"1").group("g").await?.id().unwrap();
        let mut mails = Vec::new();
        for group in ["h", "i"] {
            mails.push(queue.enqueue_raw("mail", b"2").group(group).await?.id().unwrap());
        }
        mails.push(late);
        assert!(hands.take(1, Duration::from_millis(100)).await?.is_empty());
        assert_eq!(queue.cancel(bulk).await?, Cancelled::Ended);
        for job in &running {
            assert_eq!(hands.settle(&job.fence, Verdict::Done).await?, Settled::Done);
        }
        let mut took = Vec::new();
        for _ in 0..3 {
            let taken = hands.take(1, LONG).await?;
            ensure!(taken.len() == 1, "{took:?}");
            took.push(taken[0].id);
            assert_eq!(hands.settle(&taken[0].fence, Verdict::Done).await?, Settled::Done);
        }
        assert_eq!(took, mails, "it passed those who stood in that line");
        Ok(())
    }

    async fn a_rate_that_only_a_worker_that_leaves_waits_for_is_left_to_another(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let period = Duration::from_secs(if backend.is_embedded() { 60 } else { 3 });
        let queue = Queue::builder(&store, backend.namespace(), "q")
            .group_limit(JobLimit::per(1, period).burst(1))
            .build()?;
        let card = async |part: &str, count: u64| {
            let key = format!("{}:queue:{{q}}:{part}", backend.namespace());
            eventually(LONG, async || {
                store.query::<u64>(redis::cmd("ZCARD").arg(&key)).await.is_ok_and(|n| n == count)
            }).await
        };
        let log = Log::default();
        let start = async || {
            let log = log.clone();
            queue
                .worker(move |job: Task, _: JobContext| { let log = log.clone(); async move { log.push(job.n) } })
                // A worker that is not woken looks again after this.
                .lease(Duration::from_secs(36_000))
                .start()
                .await
        };
        let first = start().await?;
        ensure!(card("idle", 1).await, "the first worker is not idle");
        let second = start().await?;
        ensure!(card("idle", 2).await, "the second worker is not idle");
        queue.enqueue(&task(1)).group("g").await?;
        log.reaches(1).await?;
        empty(&queue).await?;
        ensure!(card("idle", 2).await, "the first worker is not idle again");
        // The second has waited for longer now, so it is told. It finds that the rate is not free.
        queue.enqueue(&task(2)).group("g").await?;
        ensure!(card("resting", 1).await || log.len() == 2, "the group does not rest");
        second.shutdown(LONG).await?;
        if backend.is_embedded() {
            store.advance(period)?;
        }
        log.reaches(2).await?;
        first.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_limit_of_a_kind_holds_for_its_jobs_in_groups_too(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q")
            .kind_limit("other", JobLimit::concurrency(2))
            .group_limit(JobLimit::concurrency(3))
            .build()?;
        let (gauges, runs) = (Arc::<[Gauge; 2]>::default(), Arc::new(AtomicI64::new(0)));
        let mut workers = Vec::new();
        for _ in 0..2 {
            let (tasks, others, runs) = (gauges.clone(), gauges.clone(), runs.clone());
            workers.push(queue
                .worker(move |_: Task, _: JobContext| {
                    let gauges = tasks.clone();
                    async move { gauges[0].pass().await }
                })
                .handler(move |_: Other, cx: JobContext| {
                    let (gauges, runs) = (others.clone(), runs.clone());
                    async move {
                        gauges[1].pass().await;
                        // Some fail once: between two attempts they have no place.
                        if runs.fetch_add(1, Ordering::SeqCst) % 7 == 0 && cx.attempt() == 1 {
                            return Verdict::retry("once");
                        }
                        Verdict::Done
                    }
                })
                .retry(Backoff::fixed(Duration::from_millis(5)), 5)
                .concurrency(20)
                .start()
                .await?);
        }
        for n in 0..100 {
            queue.enqueue(&Other).group(&format!("g{n}")).await?;
            queue.enqueue(&task(n)).group(&format!("g{}", n % 50)).await?;
            if n % 5 == 0 {
                queue.enqueue(&Other).await?;
            }
        }
        empty(&queue).await?;
        assert!(gauges[1].most() <= 2, "{} of a kind ran at a time", gauges[1].most());
        assert!(runs.load(Ordering::SeqCst) >= 120);
        for worker in workers {
            worker.shutdown(LONG).await?;
        }
        assert_eq!(places(&store, backend).await?, [""; 0], "places are left");
        Ok(())
    }

    async fn groups_that_wait_for_a_kind_take_turns_and_hold_up_no_other(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q")
            .kind_limit("task", JobLimit::concurrency(1))
            .build()?;
        queue.enqueue_many((0..200).map(task)).group("a").await?;
        queue.enqueue_many((200..400).map(task)).group("b").await?;
        queue.enqueue_many((400..600).map(task)).await?;
        let log = Log::default();
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let (seen, others, open) = (log.clone(), log.clone(), gate.clone());
        let worker = queue
            .worker(move |job: Task, _: JobContext| {
                let (log, gate) = (seen.clone(), open.clone());
                async move {
                    log.push(job.n);
                    let _ = gate.acquire().await;
                }
            })
            .handler(move |_: Other, _: JobContext| {
                let log = others.clone();
                async move { log.push(9999) }
            })
            .concurrency(4)
            .start()
            .await?;
        log.reaches(1).await?;
        // The only place is taken. Another kind is not concerned, and a late group has its turn soon.
        queue.enqueue(&Other).group("z").await?;
        log.reaches(2).await?;
        assert_eq!(log.all()[1], 9999);
        queue.enqueue(&task(1000)).group("z").await?;
        gate.add_permits(10_000);
        log.reaches(40).await?;
        let ran = log.all();
        let late = ran.iter().position(|n| *n == 1000);
        assert!(late.is_some_and(|at| at <= 6), "it waits for more than its turn: {ran:?}");
        for (group, from) in [("a", 0), ("b", 200), ("without", 400)] {
            let turns = ran[..40].iter().filter(|n| (from..from + 200).contains(*n)).count();
            assert!((9..=16).contains(&turns), "{group} had {turns} turns: {ran:?}");
        }
        worker.shutdown(LONG).await?;
        Ok(())
    }

    /// Its heartbeat ends with its runtime, as if its process had been killed.
    async fn the_places_of_a_kind_come_back_when_its_worker_dies(backend: &Backend) -> Result<()> {
        let lease = Duration::from_millis(500);
        let store = Store::connect(backend.url()).await?;
        let limited = |store: &Store| {
            Queue::builder(store, backend.namespace(), "q")
                .kind_limit("other", JobLimit::concurrency(2))
                .build()
        };
        let queue = limited(&store)?;
        for n in 0..5 {
            queue.enqueue(&Other).group(&format!("g{n}")).await?;
        }
        let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        // The embedded engine is private to its store.
        let own = backend.is_embedded().then(|| store.clone());
        let url = backend.url().to_owned();
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let namespace = backend.namespace().to_owned();
        process.spawn(async move {
            let store = match own {
                Some(store) => store,
                None => Store::connect(&url).await?,
            };
            let queue = Queue::builder(&store, &namespace, "q")
                .kind_limit("other", JobLimit::concurrency(2))
                .build()?;
            let worker = queue
                .worker(move |_: Other, _: JobContext| {
                    begun.send(()).ok();
                    std::future::pending::<()>()
                })
                .lease(lease)
                .start()
                .await?;
            std::mem::forget(worker);
            anyhow::Ok(())
        });
        begins.recv().await;
        begins.recv().await;
        process.shutdown_background();
        let gauge = Arc::new(Gauge::default());
        let (seen, runs) = (gauge.clone(), Arc::new(AtomicI64::new(0)));
        let counted = runs.clone();
        let worker = queue
            .worker(move |_: Other, _: JobContext| {
                let (gauge, runs) = (seen.clone(), counted.clone());
                async move {
                    gauge.pass().await;
                    runs.fetch_add(1, Ordering::SeqCst);
                }
            })
            .lease(lease)
            .start()
            .await?;
        let came = eventually(LONG, async || {
            let _ = store.advance(lease / 4);
            runs.load(Ordering::SeqCst) >= 5 && queue.inspect().counts().await.is_ok_and(|c| c.unfinished() == 0)
        });
        ensure!(came.await, "{} of 5 ran", runs.load(Ordering::SeqCst));
        assert!(gauge.most() <= 2);
        worker.shutdown(LONG).await?;
        assert_eq!(places(&store, backend).await?, [""; 0], "places are left");
        Ok(())
    }
}

/// The first job of the group waits for a place of its kind; when it is gone, the next one, of another kind, does not.
#[tokio::test]
async fn a_group_waits_for_a_kind_no_longer_when_that_job_is_cancelled() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = Queue::builder(&store, "gone", "q")
        .kind_limit("other", JobLimit::concurrency(1))
        .build()?;
    let log = Log::default();
    let (seen, gate) = (log.clone(), Arc::new(tokio::sync::Semaphore::new(0)));
    let open = gate.clone();
    let worker = queue
        .worker(move |job: Task, _: JobContext| {
            let log = seen.clone();
            async move { log.push(job.n) }
        })
        .handler(move |_: Other, _: JobContext| {
            let gate = open.clone();
            async move { drop(gate.acquire().await) }
        })
        .start()
        .await?;
    queue.enqueue(&Other).group("a").await?;
    ensure!(
        eventually(LONG, async || queue
            .inspect()
            .counts()
            .await
            .is_ok_and(|c| c.running == 1))
        .await
    );
    let waits = queue.enqueue(&Other).group("b").await?.id().unwrap();
    queue.enqueue(&task(1)).group("b").await?;
    queue.enqueue(&task(2)).group("c").await?;
    log.reaches(1).await?;
    assert_eq!(log.all(), [2], "the jobs of a group run in their order");
    assert_eq!(queue.cancel(waits).await?, Cancelled::Ended);
    log.reaches(2).await?;
    gate.add_permits(10);
    empty(&queue).await?;
    worker.shutdown(LONG).await?;
    Ok(())
}

/// Groups waited for a kind, and then its limit was removed.
#[tokio::test]
async fn groups_wait_for_a_kind_no_longer_when_it_has_no_limit_any_more() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let limited = Queue::builder(&store, "free", "q")
        .kind_limit(
            "task",
            JobLimit::per(1, Duration::from_secs(86_400)).burst(1),
        )
        .build()?;
    for n in 0..20 {
        limited.enqueue(&task(n)).group(&format!("g{n}")).await?;
    }
    let log = Log::default();
    let worker = logging(&limited, &log, 5).await?;
    log.reaches(1).await?;
    // It rests, and all groups wait.
    ensure!(
        eventually(LONG, async || {
            store
                .query::<u64>(redis::cmd("ZCARD").arg("free:queue:{q}:groups"))
                .await
                .is_ok_and(|n| n == 0)
        })
        .await
    );
    worker.shutdown(LONG).await?;
    let free = Queue::new(&store, "free", "q")?;
    let worker = logging(&free, &log, 5).await?;
    log.reaches(20).await?;
    worker.shutdown(LONG).await?;
    Ok(())
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
