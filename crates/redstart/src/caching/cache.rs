//! Cache-aside: values from a slow source, kept in the store and in the process.
//!
//! ```text
//! get_or_load ─> l1 (hit) ─> read ─> miss ─> single_flight ─> lease ─> fill (load, seal, store)
//! get_or_load_many ────────> read ─> many ──────────────────> lease ─> fill
//! ```
//!
//! This file has the public interface, and so it is long by its documentation.

use std::{
    future::Future,
    marker::PhantomData,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::Semaphore, task::AbortHandle};

use crate::{
    Down,
    codec::{Codec, Postcard},
    error::{Error, Result},
    key::Keys,
    observe,
    store::Store,
};

use super::{
    cache_set::Set,
    tags::{self, TagBook, Tags},
};

mod builder;
mod early;
pub(crate) mod entry;
mod fill;
mod forget;
mod health;
mod hit;
mod key;
mod l1;
pub(crate) mod lease;
mod load;
mod many;
mod miss;
mod read;
mod single_flight;
pub(crate) mod stats;
mod tagged;

pub use builder::{CacheBuilder, Stampede};
pub use early::XFetch;
pub use hit::{Hit, HitSource};
pub use key::CacheKey;
pub use load::{Load, LoadMany, Loaded};
pub use stats::CacheStats;

pub(crate) use builder::{Common, Settings, setters};
use entry::Stamp;
use health::Health;
pub(crate) use l1::SharedLevel;
use l1::{Bounded, Level1, Weighs};
use load::BoxError;
use miss::LoadResult;
use read::{Freshness, Seen};
use single_flight::SingleFlight;
use stats::{Count, Counters};

