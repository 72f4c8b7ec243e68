//! The mutex against the usual hand-written loop, `rslock` and `redisson`; and how soon a released lock is held by
//! another process.
//!
//! The loop takes with SET NX PX and a random token and releases by a cached script, as every guide says. `rslock` asks again
//! after up to 10 ms instead of its default of 200, which suits its users' short waits better; `redisson` runs on its
//! asynchronous API with a pool as large as the number of tasks. Only `redisson` renews a lease, and none of them wakes a waiter
//! or gives a fence token; ours does the first two in all rows and the third where the row says so.

use std::{
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use redstart::{
    Store,
    locking::{Fencing, Mutex},
};
use redstart_testkit::{Kind, Server};

use crate::{
    measure::{Bench, Unit},
    peer::Line,
};

const TASKS: usize = 64;
const TTL: Duration = Duration::from_secs(30);
/// The usual release script.
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                       return redis.call('DEL', KEYS[1]) else return 0 end";

pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let field = match kind {
            Kind::Redis => "redis_version",
            Kind::Valkey => "valkey_version",
        };
        bench.note(&format!(
            "{kind:?} {}, redis-rs 1.8, rslock 0.10.0, redisson 0.1.0",
            server.info(field).await?
        ));
        uncontended(bench, &server, kind).await?;
    }
    let server = Server::builder(Kind::Redis).start().await?;
    let _watched = bench.watch(&server);
    contended(bench, &server).await?;
    hand_over(bench, &server).await
}

/// 16 tasks with a client each want one lock: how many turns there are, and how evenly they are shared.
async fn contended(bench: &mut Bench, server: &Server) -> anyhow::Result<()> {
    const RIVALS: usize = 16;
    let mut mutexes = Vec::new();
    let mut managers = Vec::new();
    for _ in 0..RIVALS {
        let store = Store::connect(&server.url()).await?;
        mutexes.push(
            Mutex::builder(&store, "bench", "wanted")
                .ttl(TTL)
                .unfenced()
                .build()?,
        );
        let mut manager = rslock::LockManager::new(vec![server.url()]);
        manager.set_retry(3, Duration::from_millis(10));
        managers.push(manager);
    }
    let turns: Arc<[[AtomicU64; RIVALS]; 2]> = Arc::default();
    let (mutexes, mine) = (Arc::new(mutexes), turns.clone());
    let ours = move |task: usize| {
        let (mutexes, turns) = (mutexes.clone(), mine.clone());
        async move {
            let guard = mutexes[task].lock(TTL).await?.context("nobody let go")?;
            turns[0][task].fetch_add(1, Ordering::Relaxed);
            guard.release().await?;
            Ok(())
        }
    };
    let (managers, mine) = (Arc::new(managers), turns.clone());
    let theirs = move |task: usize| {
        let (managers, turns) = (managers.clone(), mine.clone());
        async move {
            let guard = managers[task].acquire(b"rivals".as_slice(), TTL).await?;
            turns[1][task].fetch_add(1, Ordering::Relaxed);
            guard.release().await;
            Ok(())
        }
    };
    let name = "turns of one lock, 16 clients";
    let peer = "rslock, up to 10 ms";
    bench.rate(name, peer, 0.4, RIVALS, ours, theirs).await?;
    for (who, turns) in ["redstart", "rslock"].iter().zip(turns.iter()) {
        let turns: Vec<u64> = turns
            .iter()
            .map(|turns| turns.load(Ordering::Relaxed))
            .collect();
        let (least, most) = (turns.iter().min(), turns.iter().max());
        bench.note(&format!("{name}, {who}: {least:?} to {most:?} turns each"));
    }
    Ok(())
}

