//! Caching beside bare moka, GET, MGET and XADD by hand, and a single flight over pub/sub by hand.
//!
//! A hit of ours also checks the envelope (version, codec, expiry, tags) and may refresh early; a write-behind put also keeps
//! order per key, applies back-pressure and makes the value readable at once.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redstart::{
    Store,
    caching::{
        Cache, Changes, HitSource, L1, Loaded, Put, Sink, SinkClaim, SinkError, WriteBehind,
    },
    codec::{Codec, Postcard},
};
use redstart_testkit::{Kind, Server, eventually};
use serde::{Deserialize, Serialize};

use crate::{
    measure::{Bench, Unit},
    peer::Line,
};

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
    let _watched = bench.watch(&server);
    bench.note(&format!(
        "redis-server {}, redis-rs 1.8, moka 0.12",
        server.info("redis_version").await?
    ));
    let store = Store::connect(&server.url()).await?;
    first_level(bench, &store).await?;
    second_level(bench, &store, &server).await?;
    miss(bench, &store, &server).await?;
    many(bench, &store, &server).await?;
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
    for id in 0..64 {
        let mut set = redis::cmd("SET");
        set.arg(format!("bare:{id}"))
            .arg(Postcard::encode(&product(id))?);
        store.query::<()>(&set).await?;
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
            anyhow::ensure!(hit.source == HitSource::Store && hit.value.is_some());
            Ok(())
        }
    };
    for line in Line::all(server, store).await? {
        let peer = line.name("GET and decode");
        let theirs = move |task: usize| {
            let mut line = line.clone();
            async move {
                let mut get = redis::cmd("GET");
                get.arg(format!("bare:{task}"));
                let bytes: Vec<u8> = line.query(&get).await?;
                black_box(Postcard::decode::<Product>(&bytes)?);
                Ok(())
            }
        };
        let name = "hit in the store, 64 tasks";
        bench
            .rate(name, &peer, 0.7, 64, ours.clone(), theirs)
            .await?;
    }
    Ok(())
}

/// A row that is not cached: looked for, loaded and stored.
async fn miss(bench: &mut Bench, store: &Store, server: &Server) -> anyhow::Result<()> {
    let cache: Cache<u64, Product> = Cache::builder(store, "bench", "miss").ttl(LONG).build()?;
    let turn = Arc::new(AtomicU64::new(0));
    let next = turn.clone();
    let ours = move |_| {
        let (cache, id) = (cache.clone(), next.fetch_add(1, Ordering::Relaxed));
        async move {
            let hit = cache
                .get_or_load(&id, move |_| async move {
                    Ok::<_, redstart::Error>(Some(product(id)))
                })
                .await?;
            anyhow::ensure!(hit.source == HitSource::Loaded);
            Ok(())
        }
    };
    for line in Line::all(server, store).await? {
        let peer = line.name("GET, load, SET");
        let turn = turn.clone();
        let theirs = move |_| {
            let (mut line, id) = (line.clone(), turn.fetch_add(1, Ordering::Relaxed));
            async move {
                let key = format!("bare:miss:{id}");
                let found: Option<Vec<u8>> = line.query(redis::cmd("GET").arg(&key)).await?;
                anyhow::ensure!(found.is_none());
                let mut set = redis::cmd("SET");
                set.arg(&key)
                    .arg(Postcard::encode(&product(id))?)
                    .arg("EX")
                    .arg(3600);
                line.query::<()>(&set).await
            }
        };
        let name = "miss and fill, under a lease, 64 tasks";
        bench
            .rate(name, &peer, 0.2, 64, ours.clone(), theirs)
            .await?;
    }
    Ok(())
}

