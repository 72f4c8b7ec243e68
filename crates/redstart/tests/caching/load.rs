//! What a loader can say, and what happens when it fails or is slow.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redstart::{
    Store,
    caching::{Cache, HitSource, L1, Loaded, XFetch},
};
use redstart_testkit::{Backend, Kind, MonitorTap, Server, eventually, matrix};

use crate::{LONG, Rows, pass, two};

async fn keys(store: &Store, backend: &Backend) -> redstart::Result<Vec<String>> {
    store
        .scan(&format!("{}:cache.rows:*", backend.namespace()))
        .await
}

matrix! {
    async fn a_value_that_must_not_be_stored_is_returned_and_leaves_no_lease(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        for n in 1..=4 {
            let hit = cache.get_or_load(&1, move |load| async move {
                match n % 2 {
                    0 => load.no_store(),
                    _ => load.ttl(Duration::ZERO),
                }
                Ok::<_, redstart::Error>(Some(n))
            }).await?;
            assert_eq!((hit.value.as_deref(), hit.source), (Some(&n), HitSource::Loaded));
            assert!(keys(&store, backend).await?.is_empty());
        }
        let hits = cache.get_or_load_many(&[1, 2, 3], |load, keys| async move {
            load.no_store(&1);
            load.ttl(&2, Duration::ZERO);
            Ok::<_, redstart::Error>(keys.into_iter().map(|key| (key, key)).collect::<Vec<_>>())
        }).await?;
        assert!(hits.iter().all(|hit| hit.value.is_some()));
        assert_eq!(keys(&store, backend).await?.len(), 1);
        assert_eq!(cache.stats().waits, 0);
        Ok(())
    }

    async fn an_endless_ttl_is_cut_and_leaves_no_lease(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).stale_for(LONG).build()?;
        for ttl in [Duration::MAX, Duration::from_secs(u64::MAX / 1000), Duration::from_nanos(1)] {
            cache.invalidate("k").await?;
            let hit = cache.get_or_load("k", move |load| async move {
                load.ttl(ttl);
                Ok::<_, redstart::Error>(Some(1))
            }).await?;
            assert_eq!(hit.value.as_deref(), Some(&1), "{ttl:?}");
            let left = keys(&store, backend).await?;
            assert!(left.iter().all(|key| !key.ends_with("lease")), "{ttl:?}: {left:?}");
        }
        Ok(())
    }

    async fn without_the_counts_of_the_tags_untagged_values_are_stored_and_no_lease_is_left(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        // A shard that cannot be read.
        let shard = redstart::key::Keys::named(backend.namespace(), "cache-tag", "rows")?.entity("3")?;
        store.query::<()>(redis::cmd("SET").arg(shard.key()).arg("broken")).await?;
        let plain = cache.get_or_load("plain", |_| async { Ok::<_, redstart::Error>(Some(1)) }).await?;
        assert_eq!(plain.value.as_deref(), Some(&1));
        assert!(cache.get("plain").await?.is_some());
        let tagged = cache.get_or_load("tagged", |load| async move {
            load.tag("brand:acme")?;
            Ok::<_, redstart::Error>(Some(2))
        }).await?;
        assert_eq!(tagged.value.as_deref(), Some(&2));
        assert_eq!(keys(&store, backend).await?.len(), 1, "a lease or a tagged entry is left");
        Ok(())
    }

    async fn a_stale_value_is_served_on_errors_up_to_its_bound(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace(), "rows")
            .ttl(Duration::from_millis(100))
            .stale_on_error(Duration::from_secs(4))
            .jitter(0.0)
            .build()?;
        let broken = Arc::new(AtomicBool::new(false));
        let read = async |n: u64| {
            let broken = broken.clone();
            cache.get_or_load(&1, move |_| async move {
                match broken.load(Ordering::SeqCst) {
                    true => Err(std::io::Error::other("the source is down")),
                    false => Ok(Loaded::Found(n)),
                }
            }).await
        };
        let many = async || {
            cache.get_or_load_many(&[1], |_, _| async { Err::<Vec<(u64, u64)>, _>(std::io::Error::other("the source is down")) }).await
        };
        read(1).await?;
        broken.store(true, Ordering::SeqCst);
        pass(&store, Duration::from_millis(150)).await;
        assert!(cache.get(&1).await?.is_none(), "it is served only where a load fails");
        for _ in 0..10 {
            let hit = read(0).await?;
            assert_eq!((hit.value.as_deref(), hit.stale), (Some(&1), true));
            let hit = &many().await?[0];
            assert_eq!((hit.value.as_deref(), hit.stale), (Some(&1), true));
        }
        // Ten readers did not ask a broken source ten times. On a slow machine a rest of a second may end meanwhile.
        let failed = cache.stats().failed_loads;
        assert!((1..=8).contains(&failed), "{failed}");
        // A source that works again is used at once when its rest is over: nothing stale is served then.
        broken.store(false, Ordering::SeqCst);
        pass(&store, Duration::from_millis(1100)).await;
        let hit = read(2).await?;
        assert_eq!((hit.value.as_deref(), hit.stale), (Some(&2), false));
        broken.store(true, Ordering::SeqCst);
        pass(&store, Duration::from_millis(4300)).await;
        assert!(eventually(LONG, async || read(0).await.is_err_and(|error| error.is_user())).await);
        Ok(())
    }

    async fn a_reader_with_a_stale_value_waits_for_the_soft_limit_only(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows")
            .ttl(Duration::from_millis(100))
            .stale_on_error(LONG)
            .jitter(0.0)
            .load_timeout(Duration::from_millis(20), LONG)
            .build()?;
        cache.get_or_load("k", |load| async move {
            load.ttl(Duration::from_millis(100));
            Ok::<_, redstart::Error>(Some(1))
        }).await?;
        pass(&store, Duration::from_millis(150)).await;
        let go = Arc::new(tokio::sync::Notify::new());
        let wait = go.clone();
        let hit = cache.get_or_load("k", |load| async move {
            load.ttl(LONG);
            wait.notified().await;
            Ok::<_, redstart::Error>(Some(2))
        }).await?;
        assert_eq!((hit.value.as_deref(), hit.stale), (Some(&1), true));
        go.notify_one();
        assert!(eventually(LONG, async || {
            cache.get("k").await.unwrap().is_some_and(|hit| hit.value.as_deref() == Some(&2))
        }).await, "the load did not go on");
        Ok(())
    }

    async fn a_cleared_cache_has_nothing_at_any_level_and_takes_no_older_load(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        for (part, l1) in [("pubsub", L1::pubsub(1000)), ("tracking", L1::tracking(1000))] {
            let namespace = format!("{}-{part}", backend.namespace());
            let build = |store, name| Cache::<u64, u64>::builder(store, &namespace, name).ttl(LONG).l1(l1.clone()).build();
            let (a, b, beside) = (build(&one, "rows")?, build(&other, "rows")?, build(&one, "rows.2")?);
            assert!(eventually(LONG, async || a.l1_is_up() && b.l1_is_up()).await, "{part}");
            let keys: Vec<u64> = (0..300).collect();
            let load = |_, keys: Vec<u64>| async move {
                Ok::<_, redstart::Error>(keys.into_iter().map(|key| (key, key)).collect::<Vec<_>>())
            };
            for cache in [&a, &b, &beside] {
                cache.get_or_load_many(&keys, load).await?;
                cache.get_or_load_many(&keys, load).await?;
            }
            let (loading, begun) = tokio::sync::oneshot::channel();
            let (go, wait) = tokio::sync::oneshot::channel::<()>();
            let call = tokio::spawn({
                let b = b.clone();
                async move {
                    b.get_or_load(&1000, |_| async move {
                        loading.send(()).unwrap();
                        wait.await?;
                        Ok::<_, tokio::sync::oneshot::error::RecvError>(Some(1))
                    }).await
                }
            });
            begun.await?;
            a.clear().await?;
            for key in &keys {
                assert!(a.get(key).await?.is_none(), "{part}: {key}");
                assert!(b.get_remote(key).await?.is_none(), "{part}: {key}");
            }
            assert!(eventually(LONG, async || {
                let mut left = 0;
                for key in &keys {
                    left += u64::from(b.get(key).await.unwrap().is_some());
                }
                left == 0
            }).await, "{part}: another process kept its first level");
            go.send(()).unwrap();
            call.await??;
            assert!(b.get_remote(&1000).await?.is_none(), "{part}: a load from before was stored");
            assert!(beside.get(&7).await?.is_some(), "{part}: another cache lost its entries");
        }
        Ok(())
    }

    async fn an_invalidated_tag_leaves_the_other_entries_in_the_first_level(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::builder(backend.url()).deadline(Duration::from_secs(20)).connect().await?;
        for (part, l1) in [("pubsub", L1::pubsub(5000)), ("tracking", L1::tracking(5000))] {
            let namespace = format!("{}-{part}", backend.namespace());
            let build = || Cache::<u64, u64>::builder(&store, &namespace, "rows").ttl(LONG).l1(l1.clone()).build();
            let (cache, writer) = (build()?, build()?);
            assert!(eventually(LONG, async || cache.l1_is_up() && writer.l1_is_up()).await, "{part}");
            let keys: Vec<u64> = (0..500).collect();
            let near = async || {
                let before = cache.stats().l1_hits;
                cache.get_or_load_many(&keys, |load, keys| async move {
                    for key in &keys {
                        load.tag(key, format!("tag:{key}"))?;
                    }
                    Ok::<_, redstart::Error>(keys.into_iter().map(|key| (key, key)).collect::<Vec<_>>())
                }).await.unwrap();
                cache.stats().l1_hits - before
            };
            // If the feed is lost meanwhile the whole level is emptied, and the server's messages about the fills may still
            // be on their way; then it is done again.
            let (mut whole, mut hits) = (false, 500);
            for _ in 0..10 {
                assert!(eventually(LONG, async || near().await == 500).await, "{part}");
                let flushes = cache.stats().l1_flushes;
                writer.invalidate_tag("tag:7").await?;
                // The message has arrived when the entry is gone.
                assert!(eventually(LONG, async || { hits = near().await; hits < 500 }).await, "{part}");
                whole = cache.stats().l1_flushes == flushes && hits >= 490;
                if whole { break; }
            }
            assert!(whole, "{part}: at last {hits} of 500 entries stayed");
        }
        Ok(())
    }
}

