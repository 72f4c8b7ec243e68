use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use redstart::{
    Store,
    key::Layout,
    locking::{LegacyLock, LegacyLockBuilder, LegacyState, LegacyUnit, Mutex, Released},
};
use redstart_testkit::{Backend, eventually, matrix};

use crate::{PATIENCE, connect, exists};

/// A client of the old kind, with a clock of its own.
struct Old {
    store: Store,
    key: String,
    /// Seconds by which its clock is ahead.
    ahead: i64,
}

impl Old {
    fn now(&self) -> i64 {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        now.as_secs() as i64 + self.ahead
    }

    async fn take(&self, seconds: i64) -> anyhow::Result<bool> {
        let stamp = || self.now() + seconds + 1;
        if self
            .store
            .query(redis::cmd("SETNX").arg(&self.key).arg(stamp()))
            .await?
        {
            return Ok(true);
        }
        let held: Option<i64> = self.store.query(redis::cmd("GET").arg(&self.key)).await?;
        if held.is_some_and(|held| held >= self.now()) {
            return Ok(false);
        }
        let before: Option<i64> = self
            .store
            .query(redis::cmd("GETSET").arg(&self.key).arg(stamp()))
            .await?;
        Ok(before.is_none_or(|before| before < self.now()))
    }

    async fn give_back(&self) -> anyhow::Result<()> {
        Ok(self.store.query(redis::cmd("DEL").arg(&self.key)).await?)
    }
}

/// A client of this library on the key that the old ones use.
fn new_client(store: &Store, key: &str) -> LegacyLockBuilder {
    LegacyLock::builder(store, "app", key).layout(Layout::new(str::to_owned))
}

fn old(store: &Store, key: &str) -> Old {
    Old {
        store: store.clone(),
        key: key.to_owned(),
        ahead: 0,
    }
}

