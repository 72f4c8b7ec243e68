//! The first level of a cache: nothing old in the process that invalidates, and nothing older than its bound in the others.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Error, Store,
    caching::{Cache, HitSource, L1, Loaded},
    sim::Process,
};

use super::{Attempt, Work, Workload};
use crate::{client::Client, dice::Dice, plan::Shape, world::World};

pub(super) struct Glancing {
    tracking: bool,
    max_age: Duration,
    keys: u64,
    rows: Arc<Mutex<BTreeMap<u64, u64>>>,
    announced: Mutex<Vec<Announced>>,
    /// Caches of clients that have done their work: they must hear of changes after the faults.
    survivors: Mutex<Vec<Survivor>>,
}

/// A process, the number of its client, and its cache.
type Survivor = (Arc<Process>, usize, Cache<u64, u64>);

/// No machine is suspended for longer.
const SUSPENDED: Duration = Duration::from_secs(10);

/// An invalidation that has returned.
#[derive(Clone)]
struct Announced {
    key: u64,
    version: u64,
    /// When it was sent, and when it returned.
    from: Duration,
    at: Duration,
    process: Arc<Process>,
}

impl Glancing {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[37]);
        Self {
            // The nodes of a simulated cluster do not pass on classic messages.
            tracking: dice.per_mille(600) || world.plan.shape == Shape::Cluster,
            max_age: *dice.pick(&[
                Duration::from_millis(400),
                Duration::from_secs(2),
                Duration::from_secs(60),
            ]),
            keys: dice.between(1, 2),
            rows: Arc::default(),
            announced: Mutex::default(),
            survivors: Mutex::default(),
        }
    }

    fn cache(&self, store: &Store) -> Cache<u64, u64> {
        let level = match self.tracking {
            true => L1::tracking(100),
            false => L1::pubsub(100),
        };
        let builder = Cache::<u64, u64>::builder(store, "sim", "row")
            .ttl(Duration::from_secs(600))
            .l1(level.max_age(self.max_age));
        match builder.build() {
            Ok(cache) => cache,
            Err(error) => panic!("a cache cannot be made: {error}"),
        }
    }

    async fn write(&self, client: &mut Client, cache: &Cache<u64, u64>, key: u64) {
        let world = client.world.clone();
        let version = {
            let mut rows = self.rows.lock();
            let row = rows.entry(key).or_insert(1);
            *row += 1;
            *row
        };
        client.note(format_args!("row {key} has version {version}"));
        for _ in 0..client.dice.between(1, 5) {
            let from = world.now();
            let call = client.call("invalidate", 1, cache.invalidate(&key)).await;
            if matches!(call, Some(Ok(()))) {
                client.note(format_args!("row {key} is invalidated"));
                self.announced.lock().push(Announced {
                    key,
                    version,
                    from,
                    at: world.now(),
                    process: client.process().clone(),
                });
                return;
            }
            client.rest(10, 400).await;
        }
    }

    /// How long after an invalidation another process may read what was before.
    fn bound(&self, world: &World) -> Duration {
        // A read that was under way when the row changed is kept when its reply comes; a clock may be slow by 1 %.
        self.max_age + self.max_age / 50 + world.plan.deadline + Duration::from_millis(10)
    }

    async fn read(
        &self,
        world: &World,
        process: &Arc<Process>,
        cache: &Cache<u64, u64>,
        key: u64,
        bound: Duration,
    ) -> Result<(), Error> {
        let asked = world.now();
        let rows = self.rows.clone();
        let loader = move |_| async move {
            let version = rows.lock().get(&key).copied().unwrap_or(1);
            Ok::<_, Error>(Loaded::Found(version))
        };
        let hit = cache.get_or_load(&key, loader).await?;
        if hit.source == HitSource::L1 {
            world.met();
        }
        let version = hit.value.as_deref().copied().unwrap_or_default();
        let now = world.now();
        let known = self.announced.lock().clone();
        for one in known.iter().filter(|one| one.key == key) {
            let own = Arc::ptr_eq(&one.process, process);
            let due = match own {
                true => one.at,
                false => one.at + bound,
            };
            // What was lost before it was sent is no excuse. A machine may have been suspended for a while by then.
            let suspended = one.at.saturating_sub(SUSPENDED);
            let excused =
                world.may_have_lost(one.from, now) || world.was_suspended(suspended, now) && !own;
            if due <= asked && version < one.version && !excused {
                world.breach(format!(
                    "client {} reads version {version} of row {key} from {:?} at {asked:?}, after {} was announced at {:?} (by itself: {own})",
                    process.id(), hit.source, one.version, one.at
                ));
                break;
            }
        }
        Ok(())
    }
}

impl Workload for Glancing {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let cache = self.cache(&store);
            let (world, process) = (client.world.clone(), client.process().clone());
            while client.next_operation() {
                client.rest(0, 400).await;
                let key = client.dice.below(self.keys);
                if client.dice.per_mille(300) {
                    self.write(&mut client, &cache, key).await;
                    continue;
                }
                for _ in 0..client.dice.between(1, 4) {
                    let bound = self.bound(&world);
                    let read = self.read(&world, &process, &cache, key, bound);
                    drop(client.perhaps_dropped(100, read).await);
                    client.rest(0, 100).await;
                }
            }
            let survivor = (process, client.index, cache);
            self.survivors.lock().push(survivor);
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let cache = self.cache(store);
        let key = 100 + client.index as u64;
        Box::pin(async move {
            let failed = |error: Error| error.to_string();
            cache.invalidate(&key).await.map_err(failed)?;
            let loader = |_| async { Ok::<_, Error>(Loaded::Found(7)) };
            let hit = cache.get_or_load(&key, loader).await.map_err(failed)?;
            match hit.value.as_deref() {
                Some(7) => Ok(()),
                other => Err(format!("{other:?} was read")),
            }
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let cache = self.cache(&store);
            // Lines that died silently are noticed and made again by then: whatever was missed is gone.
            tokio::time::sleep(Duration::from_secs(15)).await;
            // A second is enough for a message when all is well.
            let soon = Duration::from_secs(1);
            for round in 0..2 {
                for key in 0..self.keys {
                    let survivors = self.survivors.lock().clone();
                    for (process, index, cache) in survivors {
                        if process.is_gone() {
                            continue;
                        }
                        let read = self.read(&world, &process, &cache, key, soon);
                        if let Err(error) = process.own(read).await {
                            world.breach(format!("client {index} cannot read: {error}"));
                        }
                    }
                    if round == 0 {
                        self.write(&mut client, &cache, key).await;
                    }
                }
                tokio::time::sleep(soon + Duration::from_millis(100)).await;
            }
            for (key, ttl) in world.keys() {
                if ttl < 0 {
                    world.breach(format!("{key} never expires"));
                }
            }
            let survivors = std::mem::take(&mut *self.survivors.lock());
            drop(survivors);
        })
    }
}
