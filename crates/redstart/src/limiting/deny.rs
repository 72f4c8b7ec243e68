//! What this process was told no to, and until when.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::limiter::Snapshot;

/// Remembers refusals. Never denies beyond the server's own answer: the time is counted from before the request
/// was sent, so it ends no later than the server said.
#[derive(Debug)]
pub(super) struct DenyCache {
    most: usize,
    denied: Mutex<HashMap<Box<str>, Denied>>,
}

#[derive(Clone, Debug)]
struct Denied {
    until: Instant,
    /// What was asked of each limit. Whoever asks less somewhere may be admitted, so asks the server.
    costs: Box<[u64]>,
    snapshot: Snapshot,
}

impl DenyCache {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            denied: Mutex::new(HashMap::new()),
        }
    }

    /// How long the subject is still denied for, if it is.
    pub(super) fn get(&self, subject: &str, costs: &[u64]) -> Option<(Duration, Snapshot)> {
        let denied = self.denied.lock();
        let found = denied.get(subject)?;
        let left = found.until.checked_duration_since(Instant::now())?;
        let covered = found.costs.iter().zip(costs).all(|(was, is)| is >= was);
        (covered && !left.is_zero()).then(|| (left, found.snapshot.clone()))
    }

    pub(super) fn put(
        &self,
        subject: &str,
        costs: &[u64],
        sent: Instant,
        retry_after: Duration,
        snapshot: &Snapshot,
    ) {
        let Some(until) = sent.checked_add(retry_after) else {
            return;
        };
        let now = Instant::now();
        if until <= now {
            return;
        }
        let mut denied = self.denied.lock();
        if denied.len() >= self.most && !denied.contains_key(subject) {
            denied.retain(|_, denied| denied.until > now);
            if denied.len() >= self.most {
                // Full of live refusals: this one goes to the server each time, which is only slower.
                return;
            }
        }
        denied.insert(
            subject.into(),
            Denied {
                until,
                costs: costs.into(),
                snapshot: snapshot.clone(),
            },
        );
    }

    /// After a refund, or anything else that may have made room.
    pub(super) fn forget(&self, subject: &str) {
        self.denied.lock().remove(subject);
    }
}
