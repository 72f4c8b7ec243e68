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
    let _watched = bench.watch(&server);
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
    filters(bench, &store, &server).await?;
    graph(bench, &store, &server).await
}

fn next(n: &AtomicU64) -> u64 {
    n.fetch_add(7919, Ordering::Relaxed) % 100_000
}

/// Ours also returns the previous score, and no other submission comes between the score and the rank.
///
/// The peers send ZADD and ZREVRANK in one pipeline, as anybody would who needs both: on redis-rs, which people would
/// use instead, and on our own store, so that the pattern is not credited with the wire.
async fn boards(bench: &mut Bench, store: &Store, server: &Server) -> anyhow::Result<()> {
    let board = Leaderboard::new(store, "bench", "board")?;
    let bare = redis::Client::open(server.url())?
        .get_multiplexed_async_connection()
        .await?;
    let both = |n: u64| {
        let member = format!("m{n}");
        let mut pipeline = redis::pipe();
        pipeline
            .cmd("ZADD")
            .arg("bench:bare")
            .arg("GT")
            .arg(n as f64)
            .arg(&member);
        pipeline.cmd("ZREVRANK").arg("bench:bare").arg(&member);
        pipeline
    };
    // A script costs the server more than the two commands, so the floors are below one: what is paid for the
    // promise.
    for (tasks, floor) in [(1, 0.7), (64, 0.4)] {
        let turn = Arc::new(AtomicU64::new(0));
        let (b, t) = (board.clone(), turn.clone());
        let ours = move |_| {
            let (board, n) = (b.clone(), next(&t));
            async move {
                let placed = board
                    .submit(&format!("m{n}"), n as f64, Policy::Best)
                    .await?;
                anyhow::ensure!(placed.rank > 0, "no rank");
                Ok(())
            }
        };
        let (bare, t) = (bare.clone(), turn.clone());
        let on_redis_rs = move |_| {
            let (mut bare, n) = (bare.clone(), next(&t));
            async move {
                let (_, rank): (i64, Option<u64>) = both(n).query_async(&mut bare).await?;
                anyhow::ensure!(rank.is_some(), "no rank");
                Ok(())
            }
        };
        let (s, t) = (store.clone(), turn);
        let on_our_store = move |_| {
            let (store, n) = (s.clone(), next(&t));
            async move {
                let (_, rank): (i64, Option<u64>) = store.pipeline(&both(n)).await?;
                anyhow::ensure!(rank.is_some(), "no rank");
                Ok(())
            }
        };
        let name = format!("submit and rank, {tasks} tasks");
        bench
            .rate(
                &name,
                "ZADD + ZREVRANK in one pipeline, redis-rs",
                floor,
                tasks,
                ours.clone(),
                on_redis_rs,
            )
            .await?;
        bench
            .rate(
                &name,
                "ZADD + ZREVRANK in one pipeline, our store",
                floor,
                tasks,
                ours,
                on_our_store,
            )
            .await?;
    }
    Ok(())
}

/// The delay to the server, each way. On loopback a round trip takes less time than a hundred counts; in a data centre
/// the number of round trips decides.
const LINE: Duration = Duration::from_millis(1);

/// An exact rank over a hundred shards, on loopback and from far away, against the same commands by hand.
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
        let mut pipeline = redis::pipe();
        for (n, (member, score)) in chunk.iter().enumerate() {
            let key = format!("bare:board:{}", n % 100);
            pipeline.cmd("ZADD").arg(key).arg(score).arg(member);
        }
        near.pipeline::<Vec<i64>>(&pipeline).await?;
    }
    let turn = Arc::new(AtomicU64::new(0));
    let rank = |store: &Store| {
        let (board, turn) = (board(store)?, turn.clone());
        anyhow::Ok(move |_| {
            let (board, n) = (board.clone(), next(&turn));
            async move {
                let entry = board.rank(&format!("m{n}")).await?;
                anyhow::ensure!(entry.is_some(), "no rank");
                Ok(())
            }
        })
    };
    // By hand: the score, then the counts of all shards in one pipeline.
    let by_hand = async |url: &str| {
        let bare = redis::Client::open(url)?
            .get_multiplexed_async_connection()
            .await?;
        let turn = turn.clone();
        anyhow::Ok(move |_| {
            let (mut bare, n) = (bare.clone(), next(&turn));
            async move {
                let shard = |shard: u64| format!("bare:board:{shard}");
                let mut score = redis::cmd("ZSCORE");
                score.arg(shard(n % 100)).arg(format!("m{n}"));
                let score: f64 = score.query_async(&mut bare).await?;
                let mut pipeline = redis::Pipeline::with_capacity(100);
                for number in 0..100 {
                    let from = format!("({score}");
                    pipeline
                        .cmd("ZCOUNT")
                        .arg(shard(number))
                        .arg(from)
                        .arg("+inf");
                }
                let better: Vec<u64> = pipeline.query_async(&mut bare).await?;
                let rank: u64 = better.iter().sum();
                anyhow::ensure!(rank == 100 * (999 - n % 1000), "a wrong rank");
                Ok(())
            }
        })
    };
    let peer = "ZSCORE, then 100 ZCOUNT in one pipeline, redis-rs";
    let name = "rank over 100 shards, on loopback";
    let theirs = by_hand(&server.url()).await?;
    bench.rate(name, peer, 0.7, 1, rank(&near)?, theirs).await?;
    let name = "rank over 100 shards, 1 ms away";
    let theirs = by_hand(line.url()).await?;
    bench.rate(name, peer, 0.9, 1, rank(&far)?, theirs).await
}

