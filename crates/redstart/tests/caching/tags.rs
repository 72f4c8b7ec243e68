//! Tags: many entries at once, and nothing comes back to life.

use std::time::Duration;

use redstart::{
    Store,
    caching::{Cache, Loaded, Source, Tags},
};
use redstart_testkit::{Backend, matrix, scale};

use crate::LONG;

async fn tagged(cache: &Cache<u64, u64>, key: u64, tag: &str) -> redstart::Result<Source> {
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
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace()).ttl(LONG).build()?;
        let keys = scale(1000, "cache tagged entries");
        fill(&cache, keys, "brand:acme").await?;
        tagged(&cache, keys + 1, "brand:other").await?;
        assert_eq!(tagged(&cache, 0, "brand:acme").await?, Source::Store);
        cache.invalidate_tag("brand:acme").await?;
        for key in (0..keys).step_by((keys / 50).max(1) as usize) {
            assert!(cache.get(&key).await?.is_none(), "{key}");
        }
        assert!(cache.get(&(keys + 1)).await?.is_some(), "another tag's entry is untouched");
        assert_eq!(tagged(&cache, 0, "brand:acme").await?, Source::Loaded);
        assert_eq!(tagged(&cache, 0, "brand:acme").await?, Source::Store);
        Ok(())
    }

    async fn a_tag_invalidated_during_the_load_kills_what_it_brings(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace()).ttl(LONG).build()?;
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
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace()).ttl(LONG).build()?;
        for key in 0..20 {
            tagged(&cache, key, &format!("tag:{key}")).await?;
        }
        for key in 0..10 {
            cache.invalidate_tag(&format!("tag:{key}")).await?;
        }
        // What eviction would do: the tag keys are gone, the entries are not.
        for key in store.scan(&format!("{}:cache-tag:*", backend.namespace())).await? {
            store.query::<()>(redis::cmd("DEL").arg(key)).await?;
        }
        for key in 0..20 {
            assert!(cache.get(&key).await?.is_none(), "{key} came back");
        }
        // And again after new loads have made new shards.
        assert_eq!(tagged(&cache, 100, "tag:100").await?, Source::Loaded);
        for key in 0..20 {
            assert!(cache.get(&key).await?.is_none(), "{key} came back");
        }
        Ok(())
    }

    async fn the_index_lists_entries_outlives_them_and_frees_their_memory(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace()).ttl(LONG).tags(Tags::Index).build()?;
        let keys = scale(1200, "cache indexed entries");
        fill(&cache, keys, "brand:acme").await?;
        assert_eq!(cache.tagged("brand:acme").await?.len() as u64, keys);
        let sets = store.scan(&format!("{}:cache-index:*", backend.namespace())).await?;
        assert_eq!(sets.len(), 1);
        let outlives: i64 = store.query(redis::cmd("PTTL").arg(&sets[0])).await?;
        let entries = store.scan(&format!("{}:cache:*", backend.namespace())).await?;
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
        let left = store.scan(&format!("{}:cache:*", backend.namespace())).await?;
        assert!(left.is_empty(), "{}", left.len());
        assert!(cache.tagged("brand:acme").await?.is_empty());
        let plain: Cache<u64, u64> = Cache::builder(&store, backend.namespace()).ttl(LONG).build()?;
        assert!(plain.tagged("brand:acme").await.unwrap_err().is_config());
        Ok(())
    }

    async fn a_shard_with_too_many_tags_begins_anew_and_stays_right(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let cache: Cache<u64, u64> = Cache::builder(&store, backend.namespace()).ttl(LONG).build()?;
        tagged(&cache, 1, "kept").await?;
        tagged(&cache, 2, "gone").await?;
        cache.invalidate_tag("gone").await?;
        // As if each shard had seen thousands of tags: the next new one makes it begin anew.
        for shard in store.scan(&format!("{}:cache-tag:*", backend.namespace())).await? {
            let mut crowd = redis::cmd("HSET");
            crowd.arg(&shard);
            for n in 0..10_000 {
                crowd.arg(format!("t:crowd{n}")).arg(0);
            }
            store.query::<()>(&crowd).await?;
        }
        assert!(cache.get(&1).await?.is_some());
        for n in 0..64 {
            cache.invalidate_tag(&format!("new:{n}")).await?;
        }
        assert!(cache.get(&2).await?.is_none());
        for shard in store.scan(&format!("{}:cache-tag:*", backend.namespace())).await? {
            let fields: u64 = store.query(redis::cmd("HLEN").arg(shard)).await?;
            assert!(fields < 100, "{fields}");
        }
        assert_eq!(tagged(&cache, 1, "kept").await?, Source::Loaded);
        assert_eq!(tagged(&cache, 1, "kept").await?, Source::Store);
        Ok(())
    }
}
