//! Write-behind: the database has the last acknowledged writes, in order, each once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Store,
    caching::{
        Changes, DeadWrite, EntryId, Put, RefusedChange, Sink, SinkClaim, SinkError, WriteBehind,
    },
};

use super::{Attempt, Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

/// A database that nothing happens to but what chance wants.
struct Table {
    world: std::sync::Weak<World>,
    inner: Arc<Mutex<Rows>>,
}

struct Rows {
    dice: Dice,
    rows: BTreeMap<String, (u64, EntryId)>,
    /// By key: a value that is refused, now and forever.
    refused: u64,
    shards: BTreeMap<u32, (i64, EntryId)>,
}

impl Table {
    async fn think(&self) -> bool {
        let (pause, fails) = {
            let mut rows = self.inner.lock();
            (rows.dice.millis(0, 300), rows.dice.per_mille(100))
        };
        tokio::time::sleep(pause).await;
        fails
    }

    fn breach(&self, text: String) {
        if let Some(world) = self.world.upgrade() {
            // Under a clock that is behind, a new master numbers its writes as if they were older ones.
            let behind =
                world.plan.clocks_differ && world.may_have_lost(Duration::ZERO, world.now());
            if !behind {
                world.breach(text);
            }
        }
    }
}

/// The database has a rule for these keys.
fn is_refusable(key: &str) -> bool {
    key.starts_with("rule")
}

impl Sink<u64> for Table {
    async fn claim(&self, _: &str, shard: u32) -> Result<SinkClaim, SinkError> {
        if self.think().await {
            return Err(SinkError::Unavailable("by chance".into()));
        }
        let mut rows = self.inner.lock();
        let known = rows.shards.entry(shard).or_default();
        known.0 += 1;
        Ok(SinkClaim {
            epoch: known.0,
            applied: known.1,
        })
    }

    async fn apply(&self, changes: &Changes<u64>) -> Result<(), SinkError> {
        let fails = self.think().await;
        let mut breaches = Vec::new();
        let mut guard = self.inner.lock();
        let rows = &mut *guard;
        let known = rows.shards.entry(changes.shard).or_default();
        if known.0 != changes.epoch {
            return Err(SinkError::Fenced);
        }
        if fails && rows.dice.per_mille(500) {
            return Err(SinkError::Unavailable("by chance".into()));
        }
        let refused: Vec<_> = (0..changes.changes.len())
            .filter(|index| {
                let change = &changes.changes[*index];
                is_refusable(&change.key) && change.value.is_some_and(|v| v % rows.refused == 0)
            })
            .map(|index| RefusedChange {
                index,
                source: "against a rule".into(),
                older: Vec::new(),
            })
            .collect();
        if !refused.is_empty() {
            // Some databases name them all, others the first.
            let all = rows.dice.per_mille(500);
            let count = if all { refused.len() } else { 1 };
            return Err(SinkError::Refused(
                refused.into_iter().take(count).collect(),
            ));
        }
        // The log is read from where it was applied to, and goes forward.
        if changes.upto < known.1 {
            breaches.push(format!(
                "shard {} is applied up to {} after {}",
                changes.shard, changes.upto, known.1
            ));
        }
        known.1 = changes.upto;
        for change in &changes.changes {
            let Some(value) = change.value else { continue };
            let before = rows.rows.insert(change.key.clone(), (value, change.id));
            if let Some((old, id)) = before
                // The same change again is an attempt whose answer was lost.
                && id > change.id
            {
                breaches.push(format!(
                    "{} was {old} at {id} and became {value} at {}",
                    change.key, change.id
                ));
            }
        }
        drop(guard);
        if let Some(world) = self.world.upgrade() {
            let applied = changes.changes.len() as u64;
            world.count(|tally| tally.contended += applied);
        }
        breaches.into_iter().for_each(|breach| self.breach(breach));
        // It was done, and the answer is lost.
        match fails {
            true => Err(SinkError::Unavailable("the answer was lost".into())),
            false => Ok(()),
        }
    }

    async fn load(&self, key: &str) -> Result<Option<u64>, SinkError> {
        Ok(self.inner.lock().rows.get(key).map(|(value, _)| *value))
    }
}

pub(super) struct Writing {
    lease: Duration,
    shards: u32,
    table: Arc<Mutex<Rows>>,
    written: Mutex<BTreeMap<String, Written>>,
}

/// The writes of a key.
#[derive(Clone, Debug, Default)]
struct Written {
    count: u64,
    /// The last one that was surely taken, and when it was sent.
    sure: (u64, Duration),
    /// Those that may have been taken; they may arrive after later ones.
    perhaps: Vec<u64>,
    /// The positions of those that were taken, and when they were sent.
    ids: Vec<(EntryId, Duration)>,
}

type Behind = WriteBehind<str, u64, Table>;

impl Writing {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[16]);
        Self {
            lease: dice.millis(1000, 4000),
            shards: dice.between(1, 2) as u32,
            table: Arc::new(Mutex::new(Rows {
                refused: dice.between(2, 4),
                dice,
                rows: BTreeMap::new(),
                shards: BTreeMap::new(),
            })),
            written: Mutex::default(),
        }
    }

    fn behind(&self, world: &Arc<World>, store: &Store) -> Behind {
        let table = Table {
            world: Arc::downgrade(world),
            inner: self.table.clone(),
        };
        let builder = WriteBehind::builder(store, "sim", "views", table);
        match builder
            .shards(self.shards)
            .lease(self.lease)
            .batch(3)
            .build()
        {
            Ok(behind) => behind,
            Err(error) => panic!("a write-behind cannot be made: {error}"),
        }
    }
}

