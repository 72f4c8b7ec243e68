//! Lines that are cut and servers that die.

use std::time::Duration;

use anyhow::Context as _;
use redstart::{
    Down, Store,
    caching::{Cache, HitSource, L1},
};
use redstart_testkit::{
    Backend, BackendKind, Cluster, Kind, Proxy, Sentinel, Server, eventually, matrix,
    unique_namespace, wait_until,
};

use crate::{LONG, Rows};

fn near(store: &Store, namespace: &str, l1: L1) -> redstart::Result<Cache<str, u64>> {
    Cache::builder(store, namespace, "rows")
        .ttl(LONG)
        .l1(l1)
        .build()
}

async fn up(cache: &Cache<str, u64>) -> anyhow::Result<()> {
    anyhow::ensure!(
        eventually(LONG, async || cache.l1_is_up()).await,
        "the first level does not listen"
    );
    Ok(())
}

/// Reads until the answer comes from the first level.
async fn warm(cache: &Cache<str, u64>, rows: &Rows, key: &str) -> anyhow::Result<()> {
    let warm = eventually(LONG, async || {
        rows.through(cache, key, Duration::ZERO)
            .await
            .is_ok_and(|hit| hit.source == HitSource::L1)
    });
    anyhow::ensure!(warm.await, "{key} never came into the first level");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_invalidated_while_the_line_was_cut_is_not_seen_after_it_is_back()
-> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        for l1 in [L1::tracking(100), L1::pubsub(100)] {
            let proxy = Proxy::start(&server).await?;
            let (near_store, far_store) = (
                Store::connect(proxy.url()).await?,
                Store::connect(&server.url()).await?,
            );
            let namespace = unique_namespace("cut");
            let (reader, writer) = (
                near(&near_store, &namespace, l1.clone())?,
                near(&far_store, &namespace, l1)?,
            );
            up(&reader).await?;
            for round in 1..=3u64 {
                let rows = Rows::at(round * 10);
                warm(&reader, &rows, "k").await?;
                // The reader's lines are gone; meanwhile another instance changes the row.
                proxy.refuse().await;
                proxy.cut().await?;
                rows.set(round * 10 + 1);
                writer.invalidate("k").await?;
                assert!(eventually(LONG, async || !reader.l1_is_up()).await);
                proxy.pass().await;
                let back = eventually(LONG, async || {
                    rows.through(&reader, "k", Duration::ZERO).await.is_ok()
                });
                assert!(back.await);
                let hit = rows.through(&reader, "k", Duration::ZERO).await?;
                assert_eq!(hit.value.as_deref(), Some(&(round * 10 + 1)));
                up(&reader).await?;
                writer.invalidate("k").await?;
            }
            assert!(reader.stats().l1_flushes >= 3);
        }
    }
    Ok(())
}

