//! Cache tags: after the invalidation of a tag nobody who asks reads an older row that carries it, also if the servers
//! dropped or forgot what they knew of the tag.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Error, Store,
    caching::{Cache, Hit, HitSource, Load, LoadMany, Loaded, Tags},
};

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    dice::Dice,
    plan::{FaultKind, Lost},
    world::World,
};

/// How long a lease of a loader lives, besides two deadlines: the cache's hard time-out of a load.
const LEASE: Duration = Duration::from_secs(5);

pub(super) struct Tagging {
    ttl: Duration,
    mode: Tags,
    keys: u64,
    /// Servers may forget everything, but never go back to what they knew before.
    strict: bool,
    /// The database.
    rows: Arc<Mutex<BTreeMap<u64, u64>>>,
    /// By key: a version, such that who asks from now on must not see an older one, and when that was said.
    floors: Mutex<BTreeMap<u64, (u64, Duration)>>,
}

/// The tags of a row: its group, one that it has to itself, and one that all have.
fn tags_of(key: u64) -> [String; 3] {
    [
        format!("group:{}", key % 2),
        format!("row:{key}"),
        "all".to_owned(),
    ]
}

impl Tagging {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[42]);
        let goes_back = |kind: &FaultKind| {
            matches!(
                kind,
                FaultKind::Crash {
                    lost: Lost::Tail(_),
                    ..
                } | FaultKind::Failover { .. }
                    | FaultKind::Promote { .. }
                    | FaultKind::MoveSlots { .. }
            )
        };
        Self {
            ttl: dice.millis(5000, 60_000),
            mode: *dice.pick(&[Tags::Version, Tags::Version, Tags::Index]),
            keys: dice.between(2, 4),
            strict: !world.plan.faults.iter().any(|fault| goes_back(&fault.kind)),
            rows: Arc::default(),
            floors: Mutex::default(),
        }
    }

    fn cache(&self, client: &Client, store: &Store) -> Cache<u64, u64> {
        let builder = Cache::<u64, u64>::builder(store, "sim", "row").ttl(self.ttl);
        let builder = builder.schema(u32::from(client.has_other_settings()));
        match builder.tags(self.mode).build() {
            Ok(cache) => cache,
            Err(error) => panic!("a cache cannot be made: {error}"),
        }
    }

    /// Changes all rows of a tag, and says so until that is heard.
    async fn write(&self, client: &mut Client, cache: &Cache<u64, u64>) {
        let tag = client.dice.pick(&tags_of(client.index as u64)).clone();
        self.write_tag(client, cache, tag).await;
    }

    async fn write_tag(&self, client: &mut Client, cache: &Cache<u64, u64>, tag: String) {
        let world = client.world.clone();
        let carries = |key: &u64| tags_of(*key).contains(&tag);
        let changed: Vec<(u64, u64)> = {
            let mut rows = self.rows.lock();
            let mut change = |key: u64| {
                let row = rows.entry(key).or_insert(1);
                *row += 1;
                (key, *row)
            };
            let keys = (0..self.keys).filter(carries);
            keys.map(&mut change).collect()
        };
        client.note(format_args!("{tag} has new versions {changed:?}"));
        for _ in 0..client.dice.between(1, 5) {
            let sent = world.now();
            // With an index, its set is read and its entries are removed.
            let requests = match self.mode {
                Tags::Index => 4,
                _ => 1,
            };
            let call = cache.invalidate_tag(&tag);
            let call = client.call("invalidate_tag", requests, call).await;
            if let Some(Ok(())) = call {
                client.note(format_args!("{tag} is invalidated"));
                let mut floors = self.floors.lock();
                for (key, version) in changed {
                    let known = floors.entry(key).or_default();
                    if version > known.0 {
                        *known = (version, sent);
                    }
                }
                return;
            }
            client.rest(10, 400).await;
        }
    }

    /// What was read of a row by a caller that asked when these floors held.
    fn judge(&self, client: &Client, key: u64, hit: &Hit<u64>, floor: Option<(u64, Duration)>) {
        let world = &client.world;
        if hit.source != HitSource::Loaded {
            world.met();
        }
        let version = hit.value.as_deref().copied().unwrap_or_default();
        client.note(format_args!(
            "reads version {version} of row {key} from {:?}",
            hit.source
        ));
        let (least, sent) = floor.unwrap_or_default();
        // After a loss, numbers of invalidations are new only as far as the clocks of the servers agree.
        let again = world.plan.clocks_differ && world.may_have_lost(Duration::ZERO, world.now());
        let excused = !self.strict && (again || world.may_have_lost(sent, world.now()));
        if version < least && !excused {
            world.breach(format!(
                "client {} reads version {version} of row {key} after {least} was announced at {sent:?}",
                client.index
            ));
        }
    }

    async fn read(&self, client: &mut Client, cache: &Cache<u64, u64>, key: u64) {
        let floor = self.floors.lock().get(&key).copied();
        let hit = match client.dice.per_mille(250) {
            true => match client.call("get", 3, cache.get(&key)).await {
                Some(Ok(Some(hit))) => hit,
                _ => return,
            },
            false => {
                let rows = self.rows.clone();
                let (early, late) = (client.dice.millis(0, 50), client.dice.millis(0, 1500));
                let loader = move |load: Load| async move {
                    tokio::time::sleep(early).await;
                    let version = rows.lock().get(&key).copied().unwrap_or(1);
                    tokio::time::sleep(late).await;
                    // They are known only when the row is.
                    for tag in tags_of(key) {
                        load.tag(tag)?;
                    }
                    Ok::<_, Error>(Loaded::Found(version))
                };
                // At once, or after the lease of another one: read, tags, lease, subscribe, lease, lease again, index, fill;
                // and once more if what the other one loaded was invalidated meanwhile.
                let limit = 3 * LEASE + client.world.plan.deadline * 16;
                let call = cache.get_or_load(&key, loader);
                match client.call_within(100, "get_or_load", limit, call).await {
                    Some(Ok(hit)) => hit,
                    _ => return,
                }
            }
        };
        self.judge(client, key, &hit, floor);
    }

    async fn read_many(&self, client: &mut Client, cache: &Cache<u64, u64>) {
        let floors = self.floors.lock().clone();
        let rows = self.rows.clone();
        let (early, late) = (client.dice.millis(0, 50), client.dice.millis(0, 800));
        let loader = move |load: LoadMany<u64>, keys: Vec<u64>| {
            let rows = rows.clone();
            async move {
                tokio::time::sleep(early).await;
                let found: Vec<(u64, u64)> = {
                    let rows = rows.lock();
                    let version = |key: &u64| rows.get(key).copied().unwrap_or(1);
                    keys.iter().map(|key| (*key, version(key))).collect()
                };
                tokio::time::sleep(late).await;
                for key in &keys {
                    for tag in tags_of(*key) {
                        load.tag(key, tag)?;
                    }
                }
                Ok::<_, Error>(found)
            }
        };
        let keys: Vec<u64> = (0..self.keys).collect();
        let limit = 4 * LEASE + client.world.plan.deadline * 24;
        let call = cache.get_or_load_many(&keys, loader);
        let call = client.call_within(100, "get_or_load_many", limit, call);
        if let Some(Ok(hits)) = call.await {
            for (key, hit) in keys.iter().zip(&hits) {
                self.judge(client, *key, hit, floors.get(key).copied());
            }
        }
    }
}

