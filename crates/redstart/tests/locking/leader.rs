use std::time::Duration;

use anyhow::{Context as _, ensure};
use redstart::locking::{FencedValues, FencedWrite, Leader, Released};
use redstart_testkit::{Backend, matrix};
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
