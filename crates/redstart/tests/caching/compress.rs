//! Values that are compressed above a size.

use redstart::{
    Store,
    caching::{Cache, HitSource, L1},
    codec::{Codec, Json, Lz4, Postcard},
};
use redstart_testkit::{Backend, eventually, figure, matrix};
use serde::{Deserialize, Serialize};

use super::{LONG, two};

/// A row as shops have it: some text, some numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Product {
    id: u64,
    name: String,
    description: String,
    tags: Vec<String>,
    prices: Vec<(String, u32)>,
}

fn product(id: u64) -> Product {
    const WORDS: [&str; 12] = [
        "anvil",
        "rocket",
        "spring",
        "magnet",
        "portable",
        "hole",
        "heavy",
        "light",
        "tested",
        "certified",
        "delivery",
        "guarantee",
    ];
    let word = |n: u64| WORDS[(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % WORDS.len()];
    let text: Vec<&str> = (0..400).map(|n| word(id * 1000 + n)).collect();
    Product {
        id,
        name: format!("{} {}", word(id), word(id + 1)),
        description: text.join(" "),
        tags: (0..10).map(|n| format!("tag:{}", word(id + n))).collect(),
        prices: ["EUR", "USD", "GBP", "CHF"]
            .iter()
            .map(|unit| (unit.to_string(), (id % 1000) as u32 * 100))
            .collect(),
    }
}

fn cache<C: Codec>(
    store: &Store,
    namespace: &str,
    codec: C,
    l1: L1,
) -> redstart::Result<Cache<u64, Product, C>> {
    Cache::builder(store, namespace, "product")
        .ttl(LONG)
        .l1(l1)
        .codec(codec)
        .build()
}

async fn read<C: Codec>(cache: &Cache<u64, Product, C>, id: u64) -> redstart::Result<HitSource> {
    let load = move |_| async move { Ok::<_, redstart::Error>(Some(product(id))) };
    let hit = cache.get_or_load(&id, load).await?;
    assert_eq!(hit.value.as_deref(), Some(&product(id)));
    Ok(hit.source)
}

async fn stored_bytes(store: &Store, namespace: &str) -> redstart::Result<usize> {
    let mut bytes = 0;
    for key in store.scan(&format!("{namespace}:cache.product:*")).await? {
        bytes += store.query::<usize>(redis::cmd("STRLEN").arg(key)).await?;
    }
    Ok(bytes)
}

matrix! {
    async fn large_values_take_less_room_and_are_read_as_they_were(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let namespace = |part: &str| format!("{}-{part}", backend.namespace());
        let plain = cache(&store, &namespace("plain"), Postcard, L1::off())?;
        let packed = cache(&store, &namespace("packed"), Lz4::<Postcard>::new(), L1::off())?;
        let json = cache(&store, &namespace("json"), Json, L1::off())?;
        let packed_json = cache(&store, &namespace("packed-json"), Lz4::<Json, 256>::new(), L1::off())?;
        for id in 0..20 {
            read(&plain, id).await?;
            read(&packed, id).await?;
            read(&json, id).await?;
            read(&packed_json, id).await?;
        }
        for id in 0..20 {
            assert_eq!(read(&packed, id).await?, HitSource::Store);
            assert_eq!(read(&packed_json, id).await?, HitSource::Store);
        }
        for (a, b) in [("plain", "packed"), ("json", "packed-json")] {
            let (before, after) = (stored_bytes(&store, &namespace(a)).await?, stored_bytes(&store, &namespace(b)).await?);
            figure(format!("{}: {a} {before} bytes, {b} {after}, {:.2} of it", backend.test(), after as f64 / before as f64));
            assert!(after * 2 < before, "{b}: {after} bytes instead of {before}");
        }
        Ok(())
    }

    async fn in_a_deploy_entries_with_and_without_compression_are_side_by_side(backend: &Backend) -> anyhow::Result<()> {
        let (one, other) = two(backend).await?;
        for (part, l1) in [("off", L1::off()), ("pubsub", L1::pubsub(100)), ("tracking", L1::tracking(100))] {
            let namespace = format!("{}-{part}", backend.namespace());
            let old = cache(&one, &namespace, Postcard, l1.clone())?;
            let new = cache(&other, &namespace, Lz4::<Postcard>::new(), l1)?;
            assert_eq!(read(&old, 1).await?, HitSource::Loaded);
            assert_eq!(read(&new, 1).await?, HitSource::Loaded);
            assert_eq!(read(&new, 2).await?, HitSource::Loaded);
            assert_eq!(read(&old, 2).await?, HitSource::Loaded);
            // Each has its own, and neither takes the other's away.
            for id in [1, 2] {
                assert_ne!(read(&old, id).await?, HitSource::Loaded, "{part}");
                assert_ne!(read(&new, id).await?, HitSource::Loaded, "{part}");
            }
            // An invalidation by either reaches both.
            old.invalidate(&1).await?;
            new.invalidate(&2).await?;
            assert!(old.get(&1).await?.is_none() && new.get(&2).await?.is_none());
            let gone = async || matches!((old.get(&2).await, new.get(&1).await), (Ok(None), Ok(None)));
            assert!(eventually(LONG, gone).await, "{part}");
        }
        Ok(())
    }

    async fn a_damaged_or_hostile_entry_is_a_miss(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let packed = cache(&store, backend.namespace(), Lz4::<Postcard>::new(), L1::off())?;
        let key = format!("{}:cache.product:{{7}}", backend.namespace());
        let headers = 62;
        for damage in 0..3 {
            read(&packed, 7).await?;
            let mut bytes: Vec<u8> = store.query(redis::cmd("GET").arg(&key)).await?;
            assert_eq!(bytes[headers], 1, "the value is a block");
            match damage {
                // A claim of 4 GiB.
                0 => bytes[headers + 1..headers + 5].fill(0xff),
                1 => bytes.truncate(bytes.len() / 2),
                _ => bytes[headers] = 77,
            }
            store.query::<()>(redis::cmd("SET").arg(&key).arg(bytes).arg("PX").arg(60_000)).await?;
            assert!(packed.get(&7).await?.is_none(), "{damage}");
            assert_eq!(read(&packed, 7).await?, HitSource::Loaded, "{damage}");
            packed.invalidate(&7).await?;
        }
        Ok(())
    }
}
