//! The forms that people write by hand go wrong under the same load, each in its own way.

use std::{sync::Arc, time::Duration};

use redstart::Store;
use redstart_load::{Length, Live, Pace, Report, Settings, compare_naive, find, namespace, run_on};
use redstart_testkit::{Kind, Server};

/// A pattern and its naive form, on a server of their own.
async fn beside(pattern: &str, keys: u64, operations: u64) -> anyhow::Result<Report> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
    let settings = Settings {
        pace: Pace::Closed { clients: 32 },
        length: Length::Operations(operations),
        keys,
        idle: Duration::ZERO,
        ..Settings::default()
    };
    let live = || Arc::new(Live::new());
    let (pattern, namespace) = (find(pattern).expect("a pattern"), namespace());
    let mut report = run_on(&store, &namespace, pattern, &settings, &live()).await?;
    compare_naive(&store, &namespace, &mut report, &settings, &live()).await?;
    anyhow::ensure!(report.held, "{:?} {:?}", report.broken, report.unchecked);
    anyhow::ensure!(
        server.query::<u64>(&["DBSIZE"]).await? == 0,
        "keys are left"
    );
    Ok(report)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_naive_lock_has_two_holders_and_ours_has_one() -> anyhow::Result<()> {
    let report = beside("mutex", 4, 800).await?;
    let naive = report.naive.expect("a naive form");
    assert!(naive.wrong > 0 && naive.ours_wrong == 0, "{naive:?}");
    Ok(())
}

/// A string per member has to be read for every rank, so ranks are slower the more members there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_naive_leaderboard_is_slower_and_ours_is_right() -> anyhow::Result<()> {
    let report = beside("leaderboard", 2000, 2000).await?;
    let naive = report.naive.expect("a naive form");
    assert_eq!(naive.ours_wrong, 0);
    assert!(
        naive.ops_per_second * 2.0 < report.ops_per_second,
        "{naive:?}, ours {}",
        report.ops_per_second
    );
    Ok(())
}

/// A set of ids is exact, and has every id in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_naive_count_of_visitors_takes_several_times_the_memory() -> anyhow::Result<()> {
    let report = beside("unique_visitors", 2, 4000).await?;
    let naive = report.naive.as_ref().expect("a naive form");
    let (set, sketch) = (naive.bytes_per_entity, report.bytes_per_entity);
    assert_eq!((naive.wrong, naive.ours_wrong), (0, 0), "{naive:?}");
    assert!(
        set.zip(sketch)
            .is_some_and(|(set, sketch)| set > 5.0 * sketch),
        "{set:?} against {sketch:?}"
    );
    Ok(())
}
