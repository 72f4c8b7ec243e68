//! The job queue beside a bare stream loop and two well-known queues; sessions beside one bare script.
//!
//! No-op jobs, one server, concurrency 100. The bare loop reads 100 entries by XREADGROUP and sends XACK and XDEL
//! for all of them in one pipeline: no retries, no leases, no fence. Each contestant drains a backlog; the
//! clock stops when the last job is finished and acknowledged.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use apalis_core::{
    backend::TaskSink as _,
    error::BoxDynError,
    worker::{
        builder::WorkerBuilder, context::WorkerContext, ext::parallelize::ParallelizeExt as _,
    },
};
use redis::{Script as BareScript, aio::MultiplexedConnection};
use redstart::{
    Store,
    messaging::{Job, JobContext, Queue},
    sessions::Sessions,
};
use redstart_testkit::{Kind, Server};
use serde::{Deserialize, Serialize};

use crate::measure::{Bench, median};

const CONCURRENCY: usize = 100;
/// What the fast contestants drain, and the slow ones, in a round.
const MANY: u64 = 100_000;
const FEW: u64 = 4_000;
const ROUNDS: usize = 3;

#[derive(Serialize, Deserialize)]
struct Noop {
    n: u64,
}

impl Job for Noop {
    const NAME: &'static str = "noop";
}

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    bench.note(&format!(
        "redis-server {}, redis-rs 1.8, bullmq-official 1.4, apalis-redis 1.0 (default settings)",
        server.info("redis_version").await?
    ));
    let url = server.url();
    let store = Store::connect(&url).await?;
    let bare = redis::Client::open(url.as_str())?
        .get_multiplexed_async_connection()
        .await?;

    let (mut add_ours, mut add_bare, mut ours, mut loops) = (vec![], vec![], vec![], vec![]);
    for round in 0..=ROUNDS {
        let (enqueue, drain) = redstart(&store, round, MANY).await?;
        let (xadd, read) = stream_loop(bare.clone(), round, MANY).await?;
        // The first round warms up.
        if round > 0 {
            add_ours.push(enqueue);
            add_bare.push(xadd);
            ours.push(drain);
            loops.push(read);
        }
    }
    let (mut bull, mut apalis, mut few) = (vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        few.push(redstart(&store, 100 + round, FEW).await?.1);
        bull.push(bullmq(&url, round, FEW).await?);
        apalis.push(apalis_redis(&url, round, FEW).await?);
    }
    bench.row(
        "enqueue_many",
        "pipelined XADD",
        median(add_ours),
        median(add_bare),
        0.8,
    );
    bench.row(
        "drain 100k jobs",
        "XREADGROUP + XACK/XDEL loop",
        median(ours),
        median(loops),
        0.6,
    );
    bench.row(
        "drain 4k jobs",
        "bullmq-official",
        median(few.clone()),
        median(bull),
        3.0,
    );
    bench.row(
        "drain 4k jobs",
        "apalis-redis",
        median(few),
        median(apalis),
        5.0,
    );

    wake_up(bench, &url).await?;
    session(bench, &store, &bare).await
}

fn rate(count: u64, started: Instant) -> f64 {
    count as f64 / started.elapsed().as_secs_f64()
}

/// Enqueues and drains; the rates of both.
async fn redstart(store: &Store, round: usize, count: u64) -> Result<(f64, f64)> {
    let queue = Queue::new(store, "bench", &format!("noop-{round}"))?;
    let started = Instant::now();
    let added = queue.enqueue_many((0..count).map(|n| Noop { n })).await?;
    let enqueue = rate(count, started);
    ensure!(added.added.len() as u64 == count);
    let (done, mut all) = counter(count);
    let started = Instant::now();
    let worker = queue
        .worker(move |_: Noop, _: JobContext| {
            done();
            std::future::ready(())
        })
        .concurrency(CONCURRENCY)
        .start()
        .await?;
    all.recv().await.context("all jobs")?;
    // Until the last is acknowledged.
    let report = worker.shutdown(Duration::from_secs(10)).await?;
    let drain = rate(count, started);
    ensure!(report.done == count, "{report:?}");
    Ok((enqueue, drain))
}

