//! What a run says about itself: its limit, its cost and its round trips.

use std::{sync::Arc, time::Duration};

use redstart::Store;
use redstart_load::{Length, Live, Pace, Settings, find, namespace, run_on};
use redstart_testkit::{Kind, Sentinel, Server};

fn settings(operations: u64) -> Settings {
    Settings {
        pace: Pace::Closed { clients: 8 },
        length: Length::Operations(operations),
        keys: 8,
        idle: Duration::ZERO,
        ..Settings::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capped_closed_loop_names_the_cap() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let settings = Settings {
        max_rate: Some(200.0),
        ..settings(100)
    };
    let live = Arc::new(Live::new());
    let get = find("get").expect("a pattern");
    let report = run_on(&store, &namespace(), get, &settings, &live).await?;
    assert!(report.ops_per_second < 250.0, "{}", report.ops_per_second);
    // On a machine too busy even for that, something else is the limit.
    if report.ops_per_second >= 190.0 {
        assert_eq!(report.limited_by, "cap");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_spends_on_being_watched_is_not_charged_to_redlock() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let live = Arc::new(Live::new());
    let redlock = find("redlock").expect("a pattern");
    let report = run_on(&store, &namespace(), redlock, &settings(50), &live).await?;
    assert!(report.held, "{:?} {:?}", report.broken, report.unchecked);
    let server = (report.server_us_per_op, report.network_bytes_per_op);
    assert_eq!((server, report.round_trips_per_op), ((None, None), None));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_round_trips_of_a_cache_are_those_of_hits() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let settings = Settings {
        writes: Some(0.0),
        ..settings(50)
    };
    let live = Arc::new(Live::new());
    let cache = find("cache_aside").expect("a pattern");
    let report = run_on(&store, &namespace(), cache, &settings, &live).await?;
    let trips = report.round_trips_per_op.expect("a server");
    assert!((0.9..1.6).contains(&trips), "{trips}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_stops_at_the_cap_on_memory_and_leaves_nothing_behind() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let settings = Settings {
        length: Length::Time(Duration::from_secs(120)),
        keys: 1_000_000,
        payload: 10_000,
        max_memory: 4 << 20,
        ..settings(1)
    };
    let live = Arc::new(Live::new());
    let cache = find("cache_aside").expect("a pattern");
    let report = run_on(&store, &namespace(), cache, &settings, &live).await?;
    let why = report.stopped.as_deref().unwrap_or_default();
    assert!(why.contains("memory"), "{why:?}");
    assert!(report.seconds < 60.0, "{}", report.seconds);
    assert!(report.held, "{:?} {:?}", report.broken, report.unchecked);
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_behind_sentinels_goes_to_the_master() -> anyhow::Result<()> {
    let sentinel = Sentinel::start(Kind::Redis).await?;
    let store = Store::connect(&sentinel.url()).await?;
    let master = sentinel.server(sentinel.master().await?);
    let live = Arc::new(Live::new());
    let counter = find("counter").expect("a pattern");
    let report = run_on(&store, &namespace(), counter, &settings(200), &live).await?;
    assert!(report.held, "{:?} {:?}", report.broken, report.unchecked);
    assert!(report.server_us_per_op.is_some_and(|cost| cost > 0.0));
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    // It is the master that was under load, and that is empty afterwards.
    let calls = master.info("cmdstat_evalsha").await?;
    assert!(calls.contains("calls="), "{calls:?}");
    assert_eq!(master.query::<u64>(&["DBSIZE"]).await?, 0);
    Ok(())
}

/// What a run says of a server that fails for a part of it.
async fn while_it_fails(
    pattern: &str,
    timeout: &str,
    fail: impl AsyncFnOnce(&Server) -> anyhow::Result<()>,
) -> anyhow::Result<redstart_load::Report> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout={timeout}", server.url())).await?;
    let settings = Settings {
        length: Length::Time(Duration::from_secs(2)),
        ..settings(1)
    };
    let live = Arc::new(Live::new());
    let (pattern, namespace) = (find(pattern).expect("a pattern"), namespace());
    let run = run_on(&store, &namespace, pattern, &settings, &live);
    let fault = async {
        while live.progress().operations < 100 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fail(&server).await
    };
    let (report, failed) = tokio::join!(run, fault);
    failed?;
    let (report, progress) = (report?, live.progress());
    assert_eq!(report.errors.values().sum::<u64>(), progress.errors);
    assert!(progress.errors > 0 && report.failed_p50_us.is_some());
    // What succeeded is counted apart.
    let succeeded = (progress.operations - progress.errors) as f64;
    assert!((report.ops_per_second * report.seconds - succeeded).abs() < 1.0);
    Ok(report)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_a_hung_server_are_counted_as_timeouts() -> anyhow::Result<()> {
    let report = while_it_fails("get", "100ms", async |server: &Server| {
        server.pause()?;
        tokio::time::sleep(Duration::from_millis(600)).await;
        server.resume()
    })
    .await?;
    let timeouts = report.errors.get("timeout").copied().unwrap_or(0);
    assert!(timeouts > 0, "{:?}", report.errors);
    // The latency of those that failed is their timeout and not part of the others'.
    assert!(
        report.failed_p99_us.is_some_and(|p99| p99 > 50_000.0),
        "{:?}",
        report.failed_p99_us
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_to_a_full_server_are_counted_as_unavailable() -> anyhow::Result<()> {
    let report = while_it_fails("counter", "30s", async |server: &Server| {
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).await?;
        tokio::time::sleep(Duration::from_millis(600)).await;
        server.command(&["CONFIG", "SET", "maxmemory", "0"]).await?;
        Ok(())
    })
    .await?;
    assert_eq!(
        report.errors.keys().collect::<Vec<_>>(),
        ["unavailable"],
        "{:?}",
        report.errors
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_arrives_on_the_server_in_its_size() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let mut reports = Vec::new();
    for payload in [100, 20_000] {
        let settings = Settings {
            payload,
            ..settings(200)
        };
        let live = Arc::new(Live::new());
        let get = find("get").expect("a pattern");
        reports.push(run_on(&store, &namespace(), get, &settings, &live).await?);
    }
    let size = |report: &redstart_load::Report| report.bytes_per_entity.unwrap_or(0.0);
    let moved = |report: &redstart_load::Report| report.network_bytes_per_op.unwrap_or(0.0);
    let (small, large) = (&reports[0], &reports[1]);
    assert!((100.0..1000.0).contains(&size(small)), "{}", size(small));
    assert!(
        (20_000.0..30_000.0).contains(&size(large)),
        "{}",
        size(large)
    );
    assert!(
        moved(small) < 10_000.0 && moved(large) > 20_000.0,
        "{} {}",
        moved(small),
        moved(large)
    );
    Ok(())
}
