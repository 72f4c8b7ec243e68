//! The API: one file per family of patterns, each with its routes and their types.

use std::{collections::HashMap, hash::Hash};

use parking_lot::Mutex;
use redstart::{
    limiting::{Grant, Limiter},
    membership::Bloom,
    messaging::Dispatcher,
    resilience::{Admission, Breaker},
};
use tokio::sync::oneshot;

use crate::{held::Held, opened::Opened, route::Routes};

mod account;
mod board;
mod breaker;
mod cache;
mod count;
mod idempotency;
mod limiter;
mod lock;
mod membership;
mod message;
mod place;
mod queue;
mod session;
mod stock;
mod system;

pub(crate) use breaker::{breaker, state_name as circuit_name};
pub(crate) use cache::{JsonCache, json_cache};
pub(crate) use limiter::{forget, limiter_of, limiter_with, rate_headers};
pub(crate) use queue::{
    Bulk, BulkAction, Bulks, Stage, Told, count_letters, open_queue, parse_state, search,
    search_from, state_name, told,
};

/// Handles that are kept between requests, because making them costs a round trip or a subscription.
#[derive(Default)]
pub(crate) struct Patterns {
    limiters: Kept<limiter::Key, Limiter>,
    caches: Kept<(String, String), JsonCache>,
    breakers: Opened<(String, String), Breaker>,
    blooms: Kept<(String, String), Bloom>,
    dispatchers: Opened<queue::DispatcherKey, Dispatcher>,
    grants: Held<(Limiter, Grant)>,
    admissions: Held<Admission>,
    claims: Held<oneshot::Sender<idempotency::Finished>>,
    loads: Held<oneshot::Sender<cache::Filled>>,
}

impl Patterns {
    /// Drops what clients left behind.
    pub(crate) fn sweep(&self) {
        self.grants.sweep();
        self.admissions.sweep();
        self.claims.sweep();
        self.loads.sweep();
    }
}

/// Handles by what they are made from. A client chooses names, so their number is limited.
pub(crate) struct Kept<K, V>(Mutex<HashMap<K, V>>);

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq, V: Clone> Kept<K, V> {
    const MOST: usize = 4096;

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.0.lock().get(key).cloned()
    }

    pub(crate) fn put(&self, key: K, value: V) {
        let mut kept = self.0.lock();
        if kept.len() >= Self::MOST {
            kept.clear();
        }
        kept.insert(key, value);
    }

    fn remove(&self, key: &K) {
        self.0.lock().remove(key);
    }

    fn get_or<E>(&self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        if let Some(value) = self.get(&key) {
            return Ok(value);
        }
        let value = make()?;
        self.put(key, value.clone());
        Ok(value)
    }
}

/// Adds all routes of the service.
pub(crate) fn add_routes(routes: &mut Routes) {
    system::add_routes(routes);
    limiter::add_routes(routes);
    lock::add_routes(routes);
    queue::add_routes(routes);
    cache::add_routes(routes);
    idempotency::add_routes(routes);
    session::add_routes(routes);
    board::add_routes(routes);
    count::add_routes(routes);
    stock::add_routes(routes);
    breaker::add_routes(routes);
    membership::add_routes(routes);
    place::add_routes(routes);
    account::add_routes(routes);
    message::add_routes(routes);
    crate::envoy::json::add_routes(routes);
    crate::page::add_routes(routes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_by_hand_has_a_name_in_the_audit_log() {
        let mut routes = Routes::default();
        add_routes(&mut routes);
        let by_hand: Vec<_> = routes.iter().filter(|route| route.is_by_hand()).collect();
        assert!(by_hand.len() > 10);
        for route in by_hand {
            // The page's form names its change itself.
            let is_named = route.change.is_some() || route.path == "/act/{action}";
            assert!(is_named, "{} {}", route.method, route.path);
        }
    }
}
