//! Caching, over every backend.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod cache;
mod clock;
#[cfg(feature = "lz4")]
mod compress;
mod dead_write;
mod fault;
mod load;
mod process;
mod race;
mod set;
mod sorted_view;
mod tags;
mod version;
#[cfg(all(feature = "sqlite", feature = "postgres"))]
mod write_behind;
mod write_through;

#[path = "../served/engine.rs"]
mod served;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Store,
    caching::{Cache, Loaded},
};
use redstart_testkit::Backend;

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Two stores on one backend, as two processes would have; the embedded engine's are clones.
pub(crate) async fn two(backend: &Backend) -> anyhow::Result<(Store, Store)> {
    let first = Store::connect(backend.url()).await?;
    let second = match backend.is_embedded() {
        true => first.clone(),
        false => Store::connect(backend.url()).await?,
    };
    Ok((first, second))
}

/// Lets the server's time pass: at once on the embedded engine, by waiting elsewhere.
pub(crate) async fn pass(store: &Store, by: Duration) {
    if store.advance(by).is_err() {
        tokio::time::sleep(by).await;
    }
}

/// A source of values that counts how often it was asked.
#[derive(Clone, Default)]
pub(crate) struct Rows {
    value: Arc<AtomicU64>,
    loads: Arc<AtomicU64>,
    running: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
}

impl Rows {
    pub(crate) fn at(value: u64) -> Self {
        let rows = Self::default();
        rows.set(value);
        rows
    }

    pub(crate) fn set(&self, value: u64) {
        self.value.store(value, Ordering::SeqCst);
    }

    pub(crate) fn now(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    pub(crate) fn loads(&self) -> u64 {
        self.loads.load(Ordering::SeqCst)
    }

    /// The most loads that ever ran at one time.
    pub(crate) fn most_at_once(&self) -> u64 {
        self.most.load(Ordering::SeqCst)
    }

    /// Reads the value, and takes its time to return it.
    pub(crate) async fn read(&self, takes: Duration) -> u64 {
        self.loads.fetch_add(1, Ordering::SeqCst);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        let value = self.now();
        match takes.is_zero() {
            true => tokio::task::yield_now().await,
            false => tokio::time::sleep(takes).await,
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
        value
    }

    pub(crate) async fn through(
        &self,
        cache: &Cache<str, u64>,
        key: &str,
        takes: Duration,
    ) -> redstart::Result<redstart::caching::Hit<u64>> {
        let rows = self.clone();
        cache
            .get_or_load(key, move |_| async move {
                Ok::<_, redstart::Error>(Loaded::Found(rows.read(takes).await))
            })
            .await
    }
}
