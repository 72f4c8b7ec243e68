//! The settings that all builders of the family share.

use std::{sync::Arc, time::Duration};

use super::{kind::LockKind, lease::Terms, lock::Lock};
use crate::{
    error::{Error, Result},
    key::{Entity, Keys, Layout},
    store::Store,
};

#[derive(Clone, Debug)]
pub(crate) struct LockSettings {
    pub(crate) store: Store,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) ttl: Duration,
    pub(crate) renewed: bool,
    pub(crate) layout: Option<Layout>,
    pub(crate) label: Option<String>,
    /// How often waiters ask, instead of what the kind says.
    pub(crate) poll: Option<Duration>,
}

impl LockSettings {
    pub(crate) fn new(store: &Store, namespace: &str, name: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ttl: Duration::from_secs(30),
            renewed: true,
            layout: None,
            label: None,
            poll: None,
        }
    }

    pub(crate) fn terms(&self) -> Result<Terms> {
        Terms::new(self.ttl, self.renewed)
    }

    fn check_label(&self) -> Result<()> {
        let bad = |c: char| c == '+' || c.is_control();
        match &self.label {
            Some(label) if label.is_empty() || label.len() > 128 || label.contains(bad) => Err(
                Error::config("a label must have 1 to 128 bytes without + and control characters"),
            ),
            _ => Ok(()),
        }
    }

    fn entity(&self, pattern: &'static str) -> Result<Entity> {
        let mut keys = Keys::new(&self.namespace, pattern)?;
        if let Some(layout) = &self.layout {
            keys = keys.layout(layout.clone());
        }
        keys.entity(&self.name)
    }

    /// The lock with these settings; `arguments` come last in the ARGV of its scripts.
    pub(crate) fn lock(
        &self,
        kind: &'static LockKind,
        arguments: Vec<String>,
    ) -> Result<Arc<Lock>> {
        let terms = self.terms()?;
        self.check_label()?;
        let entity = self.entity(kind.pattern)?;
        let mut lock = Lock::new(self.store.clone(), entity, kind, arguments, terms);
        lock.label.clone_from(&self.label);
        lock.poll = self.poll.or(kind.poll);
        Ok(Arc::new(lock))
    }
}

/// The methods of a builder that has [`LockSettings`] in a field `settings`.
macro_rules! lock_settings {
    () => {
        /// How long the lock outlives a holder that stops renewing it (default 30 s).
        pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
            self.settings.ttl = ttl;
            self
        }

        /// The lease is not renewed automatically: it ends after its ttl unless the holder extends it.
        pub fn without_renewal(mut self) -> Self {
            self.settings.renewed = false;
            self
        }

        /// Uses keys that the application already has; see [`Layout`](crate::key::Layout).
        pub fn layout(mut self, layout: $crate::key::Layout) -> Self {
            self.settings.layout = Some(layout);
            self
        }
    };
}
pub(crate) use lock_settings;

/// The method of a builder whose lock shows its holders.
macro_rules! lock_label {
    () => {
        /// A name for this handle, which is shown to whoever asks who holds the lock. Anybody with access to the store
        /// can read it. It must have 1 to 128 bytes without `+` and control characters.
        pub fn label(mut self, label: &str) -> Self {
            self.settings.label = Some(label.to_owned());
            self
        }
    };
}
pub(crate) use lock_label;
