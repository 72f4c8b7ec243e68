//! The database behind a cache, as a model: rows with versions, and which of them readers must see.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Error, Result,
    caching::{Cache, Hit, Loaded},
};
use serde::{Deserialize, Serialize};

use super::counters;

/// A row of the database.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) version: u64,
    body: Vec<u8>,
}

/// Rows in this process. A write commits a new version; once its invalidation has returned, that version is the floor
/// below which no read that begins later may fall.
pub(super) struct Source {
    committed: Vec<AtomicU64>,
    floors: Vec<AtomicU64>,
    loads: AtomicU64,
    body: Vec<u8>,
    takes: Duration,
}

impl Source {
    /// A source that takes some milliseconds, so that callers pile up behind a load.
    pub(super) fn slow(rows: usize, body: Vec<u8>) -> Arc<Self> {
        Self::with(rows, body, Duration::from_millis(5))
    }

    pub(super) fn new(rows: usize, body: Vec<u8>) -> Arc<Self> {
        Self::with(rows, body, Duration::ZERO)
    }

    fn with(rows: usize, body: Vec<u8>, takes: Duration) -> Arc<Self> {
        Arc::new(Self {
            committed: counters(rows),
            floors: counters(rows),
            loads: AtomicU64::new(0),
            body,
            takes,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.committed.len()
    }

    /// The newest row.
    pub(super) fn row(&self, row: usize) -> Row {
        Row {
            version: self.committed[row].load(Ordering::SeqCst),
            body: self.body.clone(),
        }
    }

    /// Commits a new version and returns it.
    pub(super) fn commit(&self, row: usize) -> u64 {
        self.committed[row].fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Readers that begin from now on must see this version or a later one.
    pub(super) fn raise(&self, row: usize, version: u64) {
        self.floors[row].fetch_max(version, Ordering::SeqCst);
    }

    pub(super) fn floor(&self, row: usize) -> u64 {
        self.floors[row].load(Ordering::SeqCst)
    }

    /// How often a row was loaded.
    pub(super) fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Loads a row, as a query would: what it returns is read at its beginning, and may be old at its end.
    pub(super) async fn load(&self, row: usize) -> Result<Loaded<Row>> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let found = self.row(row);
        match self.takes.is_zero() {
            true => tokio::task::yield_now().await,
            false => tokio::time::sleep(self.takes).await,
        }
        Ok::<_, Error>(Loaded::Found(found))
    }
}

/// Reads a row through the cache.
pub(super) async fn read(
    cache: &Cache<u64, Row>,
    source: &Arc<Source>,
    row: usize,
) -> Result<Hit<Row>> {
    let source = source.clone();
    let load = move |_| {
        let source = source.clone();
        async move { source.load(row).await }
    };
    cache.get_or_load(&(row as u64), load).await
}

/// The version of a row that was read; 0 if there was none.
pub(super) fn version(hit: &Hit<Row>) -> u64 {
    hit.value.as_ref().map_or(0, |row| row.version)
}