/// Signals when it has been called a given number of times.
fn counter(
    count: u64,
) -> (
    impl Fn() + Clone + Send + Sync + 'static,
    tokio::sync::mpsc::UnboundedReceiver<()>,
) {
    let (all, heard) = tokio::sync::mpsc::unbounded_channel();
    let done = Arc::new(AtomicU64::new(0));
    let call = move || {
        if done.fetch_add(1, Ordering::Relaxed) + 1 == count {
            let _ = all.send(());
        }
    };
    (call, heard)
}

async fn stream_loop(
    mut bare: MultiplexedConnection,
    round: usize,
    count: u64,
) -> Result<(f64, f64)> {
    let key = format!("bench-stream-{round}");
    let started = Instant::now();
    for first in (0..count).step_by(1000) {
        let mut pipeline = redis::pipe();
        for n in first..(first + 1000).min(count) {
            let payload = serde_json::to_vec(&Noop { n })?;
            pipeline
                .cmd("XADD")
                .arg(&key)
                .arg("*")
                .arg("noop")
                .arg(payload);
        }
        let ids: Vec<String> = pipeline.query_async(&mut bare).await?;
        ensure!(!ids.is_empty());
    }
    let xadd = rate(count, started);
    redis::cmd("XGROUP")
        .arg("CREATE")
        .arg(&key)
        .arg("g")
        .arg("0")
        .exec_async(&mut bare)
        .await?;
    let mut done = 0;
    let started = Instant::now();
    type Entries = Vec<(String, Vec<(String, Vec<Vec<u8>>)>)>;
    while done < count {
        let entries: Entries = redis::cmd("XREADGROUP")
            .arg("GROUP")
            .arg("g")
            .arg("c")
            .arg("COUNT")
            .arg(CONCURRENCY)
            .arg("STREAMS")
            .arg(&key)
            .arg(">")
            .query_async(&mut bare)
            .await?;
        let ids: Vec<&String> = entries
            .iter()
            .flat_map(|(_, entries)| entries)
            .map(|(id, _)| id)
            .collect();
        for (_, fields) in entries.iter().flat_map(|(_, entries)| entries) {
            let _: Noop = serde_json::from_slice(&fields[1])?;
        }
        done += ids.len() as u64;
        let mut pipeline = redis::pipe();
        pipeline
            .cmd("XACK")
            .arg(&key)
            .arg("g")
            .arg(&ids)
            .cmd("XDEL")
            .arg(&key)
            .arg(&ids);
        pipeline.exec_async(&mut bare).await?;
    }
    let read = rate(count, started);
    redis::cmd("DEL").arg(&key).exec_async(&mut bare).await?;
    Ok((xadd, read))
}

async fn bullmq(url: &str, round: usize, count: u64) -> Result<f64> {
    let name = format!("bench-{round}");
    let connection = bullmq::options::RedisConnectionOptions::default().url(url);
    let queue = bullmq::Queue::with_options(
        &name,
        bullmq::QueueOptions::new().connection(connection.clone()),
    )
    .await?;
    for first in (0..count).step_by(500) {
        let jobs = (first..(first + 500).min(count))
            .map(|n| bullmq::BulkJob::new("noop", Noop { n }).attempts(3));
        queue.add_bulk(jobs.collect()).await?;
    }
    let (done, mut all) = counter(count);
    let options = bullmq::WorkerOptions {
        connection,
        concurrency: CONCURRENCY,
        ..Default::default()
    };
    let started = Instant::now();
    let worker = bullmq::Worker::with_options(
        &name,
        move |_: bullmq::Job, _| {
            done();
            async { Ok(serde_json::Value::Null) }
        },
        options,
    )
    .await?;
    all.recv().await.context("all jobs")?;
    let rate = rate(count, started);
    worker.close(5000).await?;
    Ok(rate)
}

