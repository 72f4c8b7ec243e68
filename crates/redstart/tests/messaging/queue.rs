//! The job queue within one process.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    messaging::{
        Backoff, Enqueued, Job, JobContext, JobInfo, JobState, MissedTicks, Queue, UniqueUntil,
        Verdict, Worker,
    },
};
use redstart_testkit::server::ServerBuilder;
use redstart_testkit::{
    Backend, Cluster, Kind, MonitorTap, Proxy, Server, eventually, figure, matrix, scale,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

pub(crate) const LONG: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) n: u64,
}

impl Job for Task {
    const NAME: &'static str = "task";
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Other;

impl Job for Other {
    const NAME: &'static str = "other";
}

pub(crate) fn task(n: u64) -> Task {
    Task { n }
}

pub(crate) async fn open(backend: &Backend) -> Result<(Store, Queue)> {
    let store = Store::connect(backend.url()).await?;
    let queue = Queue::new(&store, backend.namespace(), "q")?;
    Ok((store, queue))
}

/// What ran, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u64>>>);

impl Log {
    pub(crate) fn push(&self, n: u64) {
        self.0.lock().unwrap().push(n);
    }
    pub(crate) fn all(&self) -> Vec<u64> {
        self.0.lock().unwrap().clone()
    }
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
    pub(crate) async fn reaches(&self, count: usize) -> Result<()> {
        // However long it takes on a busy machine, jobs must go on to run.
        let mut ran = 0;
        while self.len() < count {
            let moved = eventually(LONG, async || self.len() > ran).await;
            ensure!(moved, "{ran} of {count} jobs ran");
            ran = self.len();
        }
        Ok(())
    }
}

pub(crate) async fn logging(queue: &Queue, log: &Log, concurrency: usize) -> Result<Worker> {
    let log = log.clone();
    Ok(queue
        .worker(move |job: Task, _: JobContext| {
            let log = log.clone();
            async move { log.push(job.n) }
        })
        .concurrency(concurrency)
        .start()
        .await?)
}

/// Polls until the queue holds nothing that waits or runs.
pub(crate) async fn empty(queue: &Queue) -> Result<()> {
    let look = queue.inspect();
    let came = eventually(LONG, async || {
        look.counts()
            .await
            .is_ok_and(|counts| counts.unfinished() == 0)
    })
    .await;
    ensure!(came, "the queue is not empty: {:?}", look.counts().await?);
    Ok(())
}

/// Between any two commands of a page more jobs are added than a page has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_of_a_list_come_to_their_end_however_fast_it_grows_meanwhile() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let direct = Store::connect(&server.url()).await?;
    let producer = Queue::new(&direct, "pages", "q")?;
    let first = 1000;
    producer.enqueue_many((0..first).map(task)).await?;
    let (asked, added) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    // As many as are asked for: what a round trip lets in does not depend on the machine.
    let adding = tokio::spawn({
        let (asked, added) = (asked.clone(), added.clone());
        async move {
            for n in 0.. {
                asked.acquire().await?.forget();
                producer
                    .enqueue_many((0..500).map(|i| task(first + 500 * n + i)))
                    .await?;
                added.add_permits(1);
            }
            anyhow::Ok(())
        }
    });
    proxy.delay_requests(Duration::from_millis(40));
    let store = Store::builder(proxy.url()).deadline(LONG).connect().await?;
    let look = Queue::new(&store, "pages", "q")?.inspect();
    let mut seen = std::collections::HashSet::new();
    let (mut from, mut pages) = (None, 0);
    loop {
        let page = look.list(JobState::Ready, from);
        tokio::pin!(page);
        let (jobs, next) = loop {
            tokio::select! {
                page = &mut page => break page?,
                // Less than a round trip later, whatever was asked for before has been added.
                () = tokio::time::sleep(Duration::from_millis(4)) => {
                    asked.add_permits(1);
                    added.acquire().await?.forget();
                }
            }
        };
        pages += 1;
        seen.extend(jobs.iter().map(|job| job.id));
        let read = seen.len();
        match next {
            Some(next) => from = Some(next),
            None => break,
        }
        ensure!(pages < 20, "{read} jobs in {pages} pages");
    }
    adding.abort();
    ensure!(
        seen.len() >= first as usize,
        "{} of {first} were read",
        seen.len()
    );
    Ok(())
}

