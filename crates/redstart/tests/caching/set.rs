//! Caches of several types that belong together.

use std::{sync::Arc, time::Duration};

use redstart::{
    Store,
    caching::{Cache, CacheSet, HitSource, L1, Tags},
    codec::Json,
};
use redstart_testkit::{Backend, eventually, matrix};
use serde::{Deserialize, Serialize};

use super::{LONG, two};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Product {
    name: String,
}

/// Of the same shape as a product: by its bytes it could be one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Brand {
    name: String,
}

type Products = Cache<str, Product>;
type Brands = Cache<str, Brand>;

fn caches(set: &CacheSet) -> redstart::Result<(Products, Brands)> {
    Ok((set.cache("product")?, set.cache("brand")?))
}

async fn product(cache: &Products, key: &str, tag: &'static str) -> redstart::Result<HitSource> {
    let name = key.to_owned();
    let hit = cache.get_or_load(key, move |load| async move {
        load.tag(tag)?;
        let name = format!("product {name}");
        Ok::<_, redstart::Error>(Some(Product { name }))
    });
    let hit = hit.await?;
    assert_eq!(hit.value.unwrap().name, format!("product {key}"));
    Ok(hit.source)
}

async fn brand(cache: &Brands, key: &str, tag: &'static str) -> redstart::Result<HitSource> {
    let name = key.to_owned();
    let hit = cache.get_or_load(key, move |load| async move {
        load.tag(tag)?;
        let name = format!("brand {name}");
        Ok::<_, redstart::Error>(Some(Brand { name }))
    });
    let hit = hit.await?;
    assert_eq!(hit.value.unwrap().name, format!("brand {key}"));
    Ok(hit.source)
}

