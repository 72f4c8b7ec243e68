//! Who holds a lock of each kind, and ending it by force. The mutex has its own tests.

use std::time::Duration;

use anyhow::Context as _;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use redstart::{
    Store,
    key::Layout,
    locking::{
        FairMutex, Leader, LegacyLock, LockHolders, Mutex, Redlock, Released, RwLock, Semaphore,
        ServerHolder,
    },
};
use redstart_testkit::{Backend, Kind, Proxy, Server, eventually, matrix};

use crate::{FOREVER, PATIENCE, connect, permits, polled};

fn labels(holders: &LockHolders) -> Vec<&str> {
    let mut labels: Vec<&str> = holders
        .first
        .iter()
        .filter_map(|holder| holder.label.as_deref())
        .collect();
    labels.sort_unstable();
    labels
}

matrix! {
    async fn the_holder_of_a_fair_mutex_is_shown_with_its_line_and_ended_by_force(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let builder = || FairMutex::builder(&store, namespace, "f").ttl(FOREVER);
        let fair = builder().label("hung").build()?;
        assert_eq!(fair.holder().await?, None);
        let hung = fair.try_lock().await?.context("not granted")?;
        let seen = fair.holder().await?.context("it is held")?;
        assert_eq!((seen.label.as_deref(), seen.waiting), (Some("hung"), 0));
        assert!(seen.remaining > Some(Duration::from_secs(60)));
        assert!(!format!("{seen:?}").contains("rs-"), "a token is a secret");
        let other = builder().label("next").build()?;
        let waiting = tokio::spawn(async move { other.lock(FOREVER).await });
        assert!(eventually(PATIENCE, async || {
            matches!(fair.holder().await, Ok(Some(holder)) if holder.waiting == 1)
        }).await);
        assert!(fair.force_release(&seen).await?);
        let next = waiting.await??.context("the first in line is woken")?;
        assert!(next.fence() > hung.fence());
        assert!(!fair.force_release(&seen).await?, "a later holder is not touched");
        assert_eq!(fair.holder().await?.context("it is held")?.label.as_deref(), Some("next"));
        assert_eq!(hung.extend(FOREVER).await?, None);
        assert_eq!(next.release().await?, Released::Released);
        drop(hung);
        store.settle().await;
        Ok(())
    }

    async fn the_holders_of_permits_are_shown_and_ended_by_force(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let builder = || Semaphore::builder(&store, namespace, "s", permits(2));
        let long = builder().ttl(FOREVER).label("long").build()?;
        let short = builder().ttl(FOREVER / 2).label("short").build()?;
        assert_eq!(long.holders().await?.count, 0);
        let (one, two) = (
            long.try_acquire().await?.context("not granted")?,
            short.try_acquire().await?.context("not granted")?,
        );
        let holders = long.holders().await?;
        assert_eq!((holders.count, labels(&holders)), (2, vec!["long", "short"]));
        let first = &holders.first[0];
        assert_eq!(first.label.as_deref(), Some("short"), "its lease ends first");
        assert!(first.remaining < holders.first[1].remaining && first.remaining > Some(Duration::from_secs(60)));
        let waiter = builder().build()?;
        let waiting = tokio::spawn(async move { waiter.acquire(FOREVER).await });
        assert!(eventually(PATIENCE, async || {
            matches!(long.holders().await, Ok(holders) if holders.waiting == 1)
        }).await);
        assert!(long.force_release(first).await?);
        let third = waiting.await??.context("a waiter is woken")?;
        assert!(!long.force_release(first).await?);
        assert_eq!(two.extend(FOREVER).await?, None);
        assert!(one.extend(FOREVER).await?.is_some(), "another permit is not touched");
        assert_eq!(long.holders().await?.count, 2);
        one.release().await?;
        third.release().await?;
        drop(two);
        store.settle().await;
        Ok(())
    }

    async fn many_holders_are_counted_and_some_are_listed(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let semaphore = Semaphore::builder(&store, namespace, "s", permits(1000)).build()?;
        let mut guards = Vec::new();
        for _ in 0..LockHolders::MOST + 20 {
            guards.push(semaphore.try_acquire().await?.context("not granted")?);
        }
        let holders = semaphore.holders().await?;
        assert_eq!((holders.count, holders.first.len()), (120, LockHolders::MOST));
        drop(guards);
        store.settle().await;
        Ok(())
    }

    async fn readers_and_writers_are_shown_and_ended_by_force(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let builder = || RwLock::builder(&store, namespace, "rw").ttl(FOREVER);
        let rw = builder().label("a").build()?;
        let other = builder().label("b").build()?;
        let none = rw.holders().await?;
        assert!(none.writer.is_none() && none.readers.count == 0);
        let (one, two) = (
            rw.try_read().await?.context("not granted")?,
            other.try_read().await?.context("not granted")?,
        );
        let holders = rw.holders().await?;
        assert_eq!((holders.readers.count, labels(&holders.readers)), (2, vec!["a", "b"]));
        let writing = tokio::spawn(async move { other.write(FOREVER).await });
        assert!(eventually(PATIENCE, async || {
            matches!(rw.holders().await, Ok(holders) if holders.readers.waiting == 1)
        }).await);
        for reader in &holders.readers.first {
            assert!(!rw.force_release_write(reader).await?, "a reader is no writer");
            assert!(rw.force_release_read(reader).await?);
            assert!(!rw.force_release_read(reader).await?);
        }
        let writer = writing.await??.context("the readers were ended")?;
        let seen = rw.holders().await?.writer.context("there is a writer")?;
        assert_eq!(seen.label.as_deref(), Some("b"));
        assert!(rw.force_release_write(&seen).await?);
        assert_eq!(writer.extend(FOREVER).await?, None);
        let next = rw.try_write().await?.context("not granted")?;
        assert!(!rw.force_release_write(&seen).await?, "a later writer is not touched");
        assert_eq!(next.release().await?, Released::Released);
        drop((one, two, writer));
        store.settle().await;
        Ok(())
    }

    async fn a_leader_is_ended_by_force(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let hung = Leader::builder(&store, namespace, "l").ttl(FOREVER).id("hung").build()?;
        let next = Leader::builder(&store, namespace, "l").ttl(FOREVER).id("next").build()?;
        let leading = hung.try_campaign().await?.context("not elected")?;
        let seen = next.leader().await?.context("there is a leader")?;
        let candidate = next.clone();
        let waiting = tokio::spawn(async move { candidate.campaign(FOREVER).await });
        assert!(next.force_release(&seen).await?);
        let second = waiting.await??.context("the next candidate is elected")?;
        assert!(second.term() > leading.term());
        assert!(!next.force_release(&seen).await?, "a later term is not touched");
        assert_eq!(next.leader().await?.context("there is a leader")?.id, "next");
        assert_eq!(second.resign().await?, Released::Released);
        drop(leading);
        store.settle().await;
        Ok(())
    }

    async fn the_holder_of_a_legacy_lock_is_shown_and_ended_by_force(backend: &Backend) -> anyhow::Result<()> {
        let (store, namespace) = (connect(backend).await?, backend.namespace());
        let key = format!("{namespace}-old");
        let builder = || LegacyLock::builder(&store, namespace, &key).layout(Layout::new(str::to_owned)).ttl(FOREVER);
        let lock = builder().label("hung").build()?;
        assert_eq!(lock.holder().await?, None);
        let hung = lock.try_lock().await?.context("not granted")?;
        let seen = lock.holder().await?.context("it is held")?;
        assert_eq!(seen.label.as_deref(), Some("hung"));
        assert!(seen.remaining > Some(Duration::from_secs(60)) && seen.remaining < Some(FOREVER * 2));
        assert!(!format!("{seen:?}").contains("rs-"), "a token is a secret");
        let other = builder().label("next").build()?;
        let waiting = tokio::spawn(async move { other.lock(FOREVER).await });
        assert!(eventually(PATIENCE, async || {
            matches!(lock.holder().await, Ok(Some(holder)) if holder.waiting == 1)
        }).await);
        assert!(lock.force_release(&seen).await?);
        let next = waiting.await??.context("a waiter is woken")?;
        assert!(next.fence() > hung.fence());
        assert!(!lock.force_release(&seen).await?, "a later holder is not touched");
        assert_eq!(lock.holder().await?.context("it is held")?.label.as_deref(), Some("next"));
        assert_eq!(hung.extend(FOREVER).await?, None);
        assert_eq!(next.release().await?, Released::Released);
        drop(hung);
        store.settle().await;

        // What other clients wrote can be seen and ended too: an old client's stamp, and what is no stamp at all.
        let ends = store.time().await?.as_secs() + 3600;
        for theirs in [ends.to_string(), "locked".to_owned()] {
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(&theirs);
            store.query::<()>(&set).await?;
            let seen = lock.holder().await?.context("it is held")?;
            assert_eq!((seen.label.as_deref(), seen.remaining.is_some()), (None, theirs != "locked"));
            // A client of this library took it meanwhile: that lock is not the one that was seen.
            store.query::<()>(redis::cmd("DEL").arg(&key)).await?;
            let guard = lock.try_lock().await?.context("not granted")?;
            assert!(!lock.force_release(&seen).await?);
            assert_eq!(guard.release().await?, Released::Released);
            store.query::<()>(&set).await?;
            assert!(lock.force_release(&seen).await?);
            assert_eq!(lock.holder().await?, None);
        }
        // Its time has passed: nobody holds it.
        store.query::<()>(redis::cmd("SET").arg(&key).arg(ends - 7200)).await?;
        assert_eq!(lock.holder().await?, None);
        Ok(())
    }
}

