//! Caches.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::caching::{
    Cache, CacheUpdate, HitSource, L1, Loaded, Put, SortedView, SqlSink, WriteBehind, WriteThrough,
    Written, XFetch,
};
use tokio::time::{Instant, sleep};

use super::{Family, Stage, Step};

pub(crate) const FAMILY: Family = Family {
    name: "caching",
    steps: &[
        Step {
            pattern: "cache_aside",
            run: |stage| Box::pin(cache_aside(stage)),
        },
        Step {
            pattern: "stampede_lease",
            run: |stage| Box::pin(stampede_lease(stage)),
        },
        Step {
            pattern: "early_refresh",
            run: |stage| Box::pin(early_refresh(stage)),
        },
        Step {
            pattern: "negative_cache",
            run: |stage| Box::pin(negative_cache(stage)),
        },
        Step {
            pattern: "cache_tags",
            run: |stage| Box::pin(cache_tags(stage)),
        },
        Step {
            pattern: "cache_invalidation",
            run: |stage| Box::pin(cache_invalidation(stage)),
        },
        Step {
            pattern: "write_through",
            run: |stage| Box::pin(write_through(stage)),
        },
        Step {
            pattern: "write_behind",
            run: |stage| Box::pin(write_behind(stage)),
        },
        Step {
            pattern: "sorted_view",
            run: |stage| Box::pin(sorted_view(stage)),
        },
    ],
};

const MINUTE: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(10);

fn found(value: u64) -> redstart::Result<Loaded<u64>> {
    Ok(Loaded::Found(value))
}

async fn cache_aside(stage: &mut Stage) -> anyhow::Result<()> {
    let cache = Cache::<u64, u64>::builder(stage.store(), stage.namespace(), "product")
        .ttl(MINUTE)
        .build()?;
    let first = cache.get_or_load(&7, |_| async { found(70) }).await?;
    let second = cache.get_or_load(&7, |_| async { found(71) }).await?;
    stage.claim(
        first.source == HitSource::Loaded && second.source == HitSource::Store,
        "a miss loads, a hit does not",
    )?;
    // The race that leaves most hand-written caches stale: load, invalidate, fill.
    let (begun, loading) = tokio::sync::oneshot::channel();
    let (go, proceed) = tokio::sync::oneshot::channel::<()>();
    let reader = {
        let cache = cache.clone();
        tokio::spawn(async move {
            let channels = std::sync::Mutex::new(Some((begun, proceed)));
            cache
                .get_or_load(&8, move |_| {
                    let channels = channels.lock().ok().and_then(|mut c| c.take());
                    async move {
                        if let Some((begun, proceed)) = channels {
                            let _ = begun.send(());
                            let _ = proceed.await;
                        }
                        found(80) // the old row
                    }
                })
                .await
        })
    };
    loading.await?;
    cache.invalidate(&8).await?;
    let _ = go.send(());
    reader.await??;
    let after = cache.get_or_load(&8, |_| async { found(81) }).await?;
    stage.claim(
        after.value.as_deref() == Some(&81),
        "a value loaded before an invalidation is not stored after it",
    )?;
    stage.did(5);
    stage.show("a reader loaded the old row, the row changed, and the old row was not stored: the next reader got the new one");
    Ok(())
}

async fn stampede_lease(stage: &mut Stage) -> anyhow::Result<()> {
    // Two instances of the cache, as in two processes.
    let instance = || {
        Cache::<u64, u64>::builder(stage.store(), stage.namespace(), "product")
            .ttl(MINUTE)
            .build()
    };
    let instances = [instance()?, instance()?];
    let loads = Arc::new(AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..1000 {
        let (cache, loads) = (instances[n % 2].clone(), loads.clone());
        tasks.spawn(async move {
            let load = move |_| {
                let loads = loads.clone();
                async move {
                    loads.fetch_add(1, Ordering::SeqCst);
                    sleep(Duration::from_millis(50)).await;
                    found(42)
                }
            };
            Ok::<_, redstart::Error>(cache.get_or_load(&1, load).await?.value)
        });
    }
    let mut right = 0;
    while let Some(ended) = tasks.join_next().await {
        right += u32::from(ended??.as_deref() == Some(&42));
    }
    stage.claim(
        right == 1000,
        "a thousand callers on a cold key all got the value",
    )?;
    stage.claim(
        loads.load(Ordering::SeqCst) == 1,
        "one load served all of them",
    )?;
    stage.did(1000);
    stage.show(
        "1,000 callers of two instances on a cold key: one load, and its fill woke the others",
    );
    Ok(())
}

async fn early_refresh(stage: &mut Stage) -> anyhow::Result<()> {
    let ttl = Duration::from_millis(400);
    let cache = Cache::<u64, u64>::builder(stage.store(), stage.namespace(), "product")
        .ttl(ttl)
        .early(XFetch { beta: 2.0 })
        .build()?;
    let (loads, at_once, most) = (
        Arc::new(AtomicU32::new(0)),
        Arc::new(AtomicU32::new(0)),
        Arc::new(AtomicU32::new(0)),
    );
    let (mut reads, mut slow) = (0u64, 0u32);
    let until = Instant::now() + ttl * 4;
    let mut last_read = Instant::now();
    while Instant::now() < until {
        // Where nobody reads for long, as on a machine that stands still, nobody can refresh either.
        let hot = reads == 0 || last_read.elapsed() < ttl / 8;
        last_read = Instant::now();
        let (loads, at_once, most) = (loads.clone(), at_once.clone(), most.clone());
        let load = move |_| {
            let (loads, at_once, most) = (loads.clone(), at_once.clone(), most.clone());
            async move {
                most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_millis(20)).await;
                at_once.fetch_sub(1, Ordering::SeqCst);
                found(u64::from(loads.fetch_add(1, Ordering::SeqCst)))
            }
        };
        let hit = cache.get_or_load(&1, load).await?;
        slow += u32::from(hot && hit.source == HitSource::Loaded);
        reads += 1;
        // A hot key, but not one that starves the loader of CPU.
        sleep(Duration::from_micros(200)).await;
    }
    stage.claim(
        loads.load(Ordering::SeqCst) >= 3,
        "the value was refreshed before it expired",
    )?;
    stage.claim(slow == 1, "only the first reader ever waited for a load")?;
    stage.claim(
        most.load(Ordering::SeqCst) == 1,
        "and never two loads at once",
    )?;
    stage.did(reads);
    stage.show(format!(
        "{reads} reads over four lifetimes of a hot key: {} refreshes, and no reader waited",
        loads.load(Ordering::SeqCst)
    ));
    Ok(())
}

