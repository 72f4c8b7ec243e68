//! Writes that a sink gets later.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{
    Result,
    caching::{Changes, EntryId, Put, Sink, SinkClaim, SinkError, WriteBehind, WriteBehindWorker},
};

use crate::workload::{Bed, Claims, Op, WAIT, Workload, counters};

/// A table in this process.
#[derive(Default)]
struct Table {
    rows: Mutex<HashMap<String, u64>>,
    checkpoints: Mutex<HashMap<(String, u32), (i64, EntryId)>>,
}

#[derive(Clone)]
struct TableSink(Arc<Table>);

impl Sink<u64> for TableSink {
    async fn claim(&self, log: &str, shard: u32) -> Result<SinkClaim, SinkError> {
        let mut checkpoints = self.0.checkpoints.lock();
        let (epoch, applied) = checkpoints.entry((log.to_owned(), shard)).or_default();
        *epoch += 1;
        Ok(SinkClaim {
            epoch: *epoch,
            applied: *applied,
        })
    }

    async fn apply(&self, changes: &Changes<u64>) -> Result<(), SinkError> {
        let mut checkpoints = self.0.checkpoints.lock();
        let checkpoint = checkpoints
            .entry((changes.log.to_string(), changes.shard))
            .or_default();
        if checkpoint.0 != changes.epoch {
            return Err(SinkError::Fenced);
        }
        let mut rows = self.0.rows.lock();
        for change in &changes.changes {
            match change.value {
                Some(value) => rows.insert(change.key.clone(), value),
                None => rows.remove(&change.key),
            };
        }
        checkpoint.1 = changes.upto;
        Ok(())
    }

    async fn load(&self, key: &str) -> Result<Option<u64>, SinkError> {
        Ok(self.0.rows.lock().get(key).copied())
    }
}

pub(super) struct Behind {
    writes: WriteBehind<u64, u64, TableSink, redstart::codec::Postcard>,
    worker: Mutex<Option<WriteBehindWorker>>,
    table: Arc<Table>,
    rows: Vec<Mutex<History>>,
    unknown: Vec<AtomicU64>,
    claims: Claims,
}

/// Overwritten values of a key that are known, the newest ones.
const OVERWRITTEN: usize = 64;

/// The accepted writes of a key, in the order of the log.
#[derive(Default)]
struct History {
    last: EntryId,
    value: u64,
    /// Values that a later write has replaced.
    overwritten: VecDeque<u64>,
}

impl History {
    fn accept(&mut self, id: EntryId, value: u64) {
        let first = self.last == EntryId::default();
        let old = match id > self.last {
            true => {
                self.last = id;
                std::mem::replace(&mut self.value, value)
            }
            false => value,
        };
        if !first {
            self.overwritten.push_back(old);
        }
        if self.overwritten.len() > OVERWRITTEN {
            self.overwritten.pop_front();
        }
    }
}

impl Behind {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let table = Arc::new(Table::default());
        let sink = TableSink(table.clone());
        let writes =
            WriteBehind::<u64, u64>::builder(&bed.store, &bed.namespace, "row", sink).build()?;
        let rows = bed.entities(100_000);
        Ok(Self {
            worker: Mutex::new(Some(writes.work()?)),
            writes,
            table,
            rows: (0..rows).map(|_| Mutex::default()).collect(),
            unknown: counters(rows),
            claims: Claims::default(),
        })
    }
}

impl Workload for Behind {
    async fn operate(&self, op: Op) -> Result<()> {
        let row = op.index(self.rows.len());
        if !op.write {
            let overwritten = self.rows[row].lock().overwritten.clone();
            let seen = self.writes.get(&(row as u64)).await?;
            let old = seen.is_some_and(|seen| overwritten.contains(&seen));
            self.claims.hold(!old, || {
                format!("key {row} was read as {seen:?}, which had been overwritten")
            });
            return Ok(());
        }
        let put = self.writes.put(&(row as u64), &op.number).await;
        if put.is_err() {
            self.unknown[row].fetch_add(1, Ordering::Relaxed);
        }
        match put? {
            Put::Accepted(id) => self.rows[row].lock().accept(id, op.number),
            // The sink is slower than the clients: wait as an application would.
            Put::Backpressure { .. } => tokio::time::sleep(Duration::from_millis(1)).await,
        }
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        let flushed = self.writes.flush(WAIT).await;
        let worker = self.worker.lock().take();
        if let Some(worker) = worker {
            worker.stop().await;
        }
        flushed?;
        let rows = self.table.rows.lock();
        for (row, history) in self.rows.iter().enumerate() {
            let history = history.lock();
            let (id, number) = (history.last, history.value);
            if id == EntryId::default() || self.unknown[row].load(Ordering::Relaxed) > 0 {
                continue;
            }
            let seen = rows.get(&row.to_string()).copied();
            self.claims.hold(seen == Some(number), || {
                format!("the sink has {seen:?} for key {row}, the last write was {number}")
            });
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The shard of a row is in its tag; its newest value has the row in its name.
    fn mark(&self, target: u64) -> Option<String> {
        Some(format!(":v:{target}"))
    }

    fn entities(&self) -> u64 {
        self.table.rows.lock().len() as u64
    }
}
