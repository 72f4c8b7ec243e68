//! One lock that redis-py's `Lock`, npm's redlock 4 and 5, and our mutex take.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use redis::cmd;
use redstart::Store;
use redstart_adopt::lock::{self, HeldBy};
use redstart_testkit::{Foreign, Language, figure, scale, unique_namespace, wait_until};

use crate::{Side, library, long, on};

/// Takes the lock so many times, as the scripts of the other libraries do. Returns how often somebody else was inside.
async fn contend(store: Store, key: String, times: u64) -> Result<u64> {
    let mutex = lock::mutex(&store, &key)
        .ttl(Duration::from_secs(60))
        .poll(Duration::from_millis(2))
        .build()?;
    let part = |name: &str| format!("{key}:{name}");
    let (inside, count, order) = (part("inside"), part("count"), part("order"));
    let mut met = 0;
    for _ in 0..times {
        let guard = mutex.lock(Duration::from_secs(3600)).await?;
        let guard = guard.context("the lock was not granted in an hour")?;
        let mut enter = redis::pipe();
        enter.cmd("INCR").arg(&inside);
        enter.cmd("GET").arg(&count);
        let (others, seen): (u64, Option<u64>) = store.pipeline(&enter).await?;
        met += u64::from(others != 1);
        let mut leave = redis::pipe();
        leave
            .cmd("SET")
            .arg(&count)
            .arg(seen.unwrap_or(0) + 1)
            .ignore();
        leave.cmd("RPUSH").arg(&order).arg("ours").ignore();
        leave.cmd("DECR").arg(&inside).ignore();
        let () = store.pipeline(&leave).await?;
        let _ = guard.release().await?;
    }
    Ok(met)
}

/// On a busy machine we may have had all our turns in one go, which shows nothing: then they contend again.
async fn six_contend(side: Side) -> Result<()> {
    for _ in 0..20 {
        if six_race(&side).await? {
            return Ok(());
        }
    }
    bail!("nobody else had the lock while we contended, in 20 races");
}

/// Two redis-py, one of them without a TTL, redlock 4 and 5, and two of ours on one key. Whether others had the lock
/// between our turns.
async fn six_race(side: &Side) -> Result<bool> {
    let all = scale(180, "adopt lock acquisitions");
    let each = all.div_ceil(6);
    let key = unique_namespace("lock");
    let (port, times) = (side.port.to_string(), each.to_string());
    let python = |seconds: &str| {
        let args = [port.as_str(), &key, &times, seconds];
        Foreign::start(Language::Python, &library("locks.py"), &args)
    };
    let node = |module: &str| {
        let args = [module, &port, &key, &times];
        Foreign::start(Language::Node, &library("locks.js"), &args)
    };
    let mut foreign = [
        python("60")?,
        python("0")?,
        node("redlock4")?,
        node("redlock5")?,
    ];
    for program in &mut foreign {
        assert_eq!(program.line().await?, "ready");
    }
    for program in &mut foreign {
        program.tell("go")?;
    }
    // We begin when they are at it.
    let store = side.store().await?;
    let order = format!("{key}:order");
    wait_until("somebody to take the lock", long(), async || {
        let taken: u64 = store.query(cmd("LLEN").arg(&order)).await.ok()?;
        (taken > 0).then_some(())
    })
    .await?;
    let ours = [
        tokio::spawn(contend(side.store().await?, key.clone(), each)),
        tokio::spawn(contend(side.store().await?, key.clone(), each)),
    ];
    let mut met = 0;
    for task in ours {
        met += task.await??;
    }
    let count = format!("{key}:count");
    for mut program in foreign {
        // A campaign takes longer than one line may.
        let line = wait_until(
            "a program to have had its turns",
            Duration::from_secs(3600),
            async || program.try_line(),
        )
        .await?;
        met += line.parse::<u64>()?;
    }
    ensure!(met == 0, "{met} times somebody else was inside");
    let counted: u64 = store.query(cmd("GET").arg(&count)).await?;
    ensure!(
        counted == each * 6,
        "{counted} of {} additions were kept",
        each * 6
    );
    // They did contend: others had the lock after our first time and before our last.
    let order: Vec<String> = store
        .query(cmd("LRANGE").arg(&order).arg(0).arg(-1))
        .await?;
    let is_ours = |holder: &String| holder == "ours";
    let first = order.iter().position(is_ours).context("we had it")?;
    let last = order.iter().rposition(is_ours).context("we had it")?;
    let between = order[first..last].iter().filter(|holder| !is_ours(holder));
    let between = between.count();
    if between == 0 {
        return Ok(false);
    }
    let changes = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    figure(format!(
        "{counted} contended acquisitions between redis-py, redlock 4 and 5 and Mutex, never two holders, {changes} changes between kinds"
    ));
    Ok(true)
}
on!(six_contend: redis_py_and_redlock_and_our_mutex_are_never_inside_together);

/// A holder without a TTL that was killed blocks everybody; the report says who it is.
async fn a_dead_holder(side: Side) -> Result<()> {
    let store = side.store().await?;
    let key = unique_namespace("lock");
    let mutex = lock::mutex(&store, &key).unfenced().build()?;
    assert_eq!(lock::who_holds(&store, &key).await?, None);
    let port = side.port.to_string();
    let mut python = Foreign::start(
        Language::Python,
        &library("locks.py"),
        &[&port, &key, "hold"],
    )?;
    assert_eq!(python.line().await?, "held");
    assert!(mutex.try_lock().await?.is_none());
    python.kill9();
    assert!(mutex.lock(Duration::from_millis(200)).await?.is_none());
    let blocker = lock::who_holds(&store, &key).await?.context("it is held")?;
    assert_eq!((blocker.by, blocker.remaining), (HeldBy::RedisPy, None));
    assert!(blocker.age.is_some_and(|age| age < long()), "{blocker:?}");
    let text = blocker.to_string();
    assert!(
        text.contains("redis-py") && text.contains("without a TTL"),
        "{text}"
    );
    // A person decides that it is dead.
    let holder = mutex.holder().await?.context("it is held")?;
    assert!(mutex.force_release(&holder).await?);
    let guard = mutex.try_lock().await?.context("it is free")?;
    let blocker = lock::who_holds(&store, &key).await?.context("it is ours")?;
    assert_eq!(blocker.by, HeldBy::Redstart);
    assert!(blocker.remaining.is_some());
    let _ = guard.release().await?;
    Ok(())
}
on!(a_dead_holder: a_holder_without_a_ttl_is_honoured_for_ever_and_named);

/// Other libraries send no wake-up; a waiter notices their release long before the lease would have ended.
#[tokio::test]
async fn a_release_without_a_wake_up_is_noticed() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let set = cmd("SET")
        .arg("job")
        .arg("token")
        .arg("PX")
        .arg(3_600_000)
        .take();
    let () = store.query(&set).await?;
    let mutex = lock::mutex(&store, "job").build()?;
    let waiter = tokio::spawn(async move { mutex.lock(Duration::from_secs(3000)).await });
    let () = store.query(cmd("DEL").arg("job")).await?;
    let guard = tokio::time::timeout(long(), waiter).await???;
    assert!(guard.is_some());
    Ok(())
}
