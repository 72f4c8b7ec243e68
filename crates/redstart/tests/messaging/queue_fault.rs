//! The job queue when replies are lost, calls are cancelled and the store does not answer.

use std::{
    future::Future as _,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Waker},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use redstart::{
    Store,
    messaging::{Cancelled, Flow, FlowAdded, JobContext, Queue, UniqueUntil, Verdict},
    testing::Faults,
};
use redstart_testkit::{Backend, Kind, Proxy, Server, eventually, matrix};
use tokio::sync::Semaphore;

use crate::queue::{LONG, Log, Task, empty, logging, open, task};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_job_whose_reply_was_lost_is_added_once_even_if_it_has_run_meanwhile() -> Result<()>
{
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let direct = Store::connect(&server.url()).await?;
    let log = Log::default();
    let worker = logging(&Queue::new(&direct, "lost", "q")?, &log, 1).await?;
    let store = Store::builder(proxy.url()).deadline(LONG).connect().await?;
    let queue = Queue::new(&store, "lost", "q")?;
    // The server knows the script after this.
    let first = task(0);
    let first = queue.enqueue(&first).unique("before", UniqueUntil::Done);
    first.await?;
    log.reaches(1).await?;
    // The job is added and its reply lost. The request is sent again only after the job has run.
    proxy.drop_reply_to("only-once");
    proxy.refuse().await;
    let enqueue = tokio::spawn({
        let queue = queue.clone();
        async move {
            queue
                .enqueue(&task(1))
                .unique("only-once", UniqueUntil::Done)
                .await
        }
    });
    log.reaches(2).await?;
    proxy.pass().await;
    assert!(enqueue.await??.is_new());
    assert_eq!(proxy.stats().sprung, 1, "the reply was lost");
    let queue = Queue::new(&direct, "lost", "q")?;
    empty(&queue).await?;
    assert_eq!(log.all(), [0, 1]);
    assert!(
        queue
            .enqueue(&task(2))
            .unique("only-once", UniqueUntil::Done)
            .await?
            .is_new()
    );
    worker.shutdown(LONG).await?;
    Ok(())
}

/// A root with this many leaves.
fn large_flow(leaves: u64) -> Result<Flow> {
    let mut root = Flow::new(&Task { n: u64::MAX })?;
    for n in 0..leaves {
        root = root.child(Flow::new(&task(n))?);
    }
    Ok(root)
}

