use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use redstart::locking::{FencedValues, FencedWrite, Leader, Released};
use redstart_testkit::{Backend, eventually, matrix};
use tokio::task::JoinSet;

use crate::{PATIENCE, connect};

matrix! {
    async fn one_of_many_leads_and_terms_rise(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mut tasks = JoinSet::new();
        for at in 0..5 {
            let office = Leader::builder(&store, backend.namespace(), "l")
                .id(&format!("node-{at}")).ttl(Duration::from_secs(60)).build()?;
            tasks.spawn(async move {
                let leadership = office.campaign(PATIENCE).await?.context("not elected")?;
                let seen = office.leader().await?.context("nobody leads")?;
                ensure!(seen.id == format!("node-{at}") && seen.term == leadership.term());
                ensure!(office.try_campaign().await?.is_none());
                ensure!(leadership.is_valid());
                let term = leadership.term();
                ensure!(leadership.resign().await? == Released::Released);
                anyhow::Ok(term)
            });
        }
        let mut terms = Vec::new();
        while let Some(task) = tasks.join_next().await {
            terms.push(task??);
        }
        terms.sort();
        terms.dedup();
        assert_eq!(terms.len(), 5);
        Ok(())
    }

    async fn a_dead_leader_is_replaced_and_observers_are_told(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let one = Leader::builder(&store, backend.namespace(), "l")
            .id("one").ttl(Duration::from_millis(400)).without_renewal().build()?;
        let two = Leader::builder(&store, backend.namespace(), "l").id("two").build()?;
        let mut observer = two.observe();
        assert_eq!(observer.next().await?, None);
        let dead = one.try_campaign().await?.context("not elected")?;
        let first = observer.next().await?.context("nobody leads")?;
        assert_eq!((first.id.as_str(), first.term), ("one", dead.term()));
        let lease = dead.lease();
        std::mem::forget(dead);

        // Its writes are refused as soon as its successor has written.
        let fenced = FencedValues::new(&store, backend.namespace(), "values")?;
        let leadership = two.campaign(PATIENCE).await?.context("not elected")?;
        lease.lost().await;
        assert!(leadership.term() > first.term);
        assert_eq!(fenced.set("x", "two", leadership.term()).await?, FencedWrite::Done);
        assert!(matches!(fenced.set("x", "one", first.term).await?, FencedWrite::Stale { .. }));

        // It may have seen the time between the two.
        let mut seen = observer.next().await?;
        if seen.is_none() {
            seen = observer.next().await?;
        }
        assert_eq!(seen.context("nobody leads")?.id, "two");
        leadership.resign().await?;
        assert_eq!(observer.next().await?, None);
        Ok(())
    }

    async fn an_observer_is_told_of_a_leader_that_died_without_a_successor(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let office = Leader::builder(&store, backend.namespace(), "l")
            .ttl(Duration::from_millis(300)).without_renewal().build()?;
        let mut observer = office.observe();
        let dead = office.try_campaign().await?.context("not elected")?;
        assert!(observer.next().await?.is_some());
        std::mem::forget(dead);
        assert_eq!(observer.next().await?, None);
        Ok(())
    }

    async fn work_of_a_leader_is_dropped_when_it_loses_and_started_again_when_it_leads(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let key = format!("{}:leader:{{l}}", backend.namespace());
        let office = |id: &str| {
            Leader::builder(&store, backend.namespace(), "l").id(id).ttl(Duration::from_millis(400)).build()
        };
        let (one, two) = (office("one")?, office("two")?);
        let (begun, ended) = (AtomicU32::new(0), AtomicU32::new(0));
        struct Counted<'a>(&'a AtomicU32);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let running = one.run(|lease| {
            let term = begun.fetch_add(1, Ordering::SeqCst);
            let counted = Counted(&ended);
            async move {
                let _counted = counted;
                if term < 2 {
                    std::future::pending::<()>().await;
                }
                lease.fence()
            }
        });
        let disturb = async {
            for lost in 1..=2 {
                ensure!(eventually(PATIENCE, async || begun.load(Ordering::SeqCst) == lost).await);
                // The server loses it, and another candidate is elected.
                store.query::<()>(redis::cmd("DEL").arg(&key)).await?;
                let other = two.campaign(PATIENCE).await?;
                ensure!(eventually(PATIENCE, async || ended.load(Ordering::SeqCst) == lost).await);
                if let Some(other) = other {
                    other.resign().await?;
                }
            }
            anyhow::Ok(())
        };
        let (term, disturbed) = tokio::join!(running, disturb);
        disturbed?;
        let term = term?;
        assert_eq!((begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst)), (3, 3));
        assert_eq!(two.leader().await?, None, "it resigned when its work had ended");
        let next = two.try_campaign().await?.context("not elected")?;
        assert!(next.term() > term);
        next.resign().await?;
        Ok(())
    }

    async fn a_leader_that_the_server_lost_is_told(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let office = Leader::builder(&store, backend.namespace(), "l")
            .ttl(Duration::from_millis(300)).build()?;
        let leadership = office.try_campaign().await?.context("not elected")?;
        let key = format!("{}:leader:{{l}}", backend.namespace());
        store.query::<()>(redis::cmd("DEL").arg(&key)).await?;
        leadership.lost().await;
        assert!(!leadership.is_valid());
        assert_eq!(leadership.resign().await?, Released::AlreadyLost);
        Ok(())
    }
}
