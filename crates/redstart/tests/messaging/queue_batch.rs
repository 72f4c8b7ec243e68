//! Jobs that are enqueued, taken and acknowledged together.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    messaging::{JobContext, JobState, Queue, QueueEventKind},
    testing::Faults,
};
use redstart_testkit::{Backend, Child, child, eventually, matrix};
use tokio::sync::Semaphore;

use crate::queue::{LONG, Log, Other, Task, empty, logging, open, task};

matrix! {
    async fn jobs_of_concurrent_callers_are_added_once_each(backend: &Backend) -> Result<()> {
        let (_store, queue) = open(backend).await?;
        let enqueues = (0..200).map(|n| {
            let queue = queue.clone();
            async move { anyhow::Ok(queue.enqueue(&task(n)).await?.id().context("an id")?) }
        });
        let ids = futures_util::future::try_join_all(enqueues).await?;
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 200);
        assert_eq!(queue.inspect().counts().await?.ready, 200);
        for (n, id) in ids.iter().enumerate() {
            let found = queue.job(*id).await?.context("it is there")?;
            assert_eq!(found.job.decode::<Task>()?.n, n as u64, "the id is that of another job");
        }
        let log = Log::default();
        let worker = logging(&queue, &log, 40).await?;
        log.reaches(200).await?;
        empty(&queue).await?;
        let mut ran = log.all();
        ran.sort_unstable();
        assert_eq!(ran, (0..200).collect::<Vec<_>>());
        worker.shutdown(LONG).await?;
        Ok(())
    }
}

/// The requests that are on their way are not answered; all other callers wait, and leave together.
#[tokio::test]
async fn jobs_that_wait_for_a_request_leave_with_the_next_one() -> Result<()> {
    let store = Store::builder("memory://").deadline(LONG).connect().await?;
    let queue = Queue::builder(&store, "batch", "q")
        .keep_events(1000)
        .build()?;
    let faults = Faults::of(&store)?;
    // The script is known from here on.
    queue.enqueue(&task(1000)).await?;
    faults.hang();
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..100 {
        let queue = queue.clone();
        callers.spawn(async move {
            match n % 10 {
                9 => queue.enqueue(&Other).await.map(drop),
                _ => queue.enqueue(&task(n)).await.map(drop),
            }
        });
    }
    // All have asked: none of them is ever ready before the store answers.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    faults.resume();
    while let Some(added) = callers.join_next().await {
        added??;
    }
    assert_eq!(queue.inspect().counts().await?.ready, 101);
    let events = queue.inspect().events(None).await?;
    let added = events
        .iter()
        .filter(|event| event.kind == QueueEventKind::Added);
    let (mut jobs, mut entries) = (HashMap::<String, usize>::new(), 0);
    for event in added {
        entries += 1;
        *jobs.entry(event.text.clone()).or_default() += event.jobs.len();
    }
    assert_eq!(
        jobs,
        HashMap::from([("task".to_owned(), 91), ("other".to_owned(), 10)])
    );
    // One for each run of a kind in each request: with a request for each job it would be 101.
    assert!(entries <= 60, "{entries} entries");
    Ok(())
}

/// What a caller is told is true: a job that is not in doubt was not added, and none is added twice.
#[tokio::test]
async fn callers_that_gave_up_waiting_are_told_what_became_of_their_job() -> Result<()> {
    let store = Store::builder("memory://")
        .deadline(Duration::from_millis(50))
        .connect()
        .await?;
    let queue = Queue::new(&store, "batch", "q")?;
    let faults = Faults::of(&store)?;
    faults.hang();
    let enqueues = (0..50).map(|n| {
        let queue = queue.clone();
        async move { (n, queue.enqueue(&task(n)).await) }
    });
    let told = futures_util::future::join_all(enqueues).await;
    faults.resume();
    store.settle().await;
    let look = queue.inspect();
    let mut there = Vec::new();
    for job in look.list(JobState::Ready, None).await?.0 {
        there.push(job.decode::<Task>()?.n);
    }
    let distinct: BTreeSet<u64> = there.iter().copied().collect();
    assert_eq!(distinct.len(), there.len(), "a job was added twice");
    for (n, answer) in told {
        let error = answer.map(drop).unwrap_err();
        ensure!(
            error.is_in_doubt() || !distinct.contains(&n),
            "{n} was added: {error}"
        );
    }
    // The next ones go as ever.
    queue.enqueue(&task(1000)).await?;
    Ok(())
}