/// A TTL over ten years is a mistake in the unit.
const MAX_TTL: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// A typed cache in front of a slow source.
///
/// It is cheap to clone; clones share everything.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, caching::{Cache, HitSource, Loaded}};
///
/// let store = Store::connect("memory://").await?;
/// let products = Cache::<u64, String>::builder(&store, "shop", "product")
///     .ttl(Duration::from_secs(3600))
///     .stale_for(Duration::from_secs(600))
///     .build()?;
///
/// let load = |_| async { Ok::<_, redstart::Error>(Loaded::Found("anvil".to_owned())) };
/// let hit = products.get_or_load(&7, load).await?;
/// assert_eq!((hit.value.as_deref().map(String::as_str), hit.source), (Some("anvil"), HitSource::Loaded));
/// let hit = products.get_or_load(&7, load).await?;
/// assert_eq!(hit.source, HitSource::Store);
///
/// products.invalidate(&7).await?;
/// assert!(products.get(&7).await?.is_none());
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - **Nothing old is stored after an invalidation.** A miss takes a lease. A loaded value is stored only if
///   the lease is still held. [`invalidate`](Cache::invalidate) removes value and lease in one step. A row that
///   was read before the invalidation is refused, however late it arrives.
/// - **One load per key**, over all processes, while the lease lasts. Waiting callers are woken by the fill, by
///   the loader's failure, or by the end of the lease; they do not poll. The load runs in a task of its own: it
///   survives a caller that goes away, and one that panics or is too slow gives the lease back.
/// - **Absence is remembered** as such, for a TTL of its own. Errors are not remembered.
/// - **A popular value is refreshed before it expires** ([`XFetch`]), by one loader, while readers are served.
/// - **An expired value can be served** while it is refreshed ([`stale_for`](CacheBuilder::stale_for)) or when it
///   cannot be loaded ([`stale_on_error`](CacheBuilder::stale_on_error)), for a limited time each.
/// - **Values of another type, schema or codec are never decoded.** Every entry carries a fingerprint of the three.
///   Two versions of a program have their own entries side by side, and an invalidation by either reaches both.
///
/// # Limits
///
/// A reader that asked before an invalidation may still get the old value. A first level in another process
/// learns of an invalidation by a message ([`L1`](super::L1)). If the source is changed
/// without telling the cache, readers see that when the TTL ends. After a failover, an invalidation that the new master
/// had not received is lost. While two versions share a key, the one that stored second has its entries only as
/// long as the first has one under that key.
///
/// # Keys
///
/// | key | type | content |
/// |---|---|---|
/// | `<ns>:cache.<name>:{<key>}` | string | the entry |
/// | `<ns>:cache.<name>:{<key>}:<fingerprint>` | string | the entry of another version, beside the first |
/// | `<ns>:cache.<name>:{<key>}:lease` | string | the token of the loader; lives for the hard load time-out and two deadlines |
/// | `<ns>:cache.<name>:{<key>}:fence` | sorted set | exists while a [write-through](super::WriteThrough) is under way |
/// | `<ns>:cache.<name>:{<key>}:wake` | sharded channel | wakes waiting processes |
/// | `<ns>:cache-tag.<name>:{0..15}` | sorted set | the tags, see [`Tags`] |
/// | `<ns>:cache-index.<name>:{<tag>}` | set | the keys with a tag, with [`Tags::Index`] |
/// | `<ns>:cache-bus.<name>:{all}:changes` | classic channel | what was invalidated, for [`L1::pubsub`](super::L1::pubsub) |
///
/// # Round trips
///
/// | operation | cost |
/// |---|---|
/// | first-level hit | none |
/// | hit | one (`GET`; with a first level, early refresh or stale serving `PTTL` and `GET` together) |
/// | hit of a tagged entry, or beside another version | one more each |
/// | miss | three: read, lease, fill; one more to check the tags of a tagged entry. The state of the tags is read beside the lease, at most ten times per second |
/// | a miss that waits | read, lease, subscribe, lease, and lease again when woken |
/// | [`get_or_load_many`](Cache::get_or_load_many) | the same, but each step is one round trip per node for all keys |
/// | `invalidate`, `invalidate_tag` | one |
/// | `clear` | a SCAN of the store, and one per thousand keys |
/// | `tagged` | without the index a SCAN of the store, and one per 500 keys |
///
/// # While the store is down
///
/// Reads do what [`on_store_down`](CacheBuilder::on_store_down) and [`last_seen`](CacheBuilder::last_seen) say: fail
/// (the default), load with bounded parallelism, or serve what this process saw last. After three failures in a row a
/// server is left alone for 250 ms where there is such an answer; other servers of a Cluster are not affected.
/// Invalidations fail, because the caller that changed the row must know.
///
/// # Metrics
///
/// Operations: `cache.get`, `cache.get_or_load`, `cache.get_or_load_many`, `cache.invalidate`,
/// `cache.invalidate_tag`, `cache.tagged`, `cache.clear`, `cache.write`. Events: those named at [`CacheStats`]. First-level hits are not
/// operations and are counted in lots.
pub struct Cache<K: ?Sized, V, C = Postcard> {
    pub(crate) inner: Arc<Inner<V, C>>,
    key: PhantomData<fn(&K)>,
}

impl<K: ?Sized, V, C> Clone for Cache<K, V, C> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            key: PhantomData,
        }
    }
}

impl<K: ?Sized, V, C> std::fmt::Debug for Cache<K, V, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("namespace", self.inner.keys.namespace())
            .finish_non_exhaustive()
    }
}

/// A value that this process saw.
struct LastSeen<V>(Option<Arc<V>>);

impl<V> Clone for LastSeen<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<V> Weighs for LastSeen<V> {
    fn weight(&self) -> u64 {
        1
    }
}

pub(crate) struct Inner<V, C> {
    pub(crate) store: Store,
    pub(crate) keys: Keys,
    pub(crate) tags: TagBook,
    pub(crate) bus: String,
    /// The channel on which tags are invalidated: that of the set, or the same.
    pub(crate) tag_bus: String,
    pub(crate) settings: Settings,
    pub(crate) fingerprint: u64,
    /// The part under which our entry lies beside one of another version.
    pub(crate) beside: String,
    pub(crate) l1: Option<Level1<V>>,
    last_seen: Option<Bounded<LastSeen<V>>>,
    /// The server takes no command with keys of several slots.
    apart: AtomicBool,
    flights: Arc<SingleFlight<LoadResult<V>>>,
    pub(crate) stats: Counters,
    health: Health,
    bypass_loads: Semaphore,
    pub(crate) feed: Mutex<Option<AbortHandle>>,
    set: Option<Arc<Set>>,
    codec: PhantomData<C>,
}

