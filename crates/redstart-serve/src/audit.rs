//! The audit log: who changed what by hand, in an event stream of the store.

use redstart::{Store, messaging::EventStream};
use serde::{Deserialize, Serialize};

use crate::call::OWN_NAMESPACE;

/// One change.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct Change {
    /// Who, by the name of the token or of the user whom a proxy named.
    pub(crate) who: String,
    /// What was done, such as `queue.retry`.
    pub(crate) what: String,
    /// On what: the namespace and the name.
    pub(crate) on: String,
    /// How many things were changed.
    pub(crate) count: u64,
    /// How many a dry run had counted before, if there was one.
    pub(crate) expected: Option<u64>,
}

/// The log of changes.
pub(crate) struct Audit(EventStream<Change>);

impl Audit {
    pub(crate) fn new(store: &Store) -> redstart::Result<Self> {
        Ok(Self(EventStream::new(store, OWN_NAMESPACE, "audit")?))
    }

    /// Writes a change down. It was made already, so a failure is logged and not reported.
    pub(crate) async fn write(&self, change: Change) {
        tracing::info!(who = %change.who, what = %change.what, on = %change.on, count = change.count, "change");
        if let Err(error) = self.0.append(&change).await {
            tracing::error!(%error, "a change could not be written to the audit log");
        }
    }

    /// The newest changes, newest first. The log may be long: a program can make many changes, and each is in it.
    pub(crate) async fn newest(&self, most: usize) -> redstart::Result<Vec<(String, Change)>> {
        let newest = self.0.newest(most).await?.into_iter();
        Ok(newest.map(|entry| (entry.id, entry.event)).collect())
    }

    pub(crate) async fn trim(&self, keep: std::time::Duration) {
        if let Err(error) = self.0.trim(keep).await {
            tracing::debug!(%error, "the audit log could not be trimmed");
        }
    }
}