/// One script writes as many endings as it should, and the others are for the next. If that one is refused, the first were
/// written all the same.
#[tokio::test]
async fn endings_that_were_written_before_others_were_refused_are_counted() -> Result<()> {
    const TEST: &str =
        "queue_batch::endings_that_were_written_before_others_were_refused_are_counted";
    if child::role().is_none() {
        // The worker loses its registration after the first of them.
        let finish = include_str!("../../src/messaging/queue/finish.lua");
        let part = "if written > 1 then return written end";
        let finish = child::without(
            finish,
            part,
            "if written > 1 then\n  redis.call('HDEL', running, '')\n  return written\nend",
        );
        let mut child = Child::of(TEST)
            .env(
                "REDSTART_BREAK_SCRIPT",
                &format!("queue.finish={}{finish}", crate::mutation::FINISH),
            )
            .spawn()?;
        ensure!(child.wait().await?.success());
        return Ok(());
    }
    let store = Store::connect("memory://").await?;
    let queue = Queue::builder(&store, "refused", "q")
        .keep_done(1000, LONG * 100)
        .build()?;
    let together = Arc::new(tokio::sync::Barrier::new(100));
    let worker = queue
        .worker(move |_: Task, _: JobContext| {
            let together = together.clone();
            async move {
                together.wait().await;
            }
        })
        .concurrency(200)
        .start()
        .await?;
    queue.enqueue_many((0..100).map(task)).await?;
    let look = queue.inspect();
    let done = async || look.counts().await.is_ok_and(|counts| counts.done > 0);
    ensure!(eventually(LONG, done).await);
    let report = worker.shutdown(LONG).await?;
    let done = look.counts().await?.done;
    ensure!((1..100).contains(&done), "{done} were written");
    assert_eq!(report.done, done);
    Ok(())
}

matrix! {
    /// Endings are removed by one command if the worker holds all of them. If it does not, those that went to others stay.
    async fn an_ending_of_a_delivery_that_is_no_longer_held_is_skipped_and_the_others_are_written(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let (gate, log) = (Arc::new(Semaphore::new(0)), Log::default());
        let worker = {
            let (gate, log) = (gate.clone(), log.clone());
            queue
                .worker(move |job: Task, _: JobContext| {
                    let (gate, log) = (gate.clone(), log.clone());
                    async move {
                        log.push(job.n);
                        gate.acquire().await.unwrap().forget();
                    }
                })
                .concurrency(2)
                .lease(Duration::from_secs(3600))
                .start()
                .await?
        };
        queue.enqueue_many((1..3).map(task)).await?;
        log.reaches(2).await?;
        // As if the first had been handed back by somebody else: it is ready again, as another delivery.
        let part = |part: &str| format!("{}:queue:{{q}}:{part}", backend.namespace());
        let running = store.scan(&part("running:*")).await?;
        let [running] = &running[..] else { panic!("{running:?}") };
        let deliveries: Vec<Vec<u8>> = store.query(redis::cmd("HKEYS").arg(running)).await?;
        let jobs: Vec<Vec<u8>> = store.query(redis::cmd("HKEYS").arg(part("jobs"))).await?;
        let mut first = None;
        for key in jobs {
            let record: Vec<u8> = store.query(redis::cmd("HGET").arg(part("jobs")).arg(&key)).await?;
            if record.ends_with(b"{\"n\":1}") {
                let mut back = [b"Jr", &record[50..]].concat();
                back[53] += 1;
                store.query::<()>(redis::cmd("HSET").arg(part("jobs")).arg(&key).arg(back)).await?;
                first = Some(key);
            }
        }
        let first = first.context("the record")?;
        let delivery = deliveries.iter().find(|delivery| delivery.starts_with(&first)).context("its delivery")?;
        store.query::<()>(redis::cmd("HDEL").arg(running).arg(delivery)).await?;
        store.query::<()>(redis::cmd("RPUSH").arg(part("ready")).arg(&first)).await?;
        // Both end at the same moment; the first runs again.
        gate.add_permits(2);
        log.reaches(3).await?;
        gate.add_permits(1);
        empty(&queue).await?;
        assert_eq!(log.all()[2], 1);
        ensure!(eventually(LONG, async || store.query::<u64>(redis::cmd("EXISTS").arg(part("jobs"))).await.is_ok_and(|n| n == 0)).await);
        worker.shutdown(LONG).await?;
        assert_eq!(log.len(), 3);
        Ok(())
    }
}
