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

/// GETs of 64 tasks, and nothing beside them.
async fn bare(store: &Store, length: Duration) -> anyhow::Result<f64> {
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut tasks = tokio::task::JoinSet::new();
    let started = Instant::now();
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
    Ok(done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}

/// In rounds that alternate, so that other load on the machine hits both. A tenth is what is promised on a quiet machine,
/// in an optimised build; this bound is for any machine, in any build.
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
    let mut ratios = Vec::new();
    for round in 0..7 {
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
        ratios.push(ours.ops_per_second / theirs);
    }
    ratios.sort_by(f64::total_cmp);
    figure(format!(
        "{:.3} of the bare loop's rate, median of 7 rounds",
        ratios[3]
    ));
    assert!(ratios[3] > 0.35, "{ratios:?}");
    Ok(())
}
