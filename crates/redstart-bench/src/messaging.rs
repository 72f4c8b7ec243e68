//! The job queue beside a bare stream loop and two well-known queues; sessions beside plain commands.
//!
//! No-op jobs, one server, concurrency 100. The bare loop has three consumers, each reads 100 entries by XREADGROUP and sends
//! XACK and XDEL for all of them in one pipeline: no retries, no leases, no fence, no attempts, no dead letters. Each
//! contestant drains a backlog; the clock stops when the last job is finished and acknowledged. bullmq runs with the same
//! concurrency; apalis fetches 100 at once, as its guide advises for throughput, and keeps no results.

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
use redis::aio::MultiplexedConnection;
use redstart::{
    Store,
    messaging::{Job, JobContext, Queue},
    sessions::Sessions,
};
use redstart_testkit::{Kind, Server};
use serde::{Deserialize, Serialize};

use crate::{
    measure::{Bench, Unit},
    peer::Line,
};

const CONCURRENCY: usize = 100;
/// What the fast contestants drain, and the slow ones, in a round.
const MANY: u64 = 100_000;
const FEW: u64 = 4_000;
const ROUNDS: usize = 10;

#[derive(Serialize, Deserialize)]
struct Noop {
    n: u64,
}

impl Job for Noop {
    const NAME: &'static str = "noop";
}

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let _watched = bench.watch(&server);
    bench.note(&format!(
        "redis-server {}, redis-rs 1.8, bullmq-official 1.4, apalis-redis 1.0",
        server.info("redis_version").await?
    ));
    let url = server.url();
    let store = Store::connect(&url).await?;
    let bare = redis::Client::open(url.as_str())?
        .get_multiplexed_async_connection()
        .await?;

    let (mut add_ours, mut add_bare, mut ours, mut loops) = (vec![], vec![], vec![], vec![]);
    let mut watched = vec![];
    for round in 0..=ROUNDS {
        let plain = redstart(&store, round, MANY, false);
        let watching = redstart(&store, 50 + round, MANY, true);
        let bare = stream_loop(&bare, round, MANY);
        // Each is the first as often as the last.
        let ((enqueue, drain), (xadd, read), (_, with_events)) = if round % 2 == 0 {
            (plain.await?, bare.await?, watching.await?)
        } else {
            let (watching, bare) = (watching.await?, bare.await?);
            (plain.await?, bare, watching)
        };
        // The first round warms up.
        if round > 0 {
            add_ours.push(enqueue);
            add_bare.push(xadd);
            ours.push(drain);
            watched.push(with_events);
            loops.push(read);
        }
    }
    let peer = "pipelined XADD, four in flight";
    bench.rounds_of("enqueue_many", peer, 0.4, add_ours, add_bare);
    let peer = "XREADGROUP + XACK/XDEL, three consumers";
    bench.rounds_of("drain 100k jobs", peer, 0.3, ours.clone(), loops.clone());
    let name = "drain 100k jobs, events and history on";
    bench.rounds_of(name, peer, 0.3, watched.clone(), loops);
    let name = "events and history of 100k jobs";
    bench.rounds_of(name, "off", 0.95, watched, ours);
    let (mut bull, mut apalis, mut few) = (vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        few.push(redstart(&store, 100 + round, FEW, false).await?.1);
        bull.push(bullmq(&url, round, FEW).await?);
        apalis.push(apalis_redis(&url, round, FEW).await?);
    }
    bench.rounds_of("drain 4k jobs", "bullmq-official", 3.0, few.clone(), bull);
    bench.rounds_of("drain 4k jobs", "apalis-redis", 3.0, few, apalis);
    backlog(bench).await?;
    single(bench, &store, &server).await?;
    wake_up(bench, &url).await?;
    session(bench, &store, &server).await
}