async fn negative_cache(stage: &mut Stage) -> anyhow::Result<()> {
    let cache = Cache::<u64, u64>::builder(stage.store(), stage.namespace(), "product")
        .ttl(MINUTE)
        .negative_ttl(MINUTE)
        .build()?;
    let loads = Arc::new(AtomicU32::new(0));
    for _ in 0..20 {
        let hit = cache
            .get_or_load(&404, {
                let loads = loads.clone();
                move |_| {
                    loads.fetch_add(1, Ordering::SeqCst);
                    async { Ok::<_, redstart::Error>(Loaded::Absent) }
                }
            })
            .await?;
        stage.claim(
            hit.value.is_none(),
            "a missing row is remembered as missing",
        )?;
    }
    stage.claim(
        loads.load(Ordering::SeqCst) == 1,
        "the source was asked once",
    )?;
    let failed = cache
        .get_or_load(&500, |_| async {
            Err::<Loaded<u64>, _>("the database is down")
        })
        .await;
    stage.claim(failed.is_err(), "an error is returned")?;
    let hit = cache.get_or_load(&500, |_| async { found(5) }).await?;
    stage.claim(hit.value.as_deref() == Some(&5), "and is not remembered")?;
    stage.did(22);
    stage.show("20 lookups of a product that does not exist asked the database once; an error was not cached");
    Ok(())
}

async fn fill(
    cache: &Cache<u64, u64>,
    brand: &'static str,
    keys: std::ops::Range<u64>,
) -> redstart::Result<()> {
    for key in keys {
        let load = move |load: redstart::caching::Load| async move {
            load.tag(brand)?;
            found(1)
        };
        cache.get_or_load(&key, load).await?;
    }
    Ok(())
}

async fn cache_tags(stage: &mut Stage) -> anyhow::Result<()> {
    let cache = Cache::<u64, u64>::builder(stage.store(), stage.namespace(), "product")
        .ttl(MINUTE)
        .build()?;
    fill(&cache, "brand:acme", 0..100).await?;
    fill(&cache, "brand:other", 100..200).await?;
    cache.invalidate_tag("brand:acme").await?;
    let mut dead = 0;
    for key in 0..100 {
        dead += u32::from(cache.get(&key).await?.is_none());
    }
    stage.claim(dead == 100, "one command invalidates all entries of a tag")?;
    stage.claim(cache.get(&150).await?.is_some(), "other entries stay")?;
    stage.did(302);
    stage.show("100 of 200 products were invalidated by their brand, with one command");
    Ok(())
}

/// Reads a row that others change.
async fn read(
    cache: &Cache<u64, u64>,
    row: &Arc<AtomicU64>,
) -> redstart::Result<redstart::caching::Hit<u64>> {
    let row = row.clone();
    let load = move |_| {
        let row = row.clone();
        async move { found(row.load(Ordering::SeqCst)) }
    };
    cache.get_or_load(&1, load).await
}