/// The first level serves a value for a shorter time than the store keeps it. That is not an expiry.
#[tokio::test]
async fn the_age_limit_of_the_first_level_causes_no_early_refresh() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let cache: Cache<str, u64> = Cache::builder(&store, "early", "rows")
        .ttl(60 * LONG)
        .early(XFetch { beta: 1.0 })
        .l1(L1::pubsub(100).max_age(Duration::from_secs(10)))
        .build()?;
    assert!(eventually(LONG, async || cache.l1_is_up()).await);
    let rows = Rows::at(1);
    let takes = Duration::from_millis(100);
    rows.through(&cache, "k", takes).await?;
    for _ in 0..3 {
        let near = eventually(LONG, async || {
            let hit = rows.through(&cache, "k", takes).await;
            hit.is_ok_and(|hit| hit.source == HitSource::L1)
        });
        assert!(near.await);
        // With a tenth of a second left, each read would refresh with a chance of one in three.
        store.advance(Duration::from_millis(9900))?;
        for _ in 0..200 {
            rows.through(&cache, "k", takes).await?;
        }
        store.advance(Duration::from_secs(1))?;
    }
    assert_eq!((rows.loads(), cache.stats().early_refreshes), (1, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untagged_misses_share_one_look_at_the_tags() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let cache: Cache<u64, u64> = Cache::builder(&store, "untagged", "rows")
        .ttl(LONG)
        .build()?;
    let load = |_| async { Ok::<_, redstart::Error>(Some(1)) };
    cache.get_or_load(&0, load).await?;
    let tap = MonitorTap::start(&server).await?;
    let begun = std::time::Instant::now();
    for key in 1..=100 {
        cache.get_or_load(&key, load).await?;
    }
    let looks = 2 + begun.elapsed().as_millis() / 100;
    let seen = tap.round_trips("untagged:cache-tag").await?;
    assert!(
        seen.len() as u128 <= 16 * looks,
        "{} commands in {looks} tenths of a second",
        seen.len()
    );
    Ok(())
}
