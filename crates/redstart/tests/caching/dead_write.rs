//! Dead letters of write-behind: a write that cannot be applied blocks its key and nothing else.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use redstart::{
    Store,
    caching::{
        Changes, DeadWrite, EntryId, Put, RefusedChange, Sink, SinkClaim, SinkError, WriteBehind,
    },
};
use redstart_testkit::{Backend, matrix, scale, unique_namespace};

use crate::LONG;

type Rows = WriteBehind<str, u64, Table>;

/// A database in this process. It refuses values from its limit on.
#[derive(Clone)]
struct Table(Arc<Mutex<State>>);

struct State {
    limit: u64,
    /// Reports refused rows one at a time.
    one_by_one: bool,
    /// Also reports which of the earlier writes it would refuse.
    looks_back: bool,
    /// One batch in this many fails, at random; zero for none.
    fails: u32,
    random: StdRng,
    epochs: HashMap<u32, i64>,
    applied: HashMap<u32, EntryId>,
    rows: BTreeMap<String, u64>,
    /// Every change that was ever applied.
    book: BTreeSet<(String, EntryId)>,
}

impl Table {
    fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            limit: 1000,
            one_by_one: seed.is_multiple_of(2),
            looks_back: seed.is_multiple_of(3),
            fails: 10,
            random: StdRng::seed_from_u64(seed),
            epochs: HashMap::new(),
            applied: HashMap::new(),
            rows: BTreeMap::new(),
            book: BTreeSet::new(),
        })))
    }

    fn rows(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap().rows.clone()
    }
}

fn too_large(value: Option<u64>) -> Box<dyn std::error::Error + Send + Sync> {
    match value {
        Some(value) => format!("{value} is too large").into(),
        None => "whatever it is".into(),
    }
}

impl Sink<u64> for Table {
    async fn claim(&self, _: &str, shard: u32) -> Result<SinkClaim, SinkError> {
        let mut state = self.0.lock().unwrap();
        let epoch = state.epochs.entry(shard).or_default();
        *epoch += 1;
        Ok(SinkClaim {
            epoch: *epoch,
            applied: state.applied.get(&shard).copied().unwrap_or_default(),
        })
    }

