//! Settings of a filter, and how it is opened.

use std::sync::Arc;

use parking_lot::RwLock;

use super::{
    Bloom, BloomMode, BloomScaling,
    config::Config,
    root::{Root, State, read_root, swap_root},
};
use crate::{
    error::{Error, Result},
    key::Keys,
    observe,
    store::{Optional, Store},
};

/// Settings of a filter. See [`Bloom::builder`].
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
    /// How many elements the filter is for. Without it, only a filter that exists can be opened.
    pub fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = Some(capacity);
        self
    }

    /// The share of wrong "probably" at capacity; 0.01 by default.
    pub fn error_rate(mut self, error_rate: f64) -> Self {
        self.error_rate = error_rate;
        self
    }

    /// Who keeps the bits.
    pub fn mode(mut self, mode: BloomMode) -> Self {
        self.mode = mode;
        self
    }

    /// What happens past the capacity.
    pub fn scaling(mut self, scaling: BloomScaling) -> Self {
        self.scaling = scaling;
        self
    }

    /// The largest key, 8 MB by default. Smaller ones spread over more slots of a Cluster.
    pub fn key_bytes(mut self, bytes: u64) -> Self {
        self.key_bytes = bytes;
        self
    }

    /// Opens the filter, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a capacity of 0 or over [`Bloom::MAX_CAPACITY`], an error rate outside
    /// [`Bloom::MIN_ERROR_RATE`]`..=0.5`, a bad name, a filter that was made with other settings or is not there,
    /// or `BF.*` asked of a server without it; otherwise those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the filter may be there in part; opening it again completes it.
    pub async fn open(self) -> Result<Bloom> {
        if let Some(capacity) = self.capacity {
            check_shape(capacity, self.error_rate)?;
        }
        if !(1024..=Bloom::MAX_KEY_BYTES).contains(&self.key_bytes) {
            return Err(Error::config(format!(
                "a key has 1024 to {} bytes",
                Bloom::MAX_KEY_BYTES
            )));
        }
        let keys = Keys::new(&self.namespace, "bloom")?;
        let root = keys.entity(&self.name)?;
        observe::operation("bloom.open", keys.namespace(), async {
            let mut row = read_root(&self.store, &root).await?;
            if row.current.is_empty() {
                let Some(capacity) = self.capacity else {
                    return Err(Error::config(
                        "there is no such filter, and no capacity to make one",
                    ));
                };
                let config = Config::new(
                    choose(&self.store, self.mode).await?,
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
                row = swap_root(&self.store, &root, &row, &new).await?;
            }
            self.check(&row)?;
            let filter = Bloom {
                state: Arc::new(RwLock::new(State::new(&keys, &self.name, &row, None)?)),
                store: self.store.clone(),
                keys: keys.clone(),
                name: self.name.as_str().into(),
                root,
            };
            if row.phase == "creating" {
                let current = filter.state.read().current.clone();
                current.create(&self.store).await?;
                let ready = Root {
                    phase: "ready".to_owned(),
                    ..row.clone()
                };
                swap_root(&self.store, &filter.root, &row, &ready).await?;
            }
            Ok(filter)
        })
        .await
    }

    /// The stored filter must be the one that was asked for: as it is now, or as a rebuild is making it.
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
            "the filter was made with other settings: {}",
            current.text()
        )))
    }
}

/// Says what a new filter uses.
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
            "a capacity is between 1 and {}, not {capacity}",
            Bloom::MAX_CAPACITY
        )));
    }
    if !(Bloom::MIN_ERROR_RATE..=0.5).contains(&error_rate) {
        return Err(Error::config(format!(
            "an error rate is between {:e} and 0.5, not {error_rate}",
            Bloom::MIN_ERROR_RATE
        )));
    }
    Ok(())
}

pub(super) fn check_partitions(config: &Config) -> Result<()> {
    if config.partitions > Bloom::MAX_PARTITIONS {
        return Err(Error::config(format!(
            "the filter would need {} keys, more than {}: allow larger keys or fewer elements",
            config.partitions,
            Bloom::MAX_PARTITIONS
        )));
    }
    Ok(())
}