/// The reply to each of its steps in turn is lost; so is that to a flow of one step.
#[tokio::test]
async fn a_flow_is_added_once_whichever_reply_is_lost() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let faults = Faults::of(&store)?;
    // Three steps that put them aside, one that completes the flow, and those that hand them out.
    for (leaves, requests) in [(3, 1), (2500, 30)] {
        for lost in 0..requests {
            let queue = Queue::new(&store, "flow", &format!("q{leaves}-{lost}"))?;
            for _ in 0..lost {
                faults.spare_next();
            }
            faults.lose_next_reply();
            let added = queue.add_flow(large_flow(leaves)?).await;
            ensure!(
                matches!(added, Ok(FlowAdded::Added(_))),
                "{leaves} leaves, reply {lost}: {added:?}"
            );
            let counts = queue.inspect().counts().await?;
            assert_eq!(
                (counts.ready, counts.waiting),
                (leaves, 1),
                "{leaves} leaves, reply {lost}"
            );
            let log = Log::default();
            let worker = logging(&queue, &log, 16).await?;
            empty(&queue).await?;
            let mut ran = log.all();
            assert_eq!(ran.pop(), Some(u64::MAX), "the parent runs last");
            ran.sort_unstable();
            ensure!(
                ran.into_iter().eq(0..leaves),
                "{leaves} leaves, reply {lost}: not each ran once"
            );
            worker.shutdown(LONG).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_of_a_flow_whose_reply_was_lost_adds_nothing_twice_even_if_its_jobs_have_run_meanwhile()
-> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let direct = Store::connect(&server.url()).await?;
    let log = Log::default();
    let worker = logging(&Queue::new(&direct, "lost", "q")?, &log, 16).await?;
    let store = Store::builder(proxy.url()).deadline(LONG).connect().await?;
    let queue = Queue::new(&store, "lost", "q")?;
    // The server knows the script after this.
    ensure!(matches!(
        queue.add_flow(large_flow(1)?).await?,
        FlowAdded::Added(_)
    ));
    log.reaches(2).await?;
    // A step with leaves is carried out and its reply lost. It is sent again only after the leaves have run.
    let needle = 123_454_321;
    proxy.drop_reply_to(&needle.to_string());
    proxy.refuse().await;
    // In two queues, so that leaves run as soon as their step is carried out.
    let others = Queue::new(&store, "lost", "others")?;
    let mut flow = Flow::new(&Task { n: u64::MAX })?;
    for n in (0..1500).chain([needle]) {
        flow = flow.child(Flow::new(&task(n))?.queue(&others));
    }
    let others = logging(&Queue::new(&direct, "lost", "others")?, &log, 16).await?;
    let adding = tokio::spawn({
        let queue = queue.clone();
        async move { queue.add_flow(flow).await }
    });
    ensure!(
        eventually(LONG, async || log.all().contains(&needle)).await,
        "no leaf ran"
    );
    proxy.pass().await;
    ensure!(matches!(adding.await??, FlowAdded::Added(_)));
    assert_eq!(proxy.stats().sprung, 1, "the reply was lost");
    let queue = Queue::new(&direct, "lost", "q")?;
    empty(&queue).await?;
    let ran = log.all();
    assert_eq!(ran.len(), 2 + 1502, "not each ran once");
    assert_eq!(ran.last(), Some(&u64::MAX), "the parent runs last");
    worker.shutdown(LONG).await?;
    others.shutdown(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_cancelled_job_is_not_said_to_be_unknown_because_the_reply_was_lost() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let faults = Faults::of(&store)?;
    let queue = Queue::new(&store, "lost", "q")?;
    let lose_the_answer_of_the_script = || {
        faults.spare_next();
        faults.lose_next_reply();
    };
    let look = queue.inspect();
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(queue.enqueue(&task(n)).await?.id().unwrap());
    }
    // The store knows the script after this.
    assert_eq!(queue.cancel(ids[4]).await?, Cancelled::Ended);
    lose_the_answer_of_the_script();
    let error = queue.cancel(ids[0]).await.unwrap_err();
    assert!(error.is_in_doubt(), "{error}");
    assert_eq!(queue.cancel(ids[0]).await?, Cancelled::NotFound);
    lose_the_answer_of_the_script();
    assert!(look.delete(ids[1]).await.unwrap_err().is_in_doubt());
    lose_the_answer_of_the_script();
    assert!(
        look.cancel_many(&ids[2..4])
            .await
            .unwrap_err()
            .is_in_doubt()
    );
    assert_eq!(look.counts().await?.unfinished(), 0);
    // Of one that runs there is no doubt.
    let (running, ends) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (started, may_end) = (running.clone(), ends.clone());
    let worker = queue
        .worker(move |_: Task, _: JobContext| {
            let (started, may_end) = (started.clone(), may_end.clone());
            async move {
                started.add_permits(1);
                let _ = may_end.acquire().await;
                Verdict::Done
            }
        })
        .start()
        .await?;
    let id = queue.enqueue(&task(9)).await?.id().unwrap();
    let _ = running.acquire().await?;
    lose_the_answer_of_the_script();
    assert_eq!(queue.cancel(id).await?, Cancelled::Told);
    ends.add_permits(1);
    worker.shutdown(LONG).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_hears_of_the_end_of_its_lease_before_the_store_gives_up() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let deadline = Duration::from_secs(25);
    let store = Store::builder(proxy.url())
        .deadline(deadline)
        .connect()
        .await?;
    let queue = Queue::new(&store, "late", "q")?;
    let (started, lost) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let worker = {
        let (started, lost) = (started.clone(), lost.clone());
        queue
            .worker(move |_: Task, cx: JobContext| {
                let (started, lost) = (started.clone(), lost.clone());
                async move {
                    started.add_permits(1);
                    cx.lost().await;
                    lost.add_permits(1);
                }
            })
            .lease(Duration::from_millis(400))
            .start()
            .await?
    };
    queue.enqueue(&task(1)).await?;
    let _ = tokio::time::timeout(LONG, started.acquire()).await??;
    let began = Instant::now();
    proxy.stall();
    let _ = tokio::time::timeout(LONG, lost.acquire()).await??;
    ensure!(began.elapsed() < deadline / 2, "{:?}", began.elapsed());
    proxy.pass().await;
    drop(worker);
    Ok(())
}

/// A job ends early in an outage that is longer than the lease: by its end, what writes endings tries only now and then,
/// and what registers the worker again has just begun to try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_ended_in_an_outage_is_not_said_to_have_lost_its_worker() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let direct = Store::connect(&server.url()).await?;
    let store = Store::connect(proxy.url()).await?;
    let look = Queue::builder(&direct, "outage", "q").keep_done(100, LONG * 100);
    let look = look.build()?;
    let queue = Queue::builder(&store, "outage", "q").keep_done(100, LONG * 100);
    let queue = queue.build()?;
    let (started, gate, runs) = (
        Arc::new(Semaphore::new(0)),
        Arc::new(Semaphore::new(0)),
        Arc::new(AtomicU64::new(0)),
    );
    let worker = {
        let (started, gate, runs) = (started.clone(), gate.clone(), runs.clone());
        queue
            .worker(move |_: Task, _: JobContext| {
                let (started, gate, runs) = (started.clone(), gate.clone(), runs.clone());
                async move {
                    runs.fetch_add(1, Ordering::SeqCst);
                    started.add_permits(1);
                    let _ = gate.acquire().await;
                    Verdict::Done
                }
            })
            .lease(Duration::from_secs(4))
            // The run in which its worker died would be the last one.
            .retry(redstart::messaging::Backoff::default(), 1)
            .start()
            .await?
    };
    let id = look.enqueue(&task(1)).await?.id().unwrap();
    let _ = tokio::time::timeout(LONG, started.acquire()).await??;
    proxy.refuse().await;
    proxy.cut().await?;
    gate.add_permits(1);
    let workers = "outage:queue:{q}:workers";
    ensure!(
        eventually(LONG, async || {
            let now = direct.time().await.unwrap_or_default().as_micros();
            let mut late = redis::cmd("ZCOUNT");
            late.arg(workers).arg("-inf").arg(now as u64);
            direct.query::<u64>(&late).await.is_ok_and(|late| late == 1)
        })
        .await,
        "its lease does not end"
    );
    proxy.pass().await;
    empty(&look).await?;
    let found = look.job(id).await?.unwrap();
    assert_eq!(
        (found.job.state, runs.load(Ordering::SeqCst)),
        (redstart::messaging::JobState::Done, 1)
    );
    worker.shutdown(LONG).await?;
    Ok(())
}