matrix! {
    async fn old_and_new_clients_exclude_each_other(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let key = format!("{}-old", backend.namespace());
        let (old, new) = (old(&store, &key), new_client(&store, &key).build()?);
        assert_eq!(new.state().await?, LegacyState::Free);
        ensure!(old.take(60).await?);
        assert!(new.try_lock().await?.is_none());
        assert!(matches!(new.state().await?, LegacyState::Held(left) if left > Duration::from_secs(30)));
        // It sends no wake-up when it releases the lock; the waiter notices anyway.
        let waiter = tokio::spawn({ let new = new.clone(); async move { new.lock(PATIENCE).await } });
        old.give_back().await?;
        let guard = waiter.await??.context("not granted")?;
        ensure!(!old.take(60).await?);
        assert!(new.try_lock().await?.is_none());
        assert!(guard.extend(Duration::from_secs(120)).await?.is_some());
        ensure!(!old.take(60).await?);
        assert_eq!(guard.release().await?, Released::Released);
        ensure!(old.take(60).await?);
        Ok(())
    }

    async fn milliseconds_are_understood_too(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let key = format!("{}-old", backend.namespace());
        let new = new_client(&store, &key)
            .unit(LegacyUnit::Milliseconds).skew(Duration::ZERO).build()?;
        let stamp = (store.time().await? + Duration::from_millis(300)).as_millis().to_string();
        store.query::<()>(redis::cmd("SETNX").arg(&key).arg(stamp)).await?;
        let first = new.lock(PATIENCE).await?.context("not granted")?;
        let now = store.time().await?.as_millis();
        let written: u128 = store.query::<u64>(redis::cmd("GET").arg(&key)).await?.into();
        assert!((now + 20_000..now + 31_000).contains(&written), "{written} at {now}");
        assert_eq!(first.release().await?, Released::Released);
        Ok(())
    }

    async fn an_expired_lock_is_taken_and_a_held_one_is_not_changed(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let key = format!("{}-old", backend.namespace());
        let new = new_client(&store, &key).build()?;
        // Held for another minute: asking must not change it.
        let stamp = (store.time().await?.as_secs() + 60).to_string();
        store.query::<()>(redis::cmd("SET").arg(&key).arg(&stamp)).await?;
        for _ in 0..3 {
            assert!(new.try_lock().await?.is_none());
        }
        assert_eq!(store.query::<String>(redis::cmd("GET").arg(&key)).await?, stamp);
        // A holder that died a minute ago: the key never had a TTL.
        let stamp = (store.time().await?.as_secs() - 60).to_string();
        store.query::<()>(redis::cmd("SET").arg(&key).arg(&stamp)).await?;
        assert!(matches!(new.state().await?, LegacyState::Expired(_)));
        let guard = new.try_lock().await?.context("not granted")?;
        let ttl: i64 = store.query(redis::cmd("PTTL").arg(&key)).await?;
        assert!(ttl > 0, "{ttl}");
        assert_eq!(guard.release().await?, Released::Released);
        Ok(())
    }

    async fn clocks_within_the_skew_do_not_break_exclusion(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let key = format!("{}-old", backend.namespace());
        let new = new_client(&store, &key)
            .ttl(Duration::from_secs(5)).skew(Duration::from_secs(3600)).build()?;
        let fast = Old { ahead: 3500, ..old(&store, &key) };
        let slow = Old { ahead: -3500, ..old(&store, &key) };
        let guard = new.try_lock().await?.context("not granted")?;
        ensure!(!fast.take(10).await?, "its clock says that our lease is over");
        guard.release().await?;
        ensure!(slow.take(10).await?);
        assert!(new.try_lock().await?.is_none(), "by its own clock it holds the lock");
        Ok(())
    }

    async fn a_stamp_that_an_old_client_moved_is_a_lost_lock(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let key = format!("{}-old", backend.namespace());
        let new = new_client(&store, &key).ttl(Duration::from_millis(600)).build()?;
        let guard = new.try_lock().await?.context("not granted")?;
        // An hour ahead, far beyond the skew: it believes that it took the lock.
        let thief = Old { ahead: 3600, ..old(&store, &key) };
        ensure!(thief.take(60).await?);
        guard.lost().await;
        assert_eq!(guard.release().await?, Released::AlreadyLost);
        assert!(exists(&store, &key).await, "the thief's lock is not ours to delete");
        Ok(())
    }

    async fn a_value_that_is_not_a_time_stamp_is_treated_as_held(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let key = format!("{}-old", backend.namespace());
        let new = new_client(&store, &key).build()?;
        for odd in ["", "locked", "12ab", "99999999999999999999999999999999", "1e5", "-5"] {
            store.query::<()>(redis::cmd("SET").arg(&key).arg(odd)).await?;
            assert!(new.try_lock().await?.is_none(), "{odd:?}");
            assert_eq!(new.state().await?, LegacyState::Foreign, "{odd:?}");
            assert_eq!(new.migrate().await?, LegacyState::Foreign, "{odd:?}");
        }
        Ok(())
    }

    async fn a_mutex_takes_over_the_key_after_migrating(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let key = format!("{}-old", backend.namespace());
        let legacy = new_client(&store, &key).skew(Duration::ZERO).build()?;
        let mutex = Mutex::builder(&store, backend.namespace(), &key)
            .layout(Layout::new(str::to_owned)).build()?;
        assert_eq!(legacy.migrate().await?, LegacyState::Free);
        // Still held: honoured until its own end, which is now the key's.
        let ends = store.time().await?.as_secs() + 2;
        store.query::<()>(redis::cmd("SET").arg(&key).arg(ends)).await?;
        assert!(matches!(legacy.migrate().await?, LegacyState::Held(_)));
        assert!(mutex.try_lock().await?.is_none());
        let guard = mutex.lock(PATIENCE).await?.context("not granted")?;
        assert!(store.time().await?.as_secs() >= ends);
        assert_eq!(guard.release().await?, Released::Released);
        // Left behind long ago: removed.
        store.query::<()>(redis::cmd("SET").arg(&key).arg(ends - 100)).await?;
        assert!(matches!(legacy.migrate().await?, LegacyState::Expired(_)));
        ensure!(eventually(PATIENCE, async || !exists(&store, &key).await).await);
        mutex.try_lock().await?.context("not granted")?.release().await?;
        Ok(())
    }
}
