//! What a run says about itself: its limit, its cost and its round trips.

use std::{sync::Arc, time::Duration};

use redstart::Store;
use redstart_load::{Length, Live, Pace, Settings, find, namespace, run_on};
use redstart_testkit::{Kind, Server};

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
