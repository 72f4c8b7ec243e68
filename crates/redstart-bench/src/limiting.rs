//! The limiters against the scripts that people copy.
//!
//! Peers: the classic token bucket (HMGET, HMSET, EXPIRE on the client's clock), GCRA as redis_rate has it (one string, the
//! server's clock), and the counter of rate-limiter-flexible (SET NX, INCRBY, PTTL). All of them are cached scripts, as their
//! users run them. Ours also returns how long a refused caller has to wait, exact to the millisecond.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use redis::Script;
use redstart::{
    Store,
    limiting::{Limiter, Quota},
};
use redstart_testkit::{Kind, Server};

use crate::{measure::Bench, peer::Line};

const TASKS: usize = 64;

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
return { allowed and 1 or 0, tostring(tokens) }
";

/// The generic cell rate algorithm: the theoretical time of the next arrival in one string, on the server's clock.
const GCRA: &str = "
local interval, tolerance, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local arrival = math.max(tonumber(redis.call('GET', KEYS[1])) or now, now)
local after = arrival + interval * wanted
local early = after - tolerance - now
if early > 0 then return { 0, early } end
redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', math.ceil((after - now) / 1000))
return { 1, 0 }
";

/// A fixed window as rate-limiter-flexible counts it.
const COUNTER: &str = "
redis.call('SET', KEYS[1], 0, 'EX', ARGV[2], 'NX')
local used = redis.call('INCRBY', KEYS[1], ARGV[1])
return { used, redis.call('PTTL', KEYS[1]) }
";

/// A limiter written by hand.
#[derive(Clone)]
struct ByHand {
    name: &'static str,
    line: Line,
    script: Arc<Script>,
    rule: Rule,
}

#[derive(Clone, Copy)]
enum Rule {
    Classic { capacity: f64, rate: f64 },
    Gcra { interval: u64, tolerance: u64 },
    Counter { limit: u64, seconds: u64 },
}

impl ByHand {
    fn new(line: &Line, rule: Rule) -> Self {
        let (name, source) = match rule {
            Rule::Classic { .. } => ("classic script", CLASSIC),
            Rule::Gcra { .. } => ("GCRA script", GCRA),
            Rule::Counter { .. } => ("counter script", COUNTER),
        };
        Self {
            name,
            line: line.clone(),
            script: Arc::new(Script::new(source)),
            rule,
        }
    }

    async fn take(&mut self, key: &str) -> anyhow::Result<bool> {
        let mut call = self.script.key(key);
        Ok(match self.rule {
            Rule::Classic { capacity, rate } => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
                call.arg(capacity).arg(rate).arg(now).arg(1);
                let (allowed, _): (u32, f64) = self.line.script(&call).await?;
                allowed == 1
            }
            Rule::Gcra {
                interval,
                tolerance,
            } => {
                call.arg(interval).arg(tolerance).arg(1);
                let (allowed, _): (u32, u64) = self.line.script(&call).await?;
                allowed == 1
            }
            Rule::Counter { limit, seconds } => {
                call.arg(1).arg(seconds);
                let (used, _): (u64, i64) = self.line.script(&call).await?;
                used <= limit
            }
        })
    }
}

/// A burst that never runs out.
const PLENTY: u64 = 1 << 30;
const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let _watched = bench.watch(&server);
    bench.note(&format!(
        "redis-server {}, redis-rs 1.8, {TASKS} tasks on one connection, one subject each",
        server.info("redis_version").await?
    ));
    let store = Store::connect(&server.url()).await?;
    let lines = Line::all(&server, &store).await?;
    let bucket = |name: &str, quota| Limiter::token_bucket(&store, "bench", name, quota);

    let allowed = [
        (
            "token bucket, whole milliseconds, allowed",
            bucket("whole", Quota::per_second(1000).burst(PLENTY)).build()?,
        ),
        (
            "token bucket, any rate, allowed",
            bucket("exact", Quota::per_second(1500).burst(PLENTY)).build()?,
        ),
    ];
    for (n, (name, limiter)) in allowed.into_iter().enumerate() {
        // The second form computes in exact fractions.
        let floors = if n == 0 { [1.3, 1.1] } else { [1.0, 0.7] };
        for line in &lines {
            let classic = Rule::Classic {
                capacity: PLENTY as f64,
                rate: 1000.0,
            };
            let gcra = Rule::Gcra {
                interval: 1000,
                tolerance: 1000 * PLENTY,
            };
            for (rule, floor) in [(classic, floors[0]), (gcra, floors[1])] {
                let peer = ByHand::new(line, rule);
                compare(bench, name, floor, limiter.clone(), peer, true).await?;
            }
        }
    }
    let window =
        Limiter::fixed_window(&store, "bench", "window", Quota::per(PLENTY, DAY)).build()?;
    for line in &lines {
        let counter = Rule::Counter {
            limit: u64::MAX,
            seconds: DAY.as_secs(),
        };
        let peer = ByHand::new(line, counter);
        compare(
            bench,
            "fixed window, allowed",
            0.6,
            window.clone(),
            peer,
            true,
        )
        .await?;
    }
    refused(bench, &store, &lines).await?;
    let many = bucket("many", Quota::per_second(1000).burst(PLENTY)).build()?;
    compare_many(bench, many).await?;
    leased(bench, &store).await
}

