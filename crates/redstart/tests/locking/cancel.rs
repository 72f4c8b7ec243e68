//! Futures dropped at every await point: nothing stays on the server and nothing is renewed.

use std::time::Duration;

use redstart::{
    Store,
    locking::{FairMutex, Leader, LegacyLock, LockedRun, Mutex, Redlock, RwLock, Semaphore},
};
use redstart_testkit::{Backend, matrix};

use crate::{PATIENCE, connect, permits, polled};

/// More polls than any of these takes on a healthy store.
const ENOUGH: usize = 200;

/// Everything that a holder must not leave behind: all keys but the fence counters.
async fn leftovers(store: &Store, namespace: &str) -> anyhow::Result<Vec<String>> {
    let mut keys = store.scan(&format!("*{namespace}*")).await?;
    keys.retain(|key| !key.ends_with(":fence"));
    Ok(keys)
}

/// Runs `life` (acquire, hold, release) up to each of its await points, and checks what is left.
async fn at_every_await_point(
    store: &Store,
    namespace: &str,
    life: impl AsyncFn() -> redstart::Result<bool>,
) -> anyhow::Result<()> {
    for times in 0..ENOUGH {
        let ended = polled(life(), times).await;
        store.settle().await;
        let left = leftovers(store, namespace).await?;
        assert_eq!(left, [""; 0], "after {times} polls, ended: {ended:?}");
        if let Some(ended) = ended {
            assert!(ended?, "the lock was not granted after {times} polls");
            return Ok(());
        }
    }
    anyhow::bail!("it does not end in {ENOUGH} polls")
}

/// The same while another owner holds the lock: the waiter must leave nothing, and the holder must not notice.
async fn while_waiting(
    store: &Store,
    namespace: &str,
    wait: impl AsyncFn() -> redstart::Result<bool>,
) -> anyhow::Result<()> {
    let before = leftovers(store, namespace).await?;
    for times in 0..8 {
        // The last of these points is the wait itself, which nothing ends.
        let point = polled(wait(), times);
        let ended = tokio::time::timeout(Duration::from_millis(100), point).await;
        assert!(
            !matches!(ended, Ok(Some(Ok(true)))),
            "it was granted although it is taken"
        );
        store.settle().await;
        let left = leftovers(store, namespace).await?;
        assert_eq!(left, before, "after {times} polls");
    }
    Ok(())
}

async fn yield_some() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

const TTL: Duration = Duration::from_secs(20);

