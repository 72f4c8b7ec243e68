//! Boards, filters and graphs beside the commands that people would send by hand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redstart::{
    Store,
    membership::{Bloom, BloomMode},
    ranking::{Leaderboard, Policy, ShardedLeaderboard},
    social::Graph,
};
use redstart_testkit::{Kind, Proxy, Server};

use crate::measure::Bench;

pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    bench.note(&format!(
        "redis-server {}, redis-rs 1.8",
        server.info("redis_version").await?
    ));
    let store = Store::builder(&server.url())
        .deadline(Duration::from_secs(10))
        .connect()
        .await?;
    boards(bench, &store, &server).await?;
    shards(bench, &server).await?;
    filters(bench, &store).await?;
    graph(bench, &store, &server).await
}

fn next(n: &AtomicU64) -> u64 {
    n.fetch_add(7919, Ordering::Relaxed) % 100_000
}

async fn boards(bench: &mut Bench, store: &Store, server: &Server) -> anyhow::Result<()> {
    let board = Leaderboard::builder(store, "bench", "board").build()?;
    let turn = Arc::new(AtomicU64::new(0));
    let (b, t) = (board.clone(), turn.clone());
    let ours = move |_| {
        let (board, n) = (b.clone(), next(&t));
        async move {
            let member = format!("m{n}");
            board.submit(&member, n as f64, Policy::Best).await?;
            Ok(())
        }
    };
    let bare = redis::Client::open(server.url())?
        .get_multiplexed_async_connection()
        .await?;
    let theirs = move |_| {
        let (mut bare, n) = (bare.clone(), next(&turn));
        async move {
            let member = format!("m{n}");
            let mut add = redis::cmd("ZADD");
            add.arg("bench:bare").arg("GT").arg(n as f64).arg(&member);
            add.query_async::<i64>(&mut bare).await?;
            let mut rank = redis::cmd("ZREVRANK");
            rank.arg("bench:bare").arg(&member);
            rank.query_async::<Option<u64>>(&mut bare).await?;
            Ok(())
        }
    };
    bench
        .rate("submit and rank", "ZADD, ZREVRANK", 1.6, 1, ours, theirs)
        .await?;
    Ok(())
}

/// How long the line to the server is, each way. On loopback a round trip takes less time than a hundred
/// counts, which says nothing of the rounds that a rank takes; in a data centre it does not.
const LINE: Duration = Duration::from_millis(1);

/// An exact rank over a hundred shards against three plain round trips one after the other.
async fn shards(bench: &mut Bench, server: &Server) -> anyhow::Result<()> {
    let near = Store::connect(&server.url()).await?;
    let line = Proxy::start(server).await?;
    line.delay(LINE);
    let far = Store::connect(line.url()).await?;
    let board = |store: &Store| {
        ShardedLeaderboard::builder(store, "bench", "sharded")
            .shards(100)
            .build()
    };
    let members: Vec<(String, f64)> = (0..100_000u32)
        .map(|n| (format!("m{n}"), f64::from(n % 1000)))
        .collect();
    for chunk in members.chunks(20_000) {
        let scores = chunk
            .iter()
            .map(|(member, score)| (member.as_str(), *score));
        board(&near)?.submit_many(scores, Policy::Last).await?;
    }
    for (store, name, floor) in [
        (near, "rank over 100 shards, on loopback", 0.0),
        (far, "rank over 100 shards, 1 ms away", 1.0),
    ] {
        let (board, turn) = (board(&store)?, Arc::new(AtomicU64::new(0)));
        let ours = move |_| {
            let (board, n) = (board.clone(), next(&turn));
            async move {
                board.rank(&format!("m{n}")).await?;
                Ok(())
            }
        };
        let theirs = move |_| {
            let store = store.clone();
            async move {
                for _ in 0..3 {
                    store.query::<redis::Value>(&redis::cmd("PING")).await?;
                }
                Ok(())
            }
        };
        bench
            .rate(name, "3 round trips", floor, 1, ours, theirs)
            .await?;
    }
    Ok(())
}

