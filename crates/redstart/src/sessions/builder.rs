use std::{sync::Arc, time::Duration};

use super::session::{Inner, Sessions};
use crate::{
    error::{Error, Result},
    key::Keys,
    store::Store,
};

const YEAR: Duration = Duration::from_secs(366 * 86_400);

/// Settings of [`Sessions`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct SessionsBuilder {
    store: Store,
    namespace: String,
    name: String,
    idle: Duration,
    absolute: Duration,
    remember: Duration,
    rotation_grace: Duration,
}

impl SessionsBuilder {
    pub(super) fn new(store: &Store, namespace: &str, name: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            idle: Duration::from_secs(30 * 60),
            absolute: Duration::from_secs(12 * 3600),
            remember: Duration::from_secs(30 * 86_400),
            rotation_grace: Duration::from_secs(10),
        }
    }

    /// A session ends when it was not used for this long (default: 30 minutes).
    pub fn idle(mut self, timeout: Duration) -> Self {
        self.idle = timeout;
        self
    }

    /// A session ends this long after it was made, however often it is used (default: 12 hours).
    pub fn absolute(mut self, timeout: Duration) -> Self {
        self.absolute = timeout;
        self
    }

    /// A [remembered](super::Login::remember) session ends this long after it was made, used or not (default: 30 days).
    pub fn remember(mut self, timeout: Duration) -> Self {
        self.remember = timeout;
        self
    }

    /// How long a rotated token still opens its session, for requests that were sent before the new one arrived
    /// (default: 10 seconds; zero for none).
    pub fn rotation_grace(mut self, grace: Duration) -> Self {
        self.rotation_grace = grace;
        self
    }

    /// Checks the settings. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name, or for timeouts below a millisecond, above a year,
    /// or with the idle one above the absolute one.
    pub fn build(self) -> Result<Sessions> {
        let shortest = Duration::from_millis(1);
        if self.idle < shortest || self.absolute < self.idle || self.absolute > YEAR {
            return Err(Error::config(
                "session timeouts must be at least 1 ms and at most a year, and idle at most absolute",
            ));
        }
        if self.remember < shortest || self.remember > YEAR || self.rotation_grace > YEAR {
            return Err(Error::config(
                "remembered sessions must last from 1 ms to a year, and the rotation grace at most a year",
            ));
        }
        Ok(Sessions(Arc::new(Inner {
            keys: Keys::named(&self.namespace, "session", &self.name)?,
            store: self.store,
            idle: self.idle,
            absolute: self.absolute,
            remember: self.remember,
            rotation_grace: self.rotation_grace,
        })))
    }
}
