//! Write-through: after a settled write nobody reads an older row, and after a fence nobody does, whatever became of its
//! writer; the store is asked before anything is committed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Error, Store,
    caching::{Cache, CacheUpdate, HitSource, Load, Loaded, WriteThrough, Written},
};

use super::{Attempt, Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

/// How long a lease of a loader lives, besides two deadlines: the cache's hard time-out of a load.
const LEASE: Duration = Duration::from_secs(5);
/// A server rounds to milliseconds, and so does a timer.
const ROUNDED: Duration = Duration::from_millis(3);

pub(super) struct Committing {
    ttl: Duration,
    /// How long a fence lasts.
    fence: Duration,
    keys: u64,
    /// The database: every version of each row.
    rows: Arc<Mutex<BTreeMap<u64, Row>>>,
}

#[derive(Clone, Debug, Default)]
struct Row {
    /// The last version; 0 if there never was a row.
    version: u64,
    /// The versions at which it was deleted.
    deleted: Vec<u64>,
    /// What readers must see.
    floors: Vec<Floor>,
}

/// Whoever asks at this time or later must not see an older version.
#[derive(Clone, Copy, Debug)]
struct Floor {
    version: u64,
    from: Duration,
    /// When the first request of the write was sent.
    sent: Duration,
    /// Its time is that of a server.
    by_clock: bool,
}

impl Row {
    /// The least version that may be read by who asked then.
    fn least(&self, world: &World, asked: Duration) -> u64 {
        let now = world.now();
        let holds = |floor: &&Floor| {
            let jumped = floor.by_clock && world.clock_jumped(floor.sent, now);
            floor.from <= asked && !world.may_have_lost(floor.sent, now) && !jumped
        };
        let holding = self.floors.iter().filter(holds);
        holding.map(|floor| floor.version).max().unwrap_or(0)
    }

    /// Changes the row; its new version.
    fn commit(&mut self, deletes: bool) -> u64 {
        self.version += 1;
        if deletes {
            self.deleted.push(self.version);
        }
        self.version
    }

    fn is_deleted(&self) -> bool {
        self.deleted.last() == Some(&self.version) || self.version == 0
    }
}

/// What a commit does.
#[derive(Clone, Copy, Debug)]
struct Plan {
    early: Duration,
    late: Duration,
    fails: bool,
    deletes: bool,
    /// The cache is told the new row, and not only that it was changed.
    tells: bool,
}

/// How far a commit came.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    begun: bool,
    version: Option<u64>,
}

