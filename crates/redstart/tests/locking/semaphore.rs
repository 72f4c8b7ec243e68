use std::time::Duration;

use anyhow::{Context as _, ensure};
use redstart::locking::{LockedRun, Released, Semaphore};
use redstart_testkit::{Backend, eventually, matrix, scale};
use tokio::task::JoinSet;

use crate::{FOREVER, PATIENCE, connect, exists, permits};

matrix! {
    async fn no_more_than_the_permits_are_held(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let inside = format!("{}:inside", backend.namespace());
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            // A handle of its own, as another process has.
            let semaphore = Semaphore::builder(&store, backend.namespace(), "s", permits(3)).build()?;
            for _ in 0..4 {
                let (semaphore, store, inside) = (semaphore.clone(), store.clone(), inside.clone());
                tasks.spawn(async move {
                    let mut most = 0;
                    for _ in 0..scale(8, "SEMAPHORE_ROUNDS") {
                        let permit = semaphore.acquire(PATIENCE).await?.context("not granted")?;
                        let n: i64 = store.query(redis::cmd("INCR").arg(&inside)).await?;
                        ensure!(n <= 3, "{n} are inside");
                        most = most.max(n);
                        tokio::task::yield_now().await;
                        store.query::<()>(redis::cmd("DECR").arg(&inside)).await?;
                        ensure!(permit.release().await? == Released::Released);
                    }
                    anyhow::Ok(most)
                });
            }
        }
        let mut most = 0;
        while let Some(task) = tasks.join_next().await {
            most = most.max(task??);
        }
        assert!(most > 1, "permits are held at the same time");
        assert!(!exists(&store, &format!("{}:semaphore:{{s}}", backend.namespace())).await);
        Ok(())
    }

    async fn a_dead_holders_permit_is_free_when_its_lease_ends(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let semaphore = Semaphore::builder(&store, backend.namespace(), "s", permits(2))
            .ttl(Duration::from_millis(400)).build()?;
        let mortal = Semaphore::builder(&store, backend.namespace(), "s", permits(2))
            .ttl(Duration::from_millis(400)).without_renewal().build()?;
        let alive = semaphore.try_acquire().await?.context("not granted")?;
        let dead = mortal.try_acquire().await?.context("not granted")?;
        assert!(semaphore.try_acquire().await?.is_none());
        // Never released and never renewed, as by a process that was killed.
        let lease = dead.lease();
        std::mem::forget(dead);
        let next = semaphore.acquire(PATIENCE).await?.context("not granted")?;
        assert!(!lease.is_valid());
        assert!(alive.is_valid() || !next.is_valid(), "one that is renewed keeps its place");
        next.release().await?;
        alive.release().await?;
        Ok(())
    }

    async fn an_expired_permit_is_not_renewed_and_does_not_free_another(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mortal = Semaphore::builder(&store, backend.namespace(), "s", permits(1))
            .ttl(Duration::from_millis(40)).without_renewal().build()?;
        let semaphore = Semaphore::builder(&store, backend.namespace(), "s", permits(1)).build()?;
        let old = mortal.try_acquire().await?.context("not granted")?;
        let new = semaphore.acquire(PATIENCE).await?.context("not granted")?;
        assert_eq!(old.extend(Duration::from_secs(9)).await?, None);
        assert_eq!(old.release().await?, Released::AlreadyLost);
        assert!(semaphore.try_acquire().await?.is_none());
        assert!(new.extend(Duration::from_secs(60)).await?.is_some());
        assert_eq!(new.release().await?, Released::Released);
        Ok(())
    }

    async fn permits_are_renewed_and_the_key_has_a_ttl(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let ttl = Duration::from_millis(600);
        let semaphore = Semaphore::builder(&store, backend.namespace(), "s", permits(2)).ttl(ttl).build()?;
        let key = format!("{}:semaphore:{{s}}", backend.namespace());
        let permit = semaphore.try_acquire().await?.context("not granted")?;
        let first = permit.valid_until();
        ensure!(eventually(PATIENCE, async || permit.valid_until() > first + ttl || !permit.is_valid()).await);
        let left: i64 = store.query(redis::cmd("PTTL").arg(&key)).await?;
        assert!(left <= 601 && left != -1, "{left}");
        permit.release().await?;
        let done = semaphore.with(PATIENCE, |_| async { 1 }).await?;
        assert_eq!(done, LockedRun::Done(1));
        Ok(())
    }

    async fn a_release_wakes_a_waiter(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let semaphore = Semaphore::builder(&store, backend.namespace(), "s", permits(1))
            .ttl(Duration::from_secs(3600)).build()?;
        let permit = semaphore.try_acquire().await?.context("not granted")?;
        assert!(semaphore.acquire(Duration::from_millis(20)).await?.is_none());
        let waiter = tokio::spawn({ let s = semaphore.clone(); async move { s.acquire(FOREVER).await } });
        permit.release().await?;
        waiter.await??.context("not granted")?.release().await?;
        Ok(())
    }
}
