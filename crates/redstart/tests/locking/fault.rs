//! Networks and servers that break under a holder or a waiter.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use redstart::{
    Store,
    locking::{FencedValues, FencedWrite, Guard, LockedRun, Mutex, Released},
};
use redstart_testkit::{
    Cluster, Kind, Proxy, Sentinel, Server, eventually, figure, key_slot, scale,
};
use tokio::time::{Instant, timeout};

use crate::{FOREVER, PATIENCE, exists};

const DEADLINE: Duration = Duration::from_secs(10);

async fn store(url: &str) -> anyhow::Result<Store> {
    Ok(Store::builder(url).deadline(DEADLINE).connect().await?)
}

async fn left(store: &Store, key: &str) -> anyhow::Result<Duration> {
    let ms: i64 = store.query(redis::cmd("PTTL").arg(key)).await?;
    Ok(Duration::from_millis(
        u64::try_from(ms).context("the key is gone")?,
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_holed_holder_is_told_before_the_servers_key_expires() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let proxy = Proxy::start(&server).await?;
        // The deadline of a call is far beyond the lease: a renewal that hangs must not delay the loss.
        let (far, near) = (store(proxy.url()).await?, store(&server.url()).await?);
        let fenced = FencedValues::new(&near, "app", "values")?;
        let behind = Mutex::builder(&far, "app", "m")
            .ttl(Duration::from_millis(600))
            .build()?;
        let mutex = Mutex::builder(&near, "app", "m").build()?;
        for round in 0..scale(2, "LOCK_BLACK_HOLES") {
            let guard = behind.lock(PATIENCE).await?.context("not granted")?;
            let old = guard.fence();
            match round % 2 {
                0 => proxy.black_hole(),
                _ => proxy.stall(),
            }
            // Any renewal that was under way has reached the server by now, or never will: the end that the
            // server sees from here on is the last.
            let mut end = Instant::now();
            ensure!(
                eventually(PATIENCE, async || {
                    let asked = Instant::now();
                    let Ok(left) = left(&near, "app:mutex:{m}").await else {
                        return true;
                    };
                    let moved = asked + left > end + Duration::from_millis(1);
                    end = end.max(asked + left);
                    !moved && !guard.is_valid()
                })
                .await
            );
            guard.lost().await;
            assert!(
                guard.valid_until() < end,
                "it ended {:?} too late",
                guard.valid_until() - end
            );

            let next = mutex.lock(PATIENCE).await?.context("not granted")?;
            ensure!(fenced.set("x", "fresh", next.fence()).await? == FencedWrite::Done);
            assert!(!guard.is_valid());
            let write = fenced.set("x", "stale", old).await?;
            assert!(matches!(write, FencedWrite::Stale { .. }), "{write:?}");
            ensure!(next.release().await? == Released::Released);
            proxy.pass().await;
            drop(guard);
            far.settle().await;
        }
        let rounds = scale(2, "LOCK_BLACK_HOLES");
        figure(format!(
            "{kind:?}: {rounds} of {rounds} cut off holders were told before the server's key expired, and their writes were refused"
        ));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_under_a_black_holed_lock_is_dropped() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let far = store(proxy.url()).await?;
    let mutex = Mutex::builder(&far, "app", "m")
        .ttl(Duration::from_millis(400))
        .build()?;
    let outcome: LockedRun<()> = mutex
        .with(PATIENCE, |_| async {
            proxy.black_hole();
            std::future::pending().await
        })
        .await?;
    assert_eq!(outcome, LockedRun::Lost(None));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_network_outage_does_not_lose_the_lock() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Valkey).start().await?;
    let proxy = Proxy::start(&server).await?;
    let far = store(proxy.url()).await?;
    let mutex = Mutex::builder(&far, "app", "m")
        .ttl(Duration::from_secs(6))
        .build()?;
    let guard = mutex.try_lock().await?.context("not granted")?;
    let first = guard.valid_until();
    for _ in 0..3 {
        proxy.cut().await?;
        let until = guard.valid_until();
        ensure!(eventually(PATIENCE, async || guard.valid_until() > until).await);
    }
    assert!(guard.is_valid() && guard.valid_until() > first);
    assert_eq!(guard.release().await?, Released::Released);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_requested_again_and_is_the_same() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let proxy = Proxy::start(&server).await?;
        let far = store(proxy.url()).await?;
        let fenced = Mutex::builder(&far, "app", "m").build()?;
        let bare = Mutex::builder(&far, "app", "b").unfenced().build()?;
        fenced
            .try_lock()
            .await?
            .context("not granted")?
            .release()
            .await?;
        let release = match kind {
            Kind::Redis => "EVALSHA",
            Kind::Valkey => "DELIFEQ",
        };

        proxy.drop_reply_to("EVALSHA");
        let guard = fenced.try_lock().await?.context("the lock is ours")?;
        assert_eq!(proxy.stats().sprung, 1);
        let last: u64 = server.query(&["GET", "app:mutex:{m}:fence"]).await?;
        assert_eq!(guard.fence().get(), last, "one grant has one token");
        proxy.drop_reply_to(release);
        assert_eq!(guard.release().await?, Released::Released);
        assert_eq!(proxy.stats().sprung, 2);

        proxy.drop_reply_to("SET");
        let guard = bare.try_lock().await?.context("the lock is ours")?;
        assert_eq!(proxy.stats().sprung, 3);
        assert!(bare.try_lock().await?.is_none());
        assert_eq!(guard.release().await?, Released::Released);
        proxy.drop_reply_to("SET");
        let guard = bare.lock(PATIENCE).await?.context("the lock is ours")?;
        assert_eq!(guard.release().await?, Released::Released);
        for key in ["app:mutex:{m}", "app:mutex:{b}"] {
            assert!(!exists(&store(&server.url()).await?, key).await);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_is_down_nothing_is_granted_and_waiting_survives_it() -> anyhow::Result<()>
{
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_millis(200))
        .connect()
        .await?;
    let mutex = Mutex::builder(&store, "app", "m").build()?;
    server.kill9();
    let error = mutex.try_lock().await.unwrap_err();
    assert!(error.is_unavailable() || error.is_timeout(), "{error}");
    assert_eq!(error.operation(), "mutex.acquire");
    let error = mutex.lock(Duration::from_millis(50)).await.unwrap_err();
    assert!(error.is_unavailable() || error.is_timeout(), "{error}");
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock(PATIENCE).await }
    });
    // The same behind another waiter of the same handle: a failure is not a refusal.
    let error = mutex.lock(Duration::from_millis(50)).await.unwrap_err();
    assert!(error.is_unavailable() || error.is_timeout(), "{error}");
    server.restart().await?;
    let guard = waiter.await??.context("not granted")?;
    guard.release().await?;
    Ok(())
}

