//! Our worker while the store does not answer, and while a handler goes wrong.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use redis::cmd;
use redstart::Store;
use redstart_adopt::bullmq::{BullQueue, Ended, JobError, NewJob, Taken};
use redstart_testkit::{Proxy, unique_namespace, wait_until};
use tokio::sync::Notify;

use crate::{
    Side,
    bullmq::{completed, completions},
    long, on,
};

/// The result of a job outlives an outage of several deadlines.
async fn results(side: Side) -> Result<()> {
    let name = unique_namespace("outage");
    let proxy = Proxy::to(&format!("127.0.0.1:{}", side.port)).await?;
    let through = Store::connect(&format!("{}?timeout=500ms", proxy.url())).await?;
    let (store, queue) = (side.store().await?, BullQueue::new(&through, &name)?);
    for what in ["completes", "is retried"] {
        let job = NewJob::new(what, &0)?.attempts(2);
        let _ = queue.add(job).await?;
    }
    let (runs, ends) = (AtomicU64::new(0), Notify::new());
    let handler = |job: Arc<Taken>| {
        let (runs, ends) = (&runs, &ends);
        async move {
            runs.fetch_add(1, Ordering::Relaxed);
            if job.attempts_made() == 0 {
                ends.notified().await;
            }
            match job.name() {
                "is retried" if job.attempts_made() == 0 => Err(JobError::new("once")),
                _ => Ok("a result"),
            }
        }
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let look = async {
        wait_until("both jobs to run", long(), async || {
            (runs.load(Ordering::Relaxed) == 2).then_some(())
        })
        .await?;
        proxy.black_hole_requests();
        ends.notify_waiters();
        // Six deadlines: whatever was sent at the end of the jobs is lost.
        tokio::time::sleep(Duration::from_secs(3)).await;
        proxy.pass().await;
        let direct = BullQueue::new(&store, &name)?;
        wait_until("both jobs to be completed", long(), async || {
            (completed(&store, &direct).await.ok()?.len() == 2).then_some(())
        })
        .await?;
        assert_eq!(runs.load(Ordering::Relaxed), 3, "a result was thrown away");
        let times = completions(&store, &direct).await?;
        assert!(times.values().all(|times| *times == 1), "{times:?}");
        drop(stop);
        anyhow::Ok(())
    };
    let worker = queue.worker().concurrency(2).build()?;
    let run = worker.run(handler, async { drop(stopped.await) });
    let (ran, looked) = tokio::time::timeout(long(), async { tokio::join!(run, look) }).await?;
    looked?;
    Ok(ran?)
}
on!(results: a_result_outlives_an_outage_of_several_deadlines);

/// The server has written the end of a job, and its reply is lost: asking again tells.
async fn doubt(side: Side) -> Result<()> {
    let name = unique_namespace("doubt");
    let proxy = Proxy::to(&format!("127.0.0.1:{}", side.port)).await?;
    let through = Store::connect(&format!("{}?timeout=500ms", proxy.url())).await?;
    let queue = BullQueue::new(&through, &name)?;
    let worker = queue.worker().build()?;
    for keep in [10, 0] {
        let job = NewJob::new("plain", &0)?.attempts(3).keep_completed(keep);
        let _ = queue.add(job).await?;
        let job = worker.take().await?.context("a job")?;
        proxy.drop_reply_to("attempt failed");
        assert!(job.fail(JobError::new("attempt failed")).await.is_err());
        let again = job.fail(JobError::new("attempt failed")).await?;
        assert_eq!(again, Ended::Retried);
        let job = worker.take().await?.context("the same job")?;
        assert_eq!(job.attempts_made(), 1);
        proxy.drop_reply_to("the result");
        assert!(job.complete(&"the result").await.is_err());
        assert_eq!(job.complete(&"the result").await?, Ended::Completed);
    }
    // Without doubt a hold that is gone is lost.
    let _ = queue.add(NewJob::new("plain", &0)?).await?;
    let job = worker.take().await?.context("a job")?;
    let lock = format!("{}:{}:lock", queue.base(), job.id());
    let _: u64 = through.query(cmd("DEL").arg(lock)).await?;
    assert_eq!(job.complete(&()).await?, Ended::Lost);
    Ok(())
}
on!(doubt: an_end_whose_reply_was_lost_is_recognised);

/// One renewal that fails does not lose the lease.
async fn renewals(side: Side) -> Result<()> {
    let name = unique_namespace("renewals");
    let lease = Duration::from_secs(8);
    let proxy = Proxy::to(&format!("127.0.0.1:{}", side.port)).await?;
    let through = Store::connect(&format!("{}?timeout=1s", proxy.url())).await?;
    let (store, queue) = (side.store().await?, BullQueue::new(&through, &name)?);
    let _ = queue.add(NewJob::new("plain", &0)?).await?;
    let worker = queue.worker().lease(lease).build()?;
    let job = worker.take().await?.context("a job")?;
    proxy.black_hole_requests();
    // Long enough for renewals to fail, with a part of the lease left.
    tokio::time::sleep(lease.mul_f64(0.6)).await;
    proxy.pass().await;
    let lock = format!("{}:{}:lock", queue.base(), job.id());
    let renewed = wait_until("the lease to be renewed or lost", long(), async || {
        let left: i64 = store.query(cmd("PTTL").arg(&lock)).await.ok()?;
        let renewed = left > lease.mul_f64(0.7).as_millis() as i64;
        (renewed || left < 0).then_some(renewed)
    });
    assert!(renewed.await?, "the lease has ended");
    assert_eq!(job.complete(&()).await?, Ended::Completed);
    Ok(())
}
on!(renewals: a_renewal_that_fails_is_tried_again_within_the_lease);

/// Every request of the worker hangs; its handlers do not.
async fn hanging_store(side: Side) -> Result<()> {
    let name = unique_namespace("hang");
    let proxy = Proxy::to(&format!("127.0.0.1:{}", side.port)).await?;
    let through = Store::connect(&format!("{}?timeout=100s", proxy.url())).await?;
    let queue = BullQueue::new(&through, &name)?;
    let _ = queue.add(NewJob::new("plain", &0)?).await?;
    let (ticks, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let handler = |_: Arc<Taken>| async {
        while !is_over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            ticks.fetch_add(1, Ordering::Relaxed);
        }
        Ok::<_, JobError>(())
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let look = async {
        let more = async |count: u64| {
            let from = ticks.load(Ordering::Relaxed);
            let within = Duration::from_secs(40);
            wait_until("the handler to go on", within, async || {
                (ticks.load(Ordering::Relaxed) >= from + count).then_some(())
            })
            .await
        };
        more(1).await?;
        proxy.stall();
        // Longer than the interval of stalled checks, and much less than a request may take.
        let stalled = more(100).await;
        drop(stop);
        proxy.pass().await;
        is_over.store(true, Ordering::Relaxed);
        stalled
    };
    let every = Duration::from_millis(50);
    let worker = queue.worker().concurrency(2).stalled_every(every).build()?;
    let run = worker.run(handler, async { drop(stopped.await) });
    let (ran, looked) = tokio::time::timeout(long(), async { tokio::join!(run, look) }).await?;
    looked?;
    Ok(ran?)
}
on!(hanging_store: handlers_of_a_worker_go_on_while_the_store_hangs);

/// A panic is the failure of one job; the others do not notice.
#[tokio::test]
async fn a_handler_that_panics_fails_its_job_and_no_other() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "bombs")?;
    let _ = queue.add(NewJob::new("bomb", &0)?).await?;
    let _ = queue.add(NewJob::new("early bomb", &0)?).await?;
    for n in 0..5 {
        let _ = queue.add(NewJob::new("calm", &n)?).await?;
    }
    let handler = |job: Arc<Taken>| {
        assert_ne!(job.name(), "early bomb", "it goes off");
        async move {
            assert_ne!(job.name(), "bomb", "it goes off");
            Ok::<_, JobError>(())
        }
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let look = async {
        wait_until("the others to be completed", long(), async || {
            (completed(&store, &queue).await.ok()?.len() == 5).then_some(())
        })
        .await?;
        let failed = cmd("ZRANGE").arg("bull:bombs:failed").arg(0).arg(-1).take();
        wait_until("the bombs to fail", long(), async || {
            let ids: Vec<String> = store.query(&failed).await.ok()?;
            (ids.len() == 2).then_some(())
        })
        .await?;
        let reason: String = store
            .query(cmd("HGET").arg("bull:bombs:1").arg("failedReason"))
            .await?;
        assert!(reason.contains("panicked"), "{reason}");
        drop(stop);
        anyhow::Ok(())
    };
    let worker = queue.worker().concurrency(3).build()?;
    let run = worker.run(handler, async { drop(stopped.await) });
    let (ran, looked) = tokio::time::timeout(long(), async { tokio::join!(run, look) }).await?;
    looked?;
    Ok(ran?)
}

/// Connections are cut again and again while jobs are added and run: none is lost, none is completed twice.
async fn cuts(side: Side) -> Result<()> {
    const JOBS: usize = 150;
    let name = unique_namespace("cuts");
    let proxy = Proxy::to(&format!("127.0.0.1:{}", side.port)).await?;
    let through = Store::connect(&format!("{}?timeout=2s", proxy.url())).await?;
    let (store, queue) = (side.store().await?, BullQueue::new(&through, &name)?);
    let direct = BullQueue::new(&store, &name)?;
    for n in 0..JOBS {
        let _ = direct.add(NewJob::new("plain", &n)?).await?;
    }
    let handler = |_: Arc<Taken>| async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok::<_, JobError>(())
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let look = async {
        let mut done = 0;
        while done < JOBS {
            let before = done;
            // From cut to cut some jobs must end.
            done = wait_until("jobs to be completed", long(), async || {
                let done = completed(&store, &direct).await.ok()?.len();
                (done > before + 4 || done == JOBS).then_some(done)
            })
            .await?;
            proxy.cut().await?;
        }
        drop(stop);
        anyhow::Ok(())
    };
    // A job that was taken by a request whose reply was lost comes back by a stalled check.
    let worker = queue
        .worker()
        .concurrency(4)
        .lease(Duration::from_secs(2))
        .stalled_every(Duration::from_secs(1))
        .max_stalled(1000)
        .build()?;
    let run = worker.run(handler, async { drop(stopped.await) });
    let (ran, looked) = tokio::time::timeout(long(), async { tokio::join!(run, look) }).await?;
    looked?;
    ran?;
    let times = completions(&store, &direct).await?;
    assert_eq!(times.len(), JOBS);
    assert!(times.values().all(|times| *times == 1), "{times:?}");
    Ok(())
}
on!(cuts: no_job_is_lost_or_completed_twice_when_connections_are_cut);
