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

    /// The newest changes, newest first.
    pub(crate) async fn newest(&self, most: usize) -> redstart::Result<Vec<(String, Change)>> {
        // Streams are read from the oldest on, in pages; the log is short.
        let mut all: std::collections::VecDeque<(String, Change)> = Default::default();
        let mut from: Option<String> = None;
        loop {
            let page = self.0.read(from.as_deref(), 500).await?;
            let Some(last) = page.last() else { break };
            from = Some(last.id.clone());
            let whole = page.len() == 500;
            all.extend(page.into_iter().map(|entry| (entry.id, entry.event)));
            while all.len() > most {
                all.pop_front();
            }
            if !whole {
                break;
            }
        }
        Ok(all.into_iter().rev().collect())
    }

    pub(crate) async fn trim(&self, keep: std::time::Duration) {
        if let Err(error) = self.0.trim(keep).await {
            tracing::debug!(%error, "the audit log could not be trimmed");
        }
    }
}
