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
use redstart::{Store, key::Keys};
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

    /// Runs a command of the engine itself, which no log keeps.
    fn tell(&self, words: &str) {
        let args: Vec<Bytes> = words
            .split(' ')
            .map(|word| word.to_owned().into())
            .collect();
        let (outcome, _) = self.engine.session().execute_ahead(&args);
        let reply = outcome.into_reply();
        assert!(reply.is_some_and(|reply| !reply.is_error()), "{words}");
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

/// Longer than a command takes that waits for nothing.
const HASTE: Duration = Duration::from_millis(300);

/// A caller that takes such an error for "nothing happened" repeats the command and carries it out twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_carried_out_and_is_not_on_the_disk_in_time_is_in_doubt() -> Result<()> {
    let slow = Slow::new()?;
    let entity = Keys::new("app", "jobs")?.entity("x")?;
    let (list, taken) = (entity.part("list"), entity.part("taken"));
    let empty = entity.part("empty");
    let mut fill = cmd("RPUSH");
    fill.arg(&list).arg(&["a", "b", "c", "d", "e"]);
    slow.store.query::<()>(&fill).await?;
    slow.disk.hang(true);
    let hasty = slow.store.within(HASTE);

    // Commands that may block and find something at once.
    let mut take = cmd("BLMOVE");
    take.arg(&list).arg(&taken).arg("LEFT").arg("RIGHT").arg(0);
    let mut pop = cmd("BLPOP");
    pop.arg(&list).arg(0);
    let mut count = cmd("INCR");
    count.arg(entity.part("count"));
    let mut both = pipe();
    both.add_command(count.clone()).add_command(count.clone());
    for command in [&take, &pop, &count] {
        let shared = hasty.query::<redis::Value>(command).await.unwrap_err();
        assert!(shared.is_timeout() && shared.is_in_doubt(), "{shared:?}");
        let mut own = hasty.dedicated(entity.key());
        let own = own.query::<redis::Value>(command, Duration::ZERO).await;
        let own = own.unwrap_err();
        assert!(own.is_timeout() && own.is_in_doubt(), "{own:?}");
    }
    let mut own = hasty.dedicated(entity.key());
    let failed = own.pipeline::<(i64, i64)>(&both).await.unwrap_err();
    assert!(failed.is_timeout() && failed.is_in_doubt(), "{failed:?}");

    // What only reads changes nothing, and neither does what found nothing to take.
    let mut own = hasty.dedicated(entity.key());
    let mut read = cmd("LRANGE");
    read.arg(&list).arg(0).arg(-1);
    let unkept = own.query::<Vec<String>>(&read, Duration::ZERO).await;
    let unkept = unkept.unwrap_err();
    assert!(unkept.is_timeout() && !unkept.is_in_doubt(), "{unkept:?}");
    let mut wait = cmd("BLPOP");
    wait.arg(&empty).arg(0);
    let mut own = hasty.dedicated(entity.key());
    let waited = own.query::<redis::Value>(&wait, Duration::ZERO).await;
    for waited in [waited, hasty.query::<redis::Value>(&wait).await] {
        let waited = waited.unwrap_err();
        assert!(waited.is_timeout() && !waited.is_in_doubt(), "{waited:?}");
    }

    slow.disk.hang(false);
    // Each of them was carried out, once per call.
    assert_eq!(slow.store.query::<Vec<String>>(&read).await?, ["e"]);
    assert_eq!(slow.store.query::<i64>(&count).await?, 5);
    slow.assert_no_hang();
    Ok(())
}

/// It waits for the hand-over to let it go, and then for the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_held_back_is_in_doubt_once_it_was_carried_out() -> Result<()> {
    let slow = Slow::new()?;
    slow.store.query::<()>(cmd("SET").arg("old").arg(1)).await?;
    slow.tell("REDSTART HANDOVER BEGIN one");
    slow.tell("REDSTART HANDOVER PAUSE one 600000");
    slow.disk.hang(true);
    // Held back until its deadline, it was not carried out.
    let hasty = slow.store.within(HASTE);
    let mut count = cmd("INCR");
    count.arg("count");
    let held = hasty.query::<i64>(&count).await.unwrap_err();
    assert!(held.is_timeout() && !held.is_in_doubt(), "{held:?}");

    let patient = slow.store.within(Duration::from_secs(5));
    let mut late = Box::pin(patient.query::<i64>(&count));
    let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(late.as_mut().poll(cx))).await;
    assert!(polled.is_pending(), "nothing held it back");
    slow.tell("REDSTART HANDOVER ABORT one");
    let late = late.await.unwrap_err();
    assert!(late.is_timeout() && late.is_in_doubt(), "{late:?}");
    slow.disk.hang(false);
    assert_eq!(slow.store.query::<i64>(&count).await?, 2);
    slow.assert_no_hang();
    Ok(())
}

/// Nothing has to be asked about what only reads, as from a server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_reads_is_not_in_doubt_although_the_disk_has_failed() -> Result<()> {
    let slow = Slow::new()?;
    slow.disk.hang(true);
    let store = slow.store.clone();
    let write = tokio::spawn(async move { store.query::<()>(cmd("SET").arg("a").arg(1)).await });
    slow.has_keys(1).await?;
    // They depend on what is not on the disk yet.
    let (mut get, mut all) = (cmd("GET"), pipe());
    get.arg("a");
    all.atomic().get("a");
    let mut read = Box::pin(slow.store.query::<i64>(&get));
    let mut reads = Box::pin(slow.store.pipeline::<(i64,)>(&all));
    assert!(futures_util::poll!(&mut read).is_pending());
    assert!(futures_util::poll!(&mut reads).is_pending());
    slow.disk.fail(0, true);
    slow.disk.hang(false);
    let written = write.await?.unwrap_err();
    assert!(written.is_in_doubt(), "{written:?}");
    for error in [
        read.await.unwrap_err(),
        reads.await.map(|(n,)| n).unwrap_err(),
    ] {
        assert!(error.is_unavailable() && !error.is_in_doubt(), "{error:?}");
    }
    slow.assert_no_hang();
    Ok(())
}
