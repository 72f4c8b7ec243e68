//! Handles that are kept between requests and take time to make: a subscription must be established first.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// What a handle is made from.
pub(crate) trait HandleKey: Clone + Eq + Hash {
    /// Whose it is. Clients choose names, so each namespace has a share of its own.
    fn namespace(&self) -> &str;
}

impl HandleKey for (String, String) {
    fn namespace(&self) -> &str {
        &self.0
    }
}

/// Handles by what they are made from. Each is made outside of the lock: only those who want it wait for it. Where there
/// are too many, the one that was not used for the longest time is dropped; callers that still have it keep it.
pub(crate) struct Opened<K, V>(Mutex<Slots<K, V>>);

struct Slots<K, V> {
    all: HashMap<K, Slot<V>>,
    /// Counts the uses.
    uses: u64,
}

struct Slot<V> {
    cell: Arc<OnceCell<V>>,
    /// Which use was the last.
    used: u64,
}

impl<K, V> Default for Opened<K, V> {
    fn default() -> Self {
        Self(Mutex::new(Slots {
            all: HashMap::new(),
            uses: 0,
        }))
    }
}

impl<K: HandleKey, V: Clone> Opened<K, V> {
    /// Each has a subscription.
    const MOST: usize = 1024;
    const MOST_OF_A_NAMESPACE: usize = 128;

    /// The handle of this key; `open` runs only if there is none.
    pub(crate) async fn get<E>(
        &self,
        key: K,
        open: impl Future<Output = Result<V, E>>,
    ) -> Result<V, E> {
        let cell = self.slot(key);
        cell.get_or_try_init(|| open).await.cloned()
    }

    fn slot(&self, key: K) -> Arc<OnceCell<V>> {
        let mut slots = self.0.lock();
        slots.uses += 1;
        let now = slots.uses;
        let all = &mut slots.all;
        if let Some(slot) = all.get_mut(&key) {
            slot.used = now;
            return slot.cell.clone();
        }
        let same = |other: &K| other.namespace() == key.namespace();
        let of_namespace = all.keys().filter(|other| same(other)).count();
        let oldest = |only: bool| {
            let some = all.iter().filter(|(other, _)| !only || same(other));
            let oldest = some.min_by_key(|(_, slot)| slot.used);
            oldest.map(|(key, _)| key.clone())
        };
        let oldest = match of_namespace >= Self::MOST_OF_A_NAMESPACE {
            true => oldest(true),
            false if all.len() >= Self::MOST => oldest(false),
            false => None,
        };
        let dropped = oldest.and_then(|oldest| all.remove(&oldest));
        let cell = Arc::new(OnceCell::new());
        let slot = Slot {
            cell: cell.clone(),
            used: now,
        };
        all.insert(key, slot);
        drop(slots);
        // Ending a subscription is not done under the lock.
        drop(dropped);
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, name: usize) -> (String, String) {
        (namespace.to_owned(), name.to_string())
    }

    #[tokio::test]
    async fn a_handle_that_takes_long_delays_no_other() {
        let opened = Opened::<_, u8>::default();
        let made = |value| async move { Ok::<u8, ()>(value) };
        opened.get(key("a", 0), made(0)).await.unwrap();
        let never = opened.get(key("a", 1), std::future::pending());
        let known = async {
            let known = opened.get(key("a", 0), async { Err(()) }).await;
            let new = opened.get(key("a", 2), made(2)).await;
            (known, new)
        };
        let found = tokio::select! {
            biased;
            never = never => (never, Err(())),
            found = known => found,
        };
        assert_eq!(found, (Ok(0), Ok(2)));
    }

    #[tokio::test]
    async fn a_namespace_with_many_handles_drops_its_own_oldest() {
        let opened = Opened::<_, usize>::default();
        let get = async |namespace: &str, name: usize| {
            let made = opened.get(key(namespace, name), async { Ok::<_, ()>(name) });
            assert_eq!(made.await, Ok(name));
        };
        get("b", 0).await;
        let most = Opened::<(String, String), usize>::MOST_OF_A_NAMESPACE;
        for name in 0..3 * most {
            get("a", name).await;
            get("a", 0).await;
        }
        let all = &opened.0.lock().all;
        assert_eq!(all.len(), most + 1);
        assert!(all.contains_key(&key("b", 0)), "another namespace's");
        assert!(all.contains_key(&key("a", 0)), "in use all the time");
        assert!(!all.contains_key(&key("a", 1)));
    }
}