/// Each task has a lock of its own: what a grant and a release cost.
async fn uncontended(bench: &mut Bench, server: &Server, kind: Kind) -> anyhow::Result<()> {
    let store = Store::connect(&server.url()).await?;
    let lines = Line::all(server, &store).await?;

    let fenced = locks(|name| Mutex::builder(&store, "bench", name).ttl(TTL).build())?;
    let bare = locks(|name| {
        Mutex::builder(&store, "bare", name)
            .ttl(TTL)
            .unfenced()
            .build()
    })?;
    let script = Arc::new(redis::Script::new(RELEASE));
    // Where the server has a command that compares and deletes, no script is needed.
    let (floor, fenced_floor) = match kind {
        Kind::Redis => (0.75, 0.45),
        Kind::Valkey => (1.0, 0.5),
    };
    for line in &lines {
        let peer = line.name("SET NX + script");
        let (line, script) = (line.clone(), script.clone());
        let by_hand = move |task| by_hand(line.clone(), script.clone(), task);
        let name = format!("mutex without fencing, {kind:?}");
        bench
            .rate(&name, &peer, floor, TASKS, cycle(&bare), by_hand.clone())
            .await?;
        let name = format!("mutex with fencing, {kind:?}");
        bench
            .rate(&name, &peer, fenced_floor, TASKS, cycle(&fenced), by_hand)
            .await?;
    }
    if kind == Kind::Valkey {
        return Ok(());
    }

    let manager = rslock::LockManager::from_clients(vec![redis::Client::open(server.url())?]);
    let rslock = move |task: usize| {
        let manager = manager.clone();
        async move {
            let lock = manager
                .lock(format!("rslock:{task}").as_bytes(), TTL)
                .await?;
            manager.unlock(&lock).await;
            Ok(())
        }
    };
    let name = "mutex without fencing, Redis";
    bench
        .rate(name, "rslock", 1.0, TASKS, cycle(&bare), rslock)
        .await?;

    let config = redisson::RedissonConfig::single_server(&server.url())
        .with_pool_size(TASKS as u32)
        .with_watchdog_timeout(TTL);
    let client = redisson::AsyncRedissonClient::new(config).await?;
    let theirs: Arc<Vec<_>> = Arc::new(
        (0..TASKS)
            .map(|task| client.get_lock(&format!("redisson:{task}")))
            .collect(),
    );
    let redisson = move |task: usize| {
        let theirs = theirs.clone();
        async move {
            anyhow::ensure!(theirs[task].try_lock().await?, "it is its own lock");
            theirs[task].unlock().await?;
            Ok(())
        }
    };
    bench
        .rate(name, "redisson, async", 1.0, TASKS, cycle(&bare), redisson)
        .await?;
    Ok(())
}

fn locks<F: Fencing>(
    make: impl Fn(&str) -> redstart::Result<Mutex<F>>,
) -> redstart::Result<Arc<Vec<Mutex<F>>>> {
    Ok(Arc::new(
        (0..TASKS)
            .map(|task| make(&task.to_string()))
            .collect::<Result<_, _>>()?,
    ))
}

fn cycle<F: Fencing>(
    locks: &Arc<Vec<Mutex<F>>>,
) -> impl Fn(usize) -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>
+ Clone
+ Send
+ Sync
+ 'static {
    let locks = locks.clone();
    move |task| {
        let mutex = locks[task].clone();
        Box::pin(async move {
            let guard = mutex.try_lock().await?.context("it is its own lock")?;
            guard.release().await?;
            Ok(())
        })
    }
}

async fn by_hand(mut line: Line, script: Arc<redis::Script>, task: usize) -> anyhow::Result<()> {
    let (key, token) = (
        format!("hand:{task}"),
        format!("{:032x}", rand::random::<u128>()),
    );
    let mut set = redis::cmd("SET");
    set.arg(&key).arg(&token).arg("NX").arg("PX").arg(30_000);
    let taken: Option<String> = line.query(&set).await?;
    anyhow::ensure!(taken.is_some(), "it is its own lock");
    let mut call = script.key(&key);
    let freed: i64 = line.script(call.arg(&token)).await?;
    anyhow::ensure!(freed == 1, "it was ours");
    Ok(())
}

const CONTENDERS: usize = 4;
const HOLD: Duration = Duration::from_millis(50);
/// The pause between two acquisitions; without it, a client that polls never lets the others in.
const THINK: Duration = Duration::from_millis(50);