    async fn apply(&self, changes: &Changes<u64>) -> Result<(), SinkError> {
        // So that a worker can be aborted in the middle.
        tokio::task::yield_now().await;
        {
            let mut state = self.0.lock().unwrap();
            if state.epochs.get(&changes.shard) != Some(&changes.epoch) {
                return Err(SinkError::Fenced);
            }
            let fails = state.fails;
            if fails > 0 && state.random.next_u32().is_multiple_of(fails) {
                return Err(SinkError::Unavailable("switched off".into()));
            }
            let refused = changes.changes.iter().enumerate();
            let refused = refused
                .filter(|(_, change)| change.value.is_some_and(|value| value >= state.limit));
            let mut refused: Vec<_> = refused
                .map(|(index, change)| RefusedChange {
                    index,
                    source: too_large(change.value),
                    older: match state.looks_back {
                        true => {
                            let older = change.older.iter();
                            let older = older.map_while(|(_, value)| {
                                value.filter(|value| *value >= state.limit)
                            });
                            let mut older: Vec<_> =
                                older.map(|value| too_large(Some(value))).collect();
                            // Also of writes that it was not shown.
                            if older.len() == change.older.len() {
                                older.extend([too_large(None), too_large(None)]);
                            }
                            older
                        }
                        false => Vec::new(),
                    },
                })
                .collect();
            if state.one_by_one {
                refused.truncate(1);
            }
            if !refused.is_empty() {
                return Err(SinkError::Refused(refused));
            }
            for change in &changes.changes {
                let key = change.key.clone();
                assert!(
                    state.book.insert((key.clone(), change.id)),
                    "{key} was applied twice"
                );
                match change.value {
                    Some(value) => drop(state.rows.insert(key, value)),
                    None => drop(state.rows.remove(&key)),
                }
            }
            state.applied.insert(changes.shard, changes.upto);
        }
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn load(&self, key: &str) -> Result<Option<u64>, SinkError> {
        Ok(self.0.lock().unwrap().rows.get(key).copied())
    }
}

fn rows(store: &Store, namespace: &str, table: &Table, batch: usize) -> redstart::Result<Rows> {
    WriteBehind::builder(store, namespace, "rows", table.clone())
        .shards(1)
        .batch(batch)
        .lease(Duration::from_millis(100))
        .build()
}

async fn put(rows: &Rows, key: &str, value: u64) -> redstart::Result<EntryId> {
    match rows.put(key, &value).await? {
        Put::Accepted(id) => Ok(id),
        Put::Backpressure { waiting } => panic!("{waiting} writes wait"),
    }
}

async fn all_dead(rows: &Rows, page: usize) -> redstart::Result<Vec<DeadWrite>> {
    let mut letters: Vec<DeadWrite> = Vec::new();
    loop {
        let next = rows.dead_writes(letters.last(), page).await?;
        if next.is_empty() {
            return Ok(letters);
        }
        letters.extend(next);
    }
}

#[derive(Clone, Copy, Debug)]
enum Write {
    Good(u64),
    Refused(u64),
    Deleted,
    Foreign,
}

/// What a log leaves in the table and among the dead letters, batch by batch.
fn model(
    log: &[(String, EntryId, Write)],
    batch: usize,
) -> (BTreeMap<String, u64>, BTreeSet<(String, EntryId)>) {
    let (mut table, mut dead) = (BTreeMap::new(), BTreeSet::new());
    let mut first_dead: BTreeMap<&str, EntryId> = BTreeMap::new();
    for batch in log.chunks(batch) {
        let mut stacks: BTreeMap<&str, Vec<(EntryId, Write)>> = BTreeMap::new();
        for (key, id, write) in batch {
            match first_dead.get(&**key) {
                Some(_) => drop(dead.insert((key.clone(), *id))),
                None => stacks.entry(key).or_default().push((*id, *write)),
            }
        }
        for (key, mut stack) in stacks {
            while let Some((id, write)) = stack.pop() {
                match write {
                    Write::Good(value) => drop(table.insert(key.to_owned(), value)),
                    Write::Deleted => drop(table.remove(key)),
                    Write::Refused(_) | Write::Foreign => {
                        dead.insert((key.to_owned(), id));
                        first_dead.insert(key, id);
                        continue;
                    }
                }
                break;
            }
        }
    }
    (table, dead)
}

/// One random mixture of good, refused, undecodable and blocked writes, with workers that are aborted anywhere.
async fn mixture(store: &Store, seed: u64) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    let namespace = unique_namespace("mixture");
    let table = Table::new(seed);
    let batch = random.random_range(1..12);
    let ours = rows(store, &namespace, &table, batch)?;
    let foreign: Rows = WriteBehind::builder(store, &namespace, "rows", table.clone())
        .shards(1)
        .schema(2)
        .build()?;
    let mut log = Vec::new();
    for n in 0..random.random_range(5..60) {
        let key = format!("k{}", random.random_range(0..6));
        let write = match random.random_range(0..10) {
            0 | 1 => Write::Refused(1000 + n),
            2 => Write::Foreign,
            3 => Write::Deleted,
            _ => Write::Good(n),
        };
        let put = match write {
            Write::Good(value) | Write::Refused(value) => ours.put(&key, &value).await?,
            Write::Deleted => ours.delete(&key).await?,
            Write::Foreign => foreign.put(&key, &7).await?,
        };
        let Put::Accepted(id) = put else { panic!() };
        log.push((key, id, write));
    }
    for _ in 0..random.random_range(0..4) {
        let worker = ours.work()?;
        let pause = random.random_range(0..3000);
        tokio::time::sleep(Duration::from_micros(pause)).await;
        drop(worker);
    }
    let worker = ours.work()?;
    ours.flush(LONG).await?;
    let (expected, dead) = model(&log, batch);
    assert_eq!(
        table.rows(),
        expected,
        "seed {seed}, batch {batch}, {log:?}"
    );
    let letters = all_dead(&ours, random.random_range(1..5)).await?;
    let found: BTreeSet<_> = letters
        .iter()
        .map(|one| (one.key.clone(), one.id))
        .collect();
    assert_eq!(found.len(), letters.len(), "a page repeated a letter");
    assert_eq!(found, dead, "seed {seed}, batch {batch}, {log:?}");

