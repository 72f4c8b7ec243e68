//! How a write-behind is set up.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use super::{Shared, Sink, WriteBehind};
use crate::{
    caching::{cache::CacheKey, fingerprint::fingerprint},
    codec::Codec,
    error::{Error, Result},
    key::{Keys, Layout},
    store::Store,
};

type Types<K, V, C> = PhantomData<fn(&K) -> (V, C)>;

/// Sets up a [`WriteBehind`].
#[must_use = "a builder does nothing until it builds"]
pub struct WriteBehindBuilder<K: ?Sized, V, S, C> {
    store: Store,
    namespace: String,
    name: String,
    sink: S,
    layout: Option<Layout>,
    shards: u32,
    schema: u32,
    value_type: String,
    ttl: Duration,
    max_lag: u64,
    batch: usize,
    lease: Duration,
    types: Types<K, V, C>,
}

impl<K: ?Sized, V, S, C> WriteBehindBuilder<K, V, S, C> {
    pub(super) fn new(store: &Store, namespace: &str, name: &str, sink: S) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            sink,
            layout: None,
            shards: 8,
            schema: 0,
            value_type: std::any::type_name::<V>().to_owned(),
            ttl: Duration::from_secs(3600),
            max_lag: 10_000,
            batch: 500,
            lease: Duration::from_secs(10),
            types: PhantomData,
        }
    }

    /// The number of logs that keys are spread over, from 1 to 1024 (default 8). It must not change while the
    /// logs hold writes.
    pub fn shards(mut self, shards: u32) -> Self {
        self.shards = shards;
        self
    }

    /// Uses keys that the application already has: the layout is given the number of the shard.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// The version of the type `V` (default 0). A worker makes writes of another version dead letters.
    pub fn schema(mut self, schema: u32) -> Self {
        self.schema = schema;
        self
    }

    /// The name under which values are told from those of other types. The default is the Rust path of `V`; set
    /// it if the type may move to another module or crate while writes are waiting.
    pub fn value_type(mut self, name: &str) -> Self {
        self.value_type = name.to_owned();
        self
    }

    /// How long a value is kept after it was applied or loaded (default one hour).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How many writes may wait in a shard (default 10,000). Beyond that, writes are refused.
    pub fn max_lag(mut self, max: u64) -> Self {
        self.max_lag = max;
        self
    }

    /// How many writes one transaction covers, from 1 to 5000 (default 500). When it is committed, one script ends them in
    /// the store, about 1 µs of the server's time for each.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// How long a shard stays with a worker that died (default 10 s). A live worker renews its lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How values become bytes. The default is [`Postcard`](crate::codec::Postcard).
    pub fn codec<D: Codec>(self, _: D) -> WriteBehindBuilder<K, V, S, D> {
        WriteBehindBuilder {
            store: self.store,
            namespace: self.namespace,
            name: self.name,
            sink: self.sink,
            layout: self.layout,
            shards: self.shards,
            schema: self.schema,
            value_type: self.value_type,
            ttl: self.ttl,
            max_lag: self.max_lag,
            batch: self.batch,
            lease: self.lease,
            types: PhantomData,
        }
    }
}

impl<K, V, S, C> WriteBehindBuilder<K, V, S, C>
where
    K: CacheKey + ?Sized,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    S: Sink<V>,
    C: Codec,
{
    /// Makes it. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name, or a setting out of range.
    pub fn build(self) -> Result<WriteBehind<K, V, S, C>> {
        if !(1..=1024).contains(&self.shards) {
            return Err(Error::config("shards must be from 1 to 1024"));
        }
        if self.ttl < Duration::from_millis(1) {
            return Err(Error::config("the TTL must be at least 1 ms"));
        }
        if self.max_lag == 0 {
            return Err(Error::config("max_lag must be at least 1"));
        }
        if !(1..=5000).contains(&self.batch) {
            return Err(Error::config("a batch must have 1 to 5000 writes"));
        }
        if self.lease < Duration::from_millis(100) {
            return Err(Error::config("the lease must be at least 100 ms"));
        }
        let mut keys = Keys::named(&self.namespace, "behind", &self.name)?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        let shards = (0..self.shards)
            .map(|shard| keys.entity(&shard.to_string()))
            .collect::<Result<_>>()?;
        Ok(WriteBehind {
            shared: Arc::new(Shared {
                store: self.store,
                log: format!("{}:behind.{}", self.namespace, self.name).into(),
                namespace: keys.namespace().clone(),
                shards,
                fingerprint: fingerprint::<C>(self.schema, &self.value_type),
                ttl: self.ttl,
                max_lag: self.max_lag,
                batch: self.batch,
                lease: self.lease,
                types: PhantomData,
            }),
            sink: Arc::new(self.sink),
            key: PhantomData,
        })
    }
}
