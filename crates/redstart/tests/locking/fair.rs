use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use parking_lot::Mutex as Cell;
use redstart::locking::{FairMutex, LockedRun, Released};
use redstart_testkit::{Backend, eventually, matrix};
use tokio::task::JoinSet;

use crate::{PATIENCE, connect, exists};

matrix! {
    async fn the_lock_is_granted_in_order_of_arrival_across_handles(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let line = format!("{}:fair:{{f}}:queue", backend.namespace());
        let length = async || -> usize {
            store.query(redis::cmd("ZCARD").arg(&line)).await.expect("ZCARD is answered")
        };
        // Two handles, as two processes would have; a long lease, so that only messages can hand it on.
        let handles = [
            FairMutex::builder(&store, backend.namespace(), "f").ttl(Duration::from_secs(3600)).build()?,
            FairMutex::builder(&store, backend.namespace(), "f").ttl(Duration::from_secs(3600)).build()?,
        ];
        let first = handles[0].try_lock().await?.context("not granted")?;
        let order = Arc::new(Cell::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for at in 0..6 {
            // Two of one handle, then two of the other.
            let (handle, order) = (handles[at / 2 % 2].clone(), order.clone());
            tasks.spawn(async move {
                let guard = handle.lock(PATIENCE).await?.context("not granted")?;
                order.lock().push((at, guard.fence()));
                ensure!(guard.release().await? == Released::Released);
                anyhow::Ok(())
            });
            ensure!(eventually(PATIENCE, async || length().await == at + 1).await);
        }
        assert!(handles[1].try_lock().await?.is_none());
        assert_eq!(first.release().await?, Released::Released);
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        let order = order.lock();
        let arrivals: Vec<usize> = order.iter().map(|(at, _)| *at).collect();
        assert_eq!(arrivals, [0, 1, 2, 3, 4, 5]);
        assert!(order.is_sorted_by(|a, b| a.1 < b.1), "tokens rise");
        Ok(())
    }

    async fn try_lock_does_not_pass_waiters(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let fair = FairMutex::builder(&store, backend.namespace(), "f").build()?;
        // A waiter is in line and the lock is free, as between a release and the next request.
        let now = store.time().await?;
        let ends = (now + Duration::from_secs(3)).as_micros().to_string();
        for part in ["queue", "places"] {
            let key = format!("{}:fair:{{f}}:{part}", backend.namespace());
            store.query::<()>(redis::cmd("ZADD").arg(key).arg(&ends).arg("first")).await?;
        }
        assert!(fair.try_lock().await?.is_none());
        // It never asks, so its place expires.
        let guard = fair.lock(PATIENCE).await?.context("not granted")?;
        guard.release().await?;
        Ok(())
    }

    async fn dead_waiters_are_skipped_when_their_places_expire(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let fair = FairMutex::builder(&store, backend.namespace(), "f").ttl(Duration::from_secs(2)).build()?;
        let guard = fair.try_lock().await?.context("not granted")?;
        let now = store.time().await?;
        for (at, name) in ["dead-1", "dead-2"].iter().enumerate() {
            let ends = (now + Duration::from_millis(300 * (at as u64 + 1))).as_micros().to_string();
            for part in ["queue", "places"] {
                let key = format!("{}:fair:{{f}}:{part}", backend.namespace());
                store.query::<()>(redis::cmd("ZADD").arg(key).arg(&ends).arg(*name)).await?;
            }
        }
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            let fair = fair.clone();
            tasks.spawn(async move {
                let guard = fair.lock(PATIENCE).await?.context("not granted")?;
                anyhow::Ok(guard.release().await?)
            });
        }
        guard.release().await?;
        while let Some(task) = tasks.join_next().await {
            assert_eq!(task??, Released::Released);
        }
        for part in ["queue", "places"] {
            assert!(!exists(&store, &format!("{}:fair:{{f}}:{part}", backend.namespace())).await);
        }
        Ok(())
    }

    async fn places_whose_leases_were_evicted_do_not_block_the_line(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let fair = FairMutex::builder(&store, backend.namespace(), "f").build()?;
        let part = |part: &str| format!("{}:fair:{{f}}:{part}", backend.namespace());
        let lost = redis::cmd("ZADD").arg(part("queue")).arg(&[("1", "lost-1"), ("2", "lost-2")]).clone();
        store.query::<()>(&lost).await?;
        let guard = fair.try_lock().await?.context("not granted")?;
        guard.release().await?;

        // Whoever has a lease keeps its place behind them.
        store.query::<()>(&lost).await?;
        let ends = (store.time().await? + PATIENCE).as_micros().to_string();
        for name in ["queue", "places"] {
            store.query::<()>(redis::cmd("ZADD").arg(part(name)).arg(&ends).arg("alive")).await?;
        }
        assert!(fair.try_lock().await?.is_none());
        let line: Vec<String> = store.query(redis::cmd("ZRANGE").arg(part("queue")).arg(0).arg(-1)).await?;
        assert_eq!(line, ["alive"]);
        Ok(())
    }

    async fn after_a_dead_holder_the_first_waiter_gets_the_lock(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let fair = FairMutex::builder(&store, backend.namespace(), "f").build()?;
        let mortal = FairMutex::builder(&store, backend.namespace(), "f")
            .ttl(Duration::from_millis(300)).without_renewal().build()?;
        let dead = mortal.try_lock().await?.context("not granted")?;
        let lease = dead.lease();
        std::mem::forget(dead);
        let outcome = fair.with(PATIENCE, |lease| async move { lease.fence() }).await?;
        assert!(matches!(outcome, LockedRun::Done(fence) if fence > lease.fence()), "{outcome:?}");
        assert!(!lease.is_valid());
        Ok(())
    }

    async fn a_waiter_that_gave_up_is_skipped_at_once(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let fair = FairMutex::builder(&store, backend.namespace(), "f").ttl(Duration::from_secs(3600)).build()?;
        let guard = fair.try_lock().await?.context("not granted")?;
        assert!(fair.lock(Duration::from_millis(30)).await?.is_none());
        let aborted = tokio::spawn({ let fair = fair.clone(); async move { fair.lock(PATIENCE).await } });
        let line = format!("{}:fair:{{f}}:queue", backend.namespace());
        ensure!(eventually(PATIENCE, async || exists(&store, &line).await).await);
        let waiter = tokio::spawn({ let fair = fair.clone(); async move { fair.lock(PATIENCE).await } });
        aborted.abort();
        // A task that ended before the abort keeps its guard in the handle.
        drop(aborted.await);
        guard.release().await?;
        waiter.await??.context("not granted")?.release().await?;
        store.settle().await;
        assert!(!exists(&store, &line).await);
        Ok(())
    }
}
