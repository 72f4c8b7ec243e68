//! Every pattern holds under load, and nothing is left behind.

use std::{sync::Arc, time::Duration};

use redstart::Store;
use redstart_load::{Length, Live, Pace, Report, Settings, all, find, run_on};
use redstart_testkit::{Backend, figure, matrix, scale};

/// Few operations of many clients on few keys: enough for clients to meet, and quick on a busy machine.
fn settings() -> Settings {
    Settings {
        pace: Pace::Closed { clients: 16 },
        length: Length::Operations(scale(400, "bench operations")),
        keys: 8,
        // Figures of a server that tests share are no figures.
        idle: Duration::ZERO,
        ..Settings::default()
    }
}

pub(super) async fn bench(
    backend: &Backend,
    store: &Store,
    pattern: &str,
) -> anyhow::Result<Report> {
    bench_with(backend, store, pattern, &settings()).await
}

async fn bench_with(
    backend: &Backend,
    store: &Store,
    pattern: &str,
    settings: &Settings,
) -> anyhow::Result<Report> {
    let pattern = find(pattern).expect("a pattern");
    let live = Arc::new(Live::new());
    Ok(run_on(store, backend.namespace(), pattern, settings, &live).await?)
}

matrix! {
    /// As fast as the clients can for a time: a quarter of a second here, and as many seconds as wanted in a campaign. A whole
    /// second of every pattern on every backend would take two cores for three minutes of each run of the tests.
    async fn every_pattern_holds_under_load_and_leaves_nothing_behind(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let time = match scale(0, "bench seconds") {
            0 => Duration::from_millis(250),
            seconds => Duration::from_secs(seconds),
        };
        let settings = Settings { length: Length::Time(time), ..settings() };
        for pattern in all() {
            let report = bench_with(backend, &store, pattern.name(), &settings).await?;
            assert!(report.held, "{}: {:?} {:?}", report.pattern, report.broken, report.unchecked);
            assert!(report.operations > 0 && report.seconds >= time.as_secs_f64(), "{}", report.pattern);
            if time >= Duration::from_secs(1) {
                figure(format!(
                    "{}: {} operations in {:.1} s, {}",
                    report.pattern, report.operations, report.seconds, report.invariant
                ));
            }
            assert!(report.errors.is_empty(), "{}: {:?}", report.pattern, report.errors);
            let rising = [report.p50_us, report.p99_us, report.p999_us, report.max_us];
            assert!(report.p50_us > 0.0 && rising.is_sorted(), "{}: {rising:?}", report.pattern);
            assert!(report.server_us_per_op.is_some(), "{}", report.pattern);
            // Drained queues and messages leave no entity to weigh.
            if report.keys_used > 0 && report.entities > 0 {
                assert!(report.bytes_per_entity.is_some_and(|bytes| bytes > 0.0), "{}", report.pattern);
            }
        }
        let left = store.scan(&format!("*{}*", backend.namespace())).await?;
        assert!(left.is_empty(), "{left:?}");
        Ok(())
    }
}

matrix! {
    servers only:
    async fn a_server_tells_what_an_operation_costs(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let report = bench(backend, &store, "token_bucket").await?;
        // Other tests share the server, so these are lower bounds and orders of magnitude.
        assert!(report.round_trips_per_op.is_some_and(|trips| trips >= 1.0), "{report:?}");
        assert!(report.network_bytes_per_op.is_some_and(|bytes| bytes > 10.0));
        let script = report.commands.iter().find(|cost| cost.command == "evalsha");
        assert!(script.is_some_and(|cost| cost.calls_per_op >= 0.9), "{:?}", report.commands);
        let hottest = report.hottest.expect("a hottest entity");
        assert!(hottest.share >= 1.0 / 8.0 && hottest.slot.is_some(), "{hottest:?}");
        Ok(())
    }
}