async fn three() -> anyhow::Result<Vec<Store>> {
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(Store::connect("memory://").await?);
    }
    Ok(stores)
}

#[tokio::test]
async fn the_holder_of_a_quorum_lock_is_shown_per_server_and_ended_by_force() -> anyhow::Result<()>
{
    let stores = three().await?;
    let builder = || {
        Redlock::builder(stores.clone(), "app", "q")
            .ttl(FOREVER)
            .longest_lease(FOREVER)
            .server_timeout(PATIENCE)
    };
    let lock = builder().label("hung").build()?;
    assert!(lock.holders().await?.is_free());
    let hung = lock.try_lock().await?.context("not granted")?;
    let seen = lock.holders().await?;
    let holder = seen.holder.clone().context("it is held")?;
    assert_eq!((holder.label.as_deref(), holder.waiting), (Some("hung"), 0));
    assert!(!seen.is_free() && seen.servers.len() == 3);
    assert!(!format!("{seen:?}").contains("rs-"), "a token is a secret");

    // One server has lost it: still a quorum, and its time is that of the quorum.
    stores[2].advance(FOREVER * 2)?;
    let seen = lock.holders().await?;
    assert_eq!(seen.servers[2], ServerHolder::Free);
    assert!(
        seen.holder
            .is_some_and(|holder| holder.remaining > Some(FOREVER / 2))
    );

    assert!(lock.force_release(&holder).await?);
    assert!(lock.holders().await?.is_free());
    let next = builder()
        .build()?
        .try_lock()
        .await?
        .context("not granted")?;
    assert!(next.fence() > hung.fence());
    assert!(
        !lock.force_release(&holder).await?,
        "a later holder is not touched"
    );
    assert_eq!(hung.extend(FOREVER).await?, None);
    assert_eq!(next.release().await?, Released::Released);
    drop(hung);
    for store in &stores {
        store.settle().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_hung_servers_of_a_quorum_lock_have_is_unknown_and_never_taken_for_free()
-> anyhow::Result<()> {
    let (mut servers, mut proxies, mut stores) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        let server = Server::builder(Kind::Redis).start().await?;
        let proxy = Proxy::start(&server).await?;
        let store = Store::builder(proxy.url()).deadline(Duration::from_secs(4));
        stores.push(store.connect().await?);
        servers.push(server);
        proxies.push(proxy);
    }
    let lock = Redlock::builder(stores, "app", "q")
        .ttl(FOREVER)
        .longest_lease(FOREVER)
        .server_timeout(PATIENCE)
        .durable()
        .build()?;
    let guard = lock.lock(PATIENCE).await?.context("not granted")?;
    let holder = lock.holders().await?.holder.context("it is held")?;
    proxies[0].black_hole();
    // Another one may be late on a busy machine.
    let two = eventually(PATIENCE, async || {
        let seen = lock.holders().await.expect("two servers answer");
        assert_eq!(seen.servers[0], ServerHolder::Unknown);
        assert!(!seen.is_free());
        seen.holder.is_some()
    });
    assert!(two.await);
    proxies[1].black_hole();
    let seen = lock.holders().await?;
    assert!(seen.holder.is_none() && !seen.is_free(), "nobody knows");
    let error = lock.force_release(&holder).await.unwrap_err();
    assert!(error.is_unavailable() && error.is_in_doubt(), "{error}");
    proxies[2].black_hole();
    assert!(lock.holders().await.unwrap_err().is_unavailable());
    for proxy in &proxies {
        proxy.pass().await;
    }
    // The third was told; the others are told now.
    let told = eventually(PATIENCE, async || {
        lock.force_release(&holder)
            .await
            .is_ok_and(|released| released)
            || lock.holders().await.is_ok_and(|seen| seen.is_free())
    });
    assert!(told.await);
    assert!(
        eventually(PATIENCE, async || lock
            .holders()
            .await
            .is_ok_and(|seen| seen.is_free()))
        .await
    );
    drop(guard);
    Ok(())
}

/// The forced releases that were counted since the last look.
fn forced(recorder: &DebuggingRecorder) -> Vec<(String, u64)> {
    let all = recorder.snapshotter().snapshot().into_vec();
    let mut forced: Vec<_> = all
        .into_iter()
        .filter_map(|(key, _, _, value)| {
            let mut labels = key.key().labels().map(|label| label.value().to_owned());
            let event = labels.find(|value| value.ends_with(".forced"))?;
            match value {
                DebugValue::Counter(count) if count > 0 => Some((event, count)),
                _ => None,
            }
        })
        .collect();
    forced.sort();
    forced
}

#[tokio::test]
async fn every_forced_release_is_counted_and_none_that_did_nothing() -> anyhow::Result<()> {
    let recorder = DebuggingRecorder::new();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    let store = Store::connect("memory://").await?;
    let stores = three().await?;

    let mutex = Mutex::builder(&store, "app", "m").build()?;
    let fair = FairMutex::builder(&store, "app", "f").build()?;
    let legacy = LegacyLock::builder(&store, "app", "l").build()?;
    let semaphore = Semaphore::builder(&store, "app", "s", permits(1)).build()?;
    let rw = RwLock::builder(&store, "app", "rw").build()?;
    let leader = Leader::builder(&store, "app", "o").build()?;
    let quorum = Redlock::builder(stores.clone(), "app", "q").build()?;
    let guards = (
        mutex.try_lock().await?.context("not granted")?,
        fair.try_lock().await?.context("not granted")?,
        legacy.try_lock().await?.context("not granted")?,
        semaphore.try_acquire().await?.context("not granted")?,
        rw.try_write().await?.context("not granted")?,
        leader.try_campaign().await?.context("not elected")?,
        quorum.try_lock().await?.context("not granted")?,
    );
    let held = "it is held";
    let by_mutex = mutex.holder().await?.context(held)?;
    let by_fair = fair.holder().await?.context(held)?;
    let by_legacy = legacy.holder().await?.context(held)?;
    let by_permit = semaphore.holders().await?.first.remove(0);
    let writer = rw.holders().await?.writer.context(held)?;
    let elected = leader.leader().await?.context(held)?;
    let by_quorum = quorum.holders().await?.holder.context(held)?;
    // The second time there is nothing to end, and nothing to tell.
    for first in [true, false] {
        assert_eq!(mutex.force_release(&by_mutex).await?, first);
        assert_eq!(fair.force_release(&by_fair).await?, first);
        assert_eq!(legacy.force_release(&by_legacy).await?, first);
        assert_eq!(semaphore.force_release(&by_permit).await?, first);
        assert_eq!(rw.force_release_write(&writer).await?, first);
        assert_eq!(leader.force_release(&elected).await?, first);
        assert_eq!(quorum.force_release(&by_quorum).await?, first);
    }
    let patterns = [
        "fair",
        "leader",
        "legacy",
        "mutex",
        "redlock",
        "rw",
        "semaphore",
    ];
    let once = patterns.map(|pattern| (format!("{pattern}.forced"), 1));
    assert_eq!(forced(&recorder), once);
    drop(guards);
    store.settle().await;
    for store in &stores {
        store.settle().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_forced_release_whose_reply_is_lost_or_not_awaited_is_counted_too() -> anyhow::Result<()>
{
    let recorder = DebuggingRecorder::new();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::builder(proxy.url())
        .deadline(Duration::from_secs(5))
        .connect()
        .await?;
    let mutex = Mutex::builder(&store, "app", "m").ttl(FOREVER).build()?;
    let guard = mutex.try_lock().await?.context("not granted")?;
    let seen = mutex.holder().await?.context("it is held")?;
    // Makes the script known, and ends nothing.
    let nobody = {
        let other = Mutex::builder(&store, "app", "other").build()?;
        let _guard = other.try_lock().await?.context("not granted")?;
        other.holder().await?.context("it is held")?
    };
    store.settle().await;
    assert!(!mutex.force_release(&nobody).await?);
    assert_eq!(forced(&recorder), []);
    proxy.drop_reply_to("EVALSHA");
    let error = mutex.force_release(&seen).await.unwrap_err();
    assert!(error.is_in_doubt(), "{error}");
    assert_eq!(forced(&recorder), [("mutex.forced".to_owned(), 1)]);
    let known = eventually(PATIENCE, async || matches!(mutex.holder().await, Ok(None)));
    assert!(known.await, "it was released");

    // Whoever does not wait for the reply does not know either.
    let next = mutex.lock(PATIENCE).await?.context("not granted")?;
    let seen = mutex.holder().await?.context("it is held")?;
    assert!(polled(mutex.force_release(&seen), 1).await.is_none());
    assert_eq!(forced(&recorder), [("mutex.forced".to_owned(), 1)]);
    drop((guard, next));
    store.settle().await;
    Ok(())
}