/// Several processes contend; the time from one release to the next grant.
async fn hand_over(bench: &mut Bench, server: &Server) -> anyhow::Result<()> {
    let mut medians = Vec::new();
    for who in ["redstart", "rslock"] {
        let contenders: Vec<Contending> = (0..CONTENDERS)
            .map(|_| Contender::spawn(who, &server.url()))
            .collect::<Result<_, _>>()?;
        let samples = format!("samples:{who}");
        // The first samples are from the start of the processes.
        let enough = match who {
            "redstart" => 100,
            _ => 50,
        };
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if server.query::<usize>(&["LLEN", &samples]).await? > enough {
                break;
            }
        }
        drop(contenders);
        server.command(&["DEL", "waiting", "let-go"]).await?;
        let mut times: Vec<u64> = server.query(&["LRANGE", &samples, "20", "-1"]).await?;
        times.sort_unstable();
        let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        bench.note(&format!(
            "hand-over over {CONTENDERS} processes, {who}: p50 {p50} us, p99 {p99} us, {} samples",
            times.len()
        ));
        medians.push(p50.max(1) as f64);
    }
    let name = "hand-over between processes, p50";
    bench.cost(
        name,
        "rslock, up to 10 ms",
        Unit::Micros,
        medians[0],
        medians[1],
        2.0,
    );
    Ok(())
}

const WHO: &str = "REDSTART_BENCH_CONTENDER";
const URL: &str = "REDSTART_BENCH_CONTENDER_URL";

/// This program in the role of a contender for the lock, until it is killed.
pub(crate) struct Contender {
    who: String,
    url: String,
}

struct Contending(Child);

impl Drop for Contending {
    fn drop(&mut self) {
        // It fails only when the process is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Contender {
    fn spawn(who: &str, url: &str) -> anyhow::Result<Contending> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .env(WHO, who)
            .env(URL, url)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(Contending(command.spawn()?))
    }

    pub(crate) fn from_env() -> Option<Self> {
        Some(Self {
            who: std::env::var(WHO).ok()?,
            url: std::env::var(URL).ok()?,
        })
    }

    pub(crate) fn run(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let store = Store::connect(&self.url).await?;
            let mutex = Mutex::builder(&store, "bench", "hand-over")
                .ttl(TTL)
                .build()?;
            let mut manager = rslock::LockManager::new(vec![self.url.clone()]);
            manager.set_retry(3, Duration::from_millis(10));
            let samples = format!("samples:{}", self.who);
            loop {
                // A parent that was killed takes its server along; then this ends with an error.
                store.query::<()>(redis::cmd("INCR").arg("waiting")).await?;
                if self.who == "redstart" {
                    let guard = mutex.lock(TTL).await?.context("the others died")?;
                    hold(&store, &samples).await?;
                    guard.release().await?;
                } else {
                    let guard = manager.acquire(b"hand-over".as_slice(), TTL).await?;
                    hold(&store, &samples).await?;
                    guard.release().await;
                }
                tokio::time::sleep(THINK).await;
            }
        })
    }
}

/// Records how long ago another process released the lock, and when this one will.
async fn hold(store: &Store, samples: &str) -> anyhow::Result<()> {
    let now = micros()?;
    store.query::<()>(redis::cmd("DECR").arg("waiting")).await?;
    let me = std::process::id();
    let before: Option<(u32, u64, bool)> = store
        .query::<Option<String>>(redis::cmd("GET").arg("let-go"))
        .await?
        .and_then(|text| {
            let mut words = text.split(' ');
            Some((
                words.next()?.parse().ok()?,
                words.next()?.parse().ok()?,
                words.next()? == "waited-for",
            ))
        });
    // The time between the two is a hand-over only if somebody waited.
    if let Some((who, when, true)) = before
        && who != me
    {
        let taken = now.saturating_sub(when);
        store
            .query::<()>(redis::cmd("RPUSH").arg(samples).arg(taken))
            .await?;
    }
    tokio::time::sleep(HOLD).await;
    let waiting: i64 = store.query(redis::cmd("GET").arg("waiting")).await?;
    let waited_for = if waiting > 0 { "waited-for" } else { "idle" };
    let note = format!("{me} {} {waited_for}", micros()?);
    store
        .query::<()>(redis::cmd("SET").arg("let-go").arg(note))
        .await?;
    Ok(())
}

/// One machine's clock, read by several of its processes.
fn micros() -> anyhow::Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_micros())?)
}