async fn many(bench: &mut Bench, store: &Store, server: &Server) -> anyhow::Result<()> {
    let cache: Cache<u64, u64> = Cache::builder(store, "bench", "many").ttl(LONG).build()?;
    let keys: Vec<u64> = (0..100).collect();
    let load = |_, keys: Vec<u64>| async move {
        Ok::<_, redstart::Error>(keys.into_iter().map(|key| (key, key)).collect::<Vec<_>>())
    };
    cache.get_or_load_many(&keys, load).await?;
    let (single, singly, ids) = (cache.clone(), keys.clone(), keys.clone());
    let ours = move |_| {
        let (cache, keys) = (cache.clone(), keys.clone());
        async move {
            let hits = cache.get_or_load_many(&keys, load).await?;
            anyhow::ensure!(hits.len() == 100 && hits[42].value.as_deref() == Some(&42));
            Ok(())
        }
    };
    let name = "get_or_load_many(100)";
    let mut fill = redis::cmd("MSET");
    for n in 0..100_u64 {
        fill.arg(format!("bare:many:{n}"))
            .arg(Postcard::encode(&n)?);
    }
    store.query::<()>(&fill).await?;
    for line in Line::all(server, store).await? {
        let (peer, ids) = (line.name("MGET and decode"), ids.clone());
        let theirs = move |_| {
            let (mut line, ids) = (line.clone(), ids.clone());
            async move {
                let mut get = redis::cmd("MGET");
                for id in &ids {
                    get.arg(format!("bare:many:{id}"));
                }
                let rows: Vec<Option<Vec<u8>>> = line.query(&get).await?;
                let mut values = Vec::with_capacity(rows.len());
                for row in rows.iter().flatten() {
                    values.push(Arc::new(Postcard::decode::<u64>(row)?));
                }
                anyhow::ensure!(values.len() == 100 && *values[42] == 42);
                Ok(())
            }
        };
        bench
            .rate(name, &peer, 0.5, 1, ours.clone(), theirs)
            .await?;
    }
    let together = move |_| {
        let (cache, keys) = (single.clone(), singly.clone());
        async move {
            let hits = keys.iter().map(|key| {
                let row = *key;
                let load = move |_| async move { Ok::<_, redstart::Error>(Some(row)) };
                cache.get_or_load(key, load)
            });
            for hit in futures_util::future::join_all(hits).await {
                hit?;
            }
            Ok(())
        }
    };
    let peer = "100 single calls in flight together";
    bench.rate(name, peer, 2.0, 1, ours, together).await
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
    for line in Line::all(server, store).await? {
        let peer = line.name("XADD");
        let theirs = move |task: usize| {
            let mut line = line.clone();
            async move {
                let mut cmd = redis::cmd("XADD");
                cmd.arg(format!("bare:log:{}", task % 8))
                    .arg("*")
                    .arg("k")
                    .arg(task)
                    .arg("v")
                    .arg(7);
                line.query::<()>(&cmd).await
            }
        };
        let name = "write-behind put, 64 tasks";
        bench
            .rate(name, &peer, 0.35, 64, ours.clone(), theirs)
            .await?;
    }
    Ok(())
}

const WAITERS: usize = 500;

/// How long after the fill 500 callers that waited for another process have their answer.
///
/// By hand: one subscription for the process, and on its message one GET whose value goes to all waiters by a channel.
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
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..20u64 {
        ours.push(wake_ours(&loads, &waits, round).await?);
        theirs.push(wake_by_hand(server, round).await?);
    }
    let name = "500 waiters answered after the fill, p99";
    bench.costs_of(
        name,
        "pub/sub and a channel, redis-rs",
        Unit::Micros,
        0.2,
        ours,
        theirs,
    );
    Ok(())
}

/// The 99th percentile of 500, in microseconds.
fn p99(mut late: Vec<f64>) -> f64 {
    late.sort_by(f64::total_cmp);
    late[late.len() * 99 / 100].max(1e-6) * 1e6
}

async fn wake_ours(
    loads: &Cache<u64, u64>,
    waits: &Cache<u64, u64>,
    round: u64,
) -> anyhow::Result<f64> {
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
    let waiting: Vec<_> = (0..WAITERS)
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
    let waits_now = async || waits.stats().waits > round;
    anyhow::ensure!(eventually(Duration::from_secs(10), waits_now).await);
    // Enough for the subscription.
    tokio::time::sleep(Duration::from_millis(50)).await;
    go.notify_one();
    let filled = loading.await??;
    let mut late = Vec::new();
    for call in waiting {
        late.push(call.await??.saturating_duration_since(filled).as_secs_f64());
    }
    Ok(p99(late))
}

async fn wake_by_hand(server: &Server, round: u64) -> anyhow::Result<f64> {
    use futures_util::StreamExt as _;
    let client = redis::Client::open(server.url())?;
    let mut loader = client.get_multiplexed_async_connection().await?;
    let mut reader = client.get_multiplexed_async_connection().await?;
    let mut messages = client.get_async_pubsub().await?;
    let (channel, key) = (format!("filled:{round}"), format!("bare:wake:{round}"));
    messages.subscribe(&channel).await?;
    let (tell, told) = tokio::sync::watch::channel(None::<u64>);
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let mut told = told.clone();
            tokio::spawn(async move {
                told.wait_for(Option::is_some).await?;
                anyhow::Ok(Instant::now())
            })
        })
        .collect();
    let hears = tokio::spawn({
        let key = key.clone();
        async move {
            let mut stream = messages.on_message();
            if stream.next().await.is_some() {
                let value: u64 = redis::cmd("GET").arg(&key).query_async(&mut reader).await?;
                tell.send_replace(Some(value));
            }
            anyhow::Ok(())
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut fill = redis::pipe();
    fill.cmd("SET")
        .arg(&key)
        .arg(1)
        .cmd("PUBLISH")
        .arg(&channel)
        .arg(1);
    fill.exec_async(&mut loader).await?;
    let filled = Instant::now();
    hears.await??;
    let mut late = Vec::new();
    for call in waiting {
        late.push(call.await??.saturating_duration_since(filled).as_secs_f64());
    }
    Ok(p99(late))
}
