//! A write-behind cache over SQLite, and over a stream with a batching writer by hand.
//!
//! Both keep what waits in the server, and write to a file of their own with the same settings. By hand: XADD, one consumer that
//! reads up to 500 entries, keeps the last of each key, upserts them in one transaction with a prepared statement, and sends
//! XACK and XDEL in one pipeline. Ours also makes a value readable at once, keeps the order of a key under several workers,
//! fences a worker that stood still, and buries rows that the database refuses.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use redis::aio::MultiplexedConnection;
use redstart::{
    Store,
    caching::{Put, SqlSink, WriteBehind},
};
use redstart_testkit::{Kind, Server};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};

use crate::measure::Bench;

const WRITES: u64 = 10_000;
const TASKS: u64 = 64;
const ROUNDS: usize = 10;
const LONG: Duration = Duration::from_secs(60);

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let version = server.info("redis_version").await?;
    bench.note(&format!(
        "redis-server {version}, SQLite by sqlx 0.9 in a file, WAL, synchronous FULL"
    ));
    let store = Store::connect(&server.url()).await?;
    let bare = redis::Client::open(server.url())?
        .get_multiplexed_async_connection()
        .await?;
    for (name, keys) in [
        ("write-behind to SQLite, a row each", WRITES),
        ("write-behind to SQLite, 100 hot rows", 100),
    ] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let (a, b) = if round % 2 == 0 {
                let a = write_behind(&store, server.dir(), round, keys).await?;
                (a, by_hand(&bare, server.dir(), round, keys).await?)
            } else {
                let b = by_hand(&bare, server.dir(), round, keys).await?;
                (write_behind(&store, server.dir(), round, keys).await?, b)
            };
            // The first round warms up.
            if round > 0 {
                ours.push(a);
                theirs.push(b);
            }
        }
        bench.rounds_of(
            name,
            "XADD and a batching writer, redis-rs",
            0.3,
            ours,
            theirs,
        );
    }
    Ok(())
}

async fn open(dir: &Path, name: &str) -> Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(dir.join(name))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePoolOptions::new().max_connections(1);
    Ok(pool.connect_with(options).await?)
}

/// Writes per second until all of them are in the database.
async fn write_behind(store: &Store, dir: &Path, round: usize, keys: u64) -> Result<f64> {
    let pool = open(dir, &format!("ours-{keys}-{round}.db")).await?;
    let sink = SqlSink::sqlite(pool.clone(), "scores")?
        .column("score", |score: &u64| (*score).into())
        .reads(|row| row.integer(0).and_then(|score| u64::try_from(score).ok()));
    sink.create_tables().await?;
    let rows = WriteBehind::<u64, u64>::builder(store, "bench", &format!("{keys}-{round}"), sink)
        .batch(500)
        .max_lag(WRITES * 2)
        .build()?;
    let worker = rows.work()?;
    let started = Instant::now();
    let writers = (0..TASKS).map(|task| {
        let rows = rows.clone();
        async move {
            for n in (task..WRITES).step_by(TASKS as usize) {
                let put = rows.put(&(n % keys), &n).await?;
                ensure!(matches!(put, Put::Accepted(_)), "the log is full");
            }
            Ok(())
        }
    });
    futures_util::future::try_join_all(writers).await?;
    rows.flush(LONG).await?;
    let rate = WRITES as f64 / started.elapsed().as_secs_f64();
    worker.stop().await;
    check(&pool, keys).await?;
    Ok(rate)
}

/// Every row is there.
async fn check(pool: &SqlitePool, keys: u64) -> Result<()> {
    let (count,): (i64,) = sqlx::query_as("SELECT COUNT(*) FROM scores")
        .fetch_one(pool)
        .await?;
    ensure!(u64::try_from(count)? == keys, "{count} rows of {keys}");
    Ok(())
}

async fn by_hand(bare: &MultiplexedConnection, dir: &Path, round: usize, keys: u64) -> Result<f64> {
    let pool = open(dir, &format!("hand-{keys}-{round}.db")).await?;
    sqlx::query("CREATE TABLE scores (key TEXT PRIMARY KEY, score BIGINT NOT NULL)")
        .execute(&pool)
        .await?;
    let stream = format!("hand:{keys}:{round}");
    let mut create = redis::cmd("XGROUP");
    create
        .arg("CREATE")
        .arg(&stream)
        .arg("g")
        .arg("0")
        .arg("MKSTREAM");
    create.exec_async(&mut bare.clone()).await?;
    let written = Arc::new(AtomicBool::new(false));
    let consumer = tokio::spawn(consume(
        bare.clone(),
        stream.clone(),
        pool.clone(),
        written.clone(),
    ));
    let started = Instant::now();
    let writers = (0..TASKS).map(|task| {
        let (mut bare, stream) = (bare.clone(), stream.clone());
        async move {
            for n in (task..WRITES).step_by(TASKS as usize) {
                let mut add = redis::cmd("XADD");
                add.arg(&stream)
                    .arg("*")
                    .arg("k")
                    .arg(n % keys)
                    .arg("v")
                    .arg(n);
                add.exec_async(&mut bare).await?;
            }
            anyhow::Ok(())
        }
    });
    futures_util::future::try_join_all(writers).await?;
    written.store(true, Ordering::Release);
    consumer.await??;
    let rate = WRITES as f64 / started.elapsed().as_secs_f64();
    redis::cmd("DEL")
        .arg(&stream)
        .exec_async(&mut bare.clone())
        .await?;
    check(&pool, keys).await?;
    Ok(rate)
}

/// Reads and applies until everything was written and nothing is left.
async fn consume(
    mut bare: MultiplexedConnection,
    stream: String,
    pool: SqlitePool,
    written: Arc<AtomicBool>,
) -> Result<()> {
    type Entries = Option<Vec<(String, Vec<(String, Vec<String>)>)>>;
    loop {
        let last = written.load(Ordering::Acquire);
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("g").arg("one").arg("COUNT").arg(500);
        read.arg("STREAMS").arg(&stream).arg(">");
        let entries: Entries = read.query_async(&mut bare).await?;
        let entries: Vec<_> = entries.into_iter().flatten().flat_map(|(_, e)| e).collect();
        if entries.is_empty() {
            if last {
                return Ok(());
            }
            tokio::task::yield_now().await;
            continue;
        }
        let mut newest = HashMap::new();
        for (_, fields) in &entries {
            let [_, key, _, value] = fields.as_slice() else {
                anyhow::bail!("an entry has a key and a value");
            };
            newest.insert(key, value.parse::<i64>().context("a number")?);
        }
        let mut transaction = pool.begin().await?;
        for (key, value) in newest {
            sqlx::query("INSERT INTO scores VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET score = excluded.score")
                .bind(key)
                .bind(value)
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        let ids: Vec<&String> = entries.iter().map(|(id, _)| id).collect();
        let mut done = redis::pipe();
        done.cmd("XACK").arg(&stream).arg("g").arg(&ids);
        done.cmd("XDEL").arg(&stream).arg(&ids);
        done.exec_async(&mut bare).await?;
    }
}
