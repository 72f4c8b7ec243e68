//! The settings of idempotency keys.

use std::{sync::Arc, time::Duration};

use super::{Idempotency, Inner};
use crate::{
    Down,
    error::{Error, Result},
    key::{Keys, Layout},
    store::Store,
};

const MAX_TIME: Duration = Duration::from_secs(366 * 24 * 3600);

/// Settings of [`Idempotency`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct IdempotencyBuilder {
    store: Store,
    namespace: String,
    name: String,
    ttl: Duration,
    lease: Duration,
    repeat_unknown: bool,
    down: Down,
    layout: Option<Layout>,
}

impl IdempotencyBuilder {
    pub(super) fn new(store: &Store, namespace: &str, name: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ttl: Duration::from_secs(24 * 3600),
            lease: Duration::from_secs(30),
            repeat_unknown: false,
            down: Down::Fail,
            layout: None,
        }
    }

    /// How long results, and claims whose outcome is unknown, are kept. Default: a day.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long a claim outlives the process that made it before its outcome is reported as unknown. A process that is
    /// alive renews its claim. Default: 30 seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Carries work out again when an earlier run of it left no outcome, instead of answering
    /// [`Run::Unknown`](super::Run::Unknown). Only for work that may happen twice.
    pub fn repeat_unknown(mut self) -> Self {
        self.repeat_unknown = true;
        self
    }

    /// What a run answers while the store is down. Default: [`Down::Fail`].
    pub fn on_store_down(mut self, down: Down) -> Self {
        self.down = down;
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
    /// [`is_config`](Error::is_config) for a TTL or a lease below 10 ms or above a year, or a bad namespace or name.
    pub fn build(self) -> Result<Idempotency> {
        for (what, time) in [("ttl", self.ttl), ("lease", self.lease)] {
            if time < Duration::from_millis(10) || time > MAX_TIME {
                return Err(Error::config(format!(
                    "the {what} must be from 10 ms to a year"
                )));
            }
        }
        let mut keys = Keys::named(&self.namespace, "idempotency", &self.name)?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(Idempotency(Arc::new(Inner {
            store: self.store,
            keys,
            ttl: self.ttl,
            lease: self.lease,
            repeat_unknown: self.repeat_unknown,
            down: self.down,
        })))
    }
}