/// What a reservation costs while very many jobs wait, beside a queue in which no more wait than are drained: plain jobs, and
/// those of one group.
async fn backlog(bench: &mut Bench) -> Result<()> {
    const WAITING: u64 = 1_000_000;
    const DRAINED: u64 = 20_000;
    // They are all that this server has, and end with it.
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    for (name, group) in [
        ("drain 20k jobs of 10^6 that wait", None),
        ("drain 20k jobs of 10^6 that wait in one group", Some("g")),
    ] {
        let part = group.unwrap_or("plain");
        let full = Queue::new(&store, "bench", &format!("full-{part}"))?;
        let small = Queue::new(&store, "bench", &format!("small-{part}"))?;
        fill(&full, group, WAITING).await?;
        let (mut many, mut few) = (vec![], vec![]);
        for round in 0..=ROUNDS {
            fill(&small, group, DRAINED).await?;
            let (of_many, of_few) = if round % 2 == 0 {
                let of_many = drain_some(&full, DRAINED).await?;
                (of_many, drain_some(&small, DRAINED).await?)
            } else {
                let of_few = drain_some(&small, DRAINED).await?;
                (drain_some(&full, DRAINED).await?, of_few)
            };
            // The first round warms up.
            if round > 0 {
                many.push(of_many);
                few.push(of_few);
            }
        }
        bench.rounds_of(name, "of 20k", 0.83, many, few);
        let mut clear = redis::cmd("FLUSHALL");
        clear.arg("SYNC");
        store.query::<()>(&clear).await?;
    }
    Ok(())
}

async fn fill(queue: &Queue, group: Option<&str>, count: u64) -> Result<()> {
    let mut enqueue = queue.enqueue_many((0..count).map(|n| Noop { n }));
    if let Some(group) = group {
        enqueue = enqueue.group(group);
    }
    ensure!(enqueue.await?.added.len() as u64 == count);
    Ok(())
}

/// The rate at which this many jobs are run, of all that wait.
async fn drain_some(queue: &Queue, count: u64) -> Result<f64> {
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
    all.recv().await.context("the jobs")?;
    let rate = rate(count, started);
    worker.shutdown(Duration::from_secs(10)).await?;
    Ok(rate)
}

/// One job per call, as a request handler enqueues it.
async fn single(bench: &mut Bench, store: &Store, server: &Server) -> Result<()> {
    let queue = Queue::new(store, "bench", "single")?;
    let ours = move |task: usize| {
        let queue = queue.clone();
        async move {
            queue.enqueue(&Noop { n: task as u64 }).await?;
            Ok(())
        }
    };
    for line in Line::all(server, store).await? {
        let peer = line.name("XADD");
        let theirs = move |task: usize| {
            let mut line = line.clone();
            async move {
                let payload = serde_json::to_vec(&Noop { n: task as u64 })?;
                let mut add = redis::cmd("XADD");
                add.arg("bench-single").arg("*").arg("noop").arg(payload);
                line.query::<()>(&add).await
            }
        };
        let name = "enqueue, 64 tasks";
        bench
            .rate(name, &peer, 0.15, 64, ours.clone(), theirs)
            .await?;
    }
    Ok(())
}

fn rate(count: u64, started: Instant) -> f64 {
    count as f64 / started.elapsed().as_secs_f64()
}

