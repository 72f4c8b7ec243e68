//! The settings of stock.

use std::{sync::Arc, time::Duration};

use super::{Inner, Stock, memory::Memory};
use crate::{
    error::{Error, Result},
    key::{Keys, Layout},
    store::Store,
};

const MAX_SHARDS: u32 = 256;
const MAX_MEMORY: Duration = Duration::from_secs(60);

/// Settings of [`Stock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct StockBuilder {
    store: Store,
    namespace: String,
    name: String,
    per_user: Option<u64>,
    shards: u32,
    sold_out_memory: Duration,
    layout: Option<Layout>,
}

impl StockBuilder {
    pub(super) fn new(store: &Store, namespace: &str, name: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            per_user: None,
            shards: 1,
            sold_out_memory: Duration::from_millis(250),
            layout: None,
        }
    }

    /// The most units of one SKU that one user may hold and buy. Default: no cap.
    pub fn per_user(mut self, units: u64) -> Self {
        self.per_user = Some(units);
        self
    }

    /// Spreads each SKU over this many slots. It must be the same in every process: a process with another number does
    /// not see the sale. Default: 1.
    pub fn shards(mut self, shards: u32) -> Self {
        self.shards = shards;
        self
    }

    /// How long this process remembers that no shard has units left, and does not ask all of them again. Default: 250 ms.
    pub fn sold_out_memory(mut self, time: Duration) -> Self {
        self.sold_out_memory = time;
        self
    }

    /// Uses key names that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Checks the settings. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a cap of zero, no shard or more than 256, a sold-out memory above a minute,
    /// or a bad namespace or name.
    pub fn build(self) -> Result<Stock> {
        if self.per_user == Some(0) {
            return Err(Error::config("a cap of zero units sells nothing"));
        }
        if !(1..=MAX_SHARDS).contains(&self.shards) {
            return Err(Error::config(format!(
                "the number of shards must be from 1 to {MAX_SHARDS}"
            )));
        }
        if self.sold_out_memory > MAX_MEMORY {
            return Err(Error::config(
                "the sold-out memory must be at most a minute",
            ));
        }
        // Two patterns, so that no SKU of an unsharded stock has the name of a shard.
        let pattern = match self.shards {
            1 => "stock",
            _ => "stock_shard",
        };
        let mut keys = Keys::named(&self.namespace, pattern, &self.name)?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(Stock(Arc::new(Inner {
            memory: Memory::new(self.store.clock(), self.sold_out_memory),
            store: self.store,
            keys,
            per_user: self.per_user.unwrap_or(0),
            shards: self.shards,
        })))
    }
}
