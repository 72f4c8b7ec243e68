//! The embedded engine against a redis-server on loopback.

use anyhow::Context as _;
use redstart::{
    Store,
    key::{Entity, Keys},
    script::Script,
};
use redstart_engine::{
    Engine,
    server::{Server as Listener, ServerConfig},
};
use redstart_testkit::{Kind, Server};

use crate::measure::{Bench, Unit};

/// The token bucket that most people write by hand: two numbers in a hash, a TTL.
static BUCKET: Script = Script::new(
    "bench.bucket",
    "local t = redis.call('TIME')
     local now = t[1] * 1000000 + t[2]
     local s = redis.call('HMGET', KEYS[1], 'n', 't')
     local n = math.min(1000000, (tonumber(s[1]) or 1000000) + (now - (tonumber(s[2]) or now)) / 10)
     local ok = n >= 1
     if ok then n = n - 1 end
     redis.call('HSET', KEYS[1], 'n', string.format('%.3f', n), 't', string.format('%.0f', now))
     redis.call('PEXPIRE', KEYS[1], 60000)
     return ok and 1 or 0",
);

pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let _watched = bench.watch(&server);
    bench.note(&format!(
        "redis-server {}",
        server.info("redis_version").await?
    ));
    let remote = Store::connect(&server.url()).await?;
    let memory = Store::connect("memory://").await?;
    single_caller(bench, &memory, &remote).await?;
    callers(bench, &memory).await?;
    durable(bench).await?;
    listener(bench, &server.url()).await?;
    ranks(bench, &memory).await?;
    bytes_per_key(bench, &remote).await
}

async fn single_caller(bench: &mut Bench, memory: &Store, remote: &Store) -> anyhow::Result<()> {
    let entity = Keys::new("bench", "engine")?.entity("k")?;
    for name in ["SET", "GET"] {
        let call = |store: &Store| {
            let (store, key) = (store.clone(), entity.key().clone());
            move |_| {
                let (store, key) = (store.clone(), key.clone());
                async move {
                    let mut cmd = redis::cmd(name);
                    cmd.arg(&key);
                    if name == "SET" {
                        cmd.arg("value");
                    }
                    store.query::<redis::Value>(&cmd).await?;
                    Ok(())
                }
            }
        };
        let (ours, theirs) = (call(memory), call(remote));
        bench
            .rate(
                &format!("{name}, one caller (in process)"),
                "redis-server",
                15.0,
                1,
                ours,
                theirs,
            )
            .await?;
    }
    let call = |store: &Store| {
        let (store, entity) = (store.clone(), entity.clone());
        move |_| {
            let (store, entity) = (store.clone(), entity.clone());
            async move {
                BUCKET.on(&entity).part("bucket").run::<i64>(&store).await?;
                Ok(())
            }
        }
    };
    let (ours, theirs) = (call(memory), call(remote));
    bench
        .rate(
            "token-bucket script, one caller (in process)",
            "redis-server",
            4.0,
            1,
            ours,
            theirs,
        )
        .await?;
    Ok(())
}

/// Two threads that call beside one: the engine has one lock, so two callers must at least not disturb each other.
async fn callers(bench: &mut Bench, memory: &Store) -> anyhow::Result<()> {
    let entity = Keys::new("bench", "callers")?.entity("k")?;
    for (name, floor) in [("SET", 0.6), ("token-bucket script", 0.6)] {
        let (mut two, mut one) = (Vec::new(), Vec::new());
        for round in 0..=10 {
            let rate = async |threads| caller_threads(memory, &entity, name, threads).await;
            let (a, b) = if round % 2 == 0 {
                let a = rate(2).await?;
                (a, rate(1).await?)
            } else {
                let b = rate(1).await?;
                (rate(2).await?, b)
            };
            if round > 0 {
                two.push(a);
                one.push(b);
            }
        }
        let row = format!("{name}, two caller threads (in process)");
        bench.rounds_of(&row, "one caller thread", floor, two, one);
    }
    Ok(())
}