/// A server that cannot write for a while, and a reply that comes after the lease: neither ends a wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_passing_failure_does_not_end_a_wait() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let (far, near) = (store(proxy.url()).await?, store(&server.url()).await?);
    let fenced = Mutex::builder(&near, "app", "m").build()?;
    let unfenced = Mutex::builder(&near, "app", "u").unfenced().build()?;
    fenced
        .try_lock()
        .await?
        .context("not granted")?
        .release()
        .await?;

    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await?;
    let error = fenced.try_lock().await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    let error = unfenced.lock(Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(error.server_code(), Some("OOM"), "{error}");
    let waiters = [
        tokio::spawn(async move { Ok(fenced.lock(PATIENCE).await?.is_some()) }),
        tokio::spawn(async move { Ok(unfenced.lock(PATIENCE).await?.is_some()) }),
    ];
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await?;
    for waiter in waiters {
        let granted: redstart::Result<bool> = waiter.await?;
        assert!(granted?);
    }

    let slow = Mutex::builder(&far, "app", "s")
        .ttl(Duration::from_millis(300))
        .build()?;
    slow.try_lock()
        .await?
        .context("not granted")?
        .release()
        .await?;
    proxy.delay_replies(Duration::from_millis(400));
    let error = slow.try_lock().await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    let waiter = tokio::spawn(async move { slow.lock(PATIENCE).await });
    tokio::time::sleep(Duration::from_millis(600)).await;
    proxy.pass().await;
    waiter.await??.context("not granted")?.release().await?;
    Ok(())
}

/// A node of another version does not know the command that releases a lock elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_released_on_every_node_of_a_mixed_cluster() -> anyhow::Result<()> {
    let cluster = Cluster::builder(Kind::Valkey)
        .node_kind(1, Kind::Redis)
        .node_timeout(Duration::from_secs(30))
        .start()
        .await?;
    let store = store(&cluster.url()).await?;
    let mut nodes = std::collections::BTreeSet::new();
    for at in 0..30 {
        let name = format!("lock {at}");
        let mutex = Mutex::builder(&store, "app", &name).unfenced().build()?;
        let guard = mutex.try_lock().await?.context("not granted")?;
        assert_eq!(guard.release().await?, Released::Released);
        let key = format!("app:mutex:{{{name}}}");
        nodes.insert(cluster.owner(key_slot(key.as_bytes())).await?);
        assert!(!exists(&store, &key).await);
    }
    assert_eq!(nodes.len(), 3, "every node had locks");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_subscription_broke_still_gets_the_lock() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let (far, near) = (store(proxy.url()).await?, store(&server.url()).await?);
    // Neither the end of the lease nor a message reaches the waiter: only the gap makes it ask.
    let holder = Mutex::builder(&near, "app", "m")
        .ttl(Duration::from_secs(3600))
        .build()?;
    let behind = Mutex::builder(&far, "app", "m").build()?;
    let guard = holder.try_lock().await?.context("not granted")?;
    let waiter = tokio::spawn(async move { behind.lock(FOREVER).await });
    ensure!(
        eventually(PATIENCE, async || {
            let listening: (String, i64) = near
                .query(
                    redis::cmd("PUBSUB")
                        .arg("SHARDNUMSUB")
                        .arg("app:mutex:{m}:wake"),
                )
                .await
                .expect("PUBSUB is answered");
            listening.1 == 1
        })
        .await
    );
    proxy.refuse().await;
    proxy.cut().await?;
    ensure!(guard.release().await? == Released::Released);
    proxy.pass().await;
    let guard: Guard = timeout(PATIENCE, waiter).await???.context("not granted")?;
    guard.release().await?;
    Ok(())
}

