//! The store's metrics say what happened.

use std::{collections::HashMap, time::Duration};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use redstart::Store;
use redstart_testkit::{Cluster, Kind, Proxy, Sentinel, Server, eventually};

const PATIENCE: Duration = Duration::from_secs(30);

/// The sums of all labels.
fn read(snapshotter: &Snapshotter) -> HashMap<String, f64> {
    let mut sums = HashMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(level) => level.into_inner(),
            DebugValue::Histogram(values) => values.len() as f64,
        };
        *sums.entry(key.key().name().to_owned()).or_default() += value;
    }
    sums
}

/// The nodes that a metric has labels of, sorted.
fn nodes(snapshotter: &Snapshotter, metric: &str) -> Vec<String> {
    let mut nodes = Vec::new();
    for (key, ..) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        if key.name() == metric {
            let labels = key.labels().filter(|label| label.key() == "node");
            nodes.extend(labels.map(|label| label.value().to_owned()));
        }
    }
    nodes.sort();
    nodes
}

/// A node is an address, or the name of the master behind sentinels.
#[tokio::test]
async fn what_is_measured_of_a_node_carries_its_name() -> anyhow::Result<()> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    // The connections are made in this thread.
    let _recording = metrics::set_default_local_recorder(&recorder);
    let server = Server::builder(Kind::Redis).start().await?;
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let group = Sentinel::start(Kind::Redis).await?;
    let mut wanted = vec![server.addr(), group.master_name().to_owned()];
    wanted.extend(cluster.nodes().iter().map(Server::addr));
    wanted.sort();
    for url in [server.url(), cluster.url(), group.url()] {
        let store = Store::connect(&url).await?;
        for n in 0..200 {
            let mut set = redis::cmd("SET");
            set.arg(n).arg(1);
            store.query::<()>(&set).await?;
        }
    }
    // Reading takes what has happened away, and the names stay.
    for metric in ["redstart_store_in_flight", "redstart_store_request_seconds"] {
        assert_eq!(nodes(&snapshotter, metric), wanted, "{metric}");
    }
    Ok(())
}

#[tokio::test]
async fn in_flight_latency_doubts_cancellations_and_retries_are_counted() -> anyhow::Result<()> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install()?;
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::connect(&format!("{}?timeout=2s", proxy.url())).await?;
    let ping = redis::cmd("PING");
    for _ in 0..64 {
        store.query::<()>(&ping).await?;
    }
    let seen = read(&snapshotter);
    assert!(seen["redstart_store_request_seconds"] >= 8.0, "{seen:?}");
    assert_eq!(seen["redstart_store_in_flight"], 0.0);

    // A caller that does not wait.
    proxy.black_hole();
    let mut set = redis::cmd("SET");
    set.arg("k").arg(1);
    let call = store.query::<()>(&set);
    let left = tokio::time::timeout(Duration::from_millis(50), call).await;
    assert!(left.is_err());
    // A write whose reply never comes.
    let lost = store.query::<()>(&set).await;
    assert!(lost.is_err_and(|error| error.is_in_doubt()));
    proxy.pass().await;
    assert!(eventually(PATIENCE, async || store.query::<()>(&ping).await.is_ok()).await);
    let after = read(&snapshotter);
    assert_eq!(after["redstart_store_cancelled_total"], 1.0, "{after:?}");
    assert!(after["redstart_store_doubts_total"] >= 1.0, "{after:?}");
    assert!(after["redstart_store_reconnects_total"] >= 1.0, "{after:?}");
    Ok(())
}

/// The depth of the queue: requests that wait for a connection, or for room on one.
#[tokio::test]
async fn requests_that_wait_for_a_connection_are_counted_until_they_have_one() -> anyhow::Result<()>
{
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install()?;
    // A snapshot has what changed since the last one.
    let mut level = 0.0;
    let mut waiting = || {
        let change = read(&snapshotter).get("redstart_store_waiting").copied();
        level += change.unwrap_or_default();
        level
    };
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::builder(proxy.url())
        .deadline(PATIENCE)
        .lazy()
        .connect()
        .await?;
    proxy.stall();
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.query::<()>(&redis::cmd("PING")).await })
        })
        .collect();
    assert!(eventually(PATIENCE, async || waiting() == 3.0).await);
    // One that is dropped does not wait any more.
    let mut calls = calls.into_iter();
    let dropped = calls.next().expect("there are three");
    dropped.abort();
    assert!(dropped.await.is_err());
    assert_eq!(waiting(), 2.0);
    proxy.pass().await;
    for call in calls {
        call.await??;
    }
    assert_eq!(waiting(), 0.0);
    Ok(())
}

#[tokio::test]
async fn redirects_are_counted() -> anyhow::Result<()> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install()?;
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let store = Store::connect(&cluster.url()).await?;
    let mut set = redis::cmd("SET");
    set.arg("{x}k").arg(1);
    store.query::<()>(&set).await?;
    let slot = redstart_testkit::key_slot(b"x");
    let owner = cluster.owner(slot).await?;
    cluster.migrate_slot(slot, (owner + 1) % 3).await?;
    store.query::<()>(&set).await?;
    let seen = read(&snapshotter);
    assert!(seen["redstart_store_redirects_total"] >= 1.0, "{seen:?}");
    assert!(seen["redstart_store_retries_total"] >= 1.0, "{seen:?}");
    Ok(())
}

#[tokio::test]
async fn an_operation_that_is_dropped_is_counted_as_cancelled_and_one_that_ends_is_not()
-> anyhow::Result<()> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install()?;
    let store = Store::connect("memory://").await?;
    let mutex = redstart::locking::Mutex::new(&store, "app", "m")?;
    let guard = mutex.try_lock().await?;
    let waiting = mutex.lock(Duration::from_secs(3600));
    assert!(
        tokio::time::timeout(Duration::from_millis(20), waiting)
            .await
            .is_err()
    );
    // Never polled.
    drop(mutex.lock(Duration::from_secs(3600)));
    drop(guard);
    store.settle().await;
    let snapshot = snapshotter.snapshot().into_vec();
    let count = |operation: &str, outcome: &str| {
        let sum = snapshot.iter().filter_map(|(key, _, _, value)| {
            let has = |name: &str, value: &str| {
                let mut labels = key.key().labels();
                labels.any(|label| label.key() == name && label.value() == value)
            };
            match value {
                DebugValue::Counter(count)
                    if has("operation", operation) && has("outcome", outcome) =>
                {
                    Some(*count)
                }
                _ => None,
            }
        });
        sum.sum::<u64>()
    };
    assert_eq!(count("mutex.acquire", "cancelled"), 1);
    assert_eq!(count("mutex.acquire", "ok"), 1);
    Ok(())
}
