//! Leases are renewed by the runtime that acquired them.

use std::time::Duration;

use anyhow::Context as _;
use redstart::{Store, locking::Mutex};
use tokio::{runtime::Runtime, time::Instant};

const TTL: Duration = Duration::from_millis(600);

fn runtime() -> anyhow::Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?)
}

#[test]
fn a_lease_is_renewed_after_the_runtime_that_connected_has_ended() -> anyhow::Result<()> {
    let first = runtime()?;
    let store = first.block_on(Store::connect("memory://"))?;
    let early = Mutex::builder(&store, "app", "early").ttl(TTL).build()?;
    // The first runtime has a schedule of its own by now.
    let early = first
        .block_on(early.try_lock())?
        .context("the lock is free")?;

    let second = runtime()?;
    let mutex = Mutex::builder(&store, "app", "m").ttl(TTL).build()?;
    let guard = second
        .block_on(mutex.try_lock())?
        .context("the lock is free")?;
    first.shutdown_background();
    drop(early);

    let (began, until) = (Instant::now(), guard.valid_until());
    second.block_on(async {
        while began.elapsed() < TTL * 3 && guard.is_valid() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    // If the machine stopped this process for a whole lease, the renewals have nothing to show.
    if began.elapsed() < TTL * 4 {
        assert!(guard.is_valid() && guard.valid_until() > until + TTL);
    }
    second.block_on(guard.release())?;
    Ok(())
}

/// Each `#[tokio::test]` has a runtime of its own, and they may share a store.
#[test]
fn runtimes_that_follow_each_other_share_a_store() -> anyhow::Result<()> {
    let store = runtime()?.block_on(Store::connect("memory://"))?;
    for round in 0..3 {
        let runtime = runtime()?;
        runtime.block_on(async {
            let mutex = Mutex::builder(&store, "app", "m").ttl(TTL).build()?;
            let guard = mutex.try_lock().await?.context("the lock is free")?;
            let first = guard.valid_until();
            let renewed = redstart_testkit::eventually(crate::PATIENCE, async || {
                guard.valid_until() > first || !guard.is_valid()
            });
            anyhow::ensure!(renewed.await, "round {round}: never renewed");
            // Dropped, not released: the background work runs on this runtime.
            drop(guard);
            store.settle().await;
            anyhow::Ok(())
        })?;
    }
    Ok(())
}
