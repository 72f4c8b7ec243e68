//! Tags: many entries at once, and nothing that was invalidated is served again.

use std::time::Duration;

use redstart::{
    Store,
    caching::{Cache, HitSource, Loaded, Tags},
};
use redstart_testkit::{Backend, Kind, MonitorTap, Server, matrix, scale};

use crate::LONG;

async fn tagged(cache: &Cache<u64, u64>, key: u64, tag: &str) -> redstart::Result<HitSource> {
    let tag = tag.to_owned();
    let hit = cache
        .get_or_load(&key, move |load| async move {
            load.tag(tag)?;
            Ok::<_, redstart::Error>(Loaded::Found(key))
        })
        .await?;
    assert_eq!(hit.value.as_deref(), Some(&key));
    Ok(hit.source)
}

async fn fill(cache: &Cache<u64, u64>, keys: u64, tag: &'static str) -> redstart::Result<()> {
    for first in (0..keys).step_by(500) {
        let keys: Vec<u64> = (first..keys.min(first + 500)).collect();
        cache
            .get_or_load_many(&keys, move |load, keys| async move {
                for key in &keys {
                    load.tag(key, tag)?;
                }
                Ok::<_, redstart::Error>(keys.into_iter().map(|key| (key, key)).collect::<Vec<_>>())
            })
            .await?;
    }
    Ok(())
}

