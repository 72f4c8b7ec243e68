//! The mutex against the usual hand-written loop, `rslock` and `redisson`; and how soon a released lock is held by
//! another process.

use std::{
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use redis::aio::MultiplexedConnection;
use redstart::{
    Store,
    locking::{Fencing, Mutex},
};
use redstart_testkit::{Kind, Server};

use crate::measure::{Bench, Unit};

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
    hand_over(bench, &server).await
}

/// Each task has a lock of its own: what a grant and a release cost.
async fn uncontended(bench: &mut Bench, server: &Server, kind: Kind) -> anyhow::Result<()> {
    let store = Store::connect(&server.url()).await?;
    let client = redis::Client::open(server.url())?;
    let connection = client.get_multiplexed_async_connection().await?;

    let fenced = locks(|name| Mutex::builder(&store, "bench", name).ttl(TTL).build())?;
    let bare = locks(|name| {
        Mutex::builder(&store, "bare", name)
            .ttl(TTL)
            .unfenced()
            .build()
    })?;
    let script = Arc::new(redis::Script::new(RELEASE));
    let by_hand = move |task| by_hand(connection.clone(), script.clone(), task);
    // Where the server has a command that compares and deletes, no script is needed.
    let floor = match kind {
        Kind::Redis => 0.9,
        Kind::Valkey => 1.3,
    };
    let name = format!("mutex without fencing, {kind:?}");
    bench
        .rate(
            &name,
            "bare loop",
            floor,
            TASKS,
            cycle(&bare),
            by_hand.clone(),
        )
        .await?;
    let name = format!("mutex with fencing, {kind:?}");
    bench
        .rate(&name, "bare loop", 0.6, TASKS, cycle(&fenced), by_hand)
        .await?;
    if kind == Kind::Valkey {
        return Ok(());
    }

    let manager = rslock::LockManager::from_clients(vec![client]);
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
    bench
        .rate(
            "mutex without fencing",
            "rslock",
            1.0,
            TASKS,
            cycle(&bare),
            rslock,
        )
        .await?;

    // Its async API needs a pool of its own, so this is the blocking one on the runtime's blocking threads.
    let url = server.url();
    let config = redisson::RedissonConfig::single_server(&url)
        .with_pool_size(TASKS as u32)
        .with_watchdog_timeout(TTL);
    let client =
        tokio::task::spawn_blocking(move || redisson::RedissonClient::new(config)).await??;
    let theirs: Arc<Vec<_>> = Arc::new(
        (0..TASKS)
            .map(|task| Arc::new(client.get_lock(&format!("redisson:{task}"))))
            .collect(),
    );
    let redisson = move |task: usize| {
        let lock = theirs[task].clone();
        async move {
            tokio::task::spawn_blocking(move || {
                anyhow::ensure!(lock.try_lock()?, "it is its own lock");
                lock.unlock()?;
                Ok(())
            })
            .await?
        }
    };
    bench
        .rate(
            "mutex without fencing",
            "redisson",
            10.0,
            TASKS,
            cycle(&bare),
            redisson,
        )
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

async fn by_hand(
    mut connection: MultiplexedConnection,
    script: Arc<redis::Script>,
    task: usize,
) -> anyhow::Result<()> {
    let (key, token) = (
        format!("hand:{task}"),
        format!("{:032x}", rand::random::<u128>()),
    );
    let mut set = redis::cmd("SET");
    set.arg(&key).arg(&token).arg("NX").arg("PX").arg(30_000);
    let taken: Option<String> = set.query_async(&mut connection).await?;
    anyhow::ensure!(taken.is_some(), "it is its own lock");
    let mut call = script.key(&key);
    let freed: i64 = call.arg(&token).invoke_async(&mut connection).await?;
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
    bench.cost(name, "rslock", Unit::Micros, medians[0], medians[1], 10.0);
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
            let manager = rslock::LockManager::new(vec![self.url.clone()]);
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