matrix! {
    async fn done_jobs_leave_nothing_behind(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let log = Log::default();
        let worker = logging(&queue, &log, 16).await?;
        queue.enqueue_many((0..500).map(task)).await?;
        for n in 500..520 {
            queue
                .enqueue(&task(n))
                .priority(n as i16 - 510)
                .delay(Duration::from_millis(n % 7))
                .unique(&format!("job-{n}"), UniqueUntil::Done)
                .await?;
        }
        log.reaches(520).await?;
        empty(&queue).await?;
        let report = worker.shutdown(LONG).await?;
        assert_eq!((report.done, report.failed, report.handed_back), (520, 0, 0));
        let mut ran = log.all();
        ran.sort_unstable();
        assert_eq!(ran, (0..520).collect::<Vec<_>>());
        // Only the marks of unique requests are left, for seconds.
        for left in store.scan(&format!("{}:*", backend.namespace())).await? {
            let ttl: i64 = store.query(redis::cmd("PTTL").arg(&left)).await?;
            assert!(left.contains(":enqueued:") && ttl > 0, "{left} has a TTL of {ttl}");
        }
        Ok(())
    }

    async fn a_failing_job_is_dead_after_its_attempts_and_replays(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let attempts = Arc::new(Mutex::new(Vec::new()));
        let healed = Arc::new(AtomicU32::new(0));
        let worker = {
            let (attempts, healed) = (attempts.clone(), healed.clone());
            queue
                .worker(move |job: Task, cx: JobContext| {
                    attempts.lock().unwrap().push((job.n, cx.attempt()));
                    let well = healed.load(Ordering::SeqCst) == 1;
                    async move { if well { Ok(()) } else { Err("the mail server is down") } }
                })
                .retry(Backoff::fixed(Duration::from_millis(1)), 3)
                .start()
                .await?
        };
        let id = queue.enqueue(&task(7)).await?.id();
        let letters = queue.inspect().dead_letters();
        ensure!(eventually(LONG, async || letters.list(None).await.is_ok_and(|l| l.len() == 1)).await);
        assert_eq!(*attempts.lock().unwrap(), [(7, 1), (7, 2), (7, 3)]);
        let letter = letters.list(None).await?.remove(0);
        let job = letter.job.clone().unwrap();
        assert_eq!((Some(job.id), job.attempts, &*letter.reason), (id, 3, "the mail server is down"));
        assert_eq!(job.decode::<Task>()?.n, 7);

        healed.store(1, Ordering::SeqCst);
        assert_eq!(letters.replay(|letter| letter.reason.contains("no such reason")).await?, 0);
        assert_eq!(letters.replay(|letter| letter.reason.contains("mail server")).await?, 1);
        ensure!(eventually(LONG, async || attempts.lock().unwrap().len() == 4).await);
        assert_eq!(attempts.lock().unwrap().last(), Some(&(7, 1)), "a replayed job has all its attempts");
        empty(&queue).await?;
        assert_eq!(letters.list(None).await?.len(), 0);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn panics_timeouts_and_chosen_waits_are_retried_and_dead_verdicts_are_not(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let runs: Arc<Mutex<HashMap<u64, u32>>> = Arc::default();
        let worker = {
            let runs = runs.clone();
            queue
                .worker(move |job: Task, cx: JobContext| {
                    *runs.lock().unwrap().entry(job.n).or_default() += 1;
                    async move {
                        match (job.n, cx.attempt()) {
                            (1, 1) => panic!("as planned"),
                            (2, 1) => std::future::pending().await,
                            (3, 1) => Verdict::retry_after(Duration::from_millis(2), "not yet"),
                            (4, _) => Verdict::dead("no such address"),
                            _ => Verdict::Done,
                        }
                    }
                })
                .retry(Backoff::fixed(Duration::from_millis(1)), 5)
                .start()
                .await?
        };
        for n in 1..=4 {
            queue.enqueue(&task(n)).timeout(Duration::from_millis(200)).await?;
        }
        empty(&queue).await?;
        let dead = queue.inspect().dead_letters().list(None).await?;
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].reason, "no such address");
        assert_eq!(*runs.lock().unwrap(), HashMap::from([(1, 2), (2, 2), (3, 2), (4, 1)]));
        let report = worker.shutdown(LONG).await?;
        assert_eq!((report.done, report.failed), (3, 4));
        Ok(())
    }

    async fn delayed_jobs_wait_for_their_time_by_the_servers_clock(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let log = Log::default();
        let worker = logging(&queue, &log, 4).await?;
        // Far enough that a slow machine has not got there before it is looked at.
        queue.enqueue(&task(1)).delay(Duration::from_secs(3600)).await?;
        let near = Duration::from_millis(if backend.is_embedded() { 60_000 } else { 300 });
        let enqueued = store.time().await?;
        queue.enqueue(&task(2)).delay(near).await?;
        if backend.is_embedded() {
            store.advance(near - Duration::from_secs(1))?;
            assert_eq!(queue.inspect().counts().await?.delayed, 2);
            // A worker that heard of the delay only after the clock was moved counts it from there, up to its lease.
            eventually(LONG, async || {
                store.advance(Duration::from_secs(1)).unwrap();
                log.len() > 0
            })
            .await;
        }
        log.reaches(1).await?;
        ensure!(store.time().await? >= enqueued + near, "it ran too early");
        assert_eq!(log.all(), [2]);
        assert_eq!(queue.inspect().counts().await?.delayed, 1);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn of_many_concurrent_enqueues_with_one_unique_key_one_is_a_job(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..scale(1000, "unique enqueues") {
            let queue = queue.clone();
            tasks.spawn(async move { queue.enqueue(&task(n)).unique("only", UniqueUntil::Done).await });
        }
        let (mut new, mut duplicates) = (Vec::new(), Vec::new());
        for enqueued in tasks.join_all().await {
            match enqueued?.enqueued() {
                Enqueued::New(id) => new.push(id),
                Enqueued::Duplicate(id) => duplicates.push(id),
                Enqueued::Full => panic!("there is no capacity set"),
            }
        }
        assert_eq!(new.len(), 1);
        assert!(duplicates.iter().all(|id| *id == new[0]));
        assert_eq!(queue.inspect().counts().await?.ready, 1);
        Ok(())
    }

    async fn a_unique_key_frees_on_done_on_dead_and_on_delete(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let gate = Arc::new(Semaphore::new(0));
        let worker = {
            let gate = gate.clone();
            queue
                .worker(move |job: Task, _: JobContext| {
                    let gate = gate.clone();
                    async move {
                        let _ = gate.acquire().await.map(|permit| permit.forget());
                        if job.n == 1 { Verdict::dead("no") } else { Verdict::Done }
                    }
                })
                .start()
                .await?
        };
        for n in [0, 1] {
            let id = queue.enqueue(&task(n)).unique("key", UniqueUntil::Done).await?;
            assert!(id.is_new(), "{n}");
            ensure!(eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.running == 1)).await);
            let again = queue.enqueue(&task(9)).unique("key", UniqueUntil::Done).await?;
            assert_eq!(again, Enqueued::Duplicate(id.id().unwrap()), "it runs");
            gate.add_permits(1);
            empty(&queue).await?;
        }
        // The dead one's key is free; when it is replayed it takes the key again.
        let held = queue.enqueue(&task(2)).delay(LONG * 100).unique("key", UniqueUntil::Done).await?;
        assert!(held.is_new());
        let letters = queue.inspect().dead_letters();
        assert_eq!(letters.replay(|_| true).await?, 0, "another job holds the key");
        assert!(queue.inspect().delete(held.id().unwrap()).await?);
        assert_eq!(letters.replay(|_| true).await?, 1);
        assert!(!queue.enqueue(&task(9)).unique("key", UniqueUntil::Done).await?.is_new());
        gate.add_permits(1);
        ensure!(eventually(LONG, async || letters.list(None).await.is_ok_and(|l| l.len() == 1)).await);

        // Until it is started.
        assert!(queue.enqueue(&task(5)).unique("start", UniqueUntil::Started).await?.is_new());
        ensure!(eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.running == 1)).await);
        assert!(queue.enqueue(&task(6)).unique("start", UniqueUntil::Started).await?.is_new());
        gate.add_permits(2);
        empty(&queue).await?;
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_graceful_stop_finishes_what_it_can_and_hands_the_rest_over_at_once(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let gate = Arc::new(Semaphore::new(0));
        let started = Arc::new(AtomicUsize::new(0));
        let log = Log::default();
        let slow = |lease| {
            let (gate, started, log) = (gate.clone(), started.clone(), log.clone());
            queue
                .worker(move |job: Task, cx: JobContext| {
                    let (gate, started, log) = (gate.clone(), started.clone(), log.clone());
                    async move {
                        started.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(cx.attempt(), 1, "a job that was handed back is charged nothing");
                        let _ = gate.acquire().await.map(|permit| permit.forget());
                        log.push(job.n);
                    }
                })
                .concurrency(4)
                .lease(lease)
        };
        // The lease is so long that nothing is taken over because it ends.
        let first = slow(Duration::from_secs(3600)).start().await?;
        queue.enqueue_many((0..8).map(task)).await?;
        ensure!(eventually(LONG, async || started.load(Ordering::SeqCst) == 4).await);
        let mut stopping = std::pin::pin!(first.shutdown(Duration::from_secs(4)));
        // The stop is known before the first job ends, so no other job is taken in its place.
        let at_once = tokio::time::timeout(Duration::ZERO, stopping.as_mut()).await;
        ensure!(at_once.is_err(), "four jobs are under way");
        gate.add_permits(1);
        let report = stopping.await?;
        log.reaches(1).await?;
        assert_eq!((report.done, report.handed_back), (1, 3));
        let second = slow(Duration::from_secs(3600)).start().await?;
        gate.add_permits(7);
        log.reaches(8).await?;
        let mut ran = log.all();
        ran.sort_unstable();
        assert_eq!(ran, (0..8).collect::<Vec<_>>());
        second.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_dropped_worker_hands_its_jobs_back(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let worker = queue
            .worker(|_: Task, _: JobContext| std::future::pending::<()>())
            .lease(Duration::from_secs(3600))
            .start()
            .await?;
        queue.enqueue(&task(1)).await?;
        ensure!(eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.running == 1)).await);
        drop(worker);
        store.settle().await;
        let counts = queue.inspect().counts().await?;
        assert_eq!((counts.ready, counts.running, counts.workers), (1, 0, 0));
        Ok(())
    }

    /// Pages are counted from the end of the list, and producers add there.
    async fn the_pages_of_a_list_come_to_their_end_however_fast_it_grows(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let first = 1000;
        queue.enqueue_many((0..first).map(task)).await?;
        let mut n = first;
        let mut seen = std::collections::HashSet::new();
        let (mut from, mut pages, mut read) = (None, 0, 0);
        loop {
            let (jobs, next) = queue.inspect().list(JobState::Ready, from).await?;
            pages += 1;
            read += jobs.len();
            ensure!(jobs.len() <= 200, "{} jobs in one page", jobs.len());
            for job in jobs {
                seen.insert(job.decode::<Task>()?.n);
            }
            match next { Some(next) => from = Some(next), None => break }
            ensure!(pages < 20, "{} of {first} were read in {pages} pages", seen.iter().filter(|n| **n < first).count());
            // More than a page has.
            queue.enqueue_many((n..n + 500).map(task)).await?;
            n += 500;
        }
        let missed = (0..first).filter(|n| !seen.contains(n)).count();
        assert_eq!((missed, read), (0, first as usize), "each is read once, and what came later is left");
        // The job after which the next page begins is taken: so are all that were to be read.
        let (_, next) = queue.inspect().list(JobState::Ready, None).await?;
        let worker = logging(&queue, &Log::default(), 8).await?;
        empty(&queue).await?;
        worker.shutdown(LONG).await?;
        queue.enqueue_many((0..500).map(task)).await?;
        let (mut from, mut pages) = (next, 0);
        while let Some(next) = from {
            from = queue.inspect().list(JobState::Ready, Some(next)).await?.1;
            pages += 1;
        }
        ensure!(pages < 10, "{pages} pages");
        Ok(())
    }

    /// Only the jobs that are first in turn are looked at, whatever the names of their groups.
    async fn the_oldest_job_is_found_behind_deleted_ones_and_in_the_group_whose_turn_it_is(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let look = queue.inspect();
        let due = async |id| anyhow::Ok(look.find(id).await?.context("it is there")?.due);
        let ids = queue.enqueue_many((0..400).map(task)).await?.added;
        // Their places are passed over when they are reached.
        assert_eq!(look.delete_many(&ids[..300]).await?, 300);
        assert_eq!(look.oldest().await?, Some(due(ids[300]).await?));
        assert_eq!(look.delete_many(&ids).await?, 100);
        assert_eq!(look.oldest().await?, None);
        let first = queue.enqueue(&task(0)).group("z").await?.id().unwrap();
        for n in 1..30 {
            queue.enqueue(&task(n)).group("a").await?;
        }
        assert_eq!(look.oldest().await?, Some(due(first).await?));
        Ok(())
    }

    async fn jobs_are_taken_by_age_plus_priority_so_low_ones_wait_a_bounded_time(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        // The high ones of the first five boosts go before the low one: on a busy machine more than one.
        let boost = Duration::from_millis(100);
        let queue = Queue::builder(&store, backend.namespace(), "q").boost(boost).build()?;
        let low = queue.enqueue(&task(0)).priority(-2).await?.id().unwrap();
        let plain = queue.enqueue(&task(1)).await?.id().unwrap();
        let begun = store.time().await?;
        let mut n = 2;
        // Steady high priority for longer than (3 + 2) * boost.
        while store.time().await? < begun + boost * 8 {
            queue.enqueue(&task(n)).priority(3).await?;
            n += 1;
            if backend.is_embedded() { store.advance(boost / 20)?; }
        }
        let mut due = HashMap::new();
        let mut from = None;
        loop {
            let (jobs, next) = queue.inspect().list(JobState::Ready, from).await?;
            for job in jobs {
                due.insert(job.decode::<Task>()?.n, (job.id, job.priority, job.due));
            }
            match next { Some(next) => from = Some(next), None => break }
        }
        assert_eq!(due.len() as u64, n);
        assert_eq!((due[&0].0, due[&1].0), (low, plain));
        let log = Log::default();
        let worker = logging(&queue, &log, 1).await?;
        log.reaches(n as usize).await?;
        let worth = |n: &u64| due[n].2.as_micros() as i128 - i128::from(due[n].1) * boost.as_micros() as i128;
        let ran = log.all();
        assert!(ran.is_sorted_by_key(worth), "{ran:?}");
        let place = ran.iter().position(|n| *n == 0).unwrap();
        assert!(place > 1, "higher ones go first");
        assert!(place < ran.len() - 1, "but not those that came later than the bound");
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn under_steady_high_priority_a_low_one_runs_within_its_bound(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let boost = Duration::from_millis(20);
        let queue = Queue::builder(&store, backend.namespace(), "q").boost(boost).build()?;
        let log = Log::default();
        for n in 1..=20 { queue.enqueue(&task(n)).priority(3).await?; }
        queue.enqueue(&task(0)).priority(-2).await?;
        let low = store.time().await?;
        let worker = logging(&queue, &log, 1).await?;
        // There are always some of high priority waiting; when each was enqueued, at the earliest.
        let mut enqueued: HashMap<u64, Duration> = (1..=20).map(|n| (n, low)).collect();
        for n in 21.. {
            if log.all().contains(&0) { break; }
            enqueued.insert(n, store.time().await?);
            queue.enqueue(&task(n)).priority(3).await?;
            ensure!(n < 100_000, "the low one starves");
            if backend.is_embedded() { store.advance(Duration::from_micros(100))?; }
        }
        let ran = log.all();
        let place = ran.iter().position(|n| *n == 0).unwrap();
        assert!(place > 0, "those of high priority that came before go first");
        for n in &ran[..place] {
            assert!(enqueued[n] <= low + boost * 5, "{n} came after the bound and went before");
        }
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_full_queue_refuses_and_loses_nothing(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").capacity(1500).build()?;
        let added = queue.enqueue_many((0..2500).map(task)).await?;
        assert_eq!((added.added.len(), added.refused), (1000, 1500));
        let added = queue.enqueue_many((1000..1499).map(task)).delay(Duration::from_millis(1)).await?;
        assert_eq!(added.added.len(), 499);
        assert!(queue.enqueue(&task(1499)).await?.is_new());
        assert_eq!(queue.enqueue(&task(1500)).unique("u", UniqueUntil::Done).await?, Enqueued::Full);
        let log = Log::default();
        let worker = logging(&queue, &log, 100).await?;
        log.reaches(1500).await?;
        empty(&queue).await?;
        assert!(queue.enqueue(&task(1500)).unique("u", UniqueUntil::Done).await?.is_new(), "a refusal takes no key");
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn bad_input_is_refused_before_the_network_and_bad_entries_become_dead_letters(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").max_payload(8).park_for(Duration::ZERO).build()?;
        let refused = [
            queue.enqueue(&task(1_000_000)).await,
            queue.enqueue(&task(1)).priority(1001).await,
            queue.enqueue(&task(1)).timeout(Duration::ZERO).await,
            queue.enqueue(&task(1)).unique("", UniqueUntil::Done).await,
            queue.enqueue(&task(1)).unique(&"x".repeat(1025), UniqueUntil::Done).await,
            queue.enqueue(&task(1)).delay(Duration::from_secs(u64::MAX)).await,
        ];
        for (at, refused) in refused.into_iter().enumerate() {
            assert!(refused.unwrap_err().is_config(), "{at}");
        }
        for expression in ["", "* * *", "61 * * * *", "nonsense", "0 0 30 2 *"] {
            let put = queue.cron("c", expression, &task(1), MissedTicks::RunOnce).await;
            assert!(put.unwrap_err().is_config(), "{expression:?}");
        }
        let put = queue.cron("c", "* * * * *", &task(1), MissedTicks::RunOnce).time_zone("Mars/Olympus").await;
        assert!(put.unwrap_err().is_config());
        for (namespace, name) in [("", "q"), ("a b", "q"), ("a", "")] {
            assert!(Queue::new(&store, namespace, name).unwrap_err().is_config());
        }
        let worker = || queue.worker(|_: Task, _: JobContext| async {});
        for worker in [
            worker().concurrency(0),
            worker().concurrency(1_000_000),
            worker().lease(Duration::ZERO),
            worker().retry(Backoff::default(), 0),
            worker().handler(|_: Task, _: JobContext| async {}),
        ] {
            assert!(worker.start().await.unwrap_err().is_config());
        }
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?, Vec::<String>::new());

        // Written by others into the queue's keys: garbage, a truncated record, records with invalid contents.
        let part = |part: &str| format!("{}:queue:{{q}}:{part}", backend.namespace());
        let head = [&b"Jr"[..], &[b'0'; 32]].concat();
        let broken = [&head[..], &[0xff; 60]].concat();
        let no_name = [&head[..], &[b'i'; 16], &[0; 15], &[3, 0xff, 0xff, 0xff]].concat();
        for (at, garbage) in [&b""[..], b"hello", b"J123", &broken, &no_name].into_iter().enumerate() {
            let id = if garbage == no_name { "i".repeat(16) } else { format!("{at:016}") };
            store.query::<()>(redis::cmd("HSET").arg(part("jobs")).arg(&id).arg(garbage)).await?;
            store.query::<()>(redis::cmd("RPUSH").arg(part("ready")).arg(&id)).await?;
        }
        store.query::<()>(redis::cmd("HSET").arg(part("jobs")).arg("later-----------").arg("later")).await?;
        store.query::<()>(redis::cmd("ZADD").arg(part("delayed")).arg(0).arg("later-----------")).await?;
        queue.enqueue(&Other).await?;
        queue.enqueue(&task(7)).await?;
        let log = Log::default();
        let worker = logging(&queue, &log, 4).await?;
        log.reaches(1).await?;
        empty(&queue).await?;
        let reasons: Vec<String> = queue.inspect().dead_letters().list(None).await?
            .into_iter().map(|letter| letter.reason).collect();
        assert_eq!(reasons.iter().filter(|r| r.contains("corrupt")).count(), 6, "{reasons:?}");
        assert_eq!(reasons.iter().filter(|r| r.contains("no handler")).count(), 1, "{reasons:?}");
        // A corrupt letter stays; a job that merely had no handler is replayed, and dies again.
        assert_eq!(queue.inspect().dead_letters().replay(|_| true).await?, 2);
        ensure!(eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.dead == 7 && c.unfinished() == 0)).await);
        assert_eq!(log.all(), [7]);
        assert_eq!(queue.inspect().dead_letters().purge(|_| true).await?, 7);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_paused_queue_hands_out_nothing_until_it_is_resumed(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let log = Log::default();
        queue.pause().await?;
        let worker = logging(&queue, &log, 4).await?;
        queue.enqueue(&task(1)).await?;
        // A second worker looks too.
        let other = logging(&queue, &log, 4).await?;
        other.shutdown(LONG).await?;
        let counts = queue.inspect().counts().await?;
        assert_eq!((counts.ready, counts.running, counts.paused), (1, 0, true));
        assert_eq!(log.len(), 0);
        queue.resume().await?;
        log.reaches(1).await?;
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn the_inspector_pages_finds_deletes_and_runs_delayed_jobs_now(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").keep_done(100, LONG * 100).build()?;
        let ids = queue.enqueue_many((0..450).map(task)).await?.added;
        let ranked = queue.enqueue(&task(1001)).priority(5).await?.id().unwrap();
        let later = queue.enqueue(&task(1002)).delay(LONG * 100).await?.id().unwrap();
        let look = queue.inspect();
        let (mut seen, mut from, mut pages) = (std::collections::HashSet::new(), None, 0);
        loop {
            let (jobs, next) = look.list(JobState::Ready, from).await?;
            seen.extend(jobs.into_iter().map(|job| job.id));
            pages += 1;
            match next { Some(next) => from = Some(next), None => break }
        }
        assert!(pages > 2 && seen.len() == 451);
        assert_eq!(look.search(JobState::Ready, "\"n\":44", 100).await?.len(), 11);
        assert_eq!(look.search(JobState::Ready, "\"n\":44", 3).await?.len(), 3);
        assert_eq!(look.find(later).await?.unwrap().state, JobState::Delayed);
        assert!(look.delete(ids[17]).await? && !look.delete(ids[17]).await?);
        assert!(look.delete(ranked).await?);
        assert!(look.run_now(later).await? && !look.run_now(later).await?);
        let log = Log::default();
        let worker = logging(&queue, &log, 50).await?;
        log.reaches(450).await?;
        empty(&queue).await?;
        let mut ran = log.all();
        ran.sort_unstable();
        assert_eq!(ran, (0..450).filter(|n| *n != 17).chain([1002]).collect::<Vec<_>>());
        let kept = look.counts().await?.done;
        assert!((100..=450).contains(&kept), "{kept} done jobs are retained");
        assert!(!look.list(JobState::Done, None).await?.0.is_empty());
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn jobs_are_searched_and_deleted_page_by_page_while_others_come(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").build()?;
        let look = queue.inspect();
        // Of each kind of place several pages: the list, ranked, groups, delayed.
        queue.enqueue_many((0..450).map(task)).await?;
        for n in 450..470 {
            queue.enqueue(&task(n)).priority(5).await?;
            queue.enqueue(&task(n + 100)).group("g").await?;
        }
        queue.enqueue_many((2000..2430).map(task)).delay(LONG * 100).await?;
        for state in [JobState::Ready, JobState::Delayed] {
            let before = look.counts().await?;
            let (mut found, mut from, mut pages) = (std::collections::HashSet::new(), None, 0);
            loop {
                let (jobs, next) = look.search_page(state, "5}", from).await?;
                found.extend(jobs.iter().map(|job| job.decode::<Task>().unwrap().n));
                pages += 1;
                match next { Some(next) => from = Some(next), None => break }
            }
            let numbers: Vec<u64> = match state {
                JobState::Ready => (0..470).chain(550..570).collect(),
                _ => (2000..2430).collect(),
            };
            let fives: std::collections::HashSet<u64> = numbers.iter().copied().filter(|n| n % 10 == 5).collect();
            assert!(pages > 1 && found == fives, "{state:?}: {pages} pages, {} of {}", found.len(), fives.len());
            // Half of them go, while others come that are not asked for.
            let (mut deleted, mut from, mut come) = (0, None, 0);
            loop {
                let odd = |job: &JobInfo| job.decode::<Task>().is_ok_and(|task| task.n % 2 == 1 && task.n < 5000);
                let (gone, next) = look.delete_page(state, from, odd).await?;
                deleted += gone;
                come += 1;
                match state {
                    JobState::Ready => drop(queue.enqueue(&task(9001)).await?),
                    _ => drop(queue.enqueue(&task(9001)).delay(LONG * 100).await?),
                }
                match next { Some(next) => from = Some(next), None => break }
            }
            let odd = numbers.iter().filter(|n| **n % 2 == 1).count() as u64;
            assert_eq!(deleted, odd, "{state:?}");
            let after = look.counts().await?;
            assert_eq!(after.unfinished(), before.unfinished() - odd + come, "{state:?}");
            assert!(look.search(state, "\"n\":45", 100).await?.iter().all(|job| job.decode::<Task>().unwrap().n % 2 == 0));
        }
        // Of several ids those that wait go; unknown and deleted ones are not counted.
        let jobs = look.search(JobState::Ready, "", 150).await?;
        let mut ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
        ids.push(ids[0]);
        assert_eq!(look.delete_many(&ids).await?, 150);
        assert_eq!(look.delete_many(&ids).await?, 0);
        assert_eq!(look.delete_many(&[]).await?, 0);
        Ok(())
    }

    /// A caller that cancels waiting jobs has not agreed to stop one that runs by now.
    async fn a_cancellation_of_jobs_that_wait_leaves_one_that_runs(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let later = queue.enqueue(&task(1)).delay(LONG * 100).await?;
        let mut ids = vec![later.id().unwrap()];
        for n in 2..5 {
            ids.push(queue.enqueue(&task(n)).await?.id().unwrap());
        }
        let workers = queue.dispatcher([Task::NAME]).start().await?;
        let taken = workers.take(1, LONG).await?;
        assert_eq!(taken.len(), 1);
        let look = queue.inspect();
        assert_eq!(look.cancel_waiting_many(&ids).await?, 3);
        let is_told = async || workers.is_cancelled(&taken[0].fence).await;
        assert!(!is_told().await?);
        let counts = look.counts().await?;
        assert_eq!((counts.running, counts.unfinished()), (1, 1));
        // What is over is not counted again; what runs is told by the other one.
        assert_eq!(look.cancel_waiting_many(&ids).await?, 0);
        assert_eq!(look.cancel_many(&ids).await?, 1);
        assert!(is_told().await?);
        let created = look.find(taken[0].id).await?.unwrap().created;
        assert!(created <= look.time().await?);
        Ok(())
    }

    async fn progress_is_seen_and_once_is_once(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let effects = Arc::new(AtomicU32::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let worker = {
            let (effects, gate) = (effects.clone(), gate.clone());
            queue
                .worker(move |_: Task, cx: JobContext| {
                    let (effects, gate) = (effects.clone(), gate.clone());
                    async move {
                        cx.once("pay", async {
                            effects.fetch_add(1, Ordering::SeqCst);
                            Ok::<_, redstart::Error>(())
                        })
                        .await?;
                        assert!(cx.progress(2.0).await.is_err());
                        assert!(cx.progress(0.4).await?);
                        if cx.attempt() < 3 { return Ok::<_, redstart::Error>(Verdict::retry("again")) }
                        let _ = gate.acquire().await;
                        Ok::<_, redstart::Error>(Verdict::Done)
                    }
                })
                .retry(Backoff::fixed(Duration::from_millis(1)), 5)
                .start()
                .await?
        };
        let id = queue.enqueue(&task(1)).await?.id().unwrap();
        let look = queue.inspect();
        ensure!(eventually(LONG, async || {
            matches!(look.find(id).await, Ok(Some(job)) if job.state == JobState::Running && job.attempts == 2 && job.progress == Some(0.4))
        }).await);
        gate.add_permits(1);
        empty(&queue).await?;
        assert_eq!(effects.load(Ordering::SeqCst), 1);
        worker.shutdown(LONG).await?;
        let left = store.scan(&format!("{}:*", backend.namespace())).await?;
        assert_eq!(left.len(), 1, "only the mark of the effect, which has a TTL: {left:?}");
        let ttl: i64 = store.query(redis::cmd("PTTL").arg(&left[0])).await?;
        assert!(ttl > 0);
        Ok(())
    }

    async fn a_cron_tick_runs_once_with_several_workers_and_missed_ticks_run_as_the_policy_says(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        // Every second, so that the test is short on real servers. The time comes first: a second may begin while the
        // entries are put.
        let put = store.time().await?.as_secs();
        assert!(queue.cron("once", "* * * * * *", &task(1), MissedTicks::RunOnce).await?);
        assert!(queue.cron("all", "* * * * * *", &task(2), MissedTicks::RunAll).await?);
        assert!(queue.cron("skip", "* * * * * *", &task(3), MissedTicks::Skip).await?);
        assert!(!queue.cron("once", "* * * * * *", &task(1), MissedTicks::RunOnce).await?, "it is there");
        // No worker runs while ticks pass.
        if backend.is_embedded() { store.advance(Duration::from_secs(5))?; }
        ensure!(eventually(LONG, async || store.time().await.is_ok_and(|now| now.as_secs() >= put + 3)).await);
        let log = Log::default();
        let count = |n: u64| log.all().iter().filter(|ran| **ran == n).count() as u64;
        let mut workers = Vec::new();
        for _ in 0..3 { workers.push(logging(&queue, &log, 4).await?); }
        ensure!(eventually(LONG, async || count(1) >= 2 && count(2) >= 5).await);
        assert!(queue.remove_cron("once").await? && queue.remove_cron("all").await? && queue.remove_cron("skip").await?);
        assert!(!queue.remove_cron("all").await?);
        empty(&queue).await?;
        // One run per tick from the first on, never two: as many as whole seconds passed, or one less if a
        // second began while the entries were removed.
        let ticks = store.time().await?.as_secs() - put;
        let all = count(2);
        assert!(all <= ticks, "{all} runs of {ticks} ticks");
        assert!(count(1) < all && count(3) < all, "missed ticks are not all made up for: {:?}", log.all());
        assert_eq!(queue.cron_entries().await?, []);
        for worker in workers { worker.shutdown(LONG).await?; }
        Ok(())
    }

    async fn ticks_that_passed_while_no_worker_ran_are_made_up_for_exactly_as_the_policy_says(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        // So far from now that no tick comes while this runs.
        let day = Duration::from_secs(86_400);
        let far = Duration::from_secs(store.time().await?.as_secs()) + day / 2;
        let minutes = far.as_secs() / 60;
        let daily = format!("{} {} * * *", minutes % 60, minutes / 60 % 24);
        for (id, n, missed) in [("once", 1, MissedTicks::RunOnce), ("all", 2, MissedTicks::RunAll), ("skip", 3, MissedTicks::Skip)] {
            assert!(queue.cron(id, &daily, &task(n), missed).time_zone("UTC").await?);
        }
        // As if all workers had stopped five ticks ago.
        let cron = format!("{}:queue:{{q}}:cron", backend.namespace());
        for id in ["once", "all", "skip"] {
            let mut back = redis::cmd("ZINCRBY");
            back.arg(&cron).arg(-5 * day.as_micros() as i64).arg(id);
            store.query::<()>(&back).await?;
        }
        let log = Log::default();
        let mut workers = Vec::new();
        for _ in 0..5 { workers.push(logging(&queue, &log, 4).await?); }
        log.reaches(6).await?;
        // The ticks have moved to the future in the same step as the runs were enqueued.
        // The entry without runs may be the last to move.
        ensure!(eventually(LONG, async || {
            let mut ticks = redis::cmd("ZRANGE");
            ticks.arg(&cron).arg(0).arg(-1).arg("WITHSCORES");
            let next: Vec<(String, u64)> = store.query(&ticks).await.unwrap_or_default();
            next.len() == 3 && next.iter().all(|(_, tick)| *tick > store_micros(far - day / 2))
        }).await, "a tick stayed in the past");
        empty(&queue).await?;
        for worker in workers { worker.shutdown(LONG).await?; }
        let mut ran = log.all();
        ran.sort_unstable();
        assert_eq!(ran, [1, 2, 2, 2, 2, 2]);
        Ok(())
    }

    async fn a_worker_that_lost_its_lease_hears_of_it_and_its_ending_is_refused(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let (lost, attempts) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
        let first = {
            let (lost, attempts) = (lost.clone(), attempts.clone());
            queue
                .worker(move |_: Task, cx: JobContext| {
                    let (lost, attempts) = (lost.clone(), attempts.clone());
                    async move {
                        attempts.lock().unwrap().push(cx.attempt());
                        if cx.attempt() == 1 {
                            cx.lost().await;
                            lost.fetch_add(1, Ordering::SeqCst);
                            // It claims success although it has lost the job.
                        }
                        Verdict::Done
                    }
                })
                .concurrency(1)
                .lease(Duration::from_millis(600))
                .start()
                .await?
        };
        queue.enqueue(&task(1)).unique("u", UniqueUntil::Done).await?;
        ensure!(eventually(LONG, async || attempts.lock().unwrap().len() == 1).await);
        // The server's view: this worker's lease is long over.
        let workers = format!("{}:queue:{{q}}:workers", backend.namespace());
        let name: Vec<String> = store.query(redis::cmd("ZRANGE").arg(&workers).arg(0).arg(-1)).await?;
        let gate = Arc::new(Semaphore::new(0));
        let second = {
            let (attempts, gate) = (attempts.clone(), gate.clone());
            queue
                .worker(move |_: Task, cx: JobContext| {
                    let (attempts, gate) = (attempts.clone(), gate.clone());
                    async move {
                        attempts.lock().unwrap().push(cx.attempt());
                        let _ = gate.acquire().await;
                    }
                })
                .start()
                .await?
        };
        ensure!(eventually(LONG, async || {
            // Renewals undo this, so it is said again until the second worker has the job.
            let _ = store.query::<()>(redis::cmd("ZADD").arg(&workers).arg("XX").arg(1).arg(&name[0])).await;
            attempts.lock().unwrap().len() >= 2
        }).await);
        ensure!(eventually(LONG, async || lost.load(Ordering::SeqCst) == 1).await, "the first worker heard nothing");
        // The late verdict changed nothing: the job still runs, its key is still held.
        ensure!(eventually(LONG, async || {
            store.query::<u32>(redis::cmd("ZCARD").arg(&workers)).await.is_ok_and(|n| n == 2)
        }).await, "the first worker registers again");
        let report = first.shutdown(LONG).await?;
        assert_eq!(report.done, 0);
        assert!(!queue.enqueue(&task(2)).unique("u", UniqueUntil::Done).await?.is_new());
        gate.add_permits(1);
        empty(&queue).await?;
        assert_eq!(*attempts.lock().unwrap(), [1, 2]);
        second.shutdown(LONG).await?;
        Ok(())
    }

    async fn jobs_that_the_worker_does_not_know_of_are_found_and_run(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let log = Log::default();
        let worker = {
            let log = log.clone();
            queue
                .worker(move |job: Task, _: JobContext| { let log = log.clone(); async move { log.push(job.n) } })
                .lease(Duration::from_millis(300))
                .start()
                .await?
        };
        // The result of a lost reply or of a failover to an older copy: a job in the worker's hash that the worker
        // does not know.
        queue.pause().await?;
        queue.enqueue(&task(5)).await?;
        let part = |part: &str| format!("{}:queue:{{q}}:{part}", backend.namespace());
        let id: Vec<u8> = store.query(redis::cmd("LPOP").arg(part("ready"))).await?;
        let record: Vec<u8> = store.query(redis::cmd("HGET").arg(part("jobs")).arg(&id)).await?;
        let names: Vec<String> = store.query(redis::cmd("ZRANGE").arg(part("workers")).arg(0).arg(-1)).await?;
        let running = part(&format!("running:{}", names[0]));
        let held = [b"Jx", &names[0].as_bytes()[..32], &record[2..18], &record[2..]].concat();
        store.query::<()>(redis::cmd("HSET").arg(part("jobs")).arg(&id).arg(held)).await?;
        store.query::<()>(redis::cmd("HSET").arg(&running).arg(&record[34..54]).arg("")).await?;
        queue.resume().await?;
        log.reaches(1).await?;
        assert_eq!(log.all(), [5]);
        worker.shutdown(LONG).await?;
        Ok(())
    }
}

fn store_micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

/// Backlogs drain, immediate and delayed, and leave the server's memory as it was. The servers have no other tenants.
async fn backlogs_drain(
    name: &str,
    url: &str,
    memory: impl AsyncFn(&Store) -> Result<u64>,
) -> Result<()> {
    let store = Store::builder(url)
        .deadline(Duration::from_secs(30))
        .connect()
        .await?;
    let queue = Queue::new(&store, "backlog", "q")?;
    let log = Log::default();
    let run = async |count: u64, delay: Duration| -> Result<()> {
        let added = queue
            .enqueue_many((0..count).map(task))
            .delay(delay)
            .await?;
        assert_eq!((added.added.len() as u64, added.refused), (count, 0));
        drop(added);
        let worker = logging(&queue, &log, 500).await?;
        log.reaches(count as usize).await?;
        empty(&queue).await?;
        worker.shutdown(LONG).await?;
        let mut ran = std::mem::take(&mut *log.0.lock().unwrap());
        ran.sort_unstable();
        assert!(ran.into_iter().eq(0..count));
        Ok(())
    };
    // Connections, scripts and buffers are there before it counts.
    run(500, Duration::ZERO).await?;
    // Lua unpacks less than 8,001 at once.
    for count in std::collections::BTreeSet::from([8001, scale(8001, "queue backlog")]) {
        for delay in [Duration::ZERO, Duration::from_millis(1)] {
            let (before, began) = (memory(&store).await?, std::time::Instant::now());
            run(count, delay).await?;
            let took = began.elapsed();
            // Servers give their buffers back when they have time.
            let mut after = 0;
            let back = eventually(LONG, async || {
                after = memory(&store).await.unwrap_or(u64::MAX);
                after <= before + before / 20
            });
            let back = back.await;
            figure(format!(
                "{name}: {count} jobs delayed by {delay:?} drained in {took:?}, memory {before} before, {after} after",
            ));
            assert!(back, "memory: {before} before, {after} after");
            assert_eq!(store.scan("backlog:*").await?, Vec::<String>::new());
        }
    }
    Ok(())
}

async fn used_memory(store: &Store) -> Result<u64> {
    let info: String = store.query(redis::cmd("INFO").arg("memory")).await?;
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
    used.context("INFO says nothing of memory")
}

/// A server without a slow log, which takes memory on a busy machine.
fn quiet(kind: Kind) -> ServerBuilder {
    Server::builder(kind).config("slowlog-log-slower-than", "-1")
}

fn backlog(test: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(test())
}

#[test]
fn backlogs_drain_and_memory_comes_back_embedded() -> Result<()> {
    backlog(async || backlogs_drain("embedded", "memory://?cluster_strict=1", used_memory).await)
}

#[test]
fn backlogs_drain_and_memory_comes_back_redis() -> Result<()> {
    backlog(async || {
        let server = quiet(Kind::Redis).start().await?;
        backlogs_drain("redis", &server.url(), used_memory).await
    })
}

#[test]
fn backlogs_drain_and_memory_comes_back_valkey() -> Result<()> {
    backlog(async || {
        let server = quiet(Kind::Valkey).start().await?;
        backlogs_drain("valkey", &server.url(), used_memory).await
    })
}

#[test]
fn backlogs_drain_and_memory_comes_back_cluster() -> Result<()> {
    backlog(async || {
        let cluster = Cluster::builder(Kind::Redis)
            .masters(3)
            .config("slowlog-log-slower-than", "-1")
            .start()
            .await?;
        backlogs_drain("cluster", &cluster.url(), async |_: &Store| {
            let mut sum = 0;
            for node in cluster.nodes() {
                sum += node.info("used_memory").await?.parse::<u64>()?;
            }
            Ok(sum)
        })
        .await
    })
}

/// An idle worker waits for a message: while nothing happens, nothing but its heartbeat reaches the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_does_not_poll() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let queue = Queue::new(&store, "idle", "q")?;
    let log = Log::default();
    let worker = logging(&queue, &log, 4).await?;
    queue.enqueue(&task(1)).await?;
    log.reaches(1).await?;
    empty(&queue).await?;
    // The last look of the worker marks it as idle.
    ensure!(
        eventually(LONG, async || {
            let idle = redis::cmd("EXISTS").arg("idle:queue:{q}:idle").to_owned();
            store.query::<bool>(&idle).await.unwrap_or(false)
        })
        .await
    );
    let tap = MonitorTap::start(&server).await?;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let seen = tap.round_trips("idle:queue:{q}").await?;
    assert!(seen.len() <= 1, "an idle worker sent {seen:?}");
    queue.enqueue(&task(2)).await?;
    log.reaches(2).await?;
    worker.shutdown(LONG).await?;
    Ok(())
}

/// How many records scripts asked for.
async fn read_by_scripts(tap: &MonitorTap<'_>) -> Result<i64> {
    let seen = tap.commands().await?;
    let reads = seen
        .iter()
        .filter(|seen| ["HGET", "HMGET"].contains(&&*seen.name()) && seen.is_from_script())
        .filter(|seen| seen.words[1].ends_with(":jobs"));
    Ok(reads.map(|seen| seen.words.len() as i64 - 2).sum())
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Large(String);

impl Job for Large {
    const NAME: &'static str = "large";
}

#[tokio::test]
async fn large_records_are_not_read_only_to_be_left_where_they_are() -> Result<()> {
    const JOBS: i64 = 60;
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let queue = Queue::new(&store, "large", "q")?;
    let mut last = None;
    for _ in 0..JOBS {
        last = queue.enqueue(&Large("x".repeat(100_000))).await?.id();
    }
    // It is taken last; until then every reservation looks at both kinds.
    queue.enqueue(&Large(String::new())).priority(-1000).await?;
    let tap = MonitorTap::start(&server).await?;
    ensure!(queue.inspect().delete(last.context("an id")?).await?);
    let read = read_by_scripts(&tap).await?;
    ensure!(
        read <= 16,
        "{read} records were read to delete one near the end"
    );

    tap.clear().await?;
    let (ran, hold) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (count, held) = (ran.clone(), hold.clone());
    let worker = queue
        .worker(move |_: Large, _: JobContext| {
            let (count, held) = (count.clone(), held.clone());
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = held.acquire().await;
            }
        })
        .concurrency(256)
        .start()
        .await?;
    ensure!(eventually(LONG, async || ran.load(Ordering::SeqCst) as i64 == JOBS).await);
    let read = read_by_scripts(&tap).await?;
    ensure!(read <= 4 * JOBS, "{read} records were read to take {JOBS}");
    hold.close();
    worker.shutdown(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn mixtures_of_priorities_are_taken_in_order_of_due_time_and_boost() -> Result<()> {
    use rand::{RngExt as _, SeedableRng as _};
    let seed = rand::random::<u64>();
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    for round in 0..12 {
        let store = Store::connect("memory://").await?;
        let queue = Queue::builder(&store, "mix", "q")
            .boost(Duration::from_secs(130))
            .build()?;
        let (mut model, mut deleted) = (Vec::new(), Vec::new());
        let share = random.random_range(0.0..1.0);
        for n in 0..random.random_range(1..300) {
            let level: i16 = match random.random_bool(share) {
                true => random.random_range(-3..=3),
                false => 0,
            };
            // Ranks differ by ten seconds at least.
            store.advance(Duration::from_secs(100))?;
            let id = queue.enqueue(&task(n)).priority(level).await?.id();
            match random.random_bool(0.1) {
                true => deleted.extend(id),
                false => model.push((100 * n as i64 - 130 * i64::from(level), n)),
            }
        }
        for id in deleted {
            ensure!(queue.inspect().delete(id).await?);
        }
        model.sort_unstable();
        let model: Vec<u64> = model.into_iter().map(|(_, n)| n).collect();
        let log = Log::default();
        let worker = logging(&queue, &log, random.random_range(1..300)).await?;
        log.reaches(model.len()).await?;
        assert_eq!(log.all(), model, "round {round} of seed {seed}");
        empty(&queue).await?;
        worker.shutdown(LONG).await?;
    }
    Ok(())
}
