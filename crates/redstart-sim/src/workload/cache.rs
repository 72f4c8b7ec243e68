//! Cache-aside: nothing old after an invalidation, one load at a time, and answers also while the store is down.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Error, Store,
    caching::{Cache, Loaded},
};

use super::{Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

pub(super) struct Reading {
    ttl: Duration,
    keys: u64,
    rows: Arc<Mutex<BTreeMap<u64, u64>>>,
    /// By key: a version, such that whoever asks from now on must not see an older one.
    floor: Mutex<BTreeMap<u64, (u64, Duration)>>,
}

impl Reading {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[15]);
        Self {
            ttl: dice.millis(2000, 60_000),
            keys: dice.between(1, 2),
            rows: Arc::default(),
            floor: Mutex::default(),
        }
    }

    fn cache(&self, store: &Store) -> Cache<u64, u64> {
        let builder = Cache::<u64, u64>::builder(store, "sim", "row").ttl(self.ttl);
        match builder.build() {
            Ok(cache) => cache,
            Err(error) => panic!("a cache cannot be made: {error}"),
        }
    }

    /// Changes a row, and says so until that is heard.
    async fn write(&self, client: &mut Client, cache: &Cache<u64, u64>, key: u64) {
        let version = {
            let mut rows = self.rows.lock();
            let row = rows.entry(key).or_insert(1);
            *row += 1;
            *row
        };
        client.note(format_args!("row {key} has version {version}"));
        for _ in 0..client.dice.between(1, 5) {
            let call = client.perhaps_dropped(100, cache.invalidate(&key)).await;
            if matches!(call, Some(Ok(()))) {
                client.note(format_args!("row {key} is invalidated"));
                let now = client.world.now();
                let mut floor = self.floor.lock();
                let known = floor.entry(key).or_default();
                if version > known.0 {
                    *known = (version, now);
                }
                return;
            }
            client.rest(10, 400).await;
        }
    }

    async fn read(&self, client: &mut Client, cache: &Cache<u64, u64>, key: u64) {
        let (least, since) = self.floor.lock().get(&key).copied().unwrap_or_default();
        let rows = self.rows.clone();
        let (early, late) = (client.dice.millis(0, 50), client.dice.millis(0, 1500));
        let loader = move |_| async move {
            tokio::time::sleep(early).await;
            let version = rows.lock().get(&key).copied().unwrap_or(1);
            tokio::time::sleep(late).await;
            Ok::<_, Error>(Loaded::Found(version))
        };
        let call = client
            .perhaps_dropped(100, cache.get_or_load(&key, loader))
            .await;
        let Some(Ok(hit)) = call else {
            return;
        };
        let version = hit.value.as_deref().copied().unwrap_or_default();
        client.note(format_args!(
            "reads version {version} of row {key} from {:?}",
            hit.source
        ));
        let world = &client.world;
        // An invalidation may have been lost with its server, and the old value come back.
        if version < least && !world.may_have_lost(since.saturating_sub(self.ttl), world.now()) {
            world.breach(format!(
                "client {} reads version {version} of row {key} after {least} was announced at {since:?}",
                client.index
            ));
        }
    }
}

impl Workload for Reading {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let cache = self.cache(&store);
            while client.next_operation() {
                client.rest(0, 600).await;
                let key = client.dice.below(self.keys);
                match client.dice.per_mille(350) {
                    true => self.write(&mut client, &cache, key).await,
                    false => self.read(&mut client, &cache, key).await,
                }
            }
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let cache = self.cache(&store);
            for key in 0..self.keys {
                self.read(&mut client, &cache, key).await;
                let asked = tokio::time::timeout(Duration::from_secs(60), cache.get(&key)).await;
                if !matches!(asked, Ok(Ok(_))) {
                    client
                        .world
                        .breach(format!("row {key} cannot be read: {asked:?}"));
                }
            }
            for (key, ttl) in client.world.keys() {
                if ttl < 0 {
                    client.world.breach(format!("{key} never expires"));
                }
            }
        })
    }
}