/// A failover loses writes: the lock is granted twice, which no lock on one master can prevent; the tokens still
/// rise, and the resource refuses the first holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_through_a_failover_that_loses_writes() -> anyhow::Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    let witness = Server::builder(Kind::Redis).start().await?;
    let fenced = FencedValues::new(&store(&witness.url()).await?, "app", "values")?;
    let behind = store(&group.url()).await?;
    let mutex = Mutex::builder(&behind, "app", "m")
        .ttl(Duration::from_secs(3600))
        .build()?;
    mutex
        .try_lock()
        .await?
        .context("not granted")?
        .release()
        .await?;
    for server in &group.servers()[1..] {
        server.wait_in_step().await?;
    }
    // The replicas get nothing of what follows.
    for replica in &group.servers()[1..] {
        replica.pause()?;
    }
    let master = group.server(0);
    master
        .command(&["CLIENT", "KILL", "TYPE", "replica"])
        .await?;
    let mut last = None;
    for _ in 0..50 {
        let guard = mutex.try_lock().await?.context("not granted")?;
        assert!(Some(guard.fence()) > last);
        last = Some(guard.fence());
        guard.release().await?;
    }
    let old = mutex.try_lock().await?.context("not granted")?;
    assert!(Some(old.fence()) > last);
    ensure!(fenced.set("x", "old", old.fence()).await? == FencedWrite::Done);
    master.kill9();
    for replica in &group.servers()[1..] {
        replica.resume()?;
    }
    group.wait_promotion(0).await?;

    let new = mutex
        .lock(PATIENCE)
        .await?
        .context("the new master knows nothing of the lock")?;
    assert!(
        new.fence() > old.fence(),
        "{} after {}",
        new.fence(),
        old.fence()
    );
    ensure!(fenced.set("x", "new", new.fence()).await? == FencedWrite::Done);
    let write = fenced.set("x", "old again", old.fence()).await?;
    assert!(matches!(write, FencedWrite::Stale { .. }), "{write:?}");
    assert_eq!(old.release().await?, Released::AlreadyLost);
    assert_eq!(new.release().await?, Released::Released);
    Ok(())
}

/// A store on the application's own connection cannot subscribe, so its waiters have to poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_on_a_store_that_cannot_subscribe_get_the_lock() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let manager = redis::Client::open(server.url())?
        .get_connection_manager()
        .await?;
    let store = Store::from(manager);
    let mutex = Mutex::builder(&store, "app", "m")
        .ttl(Duration::from_secs(3600))
        .build()?;
    let guard = mutex.try_lock().await?.context("not granted")?;
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock(PATIENCE).await }
    });
    guard.release().await?;
    waiter.await??.context("not granted")?.release().await?;
    Ok(())
}

/// A user of a server has no channels unless they are given to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_subscription_is_refused_gets_the_lock_long_before_the_lease_would_end()
-> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let rules = [
        "ACL",
        "SETUSER",
        "mute",
        "on",
        ">pw",
        "~*",
        "+@all",
        "resetchannels",
    ];
    server.query::<()>(&rules).await?;
    let url = format!("redis://mute:pw@{}", server.addr());
    let (holder, waiter) = (store(&server.url()).await?, store(&url).await?);
    let lock = |store: &Store| {
        let mutex = Mutex::builder(store, "app", "m");
        mutex.ttl(20 * PATIENCE).build()
    };
    let (held, wanted) = (lock(&holder)?, lock(&waiter)?);
    let guard = held.lock(PATIENCE).await?.context("not granted")?;
    let waiting = tokio::spawn(async move { wanted.lock(FOREVER).await });
    // By then it has asked, and sleeps.
    tokio::time::sleep(Duration::from_millis(500)).await;
    guard.release().await?;
    let granted = timeout(PATIENCE, waiting).await???;
    ensure!(granted.is_some(), "not granted");
    Ok(())
}
