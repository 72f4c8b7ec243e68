//! The token bucket against the classic script: HMGET, HMSET and EXPIRE, on the client's clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{Script, aio::MultiplexedConnection};
use redstart::{
    Store,
    limiting::{Limiter, Quota},
};
use redstart_testkit::{Kind, Server};

use crate::measure::Bench;

const TASKS: usize = 64;
const PEER: &str = "classic script";

/// The token bucket of many published scripts: tokens and time in a hash, refilled by the client's seconds.
const CLASSIC: &str = "
local capacity, rate = tonumber(ARGV[1]), tonumber(ARGV[2])
local now, wanted = tonumber(ARGV[3]), tonumber(ARGV[4])
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'time')
local tokens = tonumber(bucket[1]) or capacity
local time = tonumber(bucket[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - time) * rate)
local allowed = tokens >= wanted
if allowed then tokens = tokens - wanted end
redis.call('HMSET', KEYS[1], 'tokens', tokens, 'time', now)
redis.call('EXPIRE', KEYS[1], math.ceil(capacity / rate) + 1)
return { allowed and 1 or 0, tokens }
";

#[derive(Clone)]
struct Classic {
    connection: MultiplexedConnection,
    script: std::sync::Arc<Script>,
    capacity: f64,
    rate: f64,
}

impl Classic {
    async fn take(&mut self, key: &str) -> anyhow::Result<bool> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let (allowed, _): (u32, f64) = self
            .script
            .key(key)
            .arg(self.capacity)
            .arg(self.rate)
            .arg(now)
            .arg(1)
            .invoke_async(&mut self.connection)
            .await?;
        Ok(allowed == 1)
    }
}

pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    bench.note(&format!(
        "redis-server {}, redis-rs 1.8, {TASKS} tasks on one connection, one subject each",
        server.info("redis_version").await?
    ));
    let store = Store::connect(&server.url()).await?;
    let client = redis::Client::open(server.url())?;
    let connection = client.get_multiplexed_async_connection().await?;
    let classic = |capacity, rate| Classic {
        connection: connection.clone(),
        script: std::sync::Arc::new(Script::new(CLASSIC)),
        capacity,
        rate,
    };
    let bucket = |name: &str, quota| Limiter::token_bucket(&store, "bench", name, quota);

    // Large enough that it never runs out.
    let whole = bucket("whole", Quota::per_second(1000).burst(1 << 30)).build()?;
    let exact = bucket("exact", Quota::per_second(1500).burst(1 << 30)).build()?;
    let plenty = classic(f64::from(1 << 30), 1000.0);
    for (name, limiter, floor) in [
        ("token bucket, whole milliseconds, allowed", whole, 1.4),
        ("token bucket, any rate, allowed", exact, 1.0),
    ] {
        compare(bench, name, floor, limiter, plenty.clone(), true).await?;
    }

    // One token in 20 days, which is taken.
    let rare = Quota::per(1, Duration::from_secs(20 * 24 * 3600));
    let odd = Quota::per(1, Duration::from_micros(20 * 24 * 3_600_000_000 + 7));
    let empty = classic(1.0, 1.0 / 1_728_000.0);
    let refusing = [
        (
            "token bucket, whole milliseconds, refused",
            bucket("rare", rare).build()?,
            1.8,
        ),
        (
            "token bucket, any rate, refused",
            bucket("odd", odd).build()?,
            1.0,
        ),
        (
            "token bucket, refused by the deny cache",
            bucket("denied", rare).deny_cache(1000).build()?,
            30.0,
        ),
    ];
    for task in 0..TASKS {
        empty.clone().take(&subject(task)).await?;
    }
    for (name, limiter, floor) in refusing {
        for task in 0..TASKS {
            drop(limiter.check(&subject(task), 1).await?);
        }
        compare(bench, name, floor, limiter, empty.clone(), false).await?;
    }
    let many = bucket("many", Quota::per_second(1000).burst(1 << 30)).build()?;
    compare_many(bench, many).await
}

/// 64 subjects in one call against 64 calls.
async fn compare_many(bench: &mut Bench, limiter: Limiter) -> anyhow::Result<()> {
    let subjects: std::sync::Arc<[String]> = (0..TASKS).map(subject).collect();
    let (all, one_by_one) = (limiter.clone(), limiter);
    let ours = {
        let subjects = subjects.clone();
        move |_| {
            let (limiter, subjects) = (all.clone(), subjects.clone());
            async move {
                let requests: Vec<(&str, u64)> = subjects.iter().map(|s| (s.as_str(), 1)).collect();
                for decision in limiter.check_many(&requests).await {
                    anyhow::ensure!(decision?.is_allowed(), "not as planned");
                }
                Ok(())
            }
        }
    };
    let theirs = move |_| {
        let (limiter, subjects) = (one_by_one.clone(), subjects.clone());
        async move {
            for subject in subjects.iter() {
                anyhow::ensure!(
                    limiter.check(subject, 1).await?.is_allowed(),
                    "not as planned"
                );
            }
            Ok(())
        }
    };
    let name = "64 subjects in one call, a call after the other";
    bench
        .rate(name, "single checks", 5.0, 1, ours, theirs)
        .await
}

fn subject(task: usize) -> String {
    format!("user:{task}")
}

async fn compare(
    bench: &mut Bench,
    name: &str,
    floor: f64,
    limiter: Limiter,
    classic: Classic,
    allowed: bool,
) -> anyhow::Result<()> {
    let subjects: std::sync::Arc<[String]> = (0..TASKS).map(subject).collect();
    // The peer has keys of its own for each comparison of the same kind.
    let keys: std::sync::Arc<[String]> = (0..TASKS)
        .map(|task| match allowed {
            true => format!("classic:{}", subject(task)),
            false => subject(task),
        })
        .collect();
    let ours = move |task: usize| {
        let (limiter, subjects) = (limiter.clone(), subjects.clone());
        async move {
            let decision = limiter.check(&subjects[task], 1).await?;
            anyhow::ensure!(decision.is_allowed() == allowed, "not as planned");
            Ok(())
        }
    };
    let theirs = move |task: usize| {
        let (mut classic, keys) = (classic.clone(), keys.clone());
        async move {
            anyhow::ensure!(
                classic.take(&keys[task]).await? == allowed,
                "not as planned"
            );
            Ok(())
        }
    };
    bench.rate(name, PEER, floor, TASKS, ours, theirs).await?;
    Ok(())
}
