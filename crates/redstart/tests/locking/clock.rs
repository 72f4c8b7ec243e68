//! On `memory://`, what a client knows of its leases moves with the clock of the store.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use redstart::locking::{Leader, LockedRun, Mutex, Redlock, Semaphore};
use redstart_testkit::{Backend, eventually, matrix};
use tokio::time::Instant;

use crate::{FOREVER, PATIENCE, connect, permits};

const LEASE: Duration = Duration::from_secs(30);

matrix! {
    embedded only:
    async fn two_leaders_never_hold_valid_guards_when_the_clock_is_moved(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        for renewed in [false, true] {
            let office = |id: &str| {
                let office = Leader::builder(&store, backend.namespace(), "l").ttl(LEASE).id(id);
                match renewed {
                    true => office.build(),
                    false => office.without_renewal().build(),
                }
            };
            let one = office("one")?.try_campaign().await?.context("not elected")?;
            store.advance(LEASE + Duration::from_secs(1))?;
            assert!(!one.is_valid(), "its lease is over on the server");
            one.lost().await;
            let two = office("two")?.try_campaign().await?.context("not elected")?;
            assert!(!one.is_valid() && two.is_valid());
            two.resign().await?;
        }
        Ok(())
    }

    async fn a_moved_clock_ends_leases_and_waits_at_once(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let builder = || Mutex::builder(&store, backend.namespace(), "m").ttl(LEASE).without_renewal();
        let guard = builder().build()?.try_lock().await?.context("not granted")?;
        assert!(guard.valid_until() > Instant::now());
        let waiter = tokio::spawn({
            let mutex = builder().build()?;
            async move { mutex.lock(FOREVER).await }
        });
        let mutex = builder().build()?;
        let impatient = tokio::spawn(async move { mutex.lock(Duration::from_secs(20)).await });
        ensure!(eventually(PATIENCE, async || {
            let holder = builder().build().expect("valid").holder().await.expect("answered");
            holder.is_some_and(|holder| holder.waiting >= 2)
        }).await);
        store.advance(Duration::from_secs(21))?;
        assert!(impatient.await??.is_none(), "its 20 s have passed");
        assert!(guard.is_valid());
        store.advance(Duration::from_secs(10))?;
        assert!(!guard.is_valid() && guard.valid_until() < Instant::now());
        let next = waiter.await??.context("not granted")?;
        assert!(next.fence() > guard.fence());
        next.release().await?;
        Ok(())
    }

    async fn a_renewal_that_a_moved_clock_makes_due_runs_at_once(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mutex = Mutex::builder(&store, backend.namespace(), "m").ttl(LEASE).build()?;
        let guard = mutex.try_lock().await?.context("not granted")?;
        for _ in 0..5 {
            // Six leases in all: without the renewals it would be lost.
            store.advance(Duration::from_secs(15))?;
            let renewed = Instant::now() + Duration::from_secs(20);
            ensure!(eventually(PATIENCE, async || guard.valid_until() > renewed).await);
        }
        assert!(guard.is_valid());
        guard.release().await?;
        Ok(())
    }

    async fn work_under_a_lock_is_dropped_when_a_moved_clock_ends_its_lease(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let pool = Semaphore::builder(&store, backend.namespace(), "s", permits(1)).ttl(LEASE).build()?;
        let run: LockedRun<()> = pool.with(PATIENCE, |_| async {
            store.advance(LEASE * 2).expect("it is embedded");
            std::future::pending().await
        }).await?;
        assert_eq!(run, LockedRun::Lost(None));
        Ok(())
    }

    async fn a_quorum_lock_follows_the_clock_too(backend: &Backend) -> anyhow::Result<()> {
        let stores = [connect(backend).await?, connect(backend).await?, connect(backend).await?];
        let lock = Redlock::builder(stores.clone(), backend.namespace(), "r").ttl(LEASE).without_renewal().build()?;
        let guard = lock.try_lock().await?.context("not granted")?;
        for store in &stores {
            store.advance(LEASE)?;
        }
        assert!(!guard.is_valid());
        let next = lock.try_lock().await?.context("not granted")?;
        assert!(next.is_valid() && next.fence() > guard.fence());
        Ok(())
    }
}
