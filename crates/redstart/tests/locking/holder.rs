//! Who holds a lock of each kind, and ending it by force. The mutex has its own tests.

use std::time::Duration;

use anyhow::Context as _;
use redstart::locking::{FairMutex, Leader, LockHolders, Released, RwLock, Semaphore};
use redstart_testkit::{Backend, eventually, matrix};

use crate::{FOREVER, PATIENCE, connect, permits};

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
}
