//! What a read returns.

use std::{sync::Arc, time::Duration};

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HitSource {
    /// This process: the first level, or the values last seen while the store is down.
    L1,
    /// The store.
    Store,
    /// The loader.
    Loaded,
}

/// The answer of a cache.
#[derive(Debug)]
#[non_exhaustive]
pub struct Hit<V> {
    /// The value; `None` if the source is known to have none.
    pub value: Option<Arc<V>>,
    /// Where it came from.
    pub source: HitSource,
    /// How long ago it was loaded. `None` after a read that did not ask for it: without a first level, early refresh
    /// and stale serving, a hit is one plain `GET`.
    pub age: Option<Duration>,
    /// Whether it is older than its TTL.
    pub stale: bool,
}

impl<V> Clone for Hit<V> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            source: self.source,
            age: self.age,
            stale: self.stale,
        }
    }
}
