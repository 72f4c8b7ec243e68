//! One cache, one store: what each read gives.

use std::{sync::Arc, time::Duration};

use redstart::{
    Store,
    caching::{Cache, HitSource, Loaded, Stampede, XFetch},
    codec::Json,
    key::Layout,
};
use redstart_testkit::{Backend, eventually, matrix, scale, unique_namespace};
use tokio::sync::{Notify, oneshot};

use crate::{LONG, Rows, pass, two};

fn cache(store: &Store, backend: &Backend) -> redstart::Result<Cache<str, u64>> {
    Cache::builder(store, backend.namespace(), "rows")
        .ttl(LONG)
        .build()
}

matrix! {
    async fn a_miss_loads_and_the_next_read_is_a_hit(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let (cache, rows) = (cache(&store, backend)?, Rows::at(7));
        let first = rows.through(&cache, "k", Duration::ZERO).await?;
        assert_eq!((first.value.as_deref(), first.source), (Some(&7), HitSource::Loaded));
        let second = rows.through(&cache, "k", Duration::ZERO).await?;
        assert_eq!((second.value.as_deref(), second.source), (Some(&7), HitSource::Store));
        assert_eq!(rows.loads(), 1);
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses, stats.loads), (1, 1, 1));
        // The entry has a TTL, and no lease is left.
        let keys = store.scan(&format!("{}:cache.rows:*", backend.namespace())).await?;
        assert_eq!(keys.len(), 1, "{keys:?}");
        let ttl: i64 = store.query(redis::cmd("PTTL").arg(&keys[0])).await?;
        assert!(ttl > 0 && ttl <= 63_000, "{ttl}");
        Ok(())
    }

    async fn absence_is_remembered_for_its_own_ttl_and_errors_are_not(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows")
            .ttl(LONG)
            .negative_ttl(Duration::from_millis(400))
            .jitter(0.0)
            .build()?;
        let absent = |_| async { Ok::<_, redstart::Error>(Loaded::<u64>::Absent) };
        assert_eq!(cache.get_or_load("k", absent).await?.source, HitSource::Loaded);
        let hit = cache.get_or_load("k", absent).await?;
        assert_eq!((hit.value, hit.source), (None, HitSource::Store));
        assert_eq!(cache.stats().negative_hits, 1);
        assert!(cache.get("k").await?.is_some_and(|hit| hit.value.is_none()));
        pass(&store, Duration::from_millis(450)).await;
        assert!(eventually(LONG, async || cache.get("k").await.unwrap().is_none()).await);

        for round in 1..=2 {
            let failed = cache
                .get_or_load("e", |_| async { Err::<Loaded<u64>, _>(std::io::Error::other("the disk is on fire")) })
                .await
                .unwrap_err();
            assert!(failed.is_user() && failed.to_string().contains("on fire"), "{failed}");
            assert_eq!(cache.stats().failed_loads, round);
        }
        assert_eq!(cache.get_or_load("e", |_| async { Ok::<_, redstart::Error>(Some(1)) }).await?.value.as_deref(), Some(&1));
        Ok(())
    }

    async fn many_callers_on_a_cold_key_load_once(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        let rows = Rows::at(7);
        let caches = [cache(&one, backend)?, cache(&other, backend)?];
        let calls: Vec<_> = (0..scale(200, "cache callers"))
            .map(|n| {
                let (cache, rows) = (caches[n as usize % 2].clone(), rows.clone());
                tokio::spawn(async move { rows.through(&cache, "cold", Duration::from_millis(50)).await })
            })
            .collect();
        for call in calls {
            assert_eq!(call.await??.value.as_deref(), Some(&7));
        }
        assert_eq!(rows.loads(), 1);
        assert!(caches.iter().map(|cache| cache.stats().waits).sum::<u64>() <= 2);
        Ok(())
    }

    async fn without_the_lease_each_process_loads_once_and_without_either_everybody_does(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        for (stampede, least, most) in [(Stampede::Local, 1, 2), (Stampede::Off, 10, 10)] {
            let rows = Rows::at(7);
            let namespace = unique_namespace("stampede");
            let caches = [&one, &other].map(|store| {
                Cache::<str, u64>::builder(store, &namespace, "rows").ttl(LONG).stampede(stampede).build().unwrap()
            });
            let ready = Arc::new(tokio::sync::Barrier::new(10));
            let calls: Vec<_> = (0..10)
                .map(|n| {
                    let (cache, rows, ready) = (caches[n % 2].clone(), rows.clone(), ready.clone());
                    tokio::spawn(async move {
                        ready.wait().await;
                        rows.through(&cache, "cold", Duration::from_millis(400)).await
                    })
                })
                .collect();
            for call in calls {
                assert_eq!(call.await??.value.as_deref(), Some(&7));
            }
            assert!((least..=most).contains(&rows.loads()), "{stampede:?}: {}", rows.loads());
        }
        Ok(())
    }

    async fn a_value_loaded_before_an_invalidation_is_not_stored_after_it(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        for stampede in [Stampede::Lease, Stampede::Local, Stampede::Off] {
            let namespace = unique_namespace("fill");
            let build = |store| Cache::<str, u64>::builder(store, &namespace, "rows").ttl(LONG).stampede(stampede).build();
            let (reader, writer) = (build(&one)?, build(&other)?);
            let (loading, begun) = oneshot::channel();
            let (go, wait) = oneshot::channel::<()>();
            let call = tokio::spawn({
                let reader = reader.clone();
                async move {
                    reader
                        .get_or_load("k", |_| async move {
                            let old = 1;
                            loading.send(()).unwrap();
                            wait.await?;
                            Ok::<_, oneshot::error::RecvError>(Loaded::Found(old))
                        })
                        .await
                }
            });
            begun.await?;
            writer.invalidate("k").await?; // the row is 2 by now
            go.send(()).unwrap();
            // The caller asked before the invalidation and may have the old row; the cache may not.
            assert_eq!(call.await??.value.as_deref(), Some(&1));
            assert!(reader.get("k").await?.is_none(), "{stampede:?}");
            assert_eq!(reader.stats().refused_fills, 1);
            let hit = reader.get_or_load("k", |_| async { Ok::<_, redstart::Error>(Some(2)) }).await?;
            assert_eq!(hit.value.as_deref(), Some(&2));
        }
        Ok(())
    }

    async fn a_caller_after_the_invalidation_does_not_join_the_load_from_before_it(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        let (reader, writer) = (cache(&one, backend)?, cache(&other, backend)?);
        let rows = Rows::at(1);
        let (old, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let first = tokio::spawn({
            let (reader, rows, old, go) = (reader.clone(), rows.clone(), old.clone(), go.clone());
            async move {
                reader
                    .get_or_load("k", |_| async move {
                        let value = rows.now();
                        old.notify_one();
                        go.notified().await;
                        Ok::<_, redstart::Error>(Some(value))
                    })
                    .await
            }
        });
        old.notified().await;
        rows.set(2);
        writer.invalidate("k").await?;
        let second = tokio::spawn({
            let (reader, rows) = (reader.clone(), rows.clone());
            async move { rows.through(&reader, "k", Duration::ZERO).await }
        });
        // Whether it joins the old load or starts its own, it must not return the old row.
        tokio::task::yield_now().await;
        go.notify_one();
        assert_eq!(second.await??.value.as_deref(), Some(&2));
        first.await??;
        assert_eq!(reader.get("k").await?.and_then(|hit| hit.value).as_deref(), Some(&2));
        Ok(())
    }

    async fn a_loader_that_panics_or_is_too_slow_leaves_no_lease_behind(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows")
            .ttl(LONG)
            .load_timeout(Duration::ZERO, Duration::from_millis(100))
            .build()?;
        let panicked = cache
            .get_or_load("k", |_| async { match true { true => panic!("boom"), false => Ok::<_, redstart::Error>(Some(1)) } })
            .await
            .unwrap_err();
        assert!(panicked.is_user() && panicked.to_string().contains("boom"), "{panicked}");
        let slow = cache
            .get_or_load("k", |_| async {
                std::future::pending::<()>().await;
                Ok::<_, redstart::Error>(Some(1))
            })
            .await
            .unwrap_err();
        assert!(slow.is_timeout(), "{slow}");
        let keys = store.scan(&format!("{}:cache.rows:*", backend.namespace())).await?;
        assert!(keys.is_empty(), "{keys:?}");
        // Without a lease in the way the next one loads at once.
        let hit = cache.get_or_load("k", |_| async { Ok::<_, redstart::Error>(Some(3)) }).await?;
        assert_eq!(hit.value.as_deref(), Some(&3));
        assert_eq!(cache.stats().waits, 0);
        Ok(())
    }

    async fn a_cancelled_caller_does_not_end_the_load(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache = cache(&store, backend)?;
        let (loading, begun) = oneshot::channel();
        let go = Arc::new(Notify::new());
        let call = tokio::spawn({
            let (cache, go) = (cache.clone(), go.clone());
            async move {
                cache
                    .get_or_load("k", |_| async move {
                        loading.send(()).unwrap();
                        go.notified().await;
                        Ok::<_, redstart::Error>(Some(5))
                    })
                    .await
            }
        });
        begun.await?;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        go.notify_one();
        assert!(eventually(LONG, async || {
            cache.get("k").await.unwrap().is_some_and(|hit| hit.value.as_deref() == Some(&5))
        }).await);
        Ok(())
    }

    async fn others_go_on_when_the_lease_of_a_dead_loader_is_over(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        let namespace = backend.namespace();
        let waiting: Cache<str, u64> = Cache::builder(&other, namespace, "rows").ttl(LONG).build()?;
        // What a process that died a moment ago leaves behind: its lease.
        let entity = redstart::key::Keys::named(namespace, "cache", "rows")?.entity("k")?;
        let mut lease = redis::cmd("SET");
        lease.arg(entity.part("lease")).arg("the dead").arg("PX").arg(300);
        one.query::<()>(&lease).await?;
        let hit = tokio::spawn({
            let waiting = waiting.clone();
            async move { waiting.get_or_load("k", |_| async { Ok::<_, redstart::Error>(Some(2)) }).await }
        });
        if backend.is_embedded() {
            assert!(eventually(LONG, async || waiting.stats().waits == 1).await);
            one.advance(Duration::from_millis(300))?;
        }
        assert_eq!(hit.await??.value.as_deref(), Some(&2));
        assert_eq!(waiting.stats().waits, 1);
        Ok(())
    }

    async fn a_stale_value_is_served_while_it_is_refreshed(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows")
            .ttl(Duration::from_millis(300))
            .stale_for(LONG)
            .jitter(0.0)
            .build()?;
        let rows = Rows::at(1);
        rows.through(&cache, "k", Duration::ZERO).await?;
        rows.set(2);
        pass(&store, Duration::from_millis(350)).await;
        let hit = rows.through(&cache, "k", Duration::ZERO).await?;
        assert_eq!((hit.value.as_deref(), hit.stale), (Some(&1), true));
        assert!(hit.age.is_some_and(|age| age >= Duration::from_millis(300)), "{:?}", hit.age);
        assert!(eventually(LONG, async || {
            let hit = cache.get("k").await.unwrap().unwrap();
            hit.value.as_deref() == Some(&2) && !hit.stale
        }).await);
        assert_eq!(rows.loads(), 2);
        Ok(())
    }

    async fn a_stale_value_is_served_when_the_loader_fails_and_the_source_gets_a_rest(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<str, u64> = Cache::builder(&store, backend.namespace(), "rows")
            .ttl(Duration::from_millis(100))
            .stale_for(LONG)
            .jitter(0.0)
            .load_timeout(Duration::from_secs(5), Duration::from_secs(10))
            .build()?;
        cache.get_or_load("k", |_| async { Ok::<_, redstart::Error>(Some(1)) }).await?;
        pass(&store, Duration::from_millis(150)).await;
        for _ in 0..20 {
            let hit = cache
                .get_or_load("k", |_| async { Err::<Option<u64>, _>(std::io::Error::other("down")) })
                .await?;
            assert_eq!((hit.value.as_deref(), hit.stale), (Some(&1), true));
        }
        // One failed, and then the source had its rest of a second.
        let failed = cache.stats().failed_loads;
        assert!((1..=3).contains(&failed), "{failed}");
        // With a soft limit a reader waits for the fresh value while that takes less.
        pass(&store, Duration::from_millis(1100)).await;
        let hit = cache.get_or_load("k", |_| async { Ok::<_, redstart::Error>(Some(9)) }).await?;
        assert_eq!((hit.value.as_deref(), hit.stale), (Some(&9), false));
        Ok(())
    }

    async fn a_hot_key_over_many_expiries_never_blocks_a_reader_and_never_loads_twice_at_once(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        let ttl = Duration::from_millis(120);
        let caches: Vec<Cache<str, u64>> = [&one, &other]
            .iter()
            .map(|store| {
                Cache::builder(store, backend.namespace(), "rows")
                    .ttl(ttl)
                    .early(XFetch { beta: 2.0 })
                    .stale_for(LONG)
                    .build()
            })
            .collect::<Result<_, _>>()?;
        let rows = Rows::at(1);
        rows.through(&caches[0], "hot", Duration::from_millis(10)).await?;
        let expiries = scale(8, "cache expiries");
        let mut blocked = 0;
        while rows.loads() < expiries {
            for cache in &caches {
                let hit = rows.through(cache, "hot", Duration::from_millis(10)).await?;
                blocked += u64::from(hit.source == HitSource::Loaded);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(blocked, 0, "a reader had to wait for the loader");
        assert_eq!(rows.most_at_once(), 1);
        assert!(caches.iter().map(|cache| cache.stats().early_refreshes).sum::<u64>() > 0);
        Ok(())
    }

    async fn two_schemas_and_codecs_share_a_store_without_errors(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        let old: Cache<str, u64> = Cache::builder(&one, backend.namespace(), "rows").ttl(LONG).schema(3).build()?;
        let new: Cache<str, (u64, String)> = Cache::builder(&other, backend.namespace(), "rows").ttl(LONG).schema(4).build()?;
        let json: Cache<str, u64, Json> = Cache::builder(&other, backend.namespace(), "rows").ttl(LONG).schema(3).codec(Json).build()?;
        let rounds = scale(30, "cache deploy rounds");
        let tasks = (
            tokio::spawn(async move {
                for n in 0..rounds {
                    let hit = old.get_or_load("k", |_| async { Ok::<_, redstart::Error>(Some(1)) }).await?;
                    assert_eq!(hit.value.as_deref(), Some(&1));
                    if n % 7 == 0 { old.invalidate("k").await?; }
                }
                Ok::<_, redstart::Error>(())
            }),
            tokio::spawn(async move {
                for n in 0..rounds {
                    let hit = new.get_or_load("k", |_| async { Ok::<_, redstart::Error>(Some((2, "two".to_owned()))) }).await?;
                    assert_eq!(hit.value.as_deref(), Some(&(2, "two".to_owned())));
                    if n % 5 == 0 { new.invalidate("k").await?; }
                }
                Ok::<_, redstart::Error>(())
            }),
        );
        tasks.0.await??;
        tasks.1.await??;
        let hit = json.get_or_load("k", |_| async { Ok::<_, redstart::Error>(Some(5)) }).await?;
        assert_eq!(hit.value.as_deref(), Some(&5));
        Ok(())
    }

    async fn many_keys_come_back_in_order_each_from_the_nearest_place(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        cache.get_or_load(&3, |_| async { Ok::<_, redstart::Error>(Some(33)) }).await?;
        let load = |_: redstart::caching::LoadMany<u64>, keys: Vec<u64>| async move {
            Ok::<_, redstart::Error>(keys.into_iter().filter(|key| *key != 4).map(|key| (key, key * 10)).collect::<Vec<_>>())
        };
        let keys = [5, 3, 4, 5, 1];
        let hits = cache.get_or_load_many(&keys, load).await?;
        let values: Vec<_> = hits.iter().map(|hit| hit.value.as_deref().copied()).collect();
        assert_eq!(values, [Some(50), Some(33), None, Some(50), Some(10)]);
        assert_eq!(cache.stats().loads, 2, "one for the first key, one for all the others");
        let hits = cache.get_or_load_many(&keys, load).await?;
        assert!(hits.iter().all(|hit| hit.source == HitSource::Store));
        assert_eq!(cache.stats().loads, 2);
        cache.invalidate_many(&keys).await?;
        assert!(cache.get(&5).await?.is_none() && cache.get(&3).await?.is_none());
        Ok(())
    }

    async fn overlapping_batches_load_each_key_once(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        let rows = Rows::default();
        let caches = [&one, &other].map(|store| {
            Cache::<u64, u64>::builder(store, backend.namespace(), "rows").ttl(LONG).build().unwrap()
        });
        let counted = Arc::new(loaded::Counts::default());
        let calls: Vec<_> = (0..4u64)
            .map(|n| {
                let (cache, rows, counted) = (caches[n as usize % 2].clone(), rows.clone(), counted.clone());
                tokio::spawn(async move {
                    let keys: Vec<u64> = (n * 5..n * 5 + 20).collect();
                    cache
                        .get_or_load_many(&keys, move |_, keys| {
                            let (rows, counted) = (rows.clone(), counted.clone());
                            async move {
                                rows.read(Duration::from_millis(30)).await;
                                counted.add(&keys);
                                Ok::<_, redstart::Error>(keys.into_iter().map(|key| (key, key + 1)).collect::<Vec<_>>())
                            }
                        })
                        .await
                        .map(|hits| keys.iter().zip(hits).all(|(key, hit)| hit.value.as_deref() == Some(&(key + 1))))
                })
            })
            .collect();
        for call in calls {
            assert!(call.await??);
        }
        assert_eq!(counted.most(), 1, "a key was loaded twice");
        Ok(())
    }

    async fn existing_keys_are_adopted_by_a_layout(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let namespace = backend.namespace().to_owned();
        let cache: Cache<str, u64> = Cache::builder(&store, &namespace.clone(), "rows")
            .ttl(LONG)
            .layout(Layout::new(move |name| format!("{namespace}/product-{name}")))
            .build()?;
        cache.get_or_load("7", |_| async { Ok::<_, redstart::Error>(Some(1)) }).await?;
        let there: u8 = store.query(redis::cmd("EXISTS").arg(format!("{}/product-7", backend.namespace()))).await?;
        assert_eq!(there, 1);
        cache.invalidate("7").await?;
        assert!(cache.get("7").await?.is_none());
        Ok(())
    }

    async fn bad_input_is_refused_before_anything_is_written(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let builder = || Cache::<str, u64>::builder(&store, backend.namespace(), "rows");
        let refused = [
            builder().ttl(Duration::ZERO).build(),
            builder().ttl(Duration::MAX).build(),
            builder().ttl(LONG).negative_ttl(Duration::ZERO).build(),
            builder().ttl(LONG).jitter(0.6).build(),
            builder().ttl(LONG).jitter(f64::NAN).build(),
            builder().ttl(LONG).early(XFetch { beta: 0.0 }).build(),
            builder().ttl(LONG).early(XFetch { beta: f64::INFINITY }).build(),
            builder().ttl(LONG).load_timeout(LONG, Duration::from_secs(1)).build(),
            builder().ttl(LONG).load_timeout(Duration::ZERO, Duration::ZERO).build(),
            builder().ttl(LONG).max_loads(0).build(),
            builder().ttl(LONG).l1(redstart::caching::L1::tracking(0)).build(),
            builder().ttl(LONG).l1(redstart::caching::L1::tracking(5)).layout(Layout::new(str::to_owned)).build(),
            builder().ttl(LONG).l1(redstart::caching::L1::pubsub(5).max_bytes(0)).build(),
            Cache::<str, u64>::builder(&store, "no spaces", "rows").ttl(LONG).build(),
            Cache::<str, u64>::builder(&store, backend.namespace(), "no:colons").ttl(LONG).build(),
        ];
        for (n, cache) in refused.into_iter().enumerate() {
            assert!(cache.unwrap_err().is_config(), "{n}");
        }
        let cache = cache(&store, backend)?;
        for name in ["", &"x".repeat(1025)] {
            let called = |_| async { Ok::<_, redstart::Error>(Some(1)) };
            assert!(cache.get_or_load(name, called).await.unwrap_err().is_config());
            assert!(cache.get(name).await.unwrap_err().is_config());
            assert!(cache.invalidate(name).await.unwrap_err().is_config());
        }
        assert!(cache.invalidate_tag("a\nb").await.unwrap_err().is_config());
        let tagged = cache.get_or_load("k", |load| async move {
            load.tag("line\nbreak")?;
            Ok::<_, redstart::Error>(Some(1))
        });
        assert!(tagged.await.unwrap_err().is_config());

        // JSON has no keys that are not strings.
        type Odd = std::collections::BTreeMap<(u8, u8), u8>;
        let odd: Cache<str, Odd, Json> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).codec(Json).build()?;
        let unserialisable = odd.get_or_load("k", |_| async { Ok::<_, redstart::Error>(Some(Odd::from([((1, 2), 3)]))) });
        assert!(unserialisable.await.unwrap_err().is_codec());
        let left = store.scan(&format!("{}:cache.rows:*", backend.namespace())).await?;
        assert!(left.is_empty(), "{left:?}");
        Ok(())
    }
}

/// How often each key was loaded.
mod loaded {
    use std::{collections::HashMap, sync::Mutex};

    #[derive(Default)]
    pub(super) struct Counts(Mutex<HashMap<u64, u64>>);

    impl Counts {
        pub(super) fn add(&self, keys: &[u64]) {
            let mut counts = self.0.lock().unwrap();
            for key in keys {
                *counts.entry(*key).or_default() += 1;
            }
        }

        pub(super) fn most(&self) -> u64 {
            self.0.lock().unwrap().values().copied().max().unwrap_or(0)
        }
    }
}
