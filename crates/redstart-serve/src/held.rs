//! What this process keeps between two requests: a grant that may be refunded, a call that a breaker admitted.

use std::collections::HashMap;

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Entries are few and short-lived; a client that leaves them behind must not fill the memory.
const MOST: usize = 100_000;

/// Things under random ids, each until its time ends.
pub(crate) struct Held<T>(Mutex<HashMap<String, Thing<T>>>);

struct Thing<T> {
    until: Instant,
    /// What the request was about.
    target: String,
    thing: T,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Held<T> {
    /// Keeps a thing, and returns its id; `None` if too many are kept.
    pub(crate) fn put(&self, target: &str, thing: T, time: Duration) -> Option<String> {
        let now = Instant::now();
        let mut held = self.0.lock();
        if held.len() >= MOST {
            held.retain(|_, thing| thing.until > now);
        }
        if held.len() >= MOST {
            return None;
        }
        let id = random_id();
        let thing = Thing {
            until: now + time,
            target: target.to_owned(),
            thing,
        };
        held.insert(id.clone(), thing);
        Some(id)
    }

    /// Takes a thing, if it was put for the same target; otherwise it stays.
    pub(crate) fn take(&self, target: &str, id: &str) -> Option<T> {
        let mut held = self.0.lock();
        if held.get(id)?.target != target {
            return None;
        }
        let Thing { until, thing, .. } = held.remove(id)?;
        (until > Instant::now()).then_some(thing)
    }

    /// Drops what has ended.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let mut held = self.0.lock();
        let ended: Vec<String> = held
            .iter()
            .filter(|(_, thing)| thing.until <= now)
            .map(|(id, _)| id.clone())
            .collect();
        let dropped: Vec<_> = ended.iter().filter_map(|id| held.remove(id)).collect();
        drop(held);
        drop(dropped);
    }
}

/// 128 random bits as text.
pub(crate) fn random_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}
