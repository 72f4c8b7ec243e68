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

/// GETs of 64 tasks, and nothing beside them.
async fn bare(store: &Store, length: Duration) -> anyhow::Result<Done> {
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut tasks = tokio::task::JoinSet::new();
    let (started, before) = (Instant::now(), cpu()?);
    for _ in 0..CLIENTS {
        let (store, stop, done) = (store.clone(), stop.clone(), done.clone());
        tasks.spawn(async move {
            let mut get = redis::cmd("GET");
            get.arg("bare");
            while !stop.load(Ordering::Relaxed) {
                store.query::<Option<Vec<u8>>>(&get).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, redstart::Error>(())
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

/// In rounds that alternate, so that other load on the machine hits both. The rates are printed; what is asserted is the CPU
/// time of this process per operation, which other programs on the machine do not change much. A tenth is what is promised in
/// an optimised build; one without optimisation has a dearer loop and a dearer store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loop_costs_little_beside_the_store() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    server.command(&["SET", "bare", &"x".repeat(100)]).await?;
    let length = Duration::from_millis(scale(300, "overhead millis"));
    let settings = Settings {
        pace: Pace::Closed { clients: CLIENTS },
        length: Length::Time(length),
        keys: 10,
        idle: Duration::ZERO,
        ..Settings::default()
    };
    let get = find("get").expect("a pattern");
    let (mut rates, mut cpus) = (Vec::new(), Vec::new());
    for round in 0..scale(7, "overhead rounds") {
        let live = Arc::new(Live::new());
        let namespace = namespace();
        let ours = run_on(&store, &namespace, get, &settings, &live);
        // Whoever comes first finds another server than the second.
        let (ours, theirs) = match round % 2 {
            0 => {
                let theirs = bare(&store, length).await?;
                (ours.await?, theirs)
            }
            _ => (ours.await?, bare(&store, length).await?),
        };
        rates.push(ours.ops_per_second / theirs.per_second);
        let own = ours.client_us_per_op.expect("this system tells");
        cpus.push(theirs.cpu / own);
    }
    let all = format!("rates {rates:.2?}, CPU {cpus:.2?}");
    let (rounds, rate, cpu) = (rates.len(), median(rates), median(cpus));
    figure(format!(
        "GET at {CLIENTS} clients: {rate:.3} of the bare loop's rate and {cpu:.3} of its operations per CPU second, medians of {rounds} rounds"
    ));
    let least = if cfg!(debug_assertions) { 0.55 } else { 0.9 };
    assert!(cpu > least, "{all}");
    Ok(())
}