async fn apalis_redis(url: &str, round: usize, count: u64) -> Result<f64> {
    let connection = apalis_redis::connect(url).await?;
    let config = apalis_redis::Config::default().queue(format!("bench-apalis-{round}"));
    let mut storage = apalis_redis::RedisStorage::new(connection).with_config(config);
    for n in 0..count {
        storage
            .push(Noop { n })
            .await
            .map_err(|error| anyhow::anyhow!("{error}"))?;
    }
    let seen = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let worker = WorkerBuilder::new(format!("bench-{round}"))
        .backend(storage)
        .parallelize(tokio::spawn)
        .build(move |_: Noop, worker: WorkerContext| {
            let seen = seen.clone();
            async move {
                if seen.fetch_add(1, Ordering::Relaxed) + 1 == count {
                    worker.stop()?;
                }
                Ok::<(), BoxDynError>(())
            }
        });
    worker
        .run()
        .await
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(rate(count, started))
}

/// From enqueue to start on an idle worker with its own connections.
async fn wake_up(bench: &mut Bench, url: &str) -> Result<()> {
    let (producer, consumer) = (Store::connect(url).await?, Store::connect(url).await?);
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let worker = Queue::new(&consumer, "bench", "wake")?
        .worker(move |_: Noop, _: JobContext| {
            let _ = started.send(Instant::now());
            std::future::ready(())
        })
        .start()
        .await?;
    let queue = Queue::new(&producer, "bench", "wake")?;
    let mut took = Vec::new();
    for n in 0..500 {
        // Long enough for the worker to be idle again.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let asked = Instant::now();
        queue.enqueue(&Noop { n }).await?;
        let began = starts.recv().await.context("a start")?;
        took.push(began.saturating_duration_since(asked).as_secs_f64());
    }
    worker.shutdown(Duration::from_secs(5)).await?;
    took.sort_by(f64::total_cmp);
    let (half, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    bench.note(&format!(
        "enqueue to start: median {:.2} ms, p99 {:.2} ms",
        half * 1e3,
        p99 * 1e3
    ));
    bench.row("wake-ups at p99", "one every 5 ms", 1.0 / p99, 200.0, 1.0);
    Ok(())
}

async fn session(bench: &mut Bench, store: &Store, bare: &MultiplexedConnection) -> Result<()> {
    let sessions = Sessions::new(store, "bench", "web")?;
    let data =
        serde_json::json!({ "theme": "dark", "cart": [1, 2, 3], "csrf": "0123456789abcdef" });
    let mut tokens = Vec::new();
    for n in 0..64 {
        tokens.push(sessions.create(&format!("user-{n}"), &data).await?);
        redis::cmd("HSET")
            .arg(format!("bench-hash-{n}"))
            .arg(&[
                "user",
                "u",
                "created",
                "1794731047665000",
                "until",
                "1794731047665000",
                "ends",
                "1794731047665000",
            ])
            .arg(&[
                "d:theme",
                "\"dark\"",
                "d:cart",
                "[1,2,3]",
                "d:csrf",
                "\"0123456789abcdef\"",
            ])
            .exec_async(&mut bare.clone())
            .await?;
    }
    let tokens = Arc::new(tokens);
    let script = Arc::new(BareScript::new(
        "redis.call('PEXPIRE', KEYS[1], ARGV[1]) return redis.call('HGETALL', KEYS[1])",
    ));
    let ours = move |task: usize| {
        let (sessions, tokens) = (sessions.clone(), tokens.clone());
        async move {
            let session = sessions
                .load::<serde_json::Value>(&tokens[task % 64])
                .await?;
            ensure!(session.is_some());
            Ok(())
        }
    };
    let bare = bare.clone();
    let theirs = move |task: usize| {
        let (mut bare, script) = (bare.clone(), script.clone());
        async move {
            let fields: Vec<String> = script
                .key(format!("bench-hash-{}", task % 64))
                .arg(1_800_000)
                .invoke_async(&mut bare)
                .await?;
            ensure!(!fields.is_empty());
            Ok(())
        }
    };
    bench
        .rate(
            "session load + touch, 64 tasks",
            "bare EVALSHA",
            0.85,
            64,
            ours,
            theirs,
        )
        .await?;
    Ok(())
}
