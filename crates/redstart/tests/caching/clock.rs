//! What workers of a write-behind keep of their leases follows the clock of their store.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use redstart::{
    Store,
    caching::{Changes, EntryId, Sink, SinkClaim, SinkError, WriteBehind},
};
use redstart_testkit::eventually;

use crate::LONG;

/// A database that only remembers what it was given.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Rows>>);

#[derive(Default)]
struct Rows {
    epoch: i64,
    applied: EntryId,
    values: HashMap<String, u64>,
}

impl Sink<u64> for Memory {
    async fn claim(&self, _: &str, _: u32) -> Result<SinkClaim, SinkError> {
        let mut memory = self.0.lock().unwrap();
        memory.epoch += 1;
        Ok(SinkClaim {
            epoch: memory.epoch,
            applied: memory.applied,
        })
    }

    async fn apply(&self, changes: &Changes<u64>) -> Result<(), SinkError> {
        let mut memory = self.0.lock().unwrap();
        if memory.epoch != changes.epoch {
            return Err(SinkError::Fenced);
        }
        memory.applied = changes.upto;
        let written = changes
            .changes
            .iter()
            .filter_map(|change| Some((change.key.clone(), change.value?)));
        memory.values.extend(written);
        Ok(())
    }

    async fn load(&self, key: &str) -> Result<Option<u64>, SinkError> {
        Ok(self.0.lock().unwrap().values.get(key).copied())
    }
}

#[tokio::test]
async fn leases_of_shards_follow_the_clock_of_the_store() -> anyhow::Result<()> {
    let lease = Duration::from_secs(3600);
    let store = Store::connect("memory://").await?;
    let memory = Memory::default();
    let rows = WriteBehind::<str, u64>::builder(&store, "clock", "rows", memory.clone())
        .shards(1)
        .lease(lease)
        .build()?;
    // The shard belongs to a worker that is gone.
    let owners = redis::cmd("KEYS")
        .arg("clock:behind.rows:*:owner")
        .to_owned();
    let worker = rows.work()?;
    let owned = eventually(LONG, async || {
        store
            .query::<Vec<String>>(&owners)
            .await
            .is_ok_and(|keys| keys.len() == 1)
    });
    anyhow::ensure!(owned.await, "nobody serves the shard");
    let owner = store.query::<Vec<String>>(&owners).await?.remove(0);
    worker.stop().await;
    let mut gone = redis::cmd("SET");
    gone.arg(&owner)
        .arg("gone")
        .arg("PX")
        .arg(lease.as_millis() as u64);
    store.query::<()>(&gone).await?;
    let worker = rows.work()?;
    let _ = rows.put("a", &1).await?;
    // It looks again after half of the lease, and at its end, and takes over.
    let applied = eventually(LONG, async || {
        let _ = store.advance(Duration::from_secs(60));
        memory.load("a").await.is_ok_and(|value| value == Some(1))
    });
    anyhow::ensure!(applied.await, "the shard is not taken over");
    // While it waits for writes, it renews its lease.
    for _ in 0..3 {
        store.advance(lease / 2)?;
        let renewed = eventually(LONG, async || {
            let left = store.query::<i64>(redis::cmd("PTTL").arg(&owner)).await;
            left.is_ok_and(|left| left > lease.as_millis() as i64 * 3 / 4)
        });
        anyhow::ensure!(renewed.await, "the lease is not renewed");
    }
    let _ = rows.put("b", &2).await?;
    let applied = eventually(LONG, async || {
        memory.load("b").await.is_ok_and(|value| value == Some(2))
    });
    anyhow::ensure!(applied.await, "it serves the shard no longer");
    worker.stop().await;
    Ok(())
}
