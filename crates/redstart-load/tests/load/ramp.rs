//! The ramp finds the load beyond which more brings little more.

use std::{sync::Arc, time::Duration};

use redstart::Store;
use redstart_load::{Length, Live, Pace, Report, Settings, find, namespace, ramp};
use redstart_testkit::{Kind, Server};

async fn ramped(pace: Pace) -> anyhow::Result<Report> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let settings = Settings {
        pace,
        length: Length::Time(Duration::from_millis(200)),
        keys: 100,
        idle: Duration::ZERO,
        ..Settings::default()
    };
    let get = find("get").expect("a pattern");
    let live = || Arc::new(Live::new());
    let report = ramp(&store, &namespace(), get, &settings, live).await?;
    anyhow::ensure!(report.held, "{:?} {:?}", report.broken, report.unchecked);
    anyhow::ensure!(
        server.query::<u64>(&["DBSIZE"]).await? == 0,
        "keys are left"
    );
    Ok(report)
}

/// What is true of every ramp, wherever its knee is.
fn check(report: &Report, first: f64, last: f64) {
    let loads: Vec<f64> = report.ramp.iter().map(|step| step.load).collect();
    assert!((loads[0] - first).abs() < 1e-9, "{loads:?}");
    let doubled = loads
        .windows(2)
        .all(|pair| (pair[1] / pair[0] - 2.0).abs() < 1e-9);
    assert!(
        doubled && loads.iter().all(|load| *load <= last),
        "{loads:?}"
    );
    let knee = report.knee.as_ref().expect("a knee");
    let at = report.ramp.iter().find(|step| step.load == knee.load);
    let at = at.expect("the knee is a step");
    assert_eq!(at.ops_per_second, report.ops_per_second);
    assert!(at.ops_per_second >= report.ramp[0].ops_per_second);
    // It goes on until the knee is seen, or to the highest load.
    let highest = loads[loads.len() - 1];
    assert!(
        highest >= 4.0 * knee.load || highest * 2.0 > last * 1.001,
        "{loads:?}, knee at {}",
        knee.load
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ramp_of_clients_doubles_them_until_the_knee_is_seen() -> anyhow::Result<()> {
    let report = ramped(Pace::Closed { clients: 64 }).await?;
    check(&report, 1.0, 64.0);
    // One client waits for each reply: more of them do more.
    assert!(report.ramp.len() >= 3, "{:?}", report.ramp);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ramp_of_rates_doubles_them_up_to_the_wanted_one() -> anyhow::Result<()> {
    let (rate, in_flight) = (3200.0, 100);
    let report = ramped(Pace::Open { rate, in_flight }).await?;
    check(&report, rate / 64.0, rate);
    Ok(())
}
