//! The embedded engine in process, with a log on a disk whose syncs take until the test ends them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use bytes::Bytes;
use redis::{cmd, pipe};
use redstart::Store;
use redstart_engine::{
    Engine, Outcome, Reply,
    sim::{self, Disk},
};
use redstart_testkit::eventually;
use tokio::task::JoinSet;

/// An engine that tells nothing before it is on the disk.
struct Slow {
    engine: Engine,
    store: Store,
    disk: Disk,
    /// The test did not come to its end by itself.
    hangs: Arc<AtomicBool>,
}

impl Slow {
    fn new() -> Result<Self> {
        let (engine, disk) = (Engine::new(), Disk::default());
        sim::keep_log_by_thread(&engine, &disk)?;
        let store = Store::try_from(engine.clone())?.within(Duration::from_secs(600));
        let hangs = Arc::new(AtomicBool::new(false));
        let (ended, still) = (disk.clone(), hangs.clone());
        // A test that hangs ends and fails.
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(60));
            still.store(true, Ordering::SeqCst);
            ended.hang(false);
        });
        Ok(Self {
            engine,
            store,
            disk,
            hangs,
        })
    }

    fn assert_no_hang(&self) {
        assert!(!self.hangs.load(Ordering::SeqCst), "somebody stood still");
    }

    /// What is there, whether or not it is on the disk.
    fn keys(&self) -> i64 {
        let (reply, _) = self
            .engine
            .session()
            .execute_ahead(&[Bytes::from("DBSIZE")]);
        match reply {
            Outcome::Reply(Reply::Int(count)) => count,
            other => panic!("{other:?}"),
        }
    }

    async fn has_keys(&self, count: i64) -> Result<()> {
        let carried_out = async || self.keys() == count;
        anyhow::ensure!(eventually(Duration::from_secs(50), carried_out).await);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_call_that_waits_for_the_disk_holds_up_no_other() -> Result<()> {
    let slow = Slow::new()?;
    slow.store.query::<()>(cmd("SET").arg("old").arg(1)).await?;
    let others = slow.store.clone();
    slow.disk.hang(true);
    let mut writers = JoinSet::new();
    let store = others.clone();
    writers.spawn(async move { store.query::<()>(cmd("SET").arg("new").arg(1)).await });
    slow.has_keys(2).await?;
    let mut both = pipe();
    both.atomic().set("pair", 1).set("other", 1);
    let store = others.clone();
    writers.spawn(async move { store.pipeline::<()>(&both).await });
    slow.has_keys(4).await?;
    // On the only worker, by a call and by a pipeline.
    let read = tokio::spawn(async move {
        let one: i64 = others.query(cmd("GET").arg("old")).await?;
        let (two,): (i64,) = others.pipeline(pipe().get("old")).await?;
        anyhow::Ok(one + two)
    });
    assert_eq!(read.await??, 2);
    // What is not on the disk is not told.
    let mut get = cmd("GET");
    get.arg("new");
    let mut reader = Box::pin(slow.store.query::<i64>(&get));
    let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(reader.as_mut().poll(cx))).await;
    assert!(polled.is_pending(), "told before it was on the disk");
    assert!(writers.try_join_next().is_none(), "acknowledged too early");
    slow.disk.hang(false);
    assert_eq!(reader.await?, 1);
    while let Some(written) = writers.join_next().await {
        written??;
    }
    slow.assert_no_hang();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_write_at_once_share_syncs() -> Result<()> {
    const TASKS: i64 = 50;
    let slow = Slow::new()?;
    let before = sim::log_syncs(&slow.engine);
    slow.disk.hang(true);
    let mut writers = JoinSet::new();
    for task in 0..TASKS {
        let store = slow.store.clone();
        writers.spawn(async move { store.query::<()>(cmd("SET").arg(task).arg(1)).await });
    }
    slow.has_keys(TASKS).await?;
    slow.disk.hang(false);
    while let Some(written) = writers.join_next().await {
        written??;
    }
    let syncs = sim::log_syncs(&slow.engine) - before;
    // The one that had begun, and one for all who came meanwhile.
    assert!(syncs <= 2, "{syncs} syncs");
    slow.assert_no_hang();
    Ok(())
}