async fn cache_invalidation(stage: &mut Stage) -> anyhow::Result<()> {
    let instance = || {
        Cache::<u64, u64>::builder(stage.store(), stage.namespace(), "product")
            .ttl(MINUTE)
            .l1(L1::pubsub(1000))
            .build()
    };
    let (one, two) = (instance()?, instance()?);
    let deadline = Instant::now() + WAIT;
    while !(one.l1_is_up() && two.l1_is_up()) && Instant::now() < deadline {
        sleep(Duration::from_millis(5)).await;
    }
    let row = Arc::new(AtomicU64::new(1));
    for _ in 0..3 {
        read(&one, &row).await?;
        read(&two, &row).await?;
    }
    stage.claim(
        read(&two, &row).await?.source == HitSource::L1,
        "hot values are read from the process",
    )?;
    row.store(2, Ordering::SeqCst);
    one.invalidate(&1).await?;
    stage.claim(
        read(&one, &row).await?.value.as_deref() == Some(&2),
        "the instance that invalidates sees the new row at once",
    )?;
    let mut fresh = false;
    while !fresh && Instant::now() < deadline {
        fresh = read(&two, &row).await?.value.as_deref() == Some(&2);
    }
    stage.claim(fresh, "the other instance is told by a message")?;
    stage.did(10);
    stage.show("two instances, each with a first level: what one invalidated, the other dropped");
    Ok(())
}

async fn write_through(stage: &mut Stage) -> anyhow::Result<()> {
    let cache = Cache::<str, u64>::builder(stage.store(), stage.namespace(), "product")
        .ttl(MINUTE)
        .build()?;
    let write = WriteThrough::new(&cache);
    // Both commit; the second reaches the cache before the first. The newer row must stay.
    let (one, two) = (write.fence("anvil").await?, write.fence("anvil").await?);
    two.settle(Written::row(20, 2)).await?;
    let late = one.settle(Written::row(10, 1)).await?;
    stage.claim(
        late != CacheUpdate::Stored,
        "an older row does not replace a newer one",
    )?;
    let seen = cache.get_or_load("anvil", |_| async { found(20) }).await?;
    stage.claim(
        seen.value.as_deref() == Some(&20),
        "readers see the newer row",
    )?;
    let settled = write
        .put("anvil", async {
            Ok::<_, redstart::Error>(Written::row(30, 3))
        })
        .await?;
    stage.claim(settled == CacheUpdate::Stored, "a write is stored")?;
    stage.claim(
        cache
            .get("anvil")
            .await?
            .is_some_and(|hit| hit.value.as_deref() == Some(&30)),
        "and is read at once",
    )?;
    stage.did(5);
    stage.show("two writers reached the cache in the wrong order; the newer row stayed");
    Ok(())
}

async fn write_behind(stage: &mut Stage) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let url = format!(
        "sqlite://{}?mode=rwc",
        folder.path().join("views.db").display()
    );
    let sink = SqlSink::connect(&url, "views")
        .await?
        .column("count", |n: &u64| (*n).into());
    sink.create_tables().await?;
    let views = WriteBehind::<str, u64>::builder(stage.store(), stage.namespace(), "views", sink)
        .build()?;
    for round in 1..=20u64 {
        for page in 0..10 {
            let put = views
                .put(&format!("page-{page}"), &(round * 10 + page))
                .await?;
            stage.claim(matches!(put, Put::Accepted(_)), "a write is accepted")?;
        }
    }
    stage.claim(views.get("page-3").await? == Some(203), "and read at once")?;
    let worker = views.work()?;
    views.flush(WAIT * 2).await?;
    worker.stop().await;
    let pool = sqlx::SqlitePool::connect(&url).await?;
    let row: (i64, i64) = sqlx::query_as("SELECT COUNT(*), SUM(count) FROM views")
        .fetch_one(&pool)
        .await?;
    pool.close().await;
    stage.claim(
        row == (10, 2045),
        "the table has the last write of each key",
    )?;
    stage.claim(views.lag().await?.total() == 0, "nothing is left to write")?;
    stage.did(200);
    stage.show("200 writes to 10 pages became 10 rows in SQLite, the last write of each");
    Ok(())
}

async fn sorted_view(stage: &mut Stage) -> anyhow::Result<()> {
    let store = stage.store().clone();
    // The source and everything it is sorted by share one slot, as SORT needs it on a cluster.
    let cheapest = SortedView::builder(&store, stage.namespace(), "by-price", "products")
        .ttl(MINUTE)
        .by("price_*")
        .get("#")
        .get("price_*")
        .build()?;
    for n in 0..30u64 {
        let mut add = redstart::redis::cmd("SADD");
        add.arg(cheapest.source()).arg(n);
        store.query::<()>(&add).await?;
        let mut set = redstart::redis::cmd("SET");
        set.arg(cheapest.part(&format!("price_{n}")))
            .arg((n * 7) % 31);
        store.query::<()>(&set).await?;
    }
    let rows = cheapest.page(0..30).await?;
    let prices: Vec<u64> = rows.iter().filter_map(|row| row[1].parse().ok()).collect();
    stage.claim(
        prices.len() == 30 && prices.is_sorted(),
        "rows are sorted by the values of other keys",
    )?;
    let again = cheapest.page(0..5).await?;
    stage.claim(again == rows[..5], "pages are read from the stored view")?;
    stage.did(62);
    stage.show(
        "30 products sorted by price once, then paged from the stored result until its TTL ends",
    );
    Ok(())
}