matrix! {
    async fn a_mutex_dropped_at_any_await_leaves_nothing_behind(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let mutex = Mutex::builder(&store, namespace, "m").ttl(TTL).build()?;
        at_every_await_point(&store, namespace, async || {
            let Some(guard) = mutex.lock(PATIENCE).await? else { return Ok(false) };
            guard.extend(TTL * 2).await?;
            yield_some().await;
            guard.release().await?;
            Ok(true)
        }).await?;
        let bare = Mutex::builder(&store, namespace, "m").ttl(TTL).unfenced().build()?;
        at_every_await_point(&store, namespace, async || {
            let Some(guard) = bare.try_lock().await? else { return Ok(false) };
            yield_some().await;
            guard.release().await?;
            Ok(true)
        }).await?;
        at_every_await_point(&store, namespace, async || {
            let done = mutex.with(PATIENCE, |_| yield_some()).await?;
            Ok(matches!(done, LockedRun::Done(())))
        }).await?;
        let guard = mutex.try_lock().await?.expect("it is free");
        while_waiting(&store, namespace, async || Ok(mutex.lock(PATIENCE).await?.is_some())).await?;
        while_waiting(&store, namespace, async || Ok(bare.lock(PATIENCE).await?.is_some())).await?;
        assert!(guard.is_valid());
        guard.release().await?;
        Ok(())
    }

    async fn a_fair_mutex_dropped_at_any_await_leaves_nothing_behind(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let fair = FairMutex::builder(&store, namespace, "f").ttl(TTL).build()?;
        at_every_await_point(&store, namespace, async || {
            let Some(guard) = fair.lock(PATIENCE).await? else { return Ok(false) };
            yield_some().await;
            guard.release().await?;
            Ok(true)
        }).await?;
        let guard = fair.try_lock().await?.expect("it is free");
        while_waiting(&store, namespace, async || Ok(fair.lock(PATIENCE).await?.is_some())).await?;
        assert!(guard.is_valid());
        guard.release().await?;
        Ok(())
    }

    async fn a_semaphore_dropped_at_any_await_leaves_nothing_behind(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let semaphore = Semaphore::builder(&store, namespace, "s", permits(1)).ttl(TTL).build()?;
        at_every_await_point(&store, namespace, async || {
            let Some(guard) = semaphore.acquire(PATIENCE).await? else { return Ok(false) };
            yield_some().await;
            guard.release().await?;
            Ok(true)
        }).await?;
        let guard = semaphore.try_acquire().await?.expect("it is free");
        while_waiting(&store, namespace, async || Ok(semaphore.acquire(PATIENCE).await?.is_some())).await?;
        guard.release().await?;
        Ok(())
    }

    async fn a_read_write_lock_dropped_at_any_await_leaves_nothing_behind(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let lock = RwLock::builder(&store, namespace, "rw").ttl(TTL).build()?;
        at_every_await_point(&store, namespace, async || {
            let Some(guard) = lock.read(PATIENCE).await? else { return Ok(false) };
            yield_some().await;
            guard.release().await?;
            let Some(guard) = lock.write(PATIENCE).await? else { return Ok(false) };
            yield_some().await;
            guard.release().await?;
            Ok(true)
        }).await?;
        let guard = lock.try_read().await?.expect("it is free");
        while_waiting(&store, namespace, async || Ok(lock.write(PATIENCE).await?.is_some())).await?;
        guard.release().await?;
        let guard = lock.try_write().await?.expect("it is free");
        while_waiting(&store, namespace, async || Ok(lock.read(PATIENCE).await?.is_some())).await?;
        while_waiting(&store, namespace, async || Ok(lock.write(PATIENCE).await?.is_some())).await?;
        guard.release().await?;
        Ok(())
    }

    async fn a_candidate_dropped_at_any_await_leaves_nothing_behind(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let office = Leader::builder(&store, namespace, "l").ttl(TTL).build()?;
        at_every_await_point(&store, namespace, async || {
            let Some(leadership) = office.campaign(PATIENCE).await? else { return Ok(false) };
            yield_some().await;
            leadership.resign().await?;
            Ok(true)
        }).await?;
        let leadership = office.try_campaign().await?.expect("it is free");
        while_waiting(&store, namespace, async || Ok(office.campaign(PATIENCE).await?.is_some())).await?;
        leadership.resign().await?;
        Ok(())
    }

    async fn a_legacy_lock_dropped_at_any_await_leaves_nothing_behind(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let lock = LegacyLock::builder(&store, namespace, "old").ttl(TTL).build()?;
        at_every_await_point(&store, namespace, async || {
            let Some(guard) = lock.lock(PATIENCE).await? else { return Ok(false) };
            yield_some().await;
            guard.release().await?;
            Ok(true)
        }).await?;
        let guard = lock.try_lock().await?.expect("it is free");
        while_waiting(&store, namespace, async || Ok(lock.lock(PATIENCE).await?.is_some())).await?;
        guard.release().await?;
        Ok(())
    }

}

matrix! {
    // Tests share a server, so only the embedded backend can have three of its own.
    embedded only:
    async fn a_quorum_lock_dropped_at_any_await_leaves_nothing_behind(backend: &Backend) -> anyhow::Result<()> {
        let namespace = backend.namespace();
        let stores = [connect(backend).await?, connect(backend).await?, connect(backend).await?];
        let lock = Redlock::builder(stores.clone(), namespace, "r").ttl(TTL).build()?;
        for times in 0..ENOUGH {
            let life = async {
                let Some(guard) = lock.lock(PATIENCE).await? else { return Ok(false) };
                yield_some().await;
                guard.release().await?;
                Ok(true)
            };
            let ended: Option<redstart::Result<bool>> = polled(life, times).await;
            for store in &stores {
                store.settle().await;
            }
            for store in &stores {
                assert_eq!(leftovers(store, namespace).await?, [""; 0], "after {times} polls");
            }
            if let Some(ended) = ended {
                assert!(ended?);
                return Ok(());
            }
        }
        anyhow::bail!("it does not end in {ENOUGH} polls")
    }
}
