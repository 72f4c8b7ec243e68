//! Leases that consumers keep follow the clock of their store: on the embedded engine, `Store::advance` moves them too.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    messaging::{JobContext, Queue, ReliableList, Settled},
};
use redstart_testkit::eventually;

use crate::queue::{LONG, Task, empty, task};

/// So long that tokio's own clock never gets anywhere near its end.
const LEASE: Duration = Duration::from_secs(3600);

/// On one thread: the second job is taken with the first, and begins after the first has let the lease end.
#[tokio::test]
async fn a_worker_whose_lease_has_ended_begins_no_job_that_it_holds() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = Queue::new(&store, "clock", "q")?;
    queue.enqueue_many((1..=2).map(task)).await?;
    let runs: Arc<Mutex<Vec<(u64, u32)>>> = Arc::default();
    let (seen, moved) = (runs.clone(), AtomicBool::new(false));
    let worker = queue
        .worker(move |job: Task, cx: JobContext| {
            seen.lock().unwrap().push((job.n, cx.attempt()));
            if !moved.swap(true, Ordering::SeqCst) {
                store.advance(LEASE + Duration::from_secs(1)).unwrap();
            }
            async {}
        })
        .lease(LEASE)
        .start()
        .await?;
    empty(&queue).await?;
    worker.shutdown(LONG).await?;
    let runs = runs.lock().unwrap().clone();
    let of_second: Vec<u32> = runs
        .iter()
        .filter(|run| run.0 == 2)
        .map(|run| run.1)
        .collect();
    assert_eq!(
        of_second,
        [2],
        "its first attempt ended with the lease: {runs:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_handler_is_told_that_its_lease_has_ended_and_a_renewed_one_goes_on() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = Queue::new(&store, "told", "q")?;
    queue.enqueue(&task(1)).await?;
    let told = Arc::new(Mutex::new(Vec::new()));
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let seen = told.clone();
    let worker = queue
        .worker(move |_: Task, cx: JobContext| {
            let (seen, begun) = (seen.clone(), begun.clone());
            async move {
                begun.send(()).ok();
                if cx.attempt() == 1 {
                    cx.lost().await;
                    seen.lock().unwrap().push(cx.attempt());
                }
            }
        })
        .lease(LEASE)
        .start()
        .await?;
    begins.recv().await.context("the job begins")?;
    // Each time a part of the lease passes, and it is renewed: by now it would have ended.
    let workers = redis::cmd("ZRANGE")
        .arg("told:queue:{q}:workers")
        .arg(0)
        .arg(0)
        .arg("WITHSCORES")
        .to_owned();
    for _ in 0..3 {
        store.advance(LEASE / 2)?;
        let now = store.time().await?;
        let renewed = eventually(LONG, async || {
            let found = store.query::<Vec<(String, f64)>>(&workers).await;
            found.is_ok_and(|found| found[0].1 > (now + LEASE * 3 / 4).as_micros() as f64)
        });
        ensure!(renewed.await, "the lease is not renewed");
        assert!(told.lock().unwrap().is_empty());
    }
    store.advance(LEASE + Duration::from_secs(1))?;
    empty(&queue).await?;
    assert_eq!(*told.lock().unwrap(), [1]);
    worker.shutdown(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_consumer_of_a_list_keeps_what_it_took_and_takes_over_what_a_silent_one_had() -> Result<()>
{
    let store = Store::connect("memory://").await?;
    let list = ReliableList::builder(&store, "clock", "list")
        .lease(LEASE)
        .build()?;
    list.push("mine").await?;
    let mut consumer = list.consumer().await?;
    let item = consumer.take(LONG).await?.context("an item")?;
    // What a consumer had whose process is gone.
    let key = |part: &str| format!("clock:list:{{list}}:{part}");
    let end = (store.time().await? + LEASE).as_micros() as u64;
    let mut gone = redis::pipe();
    gone.cmd("LPUSH").arg(key("taken:gone")).arg("theirs");
    gone.cmd("ZADD").arg(key("consumers")).arg(end).arg("gone");
    store.pipeline::<redis::Value>(&gone).await?;
    for _ in 0..3 {
        store.advance(LEASE / 2)?;
        let now = store.time().await?;
        let all = redis::cmd("ZRANGE")
            .arg(key("consumers"))
            .arg(0)
            .arg(-1)
            .arg("WITHSCORES")
            .to_owned();
        let renewed = eventually(LONG, async || {
            let found = store
                .query::<Vec<(String, f64)>>(&all)
                .await
                .unwrap_or_default();
            let late = (now + LEASE * 3 / 4).as_micros() as f64;
            found
                .iter()
                .any(|(name, end)| name != "gone" && *end > late)
        });
        ensure!(renewed.await, "the consumer's lease is not renewed");
    }
    ensure!(
        eventually(LONG, async || list.waiting().await.is_ok_and(|n| n == 1)).await,
        "nobody took over"
    );
    assert_eq!(item.done().await?, Settled::Done);
    let theirs = consumer.take(LONG).await?.context("the other item")?;
    assert_eq!(theirs.payload(), b"theirs");
    assert_eq!(theirs.done().await?, Settled::Done);
    consumer.close().await?;
    Ok(())
}