/// Calls per second of all threads together. Each has a runtime of its own, as programs that pin their work have.
async fn caller_threads(
    store: &Store,
    entity: &Entity,
    name: &'static str,
    threads: usize,
) -> anyhow::Result<f64> {
    const CALLS: u32 = 50_000;
    let started = std::time::Instant::now();
    let running: Vec<_> = (0..threads)
        .map(|_| {
            let (store, entity) = (store.clone(), entity.clone());
            tokio::task::spawn_blocking(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(async {
                    for _ in 0..CALLS {
                        if name == "SET" {
                            let mut set = redis::cmd("SET");
                            set.arg(entity.key()).arg("value");
                            store.query::<()>(&set).await?;
                        } else {
                            BUCKET.on(&entity).part("bucket").run::<i64>(&store).await?;
                        }
                    }
                    anyhow::Ok(())
                })
            })
        })
        .collect();
    for thread in running {
        thread.await??;
    }
    Ok(f64::from(CALLS) * threads as f64 / started.elapsed().as_secs_f64())
}

/// Writes that are on the disk when they are answered: `file://` in this process beside a server that syncs each write.
async fn durable(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start()
        .await?;
    let _watched = bench.watch(&server);
    let dir = server.dir().join("engine");
    std::fs::create_dir_all(&dir)?;
    let ours = Store::connect(&format!("file://{}?fsync=always", dir.display())).await?;
    let theirs = Store::connect(&server.url()).await?;
    let set = |store: &Store| {
        let store = store.clone();
        move |task: usize| {
            let store = store.clone();
            async move {
                let mut set = redis::cmd("SET");
                set.arg(format!("durable:{task}")).arg("value");
                Ok(store.query::<()>(&set).await?)
            }
        }
    };
    for (tasks, floor) in [(1, 0.5), (50, 0.5)] {
        let name = format!("SET with fsync=always, {tasks} tasks (in process)");
        let (ours, theirs) = (set(&ours), set(&theirs));
        let peer = "redis-server, appendfsync always";
        bench.rate(&name, peer, floor, tasks, ours, theirs).await?;
    }
    Ok(())
}

/// What redis-benchmark is told to do: its name of the test, commands a pipeline, bytes a value, commands in all; the
/// floor.
const PROTOCOL: [(&str, &str, u32, usize, u32, f64); 8] = [
    ("SET over TCP, one at a time", "SET", 1, 3, 40_000, 0.8),
    ("GET over TCP, one at a time", "GET", 1, 3, 40_000, 0.8),
    ("SET over TCP, pipeline 16", "SET", 16, 3, 400_000, 1.0),
    ("GET over TCP, pipeline 16", "GET", 16, 3, 400_000, 1.0),
    ("SET of 4 KiB over TCP", "SET", 1, 4096, 40_000, 0.8),
    ("GET of 4 KiB over TCP", "GET", 1, 4096, 40_000, 0.8),
    (
        "LRANGE of 100 over TCP",
        "LRANGE_100 (first 100 elements)",
        1,
        3,
        20_000,
        0.5,
    ),
    (
        "LRANGE of 100 over TCP, pipeline 16",
        "LRANGE_100 (first 100 elements)",
        16,
        3,
        40_000,
        0.5,
    ),
];

/// redis-benchmark with 50 clients against both listeners, the engine's as `redstart engine` runs it.
async fn listener(bench: &mut Bench, remote: &str) -> anyhow::Result<()> {
    // A runtime of its own, so that nothing else runs on its threads; as many as `redstart engine` has.
    let processors = std::thread::available_parallelism()?.get();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads((processors / 2).clamp(1, 8))
        .enable_all()
        .build()?;
    let config = ServerConfig::new().listen("127.0.0.1:0".parse()?);
    let bind = runtime.spawn(Listener::bind(Engine::new(), config));
    let listener = bind.await??;
    let ours = listener.local_addr().context("it listens")?.port();
    let running = runtime.spawn(listener.run(std::future::pending()));
    let theirs: u16 = remote
        .rsplit(':')
        .next()
        .unwrap_or_default()
        .trim_end_matches('/')
        .parse()?;
    for (row, test, pipeline, bytes, count, floor) in PROTOCOL {
        let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
        for round in 0..=10 {
            let rate = async |port| redis_benchmark(port, test, pipeline, bytes, count).await;
            // They take turns in who is first; the first round does not count.
            let (our_rate, their_rate) = if round % 2 == 0 {
                let our_rate = rate(ours).await?;
                (our_rate, rate(theirs).await?)
            } else {
                let their_rate = rate(theirs).await?;
                (rate(ours).await?, their_rate)
            };
            if round > 0 {
                our_rates.push(our_rate);
                their_rates.push(their_rate);
            }
        }
        bench.rounds_of(row, "redis-server", floor, our_rates, their_rates);
    }
    running.abort();
    runtime.shutdown_background();
    Ok(())
}

