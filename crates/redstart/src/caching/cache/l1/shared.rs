//! One map for the values of several caches, whatever their types: they share one limit, and what is used most stays,
//! whichever cache it belongs to.

use std::{
    any::Any,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use quick_cache::Equivalent;

use super::{Bounded, Scale, Stored, bounded};
use crate::caching::invalidation::L1;

/// A value of any type. Which one it is, is checked when it is read.
type AnyValue = dyn Any + Send + Sync;

#[derive(PartialEq, Eq)]
struct Key {
    tenant: u32,
    name: Arc<str>,
}

/// As [`Key`], without an allocation.
struct Wanted<'a> {
    tenant: u32,
    name: &'a str,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.tenant, &*self.name).hash(state);
    }
}

impl Hash for Wanted<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.tenant, self.name).hash(state);
    }
}

impl Equivalent<Key> for Wanted<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.tenant == key.tenant && *self.name == *key.name
    }
}

/// The first level of a set of caches.
#[derive(Clone)]
pub(crate) struct SharedLevel(Arc<Inner>);

struct Inner {
    map: Bounded<Stored<AnyValue>, Key>,
    scale: Scale,
    tenants: AtomicU32,
}

impl SharedLevel {
    pub(crate) fn new(settings: &L1) -> Self {
        let scale = Scale::new(settings);
        Self(Arc::new(Inner {
            map: bounded(settings.capacity, scale.most),
            scale,
            tenants: AtomicU32::new(0),
        }))
    }

    pub(super) fn scale(&self) -> Scale {
        self.0.scale
    }

    pub(super) fn tenant(&self) -> Tenant {
        Tenant {
            level: self.clone(),
            id: self.0.tenants.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// How many values all caches have together, and what they weigh.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, u64) {
        (self.0.map.len(), self.0.map.weight())
    }
}

/// The values of one cache of the set.
pub(super) struct Tenant {
    level: SharedLevel,
    id: u32,
}

impl Tenant {
    fn wanted<'a>(&self, name: &'a str) -> Wanted<'a> {
        let tenant = self.id;
        Wanted { tenant, name }
    }

    pub(super) fn get<V: Send + Sync + 'static>(&self, name: &str) -> Option<Stored<V>> {
        let stored = self.level.0.map.get(&self.wanted(name))?;
        let value = match &stored.value {
            // Another type cannot be here: each cache has its own number.
            Some(value) => Some(value.clone().downcast::<V>().ok()?),
            None => None,
        };
        Some(stored.with_value(value))
    }

    pub(super) fn insert<V: Send + Sync + 'static>(&self, name: &Arc<str>, stored: Stored<V>) {
        let key = Key {
            tenant: self.id,
            name: name.clone(),
        };
        let value = stored.value.clone().map(|value| value as Arc<AnyValue>);
        self.level.0.map.insert(key, stored.with_value(value));
    }

    pub(super) fn remove(&self, name: &str) {
        self.level.0.map.remove(&self.wanted(name));
    }

    pub(super) fn clear(&self) {
        self.level.0.map.retain(|key, _| key.tenant != self.id);
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<V: ?Sized> Stored<V> {
    fn with_value<W: ?Sized>(self, value: Option<Arc<W>>) -> Stored<W> {
        Stored {
            value,
            served_until: self.served_until,
            fresh_until: self.fresh_until,
            load_time: self.load_time,
            age: self.age,
            read_at: self.read_at,
            stamp: self.stamp,
            epoch: self.epoch,
            weight: self.weight,
            tag_clock: self.tag_clock,
            tags: self.tags,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Incoming, Level1, Stamp},
        *,
    };
    use crate::store::Clock;
    use std::time::Duration;

    fn put<V: Send + Sync + 'static>(level: &Level1<V>, name: &str, value: V, bytes: usize) {
        let incoming = Incoming {
            value: Some(Arc::new(value)),
            fresh_for: Duration::from_secs(60),
            load_time: Duration::ZERO,
            age: Duration::ZERO,
            stamp: Stamp::default(),
            bytes,
            tags: &[],
        };
        level.insert(&name.into(), &level.mark(name), incoming);
    }

    #[tokio::test]
    async fn caches_of_several_types_share_one_limit_and_never_each_others_values() {
        let settings = L1::pubsub(1000).max_bytes(100_000);
        let shared = SharedLevel::new(&settings);
        let numbers = Level1::<u32>::within(&shared, &settings, Clock::default());
        let texts = Level1::<String>::within(&shared, &settings, Clock::default());
        numbers.up();
        texts.up();
        put(&numbers, "k", 7, 10);
        put(&texts, "k", "seven".to_owned(), 10);
        assert_eq!(numbers.get("k").unwrap().value.as_deref(), Some(&7));
        assert_eq!(texts.get("k").unwrap().value.unwrap().as_str(), "seven");
        numbers.changed("k");
        assert!(numbers.get("k").is_none() && texts.get("k").is_some());
        texts.changed("k");

        for n in 0..2000 {
            put(&numbers, &format!("{n}"), n, 500);
            put(&texts, &format!("{n}"), n.to_string(), 500);
        }
        let (count, weight) = shared.size();
        assert!(
            count > 50 && weight <= 100_000,
            "{count} values of {weight}"
        );
        let of = |hit: &dyn Fn(&str) -> bool| (0..2000).filter(|n| hit(&n.to_string())).count();
        let near_numbers = of(&|name| numbers.get(name).is_some());
        let near_texts = of(&|name| texts.get(name).is_some());
        assert!(near_numbers > 0 && near_texts > 0);
        assert_eq!(near_numbers + near_texts, count);

        // One loses its feed, the other does not.
        texts.down();
        assert_eq!(shared.size().0, near_numbers);
        drop(numbers);
        assert_eq!(shared.size().0, 0, "a cache that is gone takes no room");
    }
}