matrix! {
    async fn a_shutdown_that_is_dropped_anywhere_leaves_no_worker_behind(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let log = Log::default();
        for polls in 0..40 {
            let worker = logging(&queue, &log, 2).await?;
            {
                let mut shutdown = pin!(worker.shutdown(Duration::ZERO));
                for _ in 0..polls {
                    if shutdown.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() { break; }
                    // Servers need a moment for each step.
                    tokio::time::sleep(Duration::from_micros(if backend.is_embedded() { 1 } else { 300 })).await;
                }
            }
        }
        store.settle().await;
        let gone = eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.workers == 0)).await;
        ensure!(gone, "{:?}", queue.inspect().counts().await?);
        Ok(())
    }

    async fn a_delivery_that_is_no_longer_held_frees_neither_key_nor_progress(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let (gate, runs) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU64::new(0)));
        let worker = {
            let (gate, runs) = (gate.clone(), runs.clone());
            queue
                .worker(move |_: Task, cx: JobContext| {
                    let (gate, runs) = (gate.clone(), runs.clone());
                    async move {
                        cx.progress(0.5).await?;
                        runs.fetch_add(1, Ordering::SeqCst);
                        let _ = gate.acquire().await.map(|permit| permit.forget());
                        Ok::<_, redstart::Error>(())
                    }
                })
                .lease(Duration::from_secs(3600))
                .start()
                .await?
        };
        let id = queue.enqueue(&task(1)).unique("u", UniqueUntil::Done).await?.id().unwrap();
        ensure!(eventually(LONG, async || runs.load(Ordering::SeqCst) == 1).await);
        // The job goes to somebody else, as after a lost reply; the worker is not told.
        let part = |part: &str| format!("{}:queue:{{q}}:{part}", backend.namespace());
        let names: Vec<String> = store.query(redis::cmd("ZRANGE").arg(part("workers")).arg(0).arg(-1)).await?;
        let running = part(&format!("running:{}", names[0]));
        let held: Vec<Vec<u8>> = store.query(redis::cmd("HKEYS").arg(&running)).await?;
        let delivery = held.iter().find(|key| !key.is_empty()).unwrap();
        let record: Vec<u8> = store.query(redis::cmd("HGET").arg(&running).arg(delivery)).await?;
        store.query::<()>(redis::cmd("HDEL").arg(&running).arg(delivery)).await?;
        let other = part("running:other");
        store.query::<()>(redis::cmd("HSET").arg(&other).arg("").arg(1).arg(delivery).arg(&record)).await?;
        gate.add_permits(1);
        let report = worker.shutdown(LONG).await?;
        assert_eq!(report.handed_back, 0);
        let key: bool = store.query(redis::cmd("HEXISTS").arg(part("unique")).arg("u")).await?;
        let progress: u64 = store.query(redis::cmd("HLEN").arg(part("details"))).await?;
        assert_eq!((key, progress), (true, 1), "{id} is still running");
        Ok(())
    }
}
