use std::{collections::HashMap, time::Duration};

use anyhow::{Result, ensure};
use redstart::{
    Store,
    key::Layout,
    messaging::reliable_list::{Finished, ReliableList},
};
use redstart_testkit::{Backend, Child, child, eventually, matrix};

use crate::queue::LONG;

matrix! {
    async fn an_old_producers_list_is_adopted_and_emptied_in_order(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let key = format!("{}-legacy", backend.namespace());
        for n in 0..5 { store.query::<()>(redis::cmd("LPUSH").arg(&key).arg(n)).await?; }
        let adopted = key.clone();
        let list = ReliableList::builder(&store, backend.namespace(), "l").layout(Layout::new(move |_| adopted.clone())).build()?;
        let mut consumer = list.consumer().await?;
        for n in 0..5 {
            let item = consumer.take(LONG).await?.unwrap();
            assert_eq!(item.payload(), n.to_string().as_bytes());
            assert_eq!(item.done().await?, Finished::Done);
        }
        assert!(consumer.take(Duration::from_millis(1)).await?.is_none());
        // One that is dropped with its consumer comes back.
        list.push("again").await?;
        let item = consumer.take(LONG).await?.unwrap();
        drop(consumer);
        store.settle().await;
        assert_eq!(item.done().await?, Finished::Lost);
        let mut second = list.consumer().await?;
        assert_eq!(second.take(LONG).await?.unwrap().done().await?, Finished::Done);
        assert_eq!(second.close().await?, 0);
        assert!(store.scan(&format!("*{key}*")).await?.is_empty(), "something is left behind");
        for lease in [Duration::ZERO, LONG * 100_000] {
            assert!(ReliableList::builder(&store, "a", "l").lease(lease).build().unwrap_err().is_config());
        }
        Ok(())
    }

}

matrix! {
    servers only:
    async fn a_consumer_that_dies_at_any_step_loses_nothing(backend: &Backend) -> Result<()> {
        let lease = Duration::from_millis(400);
        let open = async || -> Result<(Store, ReliableList)> {
            let store = Store::connect(backend.url()).await?;
            let list = ReliableList::builder(&store, backend.namespace(), "l").lease(lease).build()?;
            Ok((store, list))
        };
        if let Some(step) = child::role() {
            let (_store, list) = open().await?;
            let mut consumer = list.consumer().await?;
            if step == "registered" { child::say("at it"); return std::future::pending().await; }
            let item = consumer.take(LONG).await?.unwrap();
            if step == "taken" { child::say("at it"); return std::future::pending().await; }
            let _ = item.done().await?;
            child::say("at it");
            return std::future::pending().await;
        }
        let (store, list) = open().await?;
        for n in 0..10 { list.push(format!("{n}")).await?; }
        for step in ["registered", "taken", "done"] {
            let mut victim = Child::of(backend.test()).role(step).namespace(backend.namespace()).spawn()?;
            assert_eq!(victim.line().await?, "at it");
            victim.kill9();
        }
        let mut consumer = list.consumer().await?;
        let mut seen: HashMap<Vec<u8>, u32> = HashMap::new();
        // The one that was done is gone; the one that was merely taken comes back with the end of the lease.
        ensure!(eventually(LONG, async || {
            if let Ok(Some(item)) = consumer.take(Duration::from_millis(50)).await {
                *seen.entry(item.payload().to_vec()).or_default() += 1;
                let _ = item.done().await;
            }
            seen.len() == 9
        }).await, "{} of 9 items came", seen.len());
        assert!(seen.values().all(|times| *times == 1));
        consumer.close().await?;
        let taken = store.scan(&format!("{}:list:{{l}}:taken:*", backend.namespace())).await?;
        assert_eq!(taken, Vec::<String>::new());
        Ok(())
    }
}