impl Committing {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[41]);
        Self {
            ttl: dice.millis(5000, 60_000),
            fence: dice.millis(1000, 5000),
            keys: dice.between(1, 2),
            rows: Arc::default(),
        }
    }

    fn cache(&self, client: &Client, store: &Store) -> Cache<u64, u64> {
        let builder = Cache::<u64, u64>::builder(store, "sim", "row").ttl(self.ttl);
        // Two versions of a program have their own entries, and a write by either reaches both.
        let builder = builder.schema(u32::from(client.has_other_settings()));
        match builder.build() {
            Ok(cache) => cache,
            Err(error) => panic!("a cache cannot be made: {error}"),
        }
    }

    fn through(&self, cache: &Cache<u64, u64>) -> WriteThrough<u64, u64> {
        match WriteThrough::new(cache).fence_for(self.fence) {
            Ok(through) => through,
            Err(error) => panic!("a write-through cannot be made: {error}"),
        }
    }

    /// From then on nobody who asks may see an older version.
    fn raise(&self, key: u64, floor: Floor) {
        self.rows.lock().entry(key).or_default().floors.push(floor);
    }

    /// One write as a whole: what is drawn for it, its commit, and what its end says.
    async fn write(&self, client: &mut Client, through: &WriteThrough<u64, u64>, key: u64) {
        let world = client.world.clone();
        let plan = Plan {
            early: client.dice.millis(0, 300),
            late: match client.dice.below(5) {
                // Some take longer than half of their fence.
                0 => client.dice.millis(0, self.fence.as_millis() as u64),
                _ => client.dice.millis(0, 400),
            },
            fails: client.dice.per_mille(100),
            deletes: client.dice.per_mille(150),
            tells: client.dice.per_mille(800),
        };
        let (sent, progress) = (world.now(), Arc::new(Mutex::new(Progress::default())));
        let commit = {
            let (world, rows, progress) = (world.clone(), self.rows.clone(), progress.clone());
            let fence = self.fence;
            async move {
                progress.lock().begun = true;
                tokio::time::sleep(plan.early).await;
                if plan.fails {
                    return Err("against a rule");
                }
                let version = {
                    let mut rows = rows.lock();
                    let row = rows.entry(key).or_default();
                    let version = row.commit(plan.deletes);
                    // Whatever becomes of the writer, its fence was there before.
                    row.floors.push(Floor {
                        version,
                        from: world.now() + fence + ROUNDED,
                        sent,
                        by_clock: true,
                    });
                    version
                };
                progress.lock().version = Some(version);
                world
                    .trace
                    .note("database", format_args!("row {key} has version {version}"));
                tokio::time::sleep(plan.late).await;
                Ok(match (plan.tells, plan.deletes) {
                    (false, _) => Written::changed(),
                    (true, true) => Written::deleted(version),
                    (true, false) => Written::row(version, version),
                })
            }
        };
        // The tags and the fence before it, the row after it.
        let limit = 4 * world.plan.deadline + self.fence / 2;
        let call = through.put(&key, commit);
        let put = client.call_within(100, "put", limit, call).await;
        let Progress { begun, version } = *progress.lock();
        client.note(format_args!("put row {key} {version:?}: {put:?}"));
        match (put, version) {
            (None, _) => {}
            (Some(Ok(CacheUpdate::LeftToFence)), Some(_)) => {}
            (Some(Ok(_)), Some(version)) => {
                let floor = Floor {
                    version,
                    from: world.now(),
                    sent,
                    by_clock: false,
                };
                self.raise(key, floor);
            }
            (Some(Ok(settled)), None) => {
                world.breach(format!("row {key} was not committed, and {settled:?}"));
            }
            (Some(Err(error)), version) => {
                let late = error.is_timeout() && error.is_in_doubt();
                let told = match version {
                    Some(_) => late,
                    None => late || error.is_user() || !begun,
                };
                if !told {
                    world.breach(format!(
                        "row {key}, which was begun {begun} and committed {version:?}, ended with {error}"
                    ));
                }
            }
        }
    }

    /// Three writers at a time: the first settles an older row than the second has committed, while the fence of a third one, which
    /// began later, is there as well. The second and the third never say how they ended.
    async fn rivals(
        &self,
        client: &mut Client,
        cache: &Cache<u64, u64>,
        through: &WriteThrough<u64, u64>,
        key: u64,
    ) {
        let world = client.world.clone();
        let commit = || self.rows.lock().entry(key).or_default().commit(false);
        let pause = self.fence.as_millis() as u64 / 10;
        let limit = 3 * world.plan.deadline;
        let first = client
            .call_within(0, "fence", limit, through.fence(&key))
            .await;
        let Some(Ok(first)) = first else { return };
        let older = commit();
        let sent = world.now();
        let second = client
            .call_within(0, "fence", limit, through.fence(&key))
            .await;
        let Some(Ok(second)) = second else { return };
        let version = commit();
        client.note(format_args!("row {key} has versions {older} and {version}"));
        // Whatever becomes of the writer, its fence was there before.
        let over = world.now() + self.fence + ROUNDED;
        let floor = Floor {
            version,
            from: over,
            sent,
            by_clock: true,
        };
        self.raise(key, floor);
        client.rest(pause, 2 * pause).await;
        let third = client
            .call_within(0, "fence", limit, through.fence(&key))
            .await;
        let settled = first.settle(Written::row(older, older));
        let settled = client.call_within(0, "settle", limit, settled).await;
        client.note(format_args!("row {key} {older}: {settled:?}"));
        tokio::time::sleep(over.saturating_sub(world.now())).await;
        self.read(client, cache, key).await;
        drop((second, third));
    }

    /// Changes a row beside the write-through, and says so until that is heard.
    async fn invalidate(&self, client: &mut Client, cache: &Cache<u64, u64>, key: u64) {
        let world = client.world.clone();
        let version = self.rows.lock().entry(key).or_default().commit(false);
        client.note(format_args!("row {key} has version {version}"));
        for _ in 0..client.dice.between(1, 4) {
            let sent = world.now();
            let call = client.call("invalidate", 1, cache.invalidate(&key)).await;
            if let Some(Ok(())) = call {
                let floor = Floor {
                    version,
                    from: world.now(),
                    sent,
                    by_clock: false,
                };
                return self.raise(key, floor);
            }
            client.rest(10, 400).await;
        }
    }

    async fn read(&self, client: &mut Client, cache: &Cache<u64, u64>, key: u64) {
        let world = client.world.clone();
        let asked = world.now();
        let known = self.rows.lock().get(&key).cloned().unwrap_or_default();
        let hit = match client.dice.per_mille(300) {
            true => match client.call("get", 3, cache.get(&key)).await {
                Some(Ok(Some(hit))) => hit,
                _ => return,
            },
            false => {
                let rows = self.rows.clone();
                let (early, late) = (client.dice.millis(0, 50), client.dice.millis(0, 1500));
                let loader = move |load: Load| async move {
                    tokio::time::sleep(early).await;
                    let row = rows.lock().get(&key).cloned().unwrap_or_default();
                    load.version(row.version);
                    tokio::time::sleep(late).await;
                    Ok::<_, Error>(match row.is_deleted() {
                        true => Loaded::Absent,
                        false => Loaded::Found(row.version),
                    })
                };
                // At once, or after the lease of another one: read, lease, subscribe, lease, lease again, fill.
                let limit = 2 * LEASE + world.plan.deadline * 8;
                let call = cache.get_or_load(&key, loader);
                match client.call_within(100, "get_or_load", limit, call).await {
                    Some(Ok(hit)) => hit,
                    _ => return,
                }
            }
        };
        if hit.source != HitSource::Loaded {
            world.met();
        }
        let value = hit.value.as_deref().copied();
        client.note(format_args!(
            "reads {value:?} of row {key} from {:?}",
            hit.source
        ));
        let least = known.least(&world, asked);
        let good = match value {
            Some(version) => version >= least,
            // It was deleted since, or there was none.
            None => {
                let rows = self.rows.lock();
                let row = rows.get(&key).cloned().unwrap_or_default();
                least == 0 || row.deleted.iter().any(|deleted| *deleted >= least)
            }
        };
        if !good {
            world.breach(format!(
                "client {} reads {value:?} of row {key} after version {least} was settled",
                client.index
            ));
        }
    }
}