/// One hot subject, whose units come in blocks: against the same limiter without blocks.
async fn leased(bench: &mut Bench, store: &Store) -> anyhow::Result<()> {
    let bucket =
        |name: &str| Limiter::token_bucket(store, "bench", name, Quota::per_second(50_000_000));
    let check = |limiter: Limiter| {
        move |_| {
            let limiter = limiter.clone();
            async move {
                let decision = limiter.check("hot", 1).await?;
                anyhow::ensure!(decision.is_allowed(), "not as planned");
                Ok(())
            }
        }
    };
    let ours = check(bucket("leased").lease_blocks(1_000_000).build()?);
    let theirs = check(bucket("asked").build()?);
    let (name, peer) = (
        "token bucket in blocks, one hot subject (in process)",
        "the same, asked each time",
    );
    bench.rate(name, peer, 20.0, TASKS, ours, theirs).await
}

/// One token in 20 days, which is taken.
async fn refused(bench: &mut Bench, store: &Store, lines: &[Line]) -> anyhow::Result<()> {
    let rare = Quota::per(1, DAY * 20);
    let odd = Quota::per(1, DAY * 20 + Duration::from_micros(7));
    let bucket = |name: &str, quota| Limiter::token_bucket(store, "bench", name, quota);
    let limiters = [
        (
            "token bucket, whole milliseconds, refused",
            bucket("rare", rare).build()?,
            [1.5, 1.1],
        ),
        (
            "token bucket, any rate, refused",
            bucket("odd", odd).build()?,
            [1.2, 0.9],
        ),
        (
            "token bucket, refused by the deny cache (in process)",
            bucket("denied", rare).deny_cache(1000).build()?,
            [30.0, 30.0],
        ),
    ];
    for (name, limiter, floors) in limiters {
        for task in 0..TASKS {
            drop(limiter.check(&subject(task), 1).await?);
        }
        for line in lines {
            let classic = Rule::Classic {
                capacity: 1.0,
                rate: 1.0 / (20.0 * DAY.as_secs_f64()),
            };
            let interval = u64::try_from(DAY.as_micros())? * 20;
            let gcra = Rule::Gcra {
                interval,
                tolerance: interval,
            };
            for (rule, floor) in [(classic, floors[0]), (gcra, floors[1])] {
                let peer = ByHand::new(line, rule);
                for task in 0..TASKS {
                    peer.clone().take(&peer_key(&peer, task, false)).await?;
                }
                compare(bench, name, floor, limiter.clone(), peer, false).await?;
            }
        }
    }
    Ok(())
}

/// 64 subjects in one call: against 64 calls one after another, and against 64 calls that are in flight together.
async fn compare_many(bench: &mut Bench, limiter: Limiter) -> anyhow::Result<()> {
    let subjects: Arc<[String]> = (0..TASKS).map(subject).collect();
    let ours = {
        let (limiter, subjects) = (limiter.clone(), subjects.clone());
        move |_| {
            let (limiter, subjects) = (limiter.clone(), subjects.clone());
            async move {
                let requests: Vec<(&str, u64)> = subjects.iter().map(|s| (s.as_str(), 1)).collect();
                for decision in limiter.check_many(&requests).await {
                    anyhow::ensure!(decision?.is_allowed(), "not as planned");
                }
                Ok(())
            }
        }
    };
    let in_order = {
        let (limiter, subjects) = (limiter.clone(), subjects.clone());
        move |_| {
            let (limiter, subjects) = (limiter.clone(), subjects.clone());
            async move {
                for subject in subjects.iter() {
                    let decision = limiter.check(subject, 1).await?;
                    anyhow::ensure!(decision.is_allowed(), "not as planned");
                }
                Ok(())
            }
        }
    };
    let together = move |_| {
        let (limiter, subjects) = (limiter.clone(), subjects.clone());
        async move {
            let checks = subjects.iter().map(|subject| limiter.check(subject, 1));
            for decision in futures_util::future::join_all(checks).await {
                anyhow::ensure!(decision?.is_allowed(), "not as planned");
            }
            Ok(())
        }
    };
    let name = "64 subjects in one call";
    let peer = "64 checks, one after another";
    bench
        .rate(name, peer, 5.0, 1, ours.clone(), in_order)
        .await?;
    let peer = "64 checks in flight together";
    bench.rate(name, peer, 1.0, 1, ours, together).await
}

fn subject(task: usize) -> String {
    format!("user:{task}")
}

/// The peers have keys of their own for each kind of comparison.
fn peer_key(peer: &ByHand, task: usize, allowed: bool) -> String {
    format!("{}:{allowed}:{}", peer.name, subject(task))
}

async fn compare(
    bench: &mut Bench,
    name: &str,
    floor: f64,
    limiter: Limiter,
    peer: ByHand,
    allowed: bool,
) -> anyhow::Result<()> {
    let subjects: Arc<[String]> = (0..TASKS).map(subject).collect();
    let keys: Arc<[String]> = (0..TASKS)
        .map(|task| peer_key(&peer, task, allowed))
        .collect();
    let title = peer.line.name(peer.name);
    let ours = move |task: usize| {
        let (limiter, subjects) = (limiter.clone(), subjects.clone());
        async move {
            let decision = limiter.check(&subjects[task], 1).await?;
            anyhow::ensure!(decision.is_allowed() == allowed, "not as planned");
            Ok(())
        }
    };
    let theirs = move |task: usize| {
        let (mut peer, keys) = (peer.clone(), keys.clone());
        async move {
            anyhow::ensure!(peer.take(&keys[task]).await? == allowed, "not as planned");
            Ok(())
        }
    };
    bench.rate(name, &title, floor, TASKS, ours, theirs).await
}
