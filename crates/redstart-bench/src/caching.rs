//! Caching beside bare moka, a bare GET, single calls and a bare XADD.

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use redis::aio::MultiplexedConnection;
use redstart::{
    Store,
    caching::{
        Cache, Changes, HitSource, L1, Loaded, Put, Sink, SinkClaim, SinkError, WriteBehind,
    },
    codec::{Codec, Postcard},
};
use redstart_testkit::{Kind, Server, eventually};
use serde::{Deserialize, Serialize};

use crate::measure::Bench;

const LONG: Duration = Duration::from_secs(3600);

#[derive(Clone, Serialize, Deserialize)]
struct Product {
    id: u64,
    name: String,
    tags: Vec<String>,
}

fn product(id: u64) -> Product {
    Product {
        id,
        name: format!("product number {id}"),
        tags: vec!["red".to_owned(), "round".to_owned()],
    }
}

pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    bench.note(&format!(
        "redis-server {}, redis-rs 1.8, moka 0.12",
        server.info("redis_version").await?
    ));
    let store = Store::connect(&server.url()).await?;
    first_level(bench, &store).await?;
    second_level(bench, &store, &server).await?;
    many(bench, &store).await?;
    write_behind(bench, &store, &server).await?;
    wake(bench, &server).await
}

async fn first_level(bench: &mut Bench, store: &Store) -> anyhow::Result<()> {
    let cache: Cache<str, Product> = Cache::builder(store, "bench", "l1")
        .ttl(LONG)
        .l1(L1::tracking(10_000).max_age(LONG))
        .build()?;
    anyhow::ensure!(eventually(Duration::from_secs(10), async || cache.l1_is_up()).await);
    let bare: moka::sync::Cache<Arc<str>, Arc<Product>> = moka::sync::Cache::new(10_000);
    let keys: Vec<String> = (0..100).map(|n| format!("product:{n}")).collect();
    let load = |_| async { Ok::<_, redstart::Error>(Loaded::Found(product(7))) };
    for key in &keys {
        bare.insert(key.as_str().into(), Arc::new(product(7)));
        let near = eventually(Duration::from_secs(10), async || {
            cache
                .get_or_load(key, load)
                .await
                .is_ok_and(|hit| hit.source == HitSource::L1)
        });
        anyhow::ensure!(near.await, "{key} is not in the first level");
    }
    // A hit is too short for a task of its own: both are timed in a plain loop, alternately.
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..31 {
        let begun = Instant::now();
        for _ in 0..500 {
            for key in &keys {
                black_box(cache.get_or_load(key, load).await?.value);
            }
        }
        ours.push(50_000.0 / begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        for _ in 0..500 {
            for key in &keys {
                black_box(bare.get(key.as_str()));
            }
        }
        theirs.push(50_000.0 / begun.elapsed().as_secs_f64());
    }
    anyhow::ensure!(cache.stats().loads <= 200);
    bench.rounds_of(
        "first-level hit",
        "moka, Arc value",
        1.0 / 1.3,
        ours,
        theirs,
    );
    Ok(())
}

async fn second_level(bench: &mut Bench, store: &Store, server: &Server) -> anyhow::Result<()> {
    let cache: Cache<u64, Product> = Cache::builder(store, "bench", "l2").ttl(LONG).build()?;
    let bare: MultiplexedConnection = redis::Client::open(server.url())?
        .get_multiplexed_async_connection()
        .await?;
    for id in 0..64 {
        let bytes = Postcard::encode(&product(id))?;
        redis::cmd("SET")
            .arg(format!("bare:{id}"))
            .arg(bytes)
            .exec_async(&mut bare.clone())
            .await?;
        cache
            .get_or_load(&id, move |_| async move {
                Ok::<_, redstart::Error>(Some(product(id)))
            })
            .await?;
    }
    let ours = move |task: usize| {
        let cache = cache.clone();
        async move {
            let hit = cache
                .get_or_load(&(task as u64), |_| async {
                    Ok::<_, redstart::Error>(Some(product(0)))
                })
                .await?;
            anyhow::ensure!(hit.source == HitSource::Store);
            Ok(())
        }
    };
    let theirs = move |task: usize| {
        let mut bare = bare.clone();
        async move {
            let bytes: Vec<u8> = redis::cmd("GET")
                .arg(format!("bare:{task}"))
                .query_async(&mut bare)
                .await?;
            black_box(Postcard::decode::<Product>(&bytes)?);
            Ok(())
        }
    };
    bench
        .rate(
            "hit in the store, 64 tasks",
            "GET and decode",
            0.9,
            64,
            ours,
            theirs,
        )
        .await?;
    Ok(())
}

async fn many(bench: &mut Bench, store: &Store) -> anyhow::Result<()> {
    let cache: Cache<u64, u64> = Cache::builder(store, "bench", "many").ttl(LONG).build()?;
    let keys: Vec<u64> = (0..100).collect();
    let load = |_, keys: Vec<u64>| async move {
        Ok::<_, redstart::Error>(keys.into_iter().map(|key| (key, key)).collect::<Vec<_>>())
    };
    cache.get_or_load_many(&keys, load).await?;
    let (single, singly) = (cache.clone(), keys.clone());
    let ours = move |_| {
        let (cache, keys) = (cache.clone(), keys.clone());
        async move {
            cache.get_or_load_many(&keys, load).await?;
            Ok(())
        }
    };
    let theirs = move |_| {
        let (cache, keys) = (single.clone(), singly.clone());
        async move {
            for key in keys {
                cache
                    .get_or_load(
                        &key,
                        move |_| async move { Ok::<_, redstart::Error>(Some(key)) },
                    )
                    .await?;
            }
            Ok(())
        }
    };
    bench
        .rate(
            "get_or_load_many(100)",
            "100 single calls",
            20.0,
            1,
            ours,
            theirs,
        )
        .await?;
    Ok(())
}

/// Applies nothing: the puts are measured, not the database.
struct Nowhere;

impl Sink<u64> for Nowhere {
    async fn claim(&self, _: &str, _: u32) -> Result<SinkClaim, SinkError> {
        Err(SinkError::Fenced)
    }

    async fn apply(&self, _: &Changes<u64>) -> Result<(), SinkError> {
        Err(SinkError::Fenced)
    }

    async fn load(&self, _: &str) -> Result<Option<u64>, SinkError> {
        Ok(None)
    }
}

async fn write_behind(bench: &mut Bench, store: &Store, server: &Server) -> anyhow::Result<()> {
    let rows = WriteBehind::<u64, u64>::builder(store, "bench", "behind", Nowhere)
        .max_lag(u64::MAX / 4)
        .build()?;
    let bare: MultiplexedConnection = redis::Client::open(server.url())?
        .get_multiplexed_async_connection()
        .await?;
    let ours = move |task: usize| {
        let rows = rows.clone();
        async move {
            anyhow::ensure!(matches!(
                rows.put(&(task as u64), &7).await?,
                Put::Accepted(_)
            ));
            Ok(())
        }
    };
    let theirs = move |task: usize| {
        let mut bare = bare.clone();
        async move {
            let mut cmd = redis::cmd("XADD");
            cmd.arg(format!("bare:log:{}", task % 8))
                .arg("*")
                .arg("k")
                .arg(task)
                .arg("v")
                .arg(7);
            Ok(cmd.exec_async(&mut bare).await?)
        }
    };
    bench
        .rate("write-behind put, 64 tasks", "XADD", 0.5, 64, ours, theirs)
        .await?;
    Ok(())
}

/// How long after the fill the callers that waited for another process have their answer.
async fn wake(bench: &mut Bench, server: &Server) -> anyhow::Result<()> {
    let (one, other) = (
        Store::connect(&server.url()).await?,
        Store::connect(&server.url()).await?,
    );
    let build = |store| {
        Cache::<u64, u64>::builder(store, "bench", "wake")
            .ttl(LONG)
            .build()
    };
    let (loads, waits) = (build(&one)?, build(&other)?);
    let mut late = Vec::new();
    for round in 0..20u64 {
        let go = Arc::new(tokio::sync::Notify::new());
        let begun = Arc::new(tokio::sync::Notify::new());
        let loading = tokio::spawn({
            let (loads, go, begun) = (loads.clone(), go.clone(), begun.clone());
            async move {
                loads
                    .get_or_load(&round, |_| async move {
                        begun.notify_one();
                        go.notified().await;
                        Ok::<_, redstart::Error>(Some(1))
                    })
                    .await
                    .map(|_| Instant::now())
            }
        });
        begun.notified().await;
        let waiting: Vec<_> = (0..500)
            .map(|_| {
                let waits = waits.clone();
                tokio::spawn(async move {
                    waits
                        .get_or_load(&round, |_| async { Ok::<_, redstart::Error>(Some(2)) })
                        .await
                        .map(|_| Instant::now())
                })
            })
            .collect();
        anyhow::ensure!(
            eventually(Duration::from_secs(10), async || waits.stats().waits
                > round)
            .await
        );
        // Enough for the subscription.
        tokio::time::sleep(Duration::from_millis(50)).await;
        go.notify_one();
        let filled = loading.await??;
        for call in waiting {
            late.push(call.await??.saturating_duration_since(filled).as_secs_f64());
        }
    }
    late.sort_by(f64::total_cmp);
    let p99 = late[late.len() * 99 / 100].max(1e-6);
    bench.row(
        "500 waiters answered after the fill, p99",
        "5 ms",
        1.0 / p99,
        1.0 / 0.005,
        1.0,
    );
    Ok(())
}