matrix! {
    async fn one_command_invalidates_every_entry_of_a_tag_and_no_other(backend: &Backend) -> anyhow::Result<()> {
        // A starved machine must not make a fill be given up.
        let store = Store::builder(backend.url()).deadline(Duration::from_secs(30)).connect().await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(60 * LONG).build()?;
        let keys = scale(1000, "cache tagged entries");
        fill(&cache, keys, "brand:acme").await?;
        tagged(&cache, keys + 1, "brand:other").await?;
        assert_eq!(tagged(&cache, 0, "brand:acme").await?, HitSource::Store);
        let begun = std::time::Instant::now();
        cache.invalidate_tag("brand:acme").await?;
        println!("{keys} entries invalidated in {:?}", begun.elapsed());
        for key in (0..keys).step_by((keys / 50).max(1) as usize) {
            assert!(cache.get(&key).await?.is_none(), "{key}");
        }
        assert!(cache.get(&(keys + 1)).await?.is_some(), "another tag's entry is untouched");
        assert_eq!(tagged(&cache, 0, "brand:acme").await?, HitSource::Loaded);
        assert_eq!(tagged(&cache, 0, "brand:acme").await?, HitSource::Store);
        Ok(())
    }

    async fn a_tag_invalidated_during_the_load_kills_what_it_brings(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        let other = cache.clone();
        cache
            .get_or_load(&1, move |load| async move {
                // The row is read; its brand is changed; only now the loader learns which tag it has.
                let row = 1;
                other.invalidate_tag("brand:acme").await?;
                load.tag("brand:acme")?;
                Ok::<_, redstart::Error>(Some(row))
            })
            .await?;
        assert!(cache.get(&1).await?.is_none());
        Ok(())
    }

    async fn evicted_tag_keys_resurrect_nothing(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        for key in 0..20 {
            tagged(&cache, key, &format!("tag:{key}")).await?;
        }
        for key in 0..10 {
            cache.invalidate_tag(&format!("tag:{key}")).await?;
        }
        // What eviction would do: the tag keys are gone, the entries are not.
        for key in store.scan(&format!("{}:cache-tag.rows:*", backend.namespace())).await? {
            store.query::<()>(redis::cmd("DEL").arg(key)).await?;
        }
        for key in 0..20 {
            assert!(cache.get(&key).await?.is_none(), "{key} came back");
        }
        // And again after new loads have made new shards.
        assert_eq!(tagged(&cache, 100, "tag:100").await?, HitSource::Loaded);
        for key in 0..20 {
            assert!(cache.get(&key).await?.is_none(), "{key} came back");
        }
        Ok(())
    }

    async fn an_invalidation_after_one_that_was_lost_reaches_all_entries(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        cache.invalidate_tag("brand:acme").await?;
        let shards = store.scan(&format!("{}:cache-tag.rows:*", backend.namespace())).await?;
        assert_eq!(shards.len(), 1);
        let mut read = redis::cmd("ZRANGE");
        read.arg(&shards[0]).arg(0).arg(-1).arg("WITHSCORES");
        let before: Vec<(String, f64)> = store.query(&read).await?;
        cache.invalidate_tag("brand:acme").await?;
        assert_eq!(tagged(&cache, 1, "brand:acme").await?, HitSource::Loaded);
        // The node of the tag failed over and forgot the second invalidation; that of the entry did not.
        store.query::<()>(redis::cmd("DEL").arg(&shards[0])).await?;
        for (member, score) in before {
            store.query::<()>(redis::cmd("ZADD").arg(&shards[0]).arg(score).arg(member)).await?;
        }
        cache.invalidate_tag("brand:acme").await?;
        assert!(cache.get(&1).await?.is_none(), "the number of the lost invalidation came again");
        Ok(())
    }

    async fn the_index_lists_entries_outlives_them_and_frees_their_memory(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).tags(Tags::Index).build()?;
        let keys = scale(1200, "cache indexed entries");
        fill(&cache, keys, "brand:acme").await?;
        assert_eq!(cache.tagged("brand:acme").await?.len() as u64, keys);
        let sets = store.scan(&format!("{}:cache-index.rows:*", backend.namespace())).await?;
        assert_eq!(sets.len(), 1);
        let outlives: i64 = store.query(redis::cmd("PTTL").arg(&sets[0])).await?;
        let entries = store.scan(&format!("{}:cache.rows:*", backend.namespace())).await?;
        assert_eq!(entries.len() as u64, keys);
        for entry in entries.iter().step_by(100) {
            let ttl: i64 = store.query(redis::cmd("PTTL").arg(entry)).await?;
            assert!(outlives > ttl, "the set lives {outlives} ms, a member {ttl}");
        }
        // A longer-lived member makes the set live longer.
        cache.get_or_load(&keys, |load| async move {
            load.tag("brand:acme")?;
            load.ttl(Duration::from_secs(3600));
            Ok::<_, redstart::Error>(Some(1))
        }).await?;
        let now: i64 = store.query(redis::cmd("PTTL").arg(&sets[0])).await?;
        assert!(now > 3_600_000, "{now}");

        cache.invalidate_tag("brand:acme").await?;
        let left = store.scan(&format!("{}:cache.rows:*", backend.namespace())).await?;
        assert!(left.is_empty(), "{}", left.len());
        assert!(cache.tagged("brand:acme").await?.is_empty());
        Ok(())
    }

    async fn the_entries_of_a_tag_are_listed_without_an_index(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let builder = || Cache::<u64, u64>::builder(&store, backend.namespace(), "rows").ttl(LONG);
        let cache = builder().build()?;
        assert!(cache.tagged("brand:acme").await?.is_empty());
        // More than one page of entries, some with many tags, and values of all sizes.
        let keys = 1100;
        fill(&cache, keys, "brand:acme").await?;
        for key in 2000..2020 {
            tagged(&cache, key, "brand:other").await?;
        }
        cache.get_or_load(&3000, |load| async move {
            for n in 0..200 {
                load.tag(format!("a long tag with a number {n:05}"))?;
            }
            load.tag("brand:acme")?;
            Ok::<_, redstart::Error>(Some(1))
        }).await?;
        cache.get_or_load(&4000, |load| async move {
            load.tag("brand:acme")?;
            Ok::<_, redstart::Error>(None)
        }).await?;
        let untagged = cache.get_or_load(&5000, |_| async { Ok::<_, redstart::Error>(Some(1)) });
        untagged.await?;
        // Other caches, and keys beside the entries.
        let other: Cache<u64, u64> = Cache::builder(&store, backend.namespace(), "rows2").ttl(LONG).build()?;
        tagged(&other, 1, "brand:acme").await?;
        let mut expected: Vec<String> = (0..keys).chain([3000, 4000]).map(|key| key.to_string()).collect();
        expected.sort_unstable();
        assert_eq!(cache.tagged("brand:acme").await?, expected);
        assert_eq!(cache.tagged("a long tag with a number 00199").await?, ["3000"]);
        assert_eq!(cache.tagged("brand:other").await?.len(), 20);

        // An entry of another version beside the first counts too, under the same name.
        let newer: Cache<u64, u64> = builder().schema(2).build()?;
        newer.get_or_load(&2000, |load| async move {
            load.tag("brand:newer")?;
            Ok::<_, redstart::Error>(Some(1))
        }).await?;
        assert_eq!(cache.tagged("brand:newer").await?, ["2000"]);
        assert_eq!(cache.tagged("brand:other").await?.len(), 20);
        cache.invalidate(&2000).await?;
        assert!(cache.tagged("brand:newer").await?.is_empty(), "it ended with the other");

        // What was invalidated is not listed, by whichever of its tags.
        cache.invalidate(&0).await?;
        cache.invalidate_tag("a long tag with a number 00003").await?;
        expected.retain(|name| name != "0" && name != "3000");
        assert_eq!(cache.tagged("brand:acme").await?, expected);
        cache.invalidate_tag("brand:acme").await?;
        assert!(cache.tagged("brand:acme").await?.is_empty());
        assert!(cache.tagged("").await.unwrap_err().is_config());
        let layout = redstart::key::Layout::new(|name| format!("app:row:{name}"));
        let adopted = Cache::<u64, u64>::builder(&store, backend.namespace(), "adopted").layout(layout).build()?;
        assert!(adopted.tagged("brand:acme").await.unwrap_err().is_config());
        Ok(())
    }

    async fn a_shard_that_forgets_tags_stays_right_and_keeps_newer_entries(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace(), "rows").ttl(LONG).build()?;
        tagged(&cache, 1, "kept").await?;
        tagged(&cache, 2, "gone").await?;
        cache.invalidate_tag("gone").await?;
        // As if each shard had seen thousands of tags since then, and a few more.
        for shard in store.scan(&format!("{}:cache-tag.rows:*", backend.namespace())).await? {
            let last: f64 = store.query(redis::cmd("ZSCORE").arg(&shard).arg("#n")).await?;
            let mut crowd = redis::cmd("ZADD");
            crowd.arg(&shard).arg(last as i64 - 10_001).arg("#n");
            for n in 2..10_001 {
                crowd.arg(n - last as i64).arg(format!("t:crowd{n}"));
            }
            store.query::<()>(&crowd).await?;
        }
        assert!(cache.get(&1).await?.is_some());
        tokio::time::sleep(Duration::from_millis(150)).await; // longer than counts are used again
        for key in 100..164 {
            tagged(&cache, key, &format!("young:{key}")).await?;
        }
        for n in 0..64 {
            cache.invalidate_tag(&format!("new:{n}")).await?;
        }
        assert!(cache.get(&2).await?.is_none(), "an invalidated entry came back");
        for key in 100..164 {
            assert!(cache.get(&key).await?.is_some(), "{key} was loaded after the forgotten invalidations");
        }
        for shard in store.scan(&format!("{}:cache-tag.rows:*", backend.namespace())).await? {
            let tags: u64 = store.query(redis::cmd("ZCOUNT").arg(shard).arg(1).arg("+inf")).await?;
            assert!(tags <= 10_000, "{tags}");
        }
        tagged(&cache, 1, "kept").await?;
        assert_eq!(tagged(&cache, 1, "kept").await?, HitSource::Store);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_is_invalidated_by_one_round_trip() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let cache: Cache<u64, u64> = Cache::builder(&store, "one", "rows").ttl(LONG).build()?;
    fill(&cache, 1000, "brand:acme").await?;
    cache.invalidate_tag("warm").await?;
    let tap = MonitorTap::start(&server).await?;
    cache.invalidate_tag("brand:acme").await?;
    let calls = tap.round_trips("one:").await?;
    assert_eq!(calls.len(), 1, "{calls:?}");
    // And the script does the same few things for a thousand entries as for none.
    let inside = tap.commands().await?;
    let inside = inside.iter().filter(|seen| seen.is_from_script()).count();
    assert!(inside <= 9, "{inside} commands in the script");
    Ok(())
}

