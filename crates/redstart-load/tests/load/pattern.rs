//! Every pattern holds under load, nothing is left behind, and a broken script is noticed.

use std::sync::Arc;

use redstart::Store;
use redstart_load::{Length, Live, Pace, Report, Settings, all, find, run_on};
use redstart_testkit::{Backend, child::must_notice, child::without, matrix, scale};

/// Few operations of many clients on few keys: enough for clients to meet, and quick on a busy machine.
fn settings() -> Settings {
    Settings {
        pace: Pace::Closed { clients: 16 },
        length: Length::Operations(scale(400, "bench operations")),
        keys: 8,
        // Figures of a server that tests share are no figures.
        idle: std::time::Duration::ZERO,
        ..Settings::default()
    }
}

async fn bench(backend: &Backend, store: &Store, pattern: &str) -> anyhow::Result<Report> {
    let pattern = find(pattern).expect("a pattern");
    let live = Arc::new(Live::new());
    Ok(run_on(store, backend.namespace(), pattern, &settings(), &live).await?)
}

matrix! {
    async fn every_pattern_holds_under_load_and_leaves_nothing_behind(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        for pattern in all() {
            let report = bench(backend, &store, pattern.name()).await?;
            assert!(report.held, "{}: {:?}", report.pattern, report.broken);
            assert_eq!(report.operations, scale(400, "bench operations"), "{}", report.pattern);
            assert!(report.errors.is_empty(), "{}: {:?}", report.pattern, report.errors);
            let rising = [report.p50_us, report.p99_us, report.p999_us, report.max_us];
            assert!(report.p50_us > 0.0 && rising.is_sorted(), "{}: {rising:?}", report.pattern);
            // Redlock has stores of its own.
            let costs = report.server_us_per_op.is_some();
            assert!(costs || report.pattern == "redlock", "{}", report.pattern);
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

/// One pattern, chosen by the environment, for the mutations below.
async fn holds(pattern: &str) -> anyhow::Result<()> {
    let backend = Backend::new(redstart_testkit::BackendKind::Embedded, "mutation").await?;
    let store = Store::connect(backend.url()).await?;
    let report = bench(&backend, &store, pattern).await?;
    anyhow::ensure!(report.held, "{:?}", report.broken);
    Ok(())
}

/// A test for each pattern whose script is broken below; alone they simply hold.
macro_rules! hold {
    ($($name:ident)*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() -> anyhow::Result<()> {
            holds(stringify!($name)).await
        }
    )* };
}

mod mutant {
    use super::holds;
    hold! { fixed_window token_bucket sliding_window mutex semaphore stock counter array session leaderboard }
}

fn source(name: &str) -> &'static str {
    let all = redstart::script::all();
    let script = all.into_iter().find(|script| script.name() == name);
    script.expect("a script of this name").source()
}

#[tokio::test]
async fn broken_scripts_are_caught_by_the_invariants() -> anyhow::Result<()> {
    let window = source("fixed_window.check");
    let one_more = without(window, "used + cost - limit > 0", "used + cost - limit > 1");
    let log = source("sliding_window.check");
    let forgets = without(
        log,
        "local over = used + cost - limit",
        "local over = used + cost - 2 * limit",
    );
    let twice = "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) \
                 return { 1, redis.call('INCR', KEYS[2]) }";
    for (test, script, lua) in [
        ("fixed_window", "fixed_window.check", one_more.as_str()),
        ("token_bucket", "token_bucket.check_whole", "return 1"),
        ("mutex", "mutex.acquire", twice),
        // The window is the hour of half of the subjects; those of the others are a second, and turn.
        ("sliding_window", "sliding_window.check", forgets.as_str()),
        ("counter", "counter.ack", "return 0"),
        ("array", "array.set", "return redis.status_reply('OK')"),
    ] {
        must_notice(&format!("pattern::mutant::{test}"), script, lua).await?;
    }
    Ok(())
}