    // Once the letters are gone, every key can be written again.
    let keys: BTreeSet<_> = dead.iter().map(|(key, _)| key.clone()).collect();
    for key in &keys {
        assert!(ours.discard_dead(key).await? > 0);
    }
    for (n, key) in keys.iter().enumerate() {
        put(&ours, key, n as u64).await?;
    }
    ours.flush(LONG).await?;
    let now = table.rows();
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(now.get(key), Some(&(n as u64)), "seed {seed}");
    }
    assert!(all_dead(&ours, 10).await?.is_empty());
    worker.stop().await;
    Ok(())
}

matrix! {
    async fn any_mixture_of_bad_writes_blocks_only_their_keys(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::builder(backend.url()).deadline(Duration::from_secs(20)).connect().await?;
        for _ in 0..scale(8, "write behind mixtures") {
            mixture(&store, rand::random()).await?;
        }
        Ok(())
    }

    async fn a_retried_letter_does_not_replace_a_newer_write(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let table = Table::new(1);
        table.0.lock().unwrap().fails = 0;
        let rows = rows(&store, backend.namespace(), &table, 10)?;
        for key in ["retried", "discarded", "evicted"] {
            put(&rows, key, 5000).await?;
        }
        let worker = rows.work()?;
        rows.flush(LONG).await?;
        worker.stop().await;
        assert_eq!(all_dead(&rows, 10).await?.len(), 3);
        // The database has changed: it would take the old write now. Newer writes wait in the log.
        table.0.lock().unwrap().limit = u64::MAX;
        for key in ["retried", "discarded", "evicted"] {
            put(&rows, key, 7).await?;
        }
        let values = store.scan(&format!("{}:behind.rows:*:v:evicted", backend.namespace())).await?;
        store.query::<()>(redis::cmd("DEL").arg(&values)).await?;
        assert_eq!(rows.retry_dead("retried").await?, 1);
        assert_eq!(rows.discard_dead("discarded").await?, 1);
        assert_eq!(rows.retry_dead("evicted").await?, 1);
        assert_eq!(rows.get("discarded").await?, Some(7), "a waiting write was removed");
        let worker = rows.work()?;
        rows.flush(LONG).await?;
        worker.stop().await;
        assert_eq!(table.rows().into_values().collect::<Vec<_>>(), [7, 7, 7]);
        assert!(all_dead(&rows, 10).await?.is_empty());
        Ok(())
    }

    async fn letters_are_paged_and_removed_in_parts(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let table = Table::new(1);
        {
            let mut state = table.0.lock().unwrap();
            (state.fails, state.limit) = (0, 2000);
        }
        let rows = rows(&store, backend.namespace(), &table, 500)?;
        put(&rows, "bad", 5000).await?;
        let worker = rows.work()?;
        rows.flush(LONG).await?;
        let writes = 1200;
        for n in 0..writes {
            put(&rows, "bad", n).await?;
        }
        put(&rows, "other", 5000).await?;
        rows.flush(LONG).await?;
        let dead = all_dead(&rows, 100).await?;
        assert_eq!(dead.len() as u64, writes + 2);
        assert!(dead[0].reason.contains("too large"), "{}", dead[0].reason);
        assert!(dead[1].reason.contains("earlier write"), "{}", dead[1].reason);
        // A page is the same whether or not letters before it were removed.
        let after = rows.dead_writes(Some(&dead[700]), 50).await?;
        assert_eq!(after, dead[701..751]);
        assert_eq!(rows.retry_dead("bad").await?, writes + 1);
        rows.flush(LONG).await?;
        assert_eq!(table.rows().get("bad"), Some(&(writes - 1)), "the newest letter");
        assert_eq!(rows.retry_dead("bad").await?, 0);
        let left = all_dead(&rows, 100).await?;
        assert_eq!(left.iter().map(|one| &*one.key).collect::<Vec<_>>(), ["other"]);
        worker.stop().await;
        Ok(())
    }
}
