use std::time::Duration;

use anyhow::{Context as _, ensure};
use redstart::locking::{Released, RwLock};
use redstart_testkit::{Backend, eventually, matrix, scale};
use tokio::task::JoinSet;

use crate::{PATIENCE, connect, exists};

matrix! {
    async fn readers_share_and_writers_do_not(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let lock = RwLock::builder(&store, backend.namespace(), "rw").build()?;
        let one = lock.try_read().await?.context("not granted")?;
        let two = lock.read(PATIENCE).await?.context("not granted")?;
        assert!(lock.try_write().await?.is_none());
        // `try_write` does not keep readers out.
        let three = lock.try_read().await?.context("not granted")?;
        for reader in [one, two, three] {
            assert_eq!(reader.release().await?, Released::Released);
        }
        let writer = lock.try_write().await?.context("not granted")?;
        assert!(lock.try_read().await?.is_none());
        assert!(lock.try_write().await?.is_none());
        assert!(lock.read(Duration::from_millis(20)).await?.is_none());
        let first = writer.fence();
        assert_eq!(writer.release().await?, Released::Released);
        let writer = lock.write(PATIENCE).await?.context("not granted")?;
        assert!(writer.fence() > first);
        assert_eq!(writer.release().await?, Released::Released);
        Ok(())
    }

    async fn a_reader_never_sees_half_of_a_write(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let (a, b) = (format!("{}:a", backend.namespace()), format!("{}:b", backend.namespace()));
        let rounds = scale(6, "RW_ROUNDS");
        let mut tasks = JoinSet::new();
        for at in 0..6 {
            let lock = RwLock::builder(&store, backend.namespace(), "rw").build()?;
            let (store, a, b) = (store.clone(), a.clone(), b.clone());
            tasks.spawn(async move {
                for _ in 0..rounds {
                    if at < 2 {
                        let writer = lock.write(PATIENCE).await?.context("not granted")?;
                        store.query::<()>(redis::cmd("INCR").arg(&a)).await?;
                        tokio::task::yield_now().await;
                        store.query::<()>(redis::cmd("INCR").arg(&b)).await?;
                        ensure!(writer.release().await? == Released::Released);
                    } else {
                        let reader = lock.read(PATIENCE).await?.context("not granted")?;
                        let one: Option<i64> = store.query(redis::cmd("GET").arg(&a)).await?;
                        let two: Option<i64> = store.query(redis::cmd("GET").arg(&b)).await?;
                        ensure!(one == two, "{one:?} but {two:?}");
                        ensure!(reader.release().await? == Released::Released);
                    }
                }
                anyhow::Ok(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        assert_eq!(store.query::<u64>(redis::cmd("GET").arg(&b)).await?, 2 * rounds);
        Ok(())
    }

    async fn a_waiting_writer_goes_before_new_readers(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let lock = RwLock::builder(&store, backend.namespace(), "rw").ttl(Duration::from_secs(60)).build()?;
        let waiting = format!("{}:rw:{{rw}}:waiting", backend.namespace());
        let reader = lock.try_read().await?.context("not granted")?;
        let writer = tokio::spawn({ let lock = lock.clone(); async move { lock.write(PATIENCE).await } });
        ensure!(eventually(PATIENCE, async || exists(&store, &waiting).await).await);
        assert!(lock.try_read().await?.is_none());
        let late = tokio::spawn({ let lock = lock.clone(); async move { lock.read(PATIENCE).await } });
        reader.release().await?;
        let writer = writer.await??.context("not granted")?;
        assert!(!late.is_finished());
        assert!(!exists(&store, &waiting).await, "a holder is no longer a waiter");
        writer.release().await?;
        late.await??.context("not granted")?.release().await?;
        Ok(())
    }

    async fn a_writer_that_gave_up_does_not_block_readers(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let lock = RwLock::builder(&store, backend.namespace(), "rw").ttl(Duration::from_secs(3600)).build()?;
        let reader = lock.try_read().await?.context("not granted")?;
        let late = tokio::spawn({ let lock = lock.clone(); async move {
            lock.write(Duration::from_millis(200)).await
        } });
        let waiting = format!("{}:rw:{{rw}}:waiting", backend.namespace());
        ensure!(eventually(PATIENCE, async || exists(&store, &waiting).await || late.is_finished()).await);
        let next = lock.read(PATIENCE).await?.context("not granted")?;
        assert!(late.await??.is_none());
        next.release().await?;
        reader.release().await?;
        Ok(())
    }

    async fn dead_readers_and_dead_waiting_writers_block_only_until_their_leases_end(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let lock = RwLock::builder(&store, backend.namespace(), "rw").build()?;
        let mortal = RwLock::builder(&store, backend.namespace(), "rw")
            .ttl(Duration::from_millis(300)).without_renewal().build()?;
        let dead = mortal.try_read().await?.context("not granted")?;
        let lease = dead.lease();
        std::mem::forget(dead);
        let writer = lock.write(PATIENCE).await?.context("not granted")?;
        assert!(!lease.is_valid());
        writer.release().await?;

        let dead = mortal.try_write().await?.context("not granted")?;
        std::mem::forget(dead);
        lock.read(PATIENCE).await?.context("not granted")?.release().await?;

        // A waiting writer that was killed: its place is there, and nobody renews it.
        let now = store.time().await?;
        let ends = (now + Duration::from_millis(300)).as_micros().to_string();
        let waiting = format!("{}:rw:{{rw}}:waiting", backend.namespace());
        store.query::<()>(redis::cmd("ZADD").arg(&waiting).arg(ends).arg("dead")).await?;
        assert!(lock.try_read().await?.is_none());
        lock.read(PATIENCE).await?.context("not granted")?.release().await?;
        Ok(())
    }

    async fn an_expired_reader_is_told_so(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let lock = RwLock::builder(&store, backend.namespace(), "rw").build()?;
        let mortal = RwLock::builder(&store, backend.namespace(), "rw")
            .ttl(Duration::from_millis(40)).without_renewal().build()?;
        let reader = mortal.try_read().await?.context("not granted")?;
        let writer = lock.write(PATIENCE).await?.context("not granted")?;
        assert!(!reader.is_valid());
        assert_eq!(reader.extend(Duration::from_secs(1)).await?, None);
        assert_eq!(reader.release().await?, Released::AlreadyLost);
        assert_eq!(writer.release().await?, Released::Released);
        let reader = lock.try_read().await?.context("not granted")?;
        assert!(reader.extend(Duration::from_secs(60)).await?.is_some());
        assert_eq!(reader.release().await?, Released::Released);
        Ok(())
    }
}