impl Writing {
    /// A write of a key is sent; its value.
    fn begin(&self, key: &str) -> u64 {
        let mut written = self.written.lock();
        let known = written.entry(key.to_owned()).or_default();
        known.count += 1;
        known.perhaps.push(known.count);
        known.count
    }

    /// The answer to a write that was sent at a time has come.
    fn end(&self, key: &str, value: u64, at: Duration, answer: &redstart::Result<Put>) {
        let mut written = self.written.lock();
        let known = written.entry(key.to_owned()).or_default();
        match answer {
            Ok(Put::Accepted(id)) => {
                known.sure = (value, at);
                known.ids.push((*id, at));
            }
            Ok(Put::Backpressure { .. }) => {}
            Err(error) if !error.is_in_doubt() => {}
            Err(_) => return,
        }
        known.perhaps.retain(|perhaps| *perhaps != value);
    }
}

/// Every write that was taken is applied, or a later one of its key is, or it is a dead letter.
fn judge_refusable(
    world: &World,
    key: &str,
    known: &Written,
    row: Option<&(u64, EntryId)>,
    dead: &[DeadWrite],
) {
    for (id, at) in &known.ids {
        let applied = row.is_some_and(|(_, last)| id <= last);
        let buried = dead
            .iter()
            .any(|letter| letter.key == key && letter.id == *id);
        // Under a clock that is behind, a new master numbers its writes as if they were older ones.
        let lost = world.may_have_lost(*at, world.now())
            || world.plan.clocks_differ && world.may_have_lost(Duration::ZERO, *at);
        if !applied && !buried && !lost {
            world.breach(format!(
                "{key} at {id} is neither applied nor a dead letter"
            ));
        }
    }
}

impl Workload for Writing {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let behind = self.behind(&world, &store);
            let worker = match client.dice.per_mille(600) {
                true => behind.work().ok(),
                false => None,
            };
            // Each key has one writer, so that the order is known.
            while client.next_operation() {
                client.rest(0, 600).await;
                let key = match client.dice.below(4) {
                    0 | 1 => format!("row{}-{}", client.index, client.dice.below(2)),
                    _ => format!("rule{}-{}", client.index, client.dice.below(3)),
                };
                let (value, at) = (self.begin(&key), world.now());
                let put = client.call("put", 1, behind.put(&key, &value)).await;
                if let Some(put) = &put {
                    self.end(&key, value, at, put);
                }
                if let Some(Ok(Put::Accepted(_))) = put {
                    client.note(format_args!("{key} is {value}"));
                    let certain =
                        !is_refusable(&key) && self.written.lock()[&key].perhaps.is_empty();
                    let lost = |world: &World| world.may_have_lost(at, world.now());
                    if certain
                        && client.dice.per_mille(300)
                        && let Ok(read) = behind.get(&key).await
                        && read != Some(value)
                        && !lost(&world)
                    {
                        world.breach(format!("{key} was set to {value} and read as {read:?}"));
                    }
                }
            }
            client.rest(0, 2000).await;
            drop(worker);
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let behind = self.behind(&client.world, store);
        let world = client.world.clone();
        let key = format!("works{}", client.index);
        Box::pin(async move {
            let (value, at) = (self.begin(&key), world.now());
            let put = behind.put(&key, &value).await;
            self.end(&key, value, at, &put);
            match put {
                Ok(Put::Accepted(_)) => Ok(()),
                Ok(other) => Err(format!("{other:?}")),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let behind = self.behind(&world, &store);
            let Ok(worker) = behind.work() else {
                return world.breach("no worker starts".to_owned());
            };
            if let Err(error) = behind.flush(Duration::from_secs(100)).await {
                world.breach(format!("the log is not applied: {error}"));
            }
            worker.stop().await;
            let written = self.written.lock().clone();
            for (key, ttl) in world.keys() {
                // A write in doubt may have come after the log was read.
                let in_doubt =
                    |row: &str| written.get(row).is_some_and(|row| !row.perhaps.is_empty());
                let Some((_, row)) = key.split_once(":v:") else {
                    continue;
                };
                let since = |row: &str| written.get(row).map(|row| row.sure.1);
                let lost = |row: &str| {
                    let since = since(row).unwrap_or_default();
                    // Behind a clock that is set back, a write seems to be applied when it is not.
                    let behind =
                        world.plan.clocks_differ && world.may_have_lost(Duration::ZERO, since);
                    behind || world.may_have_lost(since, world.now())
                };
                if ttl < 0 && !lost(row) && !in_doubt(row) && !is_refusable(row) {
                    world.breach(format!("{key} was applied and never expires"));
                }
            }
            let rows = self.table.lock().rows.clone();
            let dead = match behind.dead_writes(None, 10_000).await {
                Ok(dead) => dead,
                Err(error) => return world.breach(format!("no dead letters can be read: {error}")),
            };
            for letter in dead.iter().filter(|letter| !is_refusable(&letter.key)) {
                world.breach(format!("{} is a dead letter for no reason", letter.key));
            }
            for (key, known) in written {
                if is_refusable(&key) {
                    judge_refusable(&world, &key, &known, rows.get(&key), &dead);
                    continue;
                }
                let found = rows.get(&key).map_or(0, |(value, _)| *value);
                // Under a clock that is behind, a new master numbers its writes as if they were older ones.
                let behind =
                    world.plan.clocks_differ && world.may_have_lost(Duration::ZERO, known.sure.1);
                let lost = behind || world.may_have_lost(known.sure.1, world.now());
                if found != known.sure.0 && !known.perhaps.contains(&found) && !lost {
                    world.breach(format!("{key} is {found} in the database, after {known:?}"));
                }
            }
        })
    }
}