fn levels() -> [(&'static str, L1); 3] {
    [
        ("off", L1::off()),
        ("tracking", L1::tracking(1000)),
        ("pubsub", L1::pubsub(1000).max_bytes(1 << 20)),
    ]
}

/// Reads until the value comes from the first level, so that it is there.
async fn near(products: &Products, brands: &Brands, tag: &'static str) -> bool {
    eventually(LONG, async || {
        let both = (
            product(products, "7", tag).await,
            brand(brands, "7", tag).await,
        );
        matches!(both, (Ok(HitSource::L1), Ok(HitSource::L1)))
    })
    .await
}

matrix! {
    async fn caches_of_a_set_never_read_each_others_entries(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for (part, l1) in levels() {
            let set = CacheSet::builder(&store, backend.namespace(), part).ttl(LONG).l1(l1.clone()).build()?;
            let (products, brands) = caches(&set)?;
            assert!(l1 == L1::off() || eventually(LONG, async || products.l1_is_up() && brands.l1_is_up()).await);
            for key in ["7", "8", "product/7"] {
                assert_eq!(product(&products, key, "t").await?, HitSource::Loaded, "{part}");
                assert_eq!(brand(&brands, key, "t").await?, HitSource::Loaded, "{part}");
            }
            for key in ["7", "8", "product/7"] {
                assert_ne!(product(&products, key, "t").await?, HitSource::Loaded, "{part}");
                assert_ne!(brand(&brands, key, "t").await?, HitSource::Loaded, "{part}");
            }
            products.invalidate("7").await?;
            assert!(products.get("7").await?.is_none() && brands.get("7").await?.is_some(), "{part}");
        }
        Ok(())
    }

    async fn a_name_of_a_set_belongs_to_one_type_key_codec_and_schema(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let set = CacheSet::new(&store, backend.namespace(), "catalog")?;
        let products: Products = set.cache("product")?;
        product(&products, "7", "t").await?;
        // The same again shares the entries.
        let again: Products = set.cache("product")?;
        assert_eq!(product(&again, "7", "t").await?, HitSource::Store);
        assert!(set.cache::<str, Brand>("product").unwrap_err().is_config());
        assert!(set.cache::<u64, Product>("product").unwrap_err().is_config());
        assert!(set.builder_of::<str, Product>("product").codec(Json).build().unwrap_err().is_config());
        assert!(set.builder_of::<str, Product>("product").schema(2).build().unwrap_err().is_config());
        // A name that could be that of another set and cache.
        assert!(set.cache::<str, Product>("a/b").unwrap_err().is_config());
        assert!(CacheSet::new(&store, backend.namespace(), "a/b").unwrap_err().is_config());
        assert!(CacheSet::builder(&store, backend.namespace(), "x").ttl(Duration::ZERO).build().unwrap_err().is_config());
        assert!(CacheSet::builder(&store, backend.namespace(), "x").l1(L1::tracking(0)).build().unwrap_err().is_config());
        // What was refused has bound no other name, and other sets are free.
        set.cache::<str, Brand>("brand")?;
        CacheSet::new(&store, backend.namespace(), "other")?.cache::<str, Brand>("product")?;
        Ok(())
    }

    async fn a_tag_of_a_set_is_invalidated_in_all_its_caches_and_processes(backend: &Backend) -> anyhow::Result<()> {
        let (here, there) = two(backend).await?;
        for (part, l1) in levels() {
            let set = |store: &Store, name: &str| CacheSet::builder(store, backend.namespace(), name).ttl(LONG).l1(l1.clone()).build();
            let (one, two, other) = (set(&here, part)?, set(&there, part)?, set(&here, &format!("{part}-other"))?);
            let (products, brands) = caches(&one)?;
            let (products_there, brands_there) = caches(&two)?;
            let (apart, _) = caches(&other)?;
            product(&apart, "7", "acme").await?;
            product(&products, "8", "other").await?;
            for by in ["set", "cache"] {
                if l1 == L1::off() {
                    product(&products, "7", "acme").await?;
                    brand(&brands, "7", "acme").await?;
                } else {
                    assert!(near(&products, &brands, "acme").await && near(&products_there, &brands_there, "acme").await, "{part}");
                }
                match by {
                    "set" => one.invalidate_tag("acme").await?,
                    _ => brands.invalidate_tag("acme").await?,
                }
                // At once in this process, whichever cache it was; in the other when the message is there.
                assert!(products.get("7").await?.is_none() && brands.get("7").await?.is_none(), "{part} by {by}");
                let gone = async || {
                    let (a, b) = (products_there.get("7").await, brands_there.get("7").await);
                    matches!((a, b), (Ok(None), Ok(None)))
                };
                assert!(eventually(LONG, gone).await, "{part} by {by}");
                assert!(products.get("8").await?.is_some(), "{part}: another tag");
                assert!(apart.get("7").await?.is_some(), "{part}: another set");
            }
        }
        Ok(())
    }

    async fn clearing_a_cache_leaves_the_others_of_its_set_and_clearing_the_set_leaves_nothing(backend: &Backend) -> anyhow::Result<()> {
        let (here, there) = two(backend).await?;
        for (part, l1) in levels() {
            let set = |store: &Store, name: &str| CacheSet::builder(store, backend.namespace(), name).ttl(LONG).l1(l1.clone()).build();
            let (one, two, other) = (set(&here, part)?, set(&there, part)?, set(&here, &format!("{part}2"))?);
            // The other process has a cache that this one never opened.
            let products: Products = one.cache("product")?;
            let (products_there, brands_there) = caches(&two)?;
            let (apart, _) = caches(&other)?;
            for key in ["7", "{8} %"] {
                product(&products, key, "t").await?;
                product(&apart, key, "t").await?;
                brand(&brands_there, key, "t").await?;
            }
            assert!(l1 == L1::off() || near(&products_there, &brands_there, "t").await, "{part}");
            products.clear().await?;
            assert!(products.get("7").await?.is_none(), "{part}");
            let gone = async |cache: &Products, key: &str| matches!(cache.get(key).await, Ok(None));
            assert!(eventually(LONG, async || gone(&products_there, "7").await).await, "{part}");
            assert!(brands_there.get("7").await?.is_some(), "{part}: the other cache was cleared too");
            product(&products, "7", "t").await?;
            one.clear().await?;
            assert!(products.get("7").await?.is_none(), "{part}");
            for key in ["7", "{8} %"] {
                let gone = async || matches!(brands_there.get(key).await, Ok(None)) && gone(&products_there, key).await;
                assert!(eventually(LONG, gone).await, "{part} {key}");
                assert!(apart.get(key).await?.is_some(), "{part}: another set was cleared");
            }
            let left = here.scan(&format!("{}:cache.{part}/*", backend.namespace())).await?;
            assert!(left.is_empty(), "{left:?}");
        }
        Ok(())
    }

    async fn the_index_of_a_set_is_removed_for_all_types(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let set = CacheSet::builder(&store, backend.namespace(), "catalog").ttl(LONG).tags(Tags::Index).build()?;
        let (products, brands) = caches(&set)?;
        for key in ["a", "b"] {
            product(&products, key, "acme").await?;
            brand(&brands, key, "acme").await?;
        }
        assert_eq!(products.tagged("acme").await?, ["a", "b"]);
        assert_eq!(brands.tagged("acme").await?, ["a", "b"]);
        set.invalidate_tag("acme").await?;
        let left = store.scan(&format!("{}:cache.catalog/*", backend.namespace())).await?;
        assert!(left.is_empty(), "{left:?}");
        assert!(products.tagged("acme").await?.is_empty() && brands.tagged("acme").await?.is_empty());
        Ok(())
    }

    async fn settings_of_a_set_hold_for_its_caches_unless_one_has_its_own(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let set = CacheSet::builder(&store, backend.namespace(), "catalog").ttl(LONG).jitter(0.0).build()?;
        let products: Products = set.cache("product")?;
        let brands: Brands = set.builder_of("brand").ttl(2 * LONG).build()?;
        product(&products, "7", "t").await?;
        brand(&brands, "7", "t").await?;
        let ttl = async |cache: &str| -> redstart::Result<i64> {
            let key = format!("{}:cache.catalog/{cache}:{{7}}", backend.namespace());
            store.query(redis::cmd("PTTL").arg(key)).await
        };
        let (of_products, of_brands) = (ttl("product").await?, ttl("brand").await?);
        assert!(of_products > 0 && of_products <= LONG.as_millis() as i64, "{of_products}");
        assert!(of_brands > LONG.as_millis() as i64, "{of_brands}");
        Ok(())
    }
}

/// All caches of a set together keep no more than the set's first level may have.
#[tokio::test]
async fn the_first_level_of_a_set_is_one_budget() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let set = CacheSet::builder(&store, "budget", "catalog")
        .ttl(LONG)
        .l1(L1::pubsub(100))
        .build()?;
    let (products, brands) = caches(&set)?;
    let own: Cache<str, u64> = set.builder_of("own").l1(L1::pubsub(5000)).build()?;
    let up = async || products.l1_is_up() && brands.l1_is_up() && own.l1_is_up();
    assert!(eventually(LONG, up).await);
    let keys: Vec<Arc<str>> = (0..200).map(|n| n.to_string().into()).collect();
    for key in &keys {
        product(&products, key, "t").await?;
        brand(&brands, key, "t").await?;
        own.get_or_load(&**key, |_| async { Ok::<_, redstart::Error>(Some(1)) })
            .await?;
    }
    let mut near = 0;
    for key in &keys {
        let hit = products.get(key).await?.unwrap();
        near += usize::from(hit.source == HitSource::L1);
    }
    for key in &keys {
        let hit = brands.get(key).await?.unwrap();
        near += usize::from(hit.source == HitSource::L1);
    }
    // Reading brings some in again, in place of others.
    assert!(near <= 200, "{near} hits out of 100 places");
    let shared = products.stats().l1_hits + brands.stats().l1_hits;
    assert_eq!(shared as usize, near);
    let mut own_near = 0;
    for key in &keys {
        own_near += usize::from(own.get(key).await?.unwrap().source == HitSource::L1);
    }
    assert!(own_near > 150, "its own first level has {own_near} of 200");
    Ok(())
}