matrix! {
    async fn a_flushed_store_empties_the_first_level(backend: &Backend) -> anyhow::Result<()> {
        // Servers of its own: others would lose their keys.
        let (server, cluster) = match backend.kind() {
            BackendKind::Embedded | BackendKind::Served => (None, None),
            BackendKind::Redis => (Some(Server::builder(Kind::Redis).start().await?), None),
            BackendKind::Valkey => (Some(Server::builder(Kind::Valkey).start().await?), None),
            BackendKind::Cluster => (None, Some(Cluster::start(Kind::Redis, 3, 0).await?)),
        };
        let url = match (&server, &cluster) {
            (Some(server), _) => server.url(),
            (_, Some(cluster)) => cluster.url(),
            _ => backend.url().to_owned(),
        };
        let store = Store::connect(&url).await?;
        for (name, l1) in [("tracking", L1::tracking(100)), ("pubsub", L1::pubsub(100))] {
            let cache = near(&store, name, l1)?;
            let rows = Rows::at(1);
            up(&cache).await?;
            let keys: Vec<String> = (0..6).map(|n| format!("k{n}")).collect();
            for round in 1..=3 {
                for key in &keys {
                    warm(&cache, &rows, key).await?;
                }
                rows.set(round + 1);
                match &cluster {
                    Some(cluster) => {
                        for node in cluster.nodes() {
                            node.command(&["FLUSHALL"]).await?;
                        }
                    }
                    None => store.query::<()>(&redis::cmd("FLUSHALL")).await?,
                }
                // Within the time of a message, far below the TTL and the maximal age of a minute.
                for key in &keys {
                    let fresh = eventually(LONG / 6, async || {
                        let hit = rows.through(&cache, key, Duration::ZERO).await;
                        hit.is_ok_and(|hit| hit.value.as_deref() == Some(&(round + 1)))
                    });
                    assert!(fresh.await, "{name}: {key} outlived the flush");
                }
            }
            assert!(cache.stats().l1_flushes >= 3, "{name}");
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_a_failover_of_a_cluster_no_reader_keeps_an_invalidated_value() -> anyhow::Result<()>
{
    let cluster = Cluster::start(Kind::Redis, 3, 1).await?;
    no_reader_keeps_an_invalidated_value(&cluster.url(), async || {
        let master = cluster.owner(redstart_testkit::key_slot(b"k0")).await?;
        // After the failover before, the old master takes a moment to be a replica.
        let replicas = wait_until("a replica", LONG, async || {
            let replicas = cluster.replicas_of(master).await.ok()?;
            (!replicas.is_empty()).then_some(replicas)
        })
        .await?;
        cluster.failover(replicas[0]).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_a_failover_by_sentinels_no_reader_keeps_an_invalidated_value() -> anyhow::Result<()>
{
    let group = Sentinel::start(Kind::Redis).await?;
    no_reader_keeps_an_invalidated_value(&group.url(), async || group.failover().await.map(drop))
        .await
}

/// Each kind of first level lives through a failover of its own.
async fn no_reader_keeps_an_invalidated_value(
    url: &str,
    fail_over: impl AsyncFn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (one, other) = (Store::connect(url).await?, Store::connect(url).await?);
    for (name, l1) in [("tracking", L1::tracking(100)), ("pubsub", L1::pubsub(100))] {
        let (reader, writer) = (near(&one, name, l1.clone())?, near(&other, name, l1)?);
        up(&reader).await?;
        let rows = Rows::at(1);
        let keys: Vec<String> = (0..12).map(|n| format!("k{n}")).collect();
        for key in &keys {
            warm(&reader, &rows, key).await?;
        }
        fail_over().await?;
        rows.set(2);
        for key in &keys {
            let done = eventually(LONG, async || writer.invalidate(key).await.is_ok());
            assert!(done.await, "{name}: {key} could not be invalidated");
        }
        for key in &keys {
            let fresh = eventually(LONG / 6, async || {
                rows.through(&reader, key, Duration::ZERO)
                    .await
                    .is_ok_and(|hit| hit.value.as_deref() == Some(&2))
            });
            assert!(fresh.await, "{name}: {key} stayed old");
        }
        // And it stays so once the first level listens to the new master.
        up(&reader).await?;
        for key in &keys {
            warm(&reader, &rows, key).await?;
            let hit = rows.through(&reader, key, Duration::ZERO).await?;
            assert_eq!(hit.value.as_deref(), Some(&2), "{name}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_is_down_reads_do_what_the_builder_said() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_millis(200))
        .connect()
        .await?;
    let build = |down, last_seen| {
        Cache::<str, u64>::builder(&store, "down", "rows")
            .ttl(LONG)
            .on_store_down(down)
            .last_seen(last_seen)
            .max_loads(2)
            .load_timeout(Duration::ZERO, LONG)
            .build()
    };
    let (load, stale, refuse, fail) = (
        build(Down::Allow, 0)?,
        build(Down::Fail, 100)?,
        build(Down::Refuse, 0)?,
        build(Down::Fail, 0)?,
    );
    let rows = Rows::at(1);
    for cache in [&load, &stale, &refuse, &fail] {
        rows.through(cache, "k", Duration::ZERO).await?;
    }
    server.kill9();
    rows.set(2);
    let hit = rows.through(&load, "k", Duration::ZERO).await?;
    assert_eq!(
        (hit.value.as_deref(), hit.source, hit.stale),
        (Some(&2), HitSource::Loaded, false)
    );
    let hit = rows.through(&stale, "k", Duration::ZERO).await?;
    assert_eq!((hit.value.as_deref(), hit.stale), (Some(&1), true));
    assert!(
        rows.through(&stale, "never seen", Duration::ZERO)
            .await
            .is_err()
    );
    assert!(rows.through(&refuse, "k", Duration::ZERO).await.is_err());
    assert!(refuse.get("k").await?.is_none());
    assert!(rows.through(&fail, "k", Duration::ZERO).await.is_err());
    assert!(fail.get("k").await.is_err());
    assert!(
        load.invalidate("k").await.is_err(),
        "the caller that changed the row must know"
    );

    // The source is protected: two loads at once, one per key, and the others wait for their turn.
    let before = rows.loads();
    let calls: Vec<_> = (0..40)
        .map(|n| {
            let (load, rows) = (load.clone(), rows.clone());
            tokio::spawn(async move {
                rows.through(&load, &format!("k{}", n % 20), Duration::from_millis(50))
                    .await
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await??.value.as_deref(), Some(&2));
    }
    assert!(rows.loads() - before >= 20);
    assert!(rows.most_at_once() <= 2, "{} at once", rows.most_at_once());

    server.restart().await?;
    assert!(
        eventually(LONG, async || {
            rows.through(&load, "new", Duration::ZERO)
                .await
                .is_ok_and(|hit| hit.source == HitSource::Store)
        })
        .await
    );
    Ok(())
}

/// On one thread: a reader that finds everything in the process must not keep the news away from it.
#[tokio::test]
async fn a_loop_of_first_level_hits_hears_of_changes() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let one = near(&store, "loop", L1::pubsub(100))?;
    let two = near(&store, "loop", L1::pubsub(100))?;
    up(&one).await?;
    up(&two).await?;
    let rows = Rows::at(1);
    warm(&two, &rows, "k").await?;
    rows.set(2);
    one.invalidate("k").await?;
    // By the thread's own clock: the runtime's does not move while the loop keeps the thread.
    let begun = std::time::Instant::now();
    while rows
        .through(&two, "k", Duration::ZERO)
        .await?
        .value
        .as_deref()
        != Some(&2)
    {
        anyhow::ensure!(
            begun.elapsed() < LONG,
            "the reader never heard of the change"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_late_answer_does_not_take_the_cache_away() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_millis(400))
        .connect()
        .await?;
    let cache: Cache<str, u64> = Cache::builder(&store, "late", "rows")
        .ttl(LONG)
        .on_store_down(Down::Allow)
        .build()?;
    let rows = Rows::at(1);
    rows.through(&cache, "k", Duration::ZERO).await?;
    assert!(cache.get("k").await?.is_some());
    server.pause()?;
    let during = rows.through(&cache, "k", Duration::ZERO).await?;
    server.resume()?;
    assert_eq!(during.source, HitSource::Loaded);
    let answers = async || store.query::<()>(&redis::cmd("PING")).await.is_ok();
    assert!(eventually(LONG, answers).await);
    let after = rows.through(&cache, "k", Duration::ZERO).await?;
    assert_eq!(
        after.source,
        HitSource::Store,
        "a healthy store was left alone"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_does_not_take_the_entries_of_the_others_away() -> anyhow::Result<()> {
    let cluster = Cluster::builder(Kind::Redis)
        .masters(3)
        .node_timeout(LONG)
        .start()
        .await?;
    let store = Store::builder(&cluster.url())
        .deadline(Duration::from_millis(1500))
        .connect()
        .await?;
    let cache: Cache<u64, u64> = Cache::builder(&store, "hang", "rows")
        .ttl(LONG)
        .on_store_down(Down::Allow)
        .build()?;
    let keys: Vec<u64> = (0..60).collect();
    let load = |_, keys: Vec<u64>| async move {
        Ok::<_, redstart::Error>(keys.into_iter().map(|key| (key, key)).collect::<Vec<_>>())
    };
    cache.get_or_load_many(&keys, load).await?;
    let names = redstart::key::Keys::named("hang", "cache", "rows")?;
    let slots: Vec<u16> = keys
        .iter()
        .map(|key| Ok(names.entity(&key.to_string())?.slot()))
        .collect::<redstart::Result<_>>()?;
    let hung = cluster.owner(slots[0]).await?;
    let mut lost = Vec::new();
    for slot in &slots {
        lost.push(cluster.owner(*slot).await? == hung);
    }
    cluster.node(hung).pause()?;
    let one = |key: u64| {
        cache.get_or_load(&keys[key as usize], |_| async {
            Ok::<_, redstart::Error>(Some(0))
        })
    };
    // Enough failures for the node to be left alone.
    for (key, lost) in keys.iter().zip(&lost).filter(|(_, lost)| **lost).take(4) {
        assert!(*lost);
        assert_eq!(one(*key).await?.source, HitSource::Loaded);
    }
    for (key, _) in keys.iter().zip(&lost).filter(|(_, lost)| !**lost) {
        assert_eq!(one(*key).await?.source, HitSource::Store, "key {key}");
    }
    let hits = cache.get_or_load_many(&keys, load).await?;
    cluster.node(hung).resume()?;
    for ((key, hit), lost) in keys.iter().zip(&hits).zip(&lost) {
        let expected = match lost {
            true => HitSource::Loaded,
            false => HitSource::Store,
        };
        assert_eq!((hit.value.as_deref(), hit.source), (Some(key), expected));
    }
    Ok(())
}

/// A redirection may lead to a node whose changes nobody listens to yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_was_read_by_a_redirection_is_not_kept_in_the_first_level()
-> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let store = Store::connect(&cluster.url()).await?;
    let namespace = unique_namespace("ask");
    let cache = near(&store, &namespace, L1::tracking(100))?;
    up(&cache).await?;
    let rows = Rows::at(7);
    warm(&cache, &rows, "k").await?;
    let keys = store.scan(&format!("{namespace}:*")).await?;
    let key = keys.iter().find(|key| key.ends_with("{k}"));
    let slot = redstart_testkit::key_slot(key.context("no entry")?.as_bytes());
    let to = (cluster.owner(slot).await? + 1) % 3;
    let migration = cluster.begin_migration(slot, to).await?;
    migration.move_keys(10).await?;
    // The old owner reports the key as changed.
    let source = async || {
        let hit = rows.through(&cache, "k", Duration::ZERO).await?;
        anyhow::Ok(hit.source)
    };
    let asks = eventually(LONG, async || {
        source()
            .await
            .is_ok_and(|source| source == HitSource::Store)
    });
    assert!(asks.await, "the first level keeps what has moved away");
    for _ in 0..5 {
        assert_eq!(source().await?, HitSource::Store);
    }
    migration.finish().await?;
    warm(&cache, &rows, "k").await
}