/// Commands a second, as redis-benchmark says.
async fn redis_benchmark(
    port: u16,
    test: &str,
    pipeline: u32,
    bytes: usize,
    count: u32,
) -> anyhow::Result<f64> {
    let word = test.split(' ').next().unwrap_or(test).to_lowercase();
    let output = tokio::process::Command::new("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-c", "50"])
        .args(["-P", &pipeline.to_string(), "-d", &bytes.to_string()])
        .args(["-n", &count.to_string(), "-r", "10000"])
        .args(["-t", &word, "--csv"])
        .output()
        .await
        .context("redis-benchmark comes with redis-tools")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // "test","rps",…, then "SET","123456.78",…
    let rate = text.lines().find_map(|line| {
        let mut fields = line.split("\",\"").map(|field| field.trim_matches('"'));
        (fields.next()? == test).then(|| fields.next())?
    });
    let rate = rate.with_context(|| format!("redis-benchmark says: {text}"))?;
    Ok(rate.parse()?)
}

/// Rank in a large set against rank in a small one: logarithmic, not linear.
async fn ranks(bench: &mut Bench, memory: &Store) -> anyhow::Result<()> {
    let fill = async |key: &'static str, size: u32| {
        for start in (0..size).step_by(1000) {
            let mut add = redis::cmd("ZADD");
            add.arg(key);
            for n in start..start + 1000 {
                add.arg(f64::from(n.wrapping_mul(2_654_435_761) % size))
                    .arg(format!("member-{n}"));
            }
            memory.query::<()>(&add).await?;
        }
        anyhow::Ok(())
    };
    fill("small", 1000).await?;
    fill("large", 1_000_000).await?;
    let rank = |key: &'static str, size: u32| {
        let store = memory.clone();
        move |_| {
            let store = store.clone();
            async move {
                let member = format!("member-{}", rand::random::<u32>() % size);
                store
                    .query::<i64>(redis::cmd("ZRANK").arg(key).arg(member))
                    .await?;
                Ok(())
            }
        }
    };
    let (large, small) = (rank("large", 1_000_000), rank("small", 1000));
    bench
        .rate(
            "ZRANK of a million",
            "ZRANK of a thousand",
            1.0 / 3.0,
            1,
            large,
            small,
        )
        .await?;
    Ok(())
}

/// Bytes a key, by the growth of this process's resident memory and by what the server says of itself.
async fn bytes_per_key(bench: &mut Bench, remote: &Store) -> anyhow::Result<()> {
    const KEYS: u32 = 1_000_000;
    let strings = |start: u32| {
        let mut pipeline = redis::pipe();
        for n in start..start + 1000 {
            pipeline
                .cmd("SET")
                .arg(format!("key:{n:08}"))
                .arg(format!("value-{n}"))
                .ignore();
        }
        pipeline
    };
    let members = |start: u32| {
        let mut add = redis::cmd("ZADD");
        add.arg("board");
        for n in start..start + 1000 {
            add.arg(f64::from(n) * 1.5).arg(format!("member-{n:08}"));
        }
        let mut pipeline = redis::pipe();
        pipeline.add_command(add).ignore();
        pipeline
    };
    type Fill = fn(u32) -> redis::Pipeline;
    let loads: [(&str, Fill); 2] = [
        ("bytes a small string", strings),
        ("bytes a sorted-set member", members),
    ];
    for (name, fill) in loads {
        remote.query::<()>(&redis::cmd("FLUSHALL")).await?;
        let used = async || {
            let info: String = remote.query(redis::cmd("INFO").arg("memory")).await?;
            let line = info
                .lines()
                .find_map(|line| line.strip_prefix("used_memory:"));
            anyhow::Ok(line.unwrap_or("0").trim().parse::<f64>()?)
        };
        let before = used().await?;
        for start in (0..KEYS).step_by(1000) {
            remote.pipeline::<()>(&fill(start)).await?;
        }
        let theirs = (used().await? - before) / f64::from(KEYS);

        let fresh = Store::connect("memory://").await?;
        let before = resident()?;
        for start in (0..KEYS).step_by(1000) {
            fresh.pipeline::<()>(&fill(start)).await?;
        }
        let ours = (resident()? - before) / f64::from(KEYS);
        bench.cost(name, "redis-server", Unit::Bytes, ours, theirs, 1.0);
    }
    Ok(())
}

fn resident() -> anyhow::Result<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split_whitespace().nth(1).unwrap_or("0").parse()?;
    Ok(pages * 4096.0)
}