impl Tagging {
    /// An invalidation is lost after rows were stored that know of it, and the tag is invalidated again.
    async fn write_around_a_loss(&self, client: &mut Client, cache: &Cache<u64, u64>) {
        let world = client.world.clone();
        let Some((from, at)) = world.next_loss(Duration::from_secs(6)) else {
            return self.write(client, cache).await;
        };
        let tag = client.dice.pick(&tags_of(client.index as u64)).clone();
        tokio::time::sleep(from.saturating_sub(world.now())).await;
        self.write_tag(client, cache, tag.clone()).await;
        self.read_many(client, cache).await;
        tokio::time::sleep(at.saturating_sub(world.now())).await;
        client.rest(600, 1500).await;
        self.write_tag(client, cache, tag).await;
        self.read_many(client, cache).await;
    }
}

impl Workload for Tagging {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let cache = self.cache(&client, &store);
            while client.next_operation() {
                client.rest(0, 600).await;
                let key = client.dice.below(self.keys);
                match client.dice.below(10) {
                    0..=3 if client.world.plan.provokes => {
                        self.write_around_a_loss(&mut client, &cache).await;
                    }
                    0..=3 => self.write(&mut client, &cache).await,
                    4 => self.read_many(&mut client, &cache).await,
                    _ => self.read(&mut client, &cache, key).await,
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let cache = self.cache(client, store);
        let key = 100 + client.index as u64;
        let tag = format!("works:{}", client.index);
        Box::pin(async move {
            let failed = |error: Error| error.to_string();
            let count = Arc::new(Mutex::new(0));
            for _ in 0..2 {
                cache.invalidate_tag(&tag).await.map_err(failed)?;
                let (tag, count) = (tag.clone(), count.clone());
                let loader = move |load: Load| async move {
                    load.tag(tag)?;
                    *count.lock() += 1;
                    Ok::<_, Error>(Loaded::Found(7))
                };
                cache.get_or_load(&key, loader).await.map_err(failed)?;
                if cache.get(&key).await.map_err(failed)?.is_none() {
                    return Err("what was filled is not there".to_owned());
                }
            }
            match *count.lock() {
                2 => Ok(()),
                count => Err(format!(
                    "loaded {count} times and not after each invalidation"
                )),
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