impl<V, C> Drop for Inner<V, C> {
    fn drop(&mut self) {
        if let Some(feed) = self.feed.lock().take() {
            feed.abort();
        }
    }
}

/// A loop that finds everything in the first level would never yield its thread, which may be the one that hears of
/// changes.
#[inline]
async fn cooperate() {
    tokio::task::coop::consume_budget().await;
}

impl<K, V> Cache<K, V, Postcard>
where
    K: CacheKey + ?Sized,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    /// Starts to set up a cache with this name in a namespace of the store.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> CacheBuilder<K, V, Postcard> {
        CacheBuilder::new(store, namespace, name)
    }
}

impl<K, V, C> Cache<K, V, C>
where
    K: CacheKey + ?Sized,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// The value of a key, from the nearest place that has it; the loader is the last.
    ///
    /// The loader's `Ok` may be a [`Loaded`] or an `Option`. Of many callers one loader runs; the others get
    /// what it loaded.
    ///
    /// # Errors
    ///
    /// [`is_user`](Error::is_user) if the loader failed or panicked (each caller that waited for it gets the
    /// error), [`is_timeout`](Error::is_timeout) if it took longer than its hard limit,
    /// [`is_codec`](Error::is_codec) if the value cannot be encoded, [`is_config`](Error::is_config) for an invalid
    /// key or tag, and those of the store as [`on_store_down`](CacheBuilder::on_store_down) says.
    ///
    /// # Cancel safety
    ///
    /// Safe: a load that has begun continues, and its value is stored.
    pub async fn get_or_load<F, Fut, R, E>(&self, key: &K, loader: F) -> Result<Hit<V>>
    where
        F: FnOnce(Load) -> Fut + Send + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Loaded<V>>,
        E: Into<BoxError>,
    {
        let name = key.name();
        let inner = &self.inner;
        if let Some((hit, early)) = inner.near(&name) {
            if let Some(seen) = early {
                inner.refresh_early(&name, seen, load::boxed(loader))?;
            }
            cooperate().await;
            return Ok(hit);
        }
        observe::operation(
            "cache.get_or_load",
            inner.keys.namespace(),
            inner.fetch(&name, load::boxed(loader)),
        )
        .await
    }

    /// The value of a key if it is cached, fresh or stale; nothing is loaded.
    ///
    /// `Some` with a `value` of `None` means that the source is known to have none.
    ///
    /// # Errors
    ///
    /// Those of the store, unless [`last_seen`](CacheBuilder::last_seen) or `Down::Refuse` has an answer;
    /// [`is_config`](Error::is_config) for an invalid key.
    pub async fn get(&self, key: &K) -> Result<Option<Hit<V>>> {
        let name = key.name();
        if let Some((hit, _)) = self.inner.near(&name) {
            cooperate().await;
            return Ok(Some(hit));
        }
        self.look(&name).await
    }

    /// As [`get`](Self::get), but from the store itself, without the first level.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get).
    pub async fn get_remote(&self, key: &K) -> Result<Option<Hit<V>>> {
        self.look(&key.name()).await
    }

    async fn look(&self, name: &str) -> Result<Option<Hit<V>>> {
        let inner = &self.inner;
        observe::operation("cache.get", inner.keys.namespace(), async {
            let entity = inner.keys.entity(name)?;
            let mark = inner.mark(name, &entity);
            match inner.read(&entity).await {
                Ok(Seen::Found(found)) if found.freshness != Freshness::Fallback => {
                    inner.remember(&name.into(), mark.as_ref(), &found);
                    inner.count_hits([&found.hit]);
                    Ok(Some(found.hit))
                }
                Ok(_) => {
                    inner.stats.add(Count::Miss);
                    Ok(None)
                }
                Err(error) => match inner.last_seen(name, &error) {
                    None if error.is_store_down() && inner.settings.down == Down::Refuse => {
                        Ok(None)
                    }
                    None => Err(error),
                    seen => Ok(seen),
                },
            }
        })
        .await
    }

    /// Removes a key everywhere. What was loaded before now will not be stored.
    ///
    /// Call it after the change of the source is committed.
    ///
    /// # Errors
    ///
    /// Those of the store: then the value may still be there, and the caller should try again.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the key may or may not have been removed.
    pub async fn invalidate(&self, key: &K) -> Result<()> {
        self.invalidate_many([key]).await
    }

    /// Removes several keys, in one round trip per node.
    ///
    /// # Errors
    ///
    /// Those of the store: then any of the values may still be there.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, any of the keys may have been removed.
    pub async fn invalidate_many<'k>(&self, keys: impl IntoIterator<Item = &'k K>) -> Result<()>
    where
        K: 'k,
    {
        let inner = &self.inner;
        let names: Vec<String> = keys
            .into_iter()
            .map(|key| key.name().into_owned())
            .collect();
        observe::operation(
            "cache.invalidate",
            inner.keys.namespace(),
            inner.remove(&names),
        )
        .await
    }

    /// Makes every entry with this tag a miss: one small script, however many there are.
    ///
    /// With [`Tags::Index`] the entries are also removed, in batches. In a [set](super::CacheSet) the tag is that of all
    /// its caches.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid tag, and those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the tag may or may not have been invalidated.
    pub async fn invalidate_tag(&self, tag: &str) -> Result<()> {
        let inner = &self.inner;
        tags::check(tag)?;
        observe::operation("cache.invalidate_tag", inner.keys.namespace(), async {
            let result = inner.tags.bump(&inner.store, tag, &inner.tag_bus).await;
            match &inner.set {
                Some(set) => set.tag_changed(tag),
                None => inner.tag_changed(tag),
            }
            result?;
            inner.remove_indexed(tag).await
        })
        .await
    }

    /// The names of the entries with a tag, in order.
    ///
    /// With [`Tags::Index`] they are read from the tag's set; some may have expired already. Without it, every entry of
    /// this cache is looked at, found by a SCAN of the whole store: that is for operators and tests, and lists what the
    /// store has at that time and would serve, of all versions of the program.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid tag, or without the index with a [`layout`](CacheBuilder::layout),
    /// whose keys have no common prefix, and those of the store.
    pub async fn tagged(&self, tag: &str) -> Result<Vec<String>> {
        tags::check(tag)?;
        let inner = &self.inner;
        observe::operation("cache.tagged", inner.keys.namespace(), async {
            match inner.tags.mode() {
                Tags::Index => inner.tags.members(&inner.store, tag).await,
                Tags::Version => inner.tagged_by_scan(tag).await,
            }
        })
        .await
    }

    /// Removes every entry of this cache, and empties its first levels. What was loaded before now will not be stored.
    ///
    /// The keys are found by a SCAN of the whole store, so this is for operators and tests. To invalidate many entries
    /// as part of normal work, give them a [tag](Load::tag).
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) with a [`layout`](CacheBuilder::layout), whose keys have no common prefix, and
    /// those of the store: then any of the entries may still be there.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, any of the entries may have been removed.
    pub async fn clear(&self) -> Result<()> {
        let inner = &self.inner;
        let Some(prefix) = inner.keys.prefix() else {
            return Err(Error::config(
                "clear needs keys with a common prefix, which a layout does not have",
            ));
        };
        observe::operation("cache.clear", inner.keys.namespace(), async {
            // Leases are found too: a load that runs all the time cannot be missed.
            let found = inner.store.scan(&format!("{prefix}{{*")).await?;
            let names: std::collections::BTreeSet<String> = found
                .iter()
                .filter_map(|key| {
                    // Of parts too.
                    let entry = key.get(..=key.find('}')?)?;
                    Some(inner.keys.name_of(entry.as_bytes())?.into_owned())
                })
                .collect();
            let names: Vec<String> = names.into_iter().collect();
            for names in names.chunks(1000) {
                inner.remove(names).await?;
            }
            // A first level may have entries that the store evicted.
            let cleared = inner.tags.announce_clear(&inner.store, &inner.bus).await;
            inner.forget_all();
            cleared
        })
        .await
    }

    /// What was counted since the cache was made.
    pub fn stats(&self) -> CacheStats {
        self.inner.stats.tell();
        self.inner.stats.read()
    }

    /// Whether the first level hears of changes, and so takes values.
    pub fn l1_is_up(&self) -> bool {
        self.inner.l1.as_ref().is_some_and(Level1::is_up)
    }
}

