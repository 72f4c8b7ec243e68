//! Settings of a filter, and how it is opened.

use std::sync::Arc;

use parking_lot::RwLock;

use super::{
    Bloom, BloomMode, BloomScaling,
    config::Config,
    root::{Root, State, missing, read_root, swap_root},
};
use crate::{
    error::{Error, Result},
    key::Keys,
    observe,
    store::{Optional, Store},
};

/// Settings of [`Bloom`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it opens"]
pub struct BloomBuilder {
    pub(super) store: Store,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) capacity: Option<u64>,
    pub(super) error_rate: f64,
    pub(super) mode: BloomMode,
    pub(super) scaling: BloomScaling,
    pub(super) key_bytes: u64,
}

impl BloomBuilder {
    /// How many elements the filter is for. Required to create a filter; an existing one must have the same.
    pub fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = Some(capacity);
        self
    }

    /// The share of wrong "probably yes" at capacity; 0.01 by default.
    pub fn error_rate(mut self, error_rate: f64) -> Self {
        self.error_rate = error_rate;
        self
    }

    /// Who stores the bits.
    pub fn mode(mut self, mode: BloomMode) -> Self {
        self.mode = mode;
        self
    }

    /// What happens beyond the capacity.
    pub fn scaling(mut self, scaling: BloomScaling) -> Self {
        self.scaling = scaling;
        self
    }

    /// The largest key in bytes, 8 MB by default. Smaller keys spread over more slots of a Cluster.
    pub fn key_bytes(mut self, bytes: u64) -> Self {
        self.key_bytes = bytes;
        self
    }

    /// Opens a filter that exists.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if there is no such filter (it was never created, was deleted, or was evicted), if
    /// it has other settings than these, or for invalid settings; otherwise those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is lost; open it again.
    pub async fn open(self) -> Result<Bloom> {
        let keys = self.check_settings()?;
        observe::operation("bloom.open", keys.namespace(), async {
            let root = read_root(&self.store, &keys.entity(&self.name)?).await?;
            if root.current.is_empty() {
                return Err(missing());
            }
            self.finish(&keys, root).await
        })
        .await
    }

    /// Creates the filter, or opens it if it exists.
    ///
    /// A new filter knows no element. If the server may evict keys, call this only where the elements are added again
    /// afterwards, and [`open`](Self::open) everywhere else.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) without a capacity, for a capacity of 0 or over [`Bloom::MAX_CAPACITY`], an error
    /// rate outside [`Bloom::MIN_ERROR_RATE`]`..=0.5`, a bad name, an existing filter with other settings, or `BF.*` on a
    /// server without it; otherwise those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the filter may exist in part; creating or opening it again completes it.
    pub async fn create(self) -> Result<Bloom> {
        let keys = self.check_settings()?;
        let Some(capacity) = self.capacity else {
            return Err(Error::config("a new filter needs a capacity"));
        };
        observe::operation("bloom.create", keys.namespace(), async {
            let entity = keys.entity(&self.name)?;
            let mut root = read_root(&self.store, &entity).await?;
            if root.current.is_empty() {
                let mode = choose(&self.store, self.mode).await?;
                let config = Config::new(
                    mode,
                    self.scaling,
                    capacity,
                    self.error_rate,
                    self.key_bytes,
                );
                check_partitions(&config)?;
                let new = Root {
                    phase: "creating".to_owned(),
                    current: config.text(),
                    next: String::new(),
                };
                root = swap_root(&self.store, &entity, &root, &new).await?;
            }
            self.finish(&keys, root).await
        })
        .await
    }

    fn check_settings(&self) -> Result<Keys> {
        if let Some(capacity) = self.capacity {
            check_shape(capacity, self.error_rate)?;
        }
        if !(1024..=Bloom::MAX_KEY_BYTES).contains(&self.key_bytes) {
            return Err(Error::config(format!(
                "a key must have 1024 to {} bytes",
                Bloom::MAX_KEY_BYTES
            )));
        }
        Keys::new(&self.namespace, "bloom")
    }

    /// The filter of a root, with its partitions if nobody has made them yet.
    async fn finish(&self, keys: &Keys, root: Root) -> Result<Bloom> {
        self.check(&root)?;
        let filter = Bloom {
            state: Arc::new(RwLock::new(State::new(keys, &self.name, &root, None)?)),
            store: self.store.clone(),
            keys: keys.clone(),
            name: self.name.as_str().into(),
            root: keys.entity(&self.name)?,
        };
        if root.phase == "creating" {
            let current = filter.state.read().current.clone();
            current.create(&self.store).await?;
            let ready = Root {
                phase: "ready".to_owned(),
                ..root.clone()
            };
            swap_root(&self.store, &filter.root, &root, &ready).await?;
        }
        Ok(filter)
    }

    /// The stored filter must have these settings: as it is now, or as a rebuild is making it.
    fn check(&self, row: &Root) -> Result<()> {
        let current = Config::parse(&row.current)?;
        let fits = |config: &Config| {
            self.capacity.is_none_or(|capacity| {
                capacity == config.capacity
                    && self.error_rate == config.error_rate
                    && self.scaling == config.scaling
            }) && (self.mode == BloomMode::Auto || self.mode == config.mode)
        };
        if fits(&current) || (!row.next.is_empty() && fits(&Config::parse(&row.next)?)) {
            return Ok(());
        }
        Err(Error::config(format!(
            "the filter exists with different settings: {}",
            current.text()
        )))
    }
}

/// What a new filter uses.
async fn choose(store: &Store, mode: BloomMode) -> Result<BloomMode> {
    let native = match mode {
        BloomMode::Bitmap => return Ok(BloomMode::Bitmap),
        _ => store.capabilities().await?.has(Optional::Bloom),
    };
    match (mode, native) {
        (_, true) => Ok(BloomMode::Native),
        (BloomMode::Native, false) => Err(Error::config("the server has no BF.* commands")),
        _ => Ok(BloomMode::Bitmap),
    }
}

pub(super) fn check_shape(capacity: u64, error_rate: f64) -> Result<()> {
    if !(1..=Bloom::MAX_CAPACITY).contains(&capacity) {
        return Err(Error::config(format!(
            "a capacity must be between 1 and {}, not {capacity}",
            Bloom::MAX_CAPACITY
        )));
    }
    if !(Bloom::MIN_ERROR_RATE..=0.5).contains(&error_rate) {
        return Err(Error::config(format!(
            "an error rate must be between {:e} and 0.5, not {error_rate}",
            Bloom::MIN_ERROR_RATE
        )));
    }
    Ok(())
}

pub(super) fn check_partitions(config: &Config) -> Result<()> {
    if config.partitions > Bloom::MAX_PARTITIONS {
        return Err(Error::config(format!(
            "the filter would need {} keys, more than {}; use larger keys or a smaller capacity",
            config.partitions,
            Bloom::MAX_PARTITIONS
        )));
    }
    Ok(())
}