/// The same seven bits for each of a thousand elements, by one command per bit or by one command for all.
fn bits(n: u64) -> impl Iterator<Item = u64> {
    (0..7000).map(move |i| (n * 104_729 + i * 7_368_787) % 9_593_956)
}

/// All bits in one pipeline of SETBIT or GETBIT.
fn bit_pipeline(n: u64, write: bool) -> redis::Pipeline {
    let mut pipeline = redis::Pipeline::with_capacity(7000);
    for bit in bits(n) {
        let mut cmd = redis::Cmd::with_capacity(4, 48);
        cmd.arg(if write { "SETBIT" } else { "GETBIT" })
            .arg("bench:bits")
            .arg(bit);
        if write {
            cmd.arg(1);
        }
        pipeline.add_command(cmd);
    }
    pipeline
}

/// All bits in one BITFIELD.
fn bit_field(n: u64, write: bool) -> redis::Cmd {
    let mut cmd = redis::Cmd::with_capacity(28_002, 200_000);
    cmd.arg(if write { "BITFIELD" } else { "BITFIELD_RO" })
        .arg("bench:bits");
    for bit in bits(n) {
        if write {
            cmd.arg("SET").arg("u1").arg(bit).arg(1);
        } else {
            cmd.arg("GET").arg("u1").arg(bit);
        }
    }
    cmd
}

/// Ours also hashes the elements, checks the filter's configuration and its root, and counts what was new.
///
/// The peers compute no hashes at all, on redis-rs and on our own store.
async fn filters(bench: &mut Bench, store: &Store, server: &Server) -> anyhow::Result<()> {
    let (capacity, rate) = (1_000_000, 0.01);
    let filter = Bloom::builder(store, "bench", "filter")
        .capacity(capacity)
        .error_rate(rate)
        .mode(BloomMode::Bitmap)
        .create()
        .await?;
    let bare = redis::Client::open(server.url())?
        .get_multiplexed_async_connection()
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
                let answers = if write {
                    filter.add_many(&elements).await?
                } else {
                    filter.contains_many(&elements).await?
                };
                anyhow::ensure!(answers.len() == 1000, "not every element was answered");
                Ok(())
            }
        };
        let (c, t) = (bare.clone(), turn.clone());
        let pipeline_on_redis_rs = move |_| {
            let (mut bare, n) = (c.clone(), next(&t));
            async move {
                let bits: Vec<u8> = bit_pipeline(n, write).query_async(&mut bare).await?;
                anyhow::ensure!(bits.len() == 7000, "not every bit was answered");
                Ok(())
            }
        };
        let (s, t) = (store.clone(), turn.clone());
        let pipeline_on_our_store = move |_| {
            let (store, n) = (s.clone(), next(&t));
            async move {
                let bits: Vec<u8> = store.pipeline(&bit_pipeline(n, write)).await?;
                anyhow::ensure!(bits.len() == 7000, "not every bit was answered");
                Ok(())
            }
        };
        let (c, t) = (bare.clone(), turn.clone());
        let field_on_redis_rs = move |_| {
            let (mut bare, n) = (c.clone(), next(&t));
            async move {
                let bits: Vec<u8> = bit_field(n, write).query_async(&mut bare).await?;
                anyhow::ensure!(bits.len() == 7000, "not every bit was answered");
                Ok(())
            }
        };
        let (s, t) = (store.clone(), turn);
        let field_on_our_store = move |_| {
            let (store, n) = (s.clone(), next(&t));
            async move {
                let bits: Vec<u8> = store.query(&bit_field(n, write)).await?;
                anyhow::ensure!(bits.len() == 7000, "not every bit was answered");
                Ok(())
            }
        };
        let peer = "one pipeline of bits";
        bench
            .rate(
                name,
                &format!("{peer}, redis-rs"),
                0.7,
                1,
                ours.clone(),
                pipeline_on_redis_rs,
            )
            .await?;
        bench
            .rate(
                name,
                &format!("{peer}, our store"),
                0.7,
                1,
                ours.clone(),
                pipeline_on_our_store,
            )
            .await?;
        bench
            .rate(
                name,
                "one BITFIELD, redis-rs",
                0.45,
                1,
                ours.clone(),
                field_on_redis_rs,
            )
            .await?;
        bench
            .rate(
                name,
                "one BITFIELD, our store",
                0.45,
                1,
                ours,
                field_on_our_store,
            )
            .await?;
    }

    let exact = Bloom::builder(store, "bench", "exact")
        .capacity(100_000)
        .error_rate(rate)
        .mode(BloomMode::Bitmap)
        .create()
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
    let _ = graph.follow("fan-0", star).await?;
    let mut keys = store
        .scan(&format!("bench:graph:*:followers:{star}"))
        .await?;
    keys.pop()
        .ok_or_else(|| anyhow::anyhow!("the account has no followers"))
}