impl<K, V, C> Cache<K, V, C>
where
    K: CacheKey + Clone + Send + Sync + 'static,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// The values of many keys, in their order; each step is one round trip per node for all of them.
    ///
    /// The loader is called with the keys that nobody has, and returns pairs of key and value; a key that it
    /// does not return is remembered as absent. Keys that another process is loading are waited for, one load
    /// each.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, caching::Cache};
    ///
    /// let store = Store::connect("memory://").await?;
    /// let squares = Cache::<u64, u64>::builder(&store, "math", "squares").build()?;
    /// let hits = squares.get_or_load_many(&[1, 2, 3], |_, keys| async move {
    ///     Ok::<_, redstart::Error>(keys.into_iter().map(|n| (n, n * n)).collect::<Vec<_>>())
    /// }).await?;
    /// assert_eq!(hits.iter().map(|hit| hit.value.as_deref()).collect::<Vec<_>>(), [Some(&1), Some(&4), Some(&9)]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`get_or_load`](Self::get_or_load).
    ///
    /// # Cancel safety
    ///
    /// Safe: a load that has begun continues, and its values are stored.
    pub async fn get_or_load_many<F, Fut, R, E>(&self, keys: &[K], loader: F) -> Result<Vec<Hit<V>>>
    where
        F: Fn(LoadMany<K>, Vec<K>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: IntoIterator<Item = (K, V)>,
        E: Into<BoxError>,
    {
        let loader = load::boxed_many(loader);
        let inner = &self.inner;
        let fetch = inner.fetch_many(keys, &loader);
        observe::operation("cache.get_or_load_many", inner.keys.namespace(), fetch).await
    }
}

