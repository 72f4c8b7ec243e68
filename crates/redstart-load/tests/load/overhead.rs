//! What the tool itself costs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redstart::{Store, redis};
use redstart_load::{Length, Live, Pace, Settings, find, namespace, run_on};
use redstart_testkit::{Kind, Server, figure, scale};

const CLIENTS: usize = 64;

/// What a loop did.
struct Done {
    per_second: f64,
    /// CPU time of this process per operation, in microseconds.
    cpu: f64,
}

/// CPU time of this process in microseconds.
fn cpu() -> anyhow::Result<f64> {
    use nix::sys::{
        resource::{UsageWho, getrusage},
        time::TimeValLike as _,
    };
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(micros as f64)
}

/// What a bare loop calls.
#[derive(Clone)]
enum Client {
    /// Redstart's store.
    Store(Store),
    /// The client library that most programs use.
    RedisRs(redis::aio::MultiplexedConnection),
}

impl Client {
    async fn get(&mut self, get: &redis::Cmd) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::Store(store) => store.query(get).await?,
            Self::RedisRs(connection) => get.query_async(connection).await?,
        })
    }
}

/// GETs of 64 tasks, and nothing beside them.
async fn bare(client: &Client, length: Duration) -> anyhow::Result<Done> {
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut tasks = tokio::task::JoinSet::new();
    let (started, before) = (Instant::now(), cpu()?);
    for _ in 0..CLIENTS {
        let (mut client, stop, done) = (client.clone(), stop.clone(), done.clone());
        tasks.spawn(async move {
            let mut get = redis::cmd("GET");
            get.arg("bare");
            while !stop.load(Ordering::Relaxed) {
                client.get(&get).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    tokio::time::sleep(length).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let operations = done.load(Ordering::Relaxed) as f64;
    Ok(Done {
        per_second: operations / started.elapsed().as_secs_f64(),
        cpu: (cpu()? - before) / operations.max(1.0),
    })
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// In rounds that alternate, so that other load on the machine hits all. Against the store's own loop the CPU time of this process
/// per operation is compared too, which other programs on the machine do not change much. A tenth is what is promised in an
/// optimised build; one without optimisation has a dearer loop and a dearer store, and only its CPU time is looked at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loop_costs_little_beside_the_store() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    server.command(&["SET", "bare", &"x".repeat(100)]).await?;
    let (own, other) = (
        Client::Store(store.clone()),
        Client::RedisRs(server.client().await?),
    );
    let length = Duration::from_millis(scale(300, "overhead millis"));
    let settings = Settings {
        pace: Pace::Closed { clients: CLIENTS },
        length: Length::Time(length),
        keys: 10,
        idle: Duration::ZERO,
        ..Settings::default()
    };
    let get = find("get").expect("a pattern");
    let (mut rates, mut others, mut cpus) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..scale(7, "overhead rounds") {
        let live = Arc::new(Live::new());
        let namespace = namespace();
        let ours = run_on(&store, &namespace, get, &settings, &live);
        // Whoever comes first finds another server than the second.
        let (ours, store, redis_rs) = match round % 2 {
            0 => {
                let redis_rs = bare(&other, length).await?;
                let store = bare(&own, length).await?;
                (ours.await?, store, redis_rs)
            }
            _ => {
                let ours = ours.await?;
                let store = bare(&own, length).await?;
                (ours, store, bare(&other, length).await?)
            }
        };
        rates.push(ours.ops_per_second / store.per_second);
        others.push(ours.ops_per_second / redis_rs.per_second);
        let own = ours.client_us_per_op.expect("this system tells");
        cpus.push(store.cpu / own);
    }
    let all = format!("rates {rates:.2?} and {others:.2?}, CPU {cpus:.2?}");
    let rounds = rates.len();
    let (rate, other, cpu) = (median(rates), median(others), median(cpus));
    figure(format!(
        "GET at {CLIENTS} clients: {rate:.3} of the rate of a bare loop on the store, {other:.3} of one on redis-rs, and {cpu:.3} of the \
         store loop's operations per CPU second, medians of {rounds} rounds"
    ));
    if cfg!(debug_assertions) {
        assert!(cpu > 0.55, "{all}");
    } else {
        assert!(rate >= 0.9 && other >= 0.9 && cpu > 0.9, "{all}");
    }
    Ok(())
}