async fn filters(bench: &mut Bench, store: &Store) -> anyhow::Result<()> {
    let (capacity, rate) = (1_000_000, 0.01);
    let filter = Bloom::builder(store, "bench", "filter")
        .capacity(capacity)
        .error_rate(rate)
        .mode(BloomMode::Bitmap)
        .open()
        .await?;
    for (name, write) in [
        ("add 1,000 at once", true),
        ("contains 1,000 at once", false),
    ] {
        let turn = Arc::new(AtomicU64::new(0));
        let (f, t) = (filter.clone(), turn.clone());
        let ours = move |_| {
            let (filter, n) = (f.clone(), next(&t));
            async move {
                let elements: Vec<String> = (0..1000).map(|i| format!("e{n}-{i}")).collect();
                if write {
                    filter.add_many(&elements).await?;
                } else {
                    filter.contains_many(&elements).await?;
                }
                Ok(())
            }
        };
        let (s, t) = (store.clone(), turn);
        let theirs = move |_| {
            let (store, n) = (s.clone(), next(&t));
            async move {
                // The same seven bits for each element, one command after the other.
                for i in 0..7000 {
                    let bit = (n * 104_729 + i * 7_368_787) % 9_593_956;
                    let mut cmd = redis::cmd(if write { "SETBIT" } else { "GETBIT" });
                    cmd.arg("bench:bits").arg(bit);
                    if write {
                        cmd.arg(1);
                    }
                    store.query::<u8>(&cmd).await?;
                }
                Ok(())
            }
        };
        let peer = if write {
            "SETBIT one by one"
        } else {
            "GETBIT one by one"
        };
        bench.rate(name, peer, 10.0, 1, ours, theirs).await?;
    }

    let exact = Bloom::builder(store, "bench", "exact")
        .capacity(100_000)
        .error_rate(rate)
        .mode(BloomMode::Bitmap)
        .open()
        .await?;
    let elements: Vec<String> = (0..100_000).map(|n| format!("e{n}")).collect();
    for chunk in elements.chunks(10_000) {
        exact.add_many(chunk).await?;
    }
    let stats = exact.stats().await?;
    let mut memory = 0;
    for key in store.scan("bench:bloom:{exact/*").await? {
        memory += store
            .query::<u64>(redis::cmd("MEMORY").arg("USAGE").arg(key))
            .await?;
    }
    let theory = (1.0 / rate).ln() / std::f64::consts::LN_2.powi(2) / 8.0;
    bench.note(&format!(
        "bytes an element: {:.4} in the filter, {:.4} of the server's memory, {theory:.4} in theory; \
         estimated error {:.5} of {rate}",
        stats.bits_per_element / 8.0,
        memory as f64 / 100_000.0,
        stats.estimated_error,
    ));
    Ok(())
}

/// Pages of an account with a million followers, and the longest that one held the server up.
async fn graph(bench: &mut Bench, store: &Store, server: &Server) -> anyhow::Result<()> {
    let graph = Graph::new(store, "bench", "graph")?;
    for (star, size) in [("small", 2_000u64), ("large", 1_000_000)] {
        let key = store_key(store, &graph, star).await?;
        for from in (1..size).step_by(20_000) {
            let mut add = redis::cmd("ZADD");
            add.arg(&key);
            for n in from..(from + 20_000).min(size) {
                add.arg(n).arg(format!("fan-{n}"));
            }
            store.query::<u64>(&add).await?;
        }
    }
    server
        .command(&["CONFIG", "SET", "slowlog-log-slower-than", "5000"])
        .await?;
    server.command(&["SLOWLOG", "RESET"]).await?;
    let read = |star: &'static str, pages: usize| {
        let graph = graph.clone();
        async move {
            let (mut from, started) = (None, Instant::now());
            for _ in 0..pages {
                let page = graph.followers(star, from.as_ref(), 100).await?;
                from = page.next;
            }
            anyhow::Ok(pages as f64 / started.elapsed().as_secs_f64())
        }
    };
    let (large, small) = (read("large", 1000).await?, read("small", 1000).await?);
    bench.row(
        "a page of 1,000,000 followers",
        "of 2,000",
        large,
        small,
        0.5,
    );
    let slow: u64 = server.query(&["SLOWLOG", "LEN"]).await?;
    bench.note(&format!(
        "of 2,000 pages, {slow} held the server up for over 5 ms"
    ));
    Ok(())
}

/// The key of an account's followers, found by following once.
async fn store_key(store: &Store, graph: &Graph, star: &str) -> anyhow::Result<String> {
    graph.follow("fan-0", star).await?;
    let mut keys = store
        .scan(&format!("bench:graph:*:followers:{star}"))
        .await?;
    keys.pop()
        .ok_or_else(|| anyhow::anyhow!("the account has no followers"))
}