impl<V, C> Inner<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// A first-level hit, with its stamp if it should be refreshed early.
    #[inline]
    fn near(&self, name: &str) -> Option<(Hit<V>, Option<Stamp>)> {
        let level = self.l1.as_ref()?;
        let stored = level.get(name)?;
        let now = level.now();
        if now >= stored.served_until {
            return None;
        }
        self.stats.l1_hit();
        let early = match (&stored.value, self.settings.early) {
            (Some(_), Some(early)) => early
                .draws(stored.load_time, stored.fresh_until - now)
                .then_some(stored.stamp),
            (Some(_), None) => None,
            (None, _) => {
                self.stats.add(Count::NegativeHit);
                None
            }
        };
        let hit = Hit {
            value: stored.value,
            source: HitSource::L1,
            age: Some(stored.age + (now - stored.read_at)),
            stale: false,
        };
        Some((hit, early))
    }
}

impl<V, C> Inner<V, C> {
    /// Whether a read has an answer without the store.
    fn has_other_answers(&self) -> bool {
        self.settings.down == Down::Allow || self.last_seen.is_some()
    }

    /// The value that this process saw last, if the store is down.
    fn last_seen(&self, name: &str, error: &Error) -> Option<Hit<V>> {
        if !error.is_store_down() {
            return None;
        }
        let LastSeen(value) = self.last_seen.as_ref()?.get(name)?;
        self.stats.add(Count::Stale);
        Some(Hit {
            value,
            source: HitSource::L1,
            age: None,
            stale: true,
        })
    }
}

/// What a write-through says about its value.
pub(crate) fn notes(tags: Vec<Arc<str>>, version: u64) -> load::Notes {
    load::Notes {
        tags,
        version,
        ..Default::default()
    }
}