/// Enqueues and drains; the rates of both. A queue that is watched keeps events and a history.
async fn redstart(store: &Store, round: usize, count: u64, watched: bool) -> Result<(f64, f64)> {
    let mut queue = Queue::builder(store, "bench", &format!("noop-{round}"));
    if watched {
        queue = queue.keep_events(10_000).history(Duration::from_secs(3600));
    }
    let queue = queue.build()?;
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

async fn stream_loop(bare: &MultiplexedConnection, round: usize, count: u64) -> Result<(f64, f64)> {
    use futures_util::{StreamExt as _, TryStreamExt as _};
    let key = format!("bench-stream-{round}");
    let mut chunks = Vec::new();
    let started = Instant::now();
    for first in (0..count).step_by(1000) {
        let (mut bare, key) = (bare.clone(), key.clone());
        chunks.push(async move {
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
            anyhow::Ok(ids.len() as u64)
        });
    }
    let added: Vec<u64> = futures_util::stream::iter(chunks)
        .buffer_unordered(4)
        .try_collect()
        .await?;
    ensure!(added.iter().sum::<u64>() == count);
    let xadd = rate(count, started);
    let mut create = redis::cmd("XGROUP");
    create.arg("CREATE").arg(&key).arg("g").arg("0");
    create.exec_async(&mut bare.clone()).await?;
    let done = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut consumers = tokio::task::JoinSet::new();
    for consumer in 0..3 {
        consumers.spawn(consume(
            bare.clone(),
            key.clone(),
            consumer,
            done.clone(),
            count,
        ));
    }
    while let Some(ended) = consumers.join_next().await {
        ended??;
    }
    let read = rate(count, started);
    let mut bare = bare.clone();
    redis::cmd("DEL").arg(&key).exec_async(&mut bare).await?;
    Ok((xadd, read))
}

/// One consumer of a bare loop, until all are done.
async fn consume(
    mut bare: MultiplexedConnection,
    key: String,
    consumer: u32,
    done: Arc<AtomicU64>,
    count: u64,
) -> Result<()> {
    type Entries = Option<Vec<(String, Vec<(String, Vec<Vec<u8>>)>)>>;
    while done.load(Ordering::Relaxed) < count {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("g").arg(consumer);
        read.arg("COUNT").arg(CONCURRENCY);
        read.arg("STREAMS").arg(&key).arg(">");
        let entries: Entries = read.query_async(&mut bare).await?;
        let Some(entries) = entries else {
            return Ok(());
        };
        let entries: Vec<_> = entries
            .into_iter()
            .flat_map(|(_, entries)| entries)
            .collect();
        for (_, fields) in &entries {
            let _: Noop = serde_json::from_slice(&fields[1])?;
        }
        let ids: Vec<&String> = entries.iter().map(|(id, _)| id).collect();
        let mut pipeline = redis::pipe();
        pipeline.cmd("XACK").arg(&key).arg("g").arg(&ids);
        pipeline.cmd("XDEL").arg(&key).arg(&ids);
        pipeline.exec_async(&mut bare).await?;
        done.fetch_add(ids.len() as u64, Ordering::Relaxed);
    }
    Ok(())
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
    let config = apalis_redis::Config::default()
        .queue(format!("bench-apalis-{round}"))
        .batch_size(100)
        .persist_results(false)
        .emit_events(false);
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

/// From enqueue to start on an idle worker with its own connections, beside a bare LPUSH to a consumer in BLMOVE: the wait
/// without leases, attempts or fences.
async fn wake_up(bench: &mut Bench, url: &str) -> Result<()> {
    const WAKES: u64 = 200;
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
    let client = redis::Client::open(url)?;
    let mut pusher = client.get_multiplexed_async_connection().await?;
    // A blocking read needs a connection of its own without a time-out.
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let mut taker = client
        .get_multiplexed_async_connection_with_config(&patient)
        .await?;
    let (came, mut comes) = tokio::sync::mpsc::unbounded_channel();
    let taking = tokio::spawn(async move {
        loop {
            let mut take = redis::cmd("BLMOVE");
            take.arg("bare:wake")
                .arg("bare:taken")
                .arg("RIGHT")
                .arg("LEFT")
                .arg(0);
            let item: Vec<u8> = take.query_async(&mut taker).await?;
            let _: Noop = serde_json::from_slice(&item)?;
            if came.send(Instant::now()).is_err() {
                return anyhow::Ok(());
            }
        }
    });
    let (mut ours, mut theirs) = ([vec![], vec![]], [vec![], vec![]]);
    for _ in 0..10 {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for n in 0..WAKES {
            // Long enough for both to be idle again.
            tokio::time::sleep(Duration::from_millis(2)).await;
            let asked = Instant::now();
            queue.enqueue(&Noop { n }).await?;
            let began = starts.recv().await.context("a start")?;
            a.push(began.saturating_duration_since(asked).as_secs_f64() * 1e6);
            tokio::time::sleep(Duration::from_millis(2)).await;
            let payload = serde_json::to_vec(&Noop { n })?;
            let asked = Instant::now();
            let mut push = redis::cmd("LPUSH");
            push.arg("bare:wake")
                .arg(payload)
                .exec_async(&mut pusher)
                .await?;
            let began = comes.recv().await.context("an item")?;
            b.push(began.saturating_duration_since(asked).as_secs_f64() * 1e6);
        }
        for (all, mut times) in [(&mut ours, a), (&mut theirs, b)] {
            times.sort_by(f64::total_cmp);
            all[0].push(times[times.len() / 2]);
            all[1].push(times[times.len() * 99 / 100]);
        }
    }
    worker.shutdown(Duration::from_secs(5)).await?;
    taking.abort();
    let titles = [
        ("enqueue to start, p50", 0.15),
        ("enqueue to start, p99", 0.15),
    ];
    for (((name, floor), ours), theirs) in titles.into_iter().zip(ours).zip(theirs) {
        bench.costs_of(
            name,
            "LPUSH to BLMOVE, redis-rs",
            Unit::Micros,
            floor,
            ours,
            theirs,
        );
    }
    Ok(())
}

/// A session is loaded: when its idle time-out was renewed a moment ago, and when a renewal is due. Ours also checks the
/// token's digest, the absolute end and the rotation's grace.
async fn session(bench: &mut Bench, store: &Store, server: &Server) -> Result<()> {
    // The sessions are visited in turn. With this many, none is visited twice within the second that needs no renewal.
    for (name, count, touch, floor) in [
        ("session load, 64 tasks", 64, "PTTL", 0.45),
        (
            "session load, renewal due, 64 tasks",
            60_000,
            "PEXPIRE",
            0.18,
        ),
    ] {
        let sessions = Sessions::new(store, "bench", &format!("web{count}"))?;
        let data =
            serde_json::json!({ "theme": "dark", "cart": [1, 2, 3], "csrf": "0123456789abcdef" });
        let mut tokens = Vec::with_capacity(count);
        for first in (0..count).step_by(64) {
            let made = (first..count.min(first + 64)).map(|n| {
                let (sessions, data) = (sessions.clone(), &data);
                async move { sessions.create(&format!("user-{n}"), data).await }
            });
            tokens.extend(futures_util::future::try_join_all(made).await?);
            let mut pipeline = redis::pipe();
            for n in first..count.min(first + 64) {
                pipeline
                    .cmd("HSET")
                    .arg(format!("bench-hash-{n}"))
                    .arg(FIELDS);
                pipeline
                    .cmd("PEXPIRE")
                    .arg(format!("bench-hash-{n}"))
                    .arg(1_800_000);
            }
            let _: Vec<i64> = store.pipeline(&pipeline).await?;
        }
        let (tokens, turn) = (Arc::new(tokens), Arc::new(AtomicU64::new(0)));
        let next = turn.clone();
        let ours = move |_| {
            let (sessions, tokens) = (sessions.clone(), tokens.clone());
            let n = next.fetch_add(1, Ordering::Relaxed) as usize % tokens.len();
            async move {
                let session = sessions.load::<serde_json::Value>(&tokens[n]).await?;
                ensure!(session.is_some());
                Ok(())
            }
        };
        for line in Line::all(server, store).await? {
            let peer = line.name(&format!("HGETALL + {touch}"));
            let turn = turn.clone();
            let theirs = move |_| {
                let mut line = line.clone();
                let n = turn.fetch_add(1, Ordering::Relaxed) as usize % count;
                async move {
                    let key = format!("bench-hash-{n}");
                    let mut pipeline = redis::pipe();
                    pipeline.cmd("HGETALL").arg(&key).cmd(touch).arg(&key);
                    if touch == "PEXPIRE" {
                        pipeline.arg(1_800_000);
                    }
                    let (fields, _): (Vec<(String, String)>, i64) =
                        line.pipeline(&pipeline).await?;
                    let data: serde_json::Map<String, serde_json::Value> = fields
                        .into_iter()
                        .filter_map(|(name, value)| {
                            let name = name.strip_prefix("d:")?.to_owned();
                            Some(serde_json::from_str(&value).map(|value| (name, value)))
                        })
                        .collect::<Result<_, _>>()?;
                    ensure!(data.len() == 3);
                    Ok(())
                }
            };
            bench
                .rate(name, &peer, floor, 64, ours.clone(), theirs)
                .await?;
        }
    }
    Ok(())
}

/// What a session's hash has by hand: who, three times, and three fields of the application.
const FIELDS: &[&str] = &[
    "user",
    "u",
    "created",
    "1794731047665000",
    "until",
    "1794731047665000",
    "ends",
    "1794731047665000",
    "d:theme",
    "\"dark\"",
    "d:cart",
    "[1,2,3]",
    "d:csrf",
    "\"0123456789abcdef\"",
];
