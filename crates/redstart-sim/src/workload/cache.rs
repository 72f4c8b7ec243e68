//! Cache-aside: nothing old after an invalidation, and one load at a time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Error, Store,
    caching::{Cache, HitSource, Loaded},
    sim::{Process, current},
};

use super::{Attempt, Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

pub(super) struct Reading {
    ttl: Duration,
    keys: u64,
    rows: Arc<Mutex<BTreeMap<u64, u64>>>,
    /// By key: a version, such that anyone who asks from now on must not see an older one.
    floor: Mutex<BTreeMap<u64, (u64, Duration)>>,
    loads: Arc<Mutex<Loads>>,
}

/// How long a lease lives, besides two deadlines: the cache's hard time-out of a load.
const LEASE: Duration = Duration::from_secs(5);

/// Loaders that run now.
#[derive(Default)]
struct Loads {
    count: u64,
    /// Number, key, when its caller asked, and process.
    running: Vec<(u64, u64, Duration, Option<Arc<Process>>)>,
    /// By key: how many invalidations are under way, perhaps forever, and when the last of the others ended. Each lets the
    /// next reader load again.
    invalidated: BTreeMap<u64, (u32, Duration)>,
}

/// A loader that runs until this is dropped. A process that is killed drops nothing.
struct Load(Arc<Mutex<Loads>>, u64);

impl Load {
    fn begin(world: &World, loads: &Arc<Mutex<Loads>>, key: u64, asked: Duration) -> Self {
        let now = world.now();
        let mut guard = loads.lock();
        let last = guard.invalidated.get(&key).copied();
        let others = guard.running.iter().filter(|(_, other, ..)| *other == key);
        let mut twice = false;
        for (_, _, other, process) in others {
            let runs = process.as_ref().is_none_or(|process| process.is_running());
            // Leases were given after their callers asked, and have an end.
            let first = asked.min(*other);
            let excused = last.is_some_and(|(pending, last)| pending > 0 || last >= first)
                || now - first >= LEASE + world.plan.deadline * 2
                || world.may_have_lost(first, now)
                || world.clock_jumped(first, now);
            twice |= runs && !excused;
        }
        guard.count += 1;
        let number = guard.count;
        guard.running.push((number, key, asked, current()));
        drop(guard);
        if twice {
            world.breach(format!("row {key} is loaded twice at the same time"));
        }
        Self(loads.clone(), number)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0
            .lock()
            .running
            .retain(|(number, ..)| *number != self.1);
    }
}

impl Reading {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[15]);
        Self {
            ttl: dice.millis(2000, 60_000),
            keys: dice.between(1, 2),
            rows: Arc::default(),
            floor: Mutex::default(),
            loads: Arc::default(),
        }
    }

    /// An invalidation is under way: forever, unless its answer comes.
    fn invalidates(&self, key: u64) {
        let mut loads = self.loads.lock();
        loads.invalidated.entry(key).or_default().0 += 1;
    }

    /// The answer to an invalidation came.
    fn invalidated(&self, key: u64, now: Duration) {
        let mut loads = self.loads.lock();
        let (pending, last) = loads.invalidated.entry(key).or_default();
        *pending -= 1;
        *last = now;
    }

    fn cache(&self, client: &Client, store: &Store) -> Cache<u64, u64> {
        let builder = Cache::<u64, u64>::builder(store, "sim", "row").ttl(self.ttl);
        // Two versions of a program have their own entries, and an invalidation by either reaches both.
        let builder = builder.schema(u32::from(client.has_other_settings()));
        match builder.build() {
            Ok(cache) => cache,
            Err(error) => panic!("a cache cannot be made: {error}"),
        }
    }

    /// A reader loads at once, or waits until the lease of another one ends and then loads: read, lease, subscribe, lease,
    /// lease again, fill.
    fn longest_read(&self, world: &World) -> Duration {
        // A lease ends by the server's clock: if that is put back in a restart, it ends later by as much.
        let behind = match world.plan.clocks_differ {
            true => Duration::from_secs(4),
            false => Duration::ZERO,
        };
        2 * LEASE + world.plan.deadline * 8 + behind
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
            self.invalidates(key);
            let call = client.call("invalidate", 1, cache.invalidate(&key)).await;
            if matches!(call, Some(Ok(()))) {
                self.invalidated(key, client.world.now());
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
        let (world, loads) = (client.world.clone(), self.loads.clone());
        let asked = world.now();
        let loader = move |_| async move {
            let _load = Load::begin(&world, &loads, key, asked);
            tokio::time::sleep(early).await;
            let version = rows.lock().get(&key).copied().unwrap_or(1);
            tokio::time::sleep(late).await;
            Ok::<_, Error>(Loaded::Found(version))
        };
        let limit = self.longest_read(&client.world);
        let call = cache.get_or_load(&key, loader);
        let call = client.call_within(100, "get_or_load", limit, call).await;
        let Some(Ok(hit)) = call else {
            return;
        };
        if hit.source != HitSource::Loaded {
            client.world.met();
        }
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
            let cache = self.cache(&client, &store);
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

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let cache = self.cache(client, store);
        let key = 100 + client.index as u64;
        Box::pin(async move {
            let failed = |error: Error| error.to_string();
            cache.invalidate(&key).await.map_err(failed)?;
            let loader = |_| async { Ok::<_, Error>(Loaded::Found(7)) };
            cache.get_or_load(&key, loader).await.map_err(failed)?;
            match cache.get(&key).await.map_err(failed)? {
                Some(hit) if hit.value.as_deref() == Some(&7) => Ok(()),
                _ => Err("what was filled is not there".to_owned()),
            }
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let cache = self.cache(&client, &store);
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