/// A server that is short of memory evicts what it likes, tag shards too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_full_server_evicts_nothing_invalidated_comes_back() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind)
            .config("maxmemory-policy", "allkeys-random")
            .start()
            .await?;
        let store = Store::connect(&server.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, "full", "rows").ttl(LONG).build()?;
        let (mut entries_lost, mut shards_lost) = (0, 0);
        let rounds = scale(4, "cache evictions");
        for round in 0..rounds {
            let keys: Vec<u64> = (0..2000).collect();
            cache
                .get_or_load_many(&keys, |load, keys| async move {
                    for key in &keys {
                        load.tag(key, format!("tag:{}", key % 40))?;
                    }
                    let rows = keys.into_iter().map(|key| (key, key));
                    Ok::<_, redstart::Error>(rows.collect::<Vec<_>>())
                })
                .await?;
            for tag in (0..40).step_by(2) {
                cache.invalidate_tag(&format!("tag:{tag}")).await?;
            }
            // About half of it has to go, by chance.
            let used: u64 = server.info("used_memory").await?.parse()?;
            let limit = (used - 200_000).to_string();
            server
                .command(&["CONFIG", "SET", "maxmemory", &limit])
                .await?;
            // It is refused if not even all of them are enough.
            let _ = server.command(&["SET", "one", "more"]).await;
            server.command(&["CONFIG", "SET", "maxmemory", "0"]).await?;
            entries_lost += 2000 - store.scan("full:cache.rows:*").await?.len();
            shards_lost += 16 - store.scan("full:cache-tag.rows:*").await?.len();
            // A load creates the lost shards again.
            tagged(&cache, 10_000 + round, "new").await?;
            for key in (0..2000).step_by(10) {
                assert!(
                    cache.get(&key).await?.is_none(),
                    "{kind:?}: {key} came back"
                );
            }
        }
        println!("{kind:?}: {entries_lost} entries and {shards_lost} tag shards were evicted");
        let all = 2000 * usize::try_from(rounds)?;
        assert!((all / 80..all).contains(&entries_lost) && shards_lost > 0);
    }
    Ok(())
}