impl Workload for Committing {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let cache = self.cache(&client, &store);
            let through = self.through(&cache);
            while client.next_operation() {
                client.rest(0, 500).await;
                let key = client.dice.below(self.keys);
                match client.dice.below(20) {
                    0..=2 if client.world.plan.provokes => {
                        self.rivals(&mut client, &cache, &through, key).await;
                    }
                    0..=6 => self.write(&mut client, &through, key).await,
                    7 => self.invalidate(&mut client, &cache, key).await,
                    _ => self.read(&mut client, &cache, key).await,
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let cache = self.cache(client, store);
        let through = self.through(&cache);
        let key = 100 + client.index as u64;
        let version = client.world.now().as_micros() as u64;
        Box::pin(async move {
            let failed = |error: Error| error.to_string();
            let commit = async { Ok::<_, Error>(Written::row(version, version)) };
            match through.put(&key, commit).await.map_err(failed)? {
                CacheUpdate::Stored => {}
                other => return Err(format!("a row that was written is {other:?}")),
            }
            match cache.get(&key).await.map_err(failed)? {
                Some(hit) if hit.value.as_deref() == Some(&version) => Ok(()),
                _ => Err("what was written is not there".to_owned()),
            }
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let cache = self.cache(&client, &store);
            // All fences have ended by then, also those of the dead.
            let behind = match world.plan.clocks_differ {
                true => Duration::from_secs(4),
                false => Duration::ZERO,
            };
            // A request for one may be late.
            let late = world.slowest();
            tokio::time::sleep(self.fence + behind + late + ROUNDED).await;
            for key in 0..self.keys {
                self.read(&mut client, &cache, key).await;
                let asked = tokio::time::timeout(Duration::from_secs(60), cache.get(&key)).await;
                if !matches!(asked, Ok(Ok(_))) {
                    world.breach(format!("row {key} cannot be read: {asked:?}"));
                }
            }
            for (key, ttl) in world.keys() {
                if ttl < 0 {
                    world.breach(format!("{key} never expires"));
                }
                if key.ends_with(":fence") && !world.clock_jumped(Duration::ZERO, world.now()) {
                    world.breach(format!("{key} is left after its time"));
                }
            }
        })
    }
}
