//! Latency is counted from the moment at which an operation was due.

use std::{sync::Arc, time::Duration};

use redstart::Store;
use redstart_load::{Length, Live, Pace, Settings, find, namespace, run_on};
use redstart_testkit::{Kind, Server};

const PAUSE: Duration = Duration::from_millis(500);

/// The 99.9th percentile of two seconds during which the server does not answer for half a second.
async fn paused(pace: Pace) -> anyhow::Result<redstart_load::Report> {
    let server = Server::builder(Kind::Redis).start().await?;
    let url = format!("{}?timeout=30s", server.url());
    let store = Store::connect(&url).await?;
    let live = Arc::new(Live::new());
    let settings = Settings {
        pace,
        length: Length::Time(Duration::from_secs(2)),
        keys: 10,
        idle: Duration::ZERO,
        ..Settings::default()
    };
    let pattern = find("get").expect("a pattern");
    let namespace = namespace();
    let run = run_on(&store, &namespace, pattern, &settings, &live);
    let pause = async {
        // In the middle of the load, not of its preparation.
        while live.progress().operations < 100 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.pause()?;
        tokio::time::sleep(PAUSE).await;
        server.resume()
    };
    let (report, paused) = tokio::join!(run, pause);
    paused?;
    Ok(report?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_of_the_server_shows_in_the_open_loop() -> anyhow::Result<()> {
    // One connection's worth of clients: a closed loop has few operations under way when the server stops.
    let open = paused(Pace::Open {
        rate: 1000.0,
        in_flight: 2,
    })
    .await?;
    // Of 2,000 operations, about 500 were due during the pause: the slowest of them waited for all of it, and a quarter of
    // all operations for at least a part.
    let pause_us = PAUSE.as_secs_f64() * 1e6;
    assert!(open.p999_us > 0.9 * pause_us, "{:?}", open.quantiles);
    assert!(open.p99_us > 0.7 * pause_us, "{:?}", open.quantiles);
    assert!(open.held && open.errors.is_empty(), "{:?}", open.errors);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_loop_hides_what_an_open_loop_shows() -> anyhow::Result<()> {
    let closed = paused(Pace::Closed { clients: 2 }).await?;
    // Two operations of many thousands met the pause. The longest shows it, the 99th percentile does not.
    let pause_us = PAUSE.as_secs_f64() * 1e6;
    assert!(closed.max_us > 0.9 * pause_us, "{:?}", closed.quantiles);
    assert!(closed.p99_us < 0.5 * pause_us, "{:?}", closed.quantiles);
    Ok(())
}
