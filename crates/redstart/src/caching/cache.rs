//! Cache-aside: values from a slow source, kept in the store and in the process.
//!
//! # What it promises
//!
//! - **Nothing old is stored after an invalidation.** A miss takes a lease; a loaded value is stored only if
//!   the lease still stands; [`invalidate`](Cache::invalidate) removes value and lease in one step. A row that
//!   was read before the invalidation is refused, however late its fill comes.
//! - **One load a key**, over all processes, while the lease lasts. Those who wait are woken by the fill, by
//!   the loader's failure, or by the lease's end; they do not poll. The load runs in a task of its own: a
//!   caller that goes away does not end it, and one that panics or is too slow gives the lease back.
//! - **Absence is remembered** as such, for a TTL of its own. Errors are not remembered.
//! - **A popular value is refreshed before it expires** ([`XFetch`]), by one loader, while readers go on.
//! - **An expired value can be served** while it is refreshed or when the loader fails
//!   ([`stale_for`](Builder::stale_for)).
//! - Bytes of another schema or codec are misses.
//!
//! # What it does not promise
//!
//! A reader that asked before an invalidation may still get the old value. A first level in another process
//! learns of an invalidation by a message ([`invalidation`](super::invalidation)). If the source is changed
//! without telling the cache, readers see that when the TTL is over. After a failover of the server an
//! invalidation that the new master never heard of is undone with it.
//!
//! # Keys
//!
//! | key | type | what |
//! |---|---|---|
//! | `<ns>:cache:{<name>}` | string | the entry |
//! | `<ns>:cache:{<name>}:lease` | string | the token of whoever loads; lives for the hard load time-out and two deadlines |
//! | `<ns>:cache:{<name>}:fence` | hash | there while a [write-through](super::write_through) is under way |
//! | `<ns>:cache:{<name>}:wake` | sharded channel | wakes those who wait |
//! | `<ns>:cache-tag:{0..15}` | hash | the tags, see [`super::tags`] |
//! | `<ns>:cache-index:{<tag>}` | set | the keys with a tag, with [`Tags::Index`] |
//! | `<ns>:cache-bus:{all}:changes` | classic channel | what was invalidated, for [`L1::pubsub`](super::L1::pubsub) |
//!
//! # Round trips
//!
//! | what | cost |
//! |---|---|
//! | first-level hit | none |
//! | hit | one (`GET`; with a first level, early refresh or stale serving `PTTL` and `GET` together) |
//! | hit of a tagged entry | one more |
//! | miss | three: read, lease (with the state of the tags beside it), fill; one more to check the tags of a tagged entry |
//! | a miss that waits | read, lease, subscribe, lease, and lease again when woken |
//! | [`get_or_load_many`](Cache::get_or_load_many) | the same, but each step is one round trip a node for all keys |
//! | `invalidate`, `invalidate_tag` | one |
//!
//! # While the store is down
//!
//! Reads do what [`on_store_down`](Builder::on_store_down) says: load with bounded parallelism (the default),
//! serve what this process saw last, or fail. Invalidations fail; whoever made the change must know.
//!
//! # Operations and events
//!
//! Operations: `cache.get`, `cache.get_or_load`, `cache.get_or_load_many`, `cache.invalidate`,
//! `cache.invalidate_tag`, `cache.write`. Events: those named at [`Stats`]. First-level hits are no operation
//! and are counted in lots.

use std::{
    future::Future,
    marker::PhantomData,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::Semaphore, task::AbortHandle, time::Instant};

use crate::{
    codec::{Codec, Postcard},
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::Batch,
    store::Store,
};

use super::tags::{self, TagBook, Tags};

mod builder;
mod early;
pub(crate) mod envelope;
mod flight;
mod key;
mod l1;
pub(crate) mod lease;
mod load;
mod many;
mod miss;
pub(crate) mod stats;

pub use builder::{Builder, Down, Stampede};
pub use early::XFetch;
pub use key::CacheKey;
pub use load::{Load, Loaded};
pub use many::LoadMany;
pub use stats::Stats;

pub(crate) use builder::Settings;
use envelope::Meta;
use flight::{Flights, Seat};
use l1::{Bounded, Incoming, Level1, Ticket};
use load::{BoxError, Loader};
use miss::{Landing, Purpose};
use stats::{Count, Counters};

/// How long the store is left alone after it failed, where the policy has another way to answer.
const DOWN_FOR: Duration = Duration::from_millis(250);

/// A typed cache in front of a slow source. See the [module](self).
///
/// It is cheap to clone; clones share everything.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, caching::{Cache, Loaded, Source}};
///
/// let store = Store::connect("memory://").await?;
/// let products = Cache::<u64, String>::builder(&store, "products")
///     .ttl(Duration::from_secs(3600))
///     .stale_for(Duration::from_secs(600))
///     .build()?;
///
/// let load = |_| async { Ok::<_, redstart::Error>(Loaded::Found("anvil".to_owned())) };
/// let hit = products.get_or_load(&7, load).await?;
/// assert_eq!((hit.value.as_deref().map(String::as_str), hit.source), (Some("anvil"), Source::Loaded));
/// let hit = products.get_or_load(&7, load).await?;
/// assert_eq!(hit.source, Source::Store);
///
/// products.invalidate(&7).await?;
/// assert!(products.get(&7).await?.is_none());
/// # Ok(()) }
/// ```
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

pub(crate) struct Inner<V, C> {
    pub(crate) store: Store,
    pub(crate) keys: Keys,
    pub(crate) tags: TagBook,
    pub(crate) bus: String,
    pub(crate) settings: Settings,
    pub(crate) l1: Option<Level1<V>>,
    /// What this process saw last, for [`Down::Stale`].
    last_seen: Option<Bounded<Option<Arc<V>>>>,
    /// The server takes no command with keys of several slots.
    apart: AtomicBool,
    flights: Arc<Flights<Landing<V>>>,
    pub(crate) stats: Counters,
    down_until: Mutex<Option<Instant>>,
    down_loads: Arc<Semaphore>,
    ears: Arc<Semaphore>,
    pub(crate) feed: Mutex<Option<AbortHandle>>,
    codec: PhantomData<C>,
}

impl<V, C> Drop for Inner<V, C> {
    fn drop(&mut self) {
        if let Some(feed) = self.feed.lock().take() {
            feed.abort();
        }
    }
}

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The first level, in this process.
    L1,
    /// The store.
    Store,
    /// The loader.
    Loaded,
}

/// An answer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Hit<V> {
    /// The value; `None` if the source is known to have none.
    pub value: Option<Arc<V>>,
    /// Where it came from.
    pub source: Source,
    /// How long ago it was loaded. Not known after a read that did not ask for it: without a first level,
    /// early refresh and stale serving a hit is one plain `GET`.
    pub age: Option<Duration>,
    /// Whether it is past its freshness.
    pub stale: bool,
}

impl<V> Clone for Hit<V> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            source: self.source,
            age: self.age,
            stale: self.stale,
        }
    }
}

/// A loop that finds everything in the first level would never let its thread go, and the thread may be the
/// one that hears of changes.
#[inline]
async fn cooperate() {
    tokio::task::coop::consume_budget().await;
}

/// What the store had.
enum Seen<V> {
    Found(Found<V>),
    /// There is something that cannot be used: foreign, or its tags are dead.
    Unusable {
        stamp: Vec<u8>,
    },
    Nothing,
}

struct Found<V> {
    hit: Hit<V>,
    meta: Meta,
    stamp: Vec<u8>,
    /// How long it is still fresh, if that was asked.
    fresh_for: Option<Duration>,
}

impl<K, V> Cache<K, V, Postcard>
where
    K: CacheKey + ?Sized,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    /// Starts to set up a cache in a namespace of the store.
    pub fn builder(store: &Store, namespace: &str) -> Builder<K, V, Postcard> {
        Builder::new(store, namespace)
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
    /// [`is_codec`](Error::is_codec) if the value cannot be encoded, [`is_config`](Error::is_config) for a bad
    /// key or tag, and those of the store as [`on_store_down`](Builder::on_store_down) says.
    ///
    /// # Cancel safety
    ///
    /// Safe: a load that was begun goes on, and what it brings is stored.
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
            if let Some(stamp) = early {
                inner.refresh_early(&name, stamp, load::boxed(loader))?;
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
    /// `Some` with a `value` of `None` says that the source is known to have none.
    ///
    /// # Errors
    ///
    /// Those of the store, unless [`Down::Stale`] has an answer; [`is_config`](Error::is_config) for a bad key.
    pub async fn get(&self, key: &K) -> Result<Option<Hit<V>>> {
        let name = key.name();
        if let Some((hit, _)) = self.inner.near(&name) {
            cooperate().await;
            return Ok(Some(hit));
        }
        self.look(&name).await
    }

    /// As [`get`](Self::get), but from the store itself, past the first level.
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
            let ticket = inner.l1.as_ref().map(|level| level.ticket(name));
            match inner.read(&entity).await {
                Ok(Seen::Found(found)) => {
                    let name: Arc<str> = name.into();
                    inner.remember(&name, ticket.as_ref(), &found);
                    inner.count_hit(&found.hit);
                    Ok(Some(found.hit))
                }
                Ok(_) => {
                    inner.stats.add(Count::Miss);
                    Ok(None)
                }
                Err(error) => inner.last_word(name, error).map(Some),
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

    /// Removes several keys, in one round trip a node.
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
    /// With [`Tags::Index`] the entries are also removed, in batches.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad tag, and those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the tag may or may not have been invalidated.
    pub async fn invalidate_tag(&self, tag: &str) -> Result<()> {
        let inner = &self.inner;
        tags::check(tag)?;
        observe::operation("cache.invalidate_tag", inner.keys.namespace(), async {
            let result = inner.tags.bump(&inner.store, tag, &inner.bus).await;
            // Nobody knows which flights carry the tag.
            inner.flights.detach_all();
            if let Some(level) = &inner.l1 {
                level.tag_changed(tag);
            }
            result?;
            if inner.tags.mode() == Tags::Index {
                loop {
                    let names = inner.tags.take(&inner.store, tag, 500).await?;
                    if names.is_empty() {
                        break;
                    }
                    inner.remove(&names).await?;
                }
            }
            Ok(())
        })
        .await
    }

    /// The names of the entries with a tag, with [`Tags::Index`]. Some may have expired already.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad tag or without the index, and those of the store.
    pub async fn tagged(&self, tag: &str) -> Result<Vec<String>> {
        tags::check(tag)?;
        if self.inner.tags.mode() != Tags::Index {
            return Err(Error::config("only Tags::Index knows the keys of a tag"));
        }
        self.inner.tags.members(&self.inner.store, tag).await
    }

    /// What was counted since the cache was made.
    pub fn stats(&self) -> Stats {
        self.inner.stats.tell();
        self.inner.stats.read()
    }

    /// Whether the first level listens, and so takes values in.
    pub fn l1_is_up(&self) -> bool {
        self.inner.l1.as_ref().is_some_and(Level1::is_up)
    }

    /// How many values the first level holds.
    pub fn l1_len(&self) -> u64 {
        self.inner.l1.as_ref().map_or(0, Level1::len)
    }
}

impl<V, C> Inner<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// A first-level hit, with its stamp if it should be refreshed early.
    #[inline]
    fn near(&self, name: &str) -> Option<(Hit<V>, Option<Vec<u8>>)> {
        let stored = self.l1.as_ref()?.get(name)?;
        let now = Instant::now();
        if now >= stored.fresh_until {
            return None;
        }
        self.stats.l1_hit();
        let early = match (&stored.value, self.settings.early) {
            (Some(_), Some(early)) => early
                .draws(stored.load_time, stored.fresh_until - now)
                .then(|| stored.stamp.to_vec()),
            (Some(_), None) => None,
            (None, _) => {
                self.stats.add(Count::NegativeHit);
                None
            }
        };
        let hit = Hit {
            value: stored.value,
            source: Source::L1,
            age: Some(stored.age + (now - stored.read_at)),
            stale: false,
        };
        Some((hit, early))
    }

    /// Whether reads have to know how long a value is still fresh.
    fn asks_ttl(&self) -> bool {
        self.l1.is_some() || self.settings.early.is_some() || !self.settings.stale_for.is_zero()
    }

    async fn read(&self, entity: &Entity) -> Result<Seen<V>> {
        if self.resting() {
            return Err(Error::unavailable("the store failed a moment ago"));
        }
        let read = if self.asks_ttl() {
            // PTTL first: if the value is replaced in between, the old TTL is the shorter one.
            let mut pipeline = redis::Pipeline::with_capacity(2);
            pipeline.cmd("PTTL").arg(entity.key());
            pipeline.cmd("GET").arg(entity.key());
            self.store
                .pipeline::<(i64, Option<Vec<u8>>)>(&pipeline)
                .await
                .map(|(left, bytes)| {
                    (
                        bytes,
                        Some(Duration::from_millis(u64::try_from(left).unwrap_or(0))),
                    )
                })
        } else {
            self.store
                .query::<Option<Vec<u8>>>(redis::cmd("GET").arg(entity.key()))
                .await
                .map(|bytes| (bytes, None))
        };
        match self.watched(read)? {
            (Some(bytes), left) => self.examine(bytes, left).await,
            (None, _) => Ok(Seen::Nothing),
        }
    }

    /// Reads what was stored; `left` is how long the store will keep it.
    async fn examine(&self, bytes: Vec<u8>, left: Option<Duration>) -> Result<Seen<V>> {
        let mut seen = self.open(bytes, left);
        if let Seen::Found(found) = &seen
            && !found.meta.tags.is_empty()
        {
            let valid = self.tags.valid(&self.store, &[&found.meta.tags]).await;
            if !self.watched(valid)?[0] {
                self.stats.add(Count::DeadTag);
                seen = Seen::Unusable {
                    stamp: found.stamp.clone(),
                };
            }
        }
        Ok(seen)
    }

    /// The same without asking for its tags.
    fn open(&self, bytes: Vec<u8>, left: Option<Duration>) -> Seen<V> {
        let stamp = envelope::stamp(&bytes).to_vec();
        let Some(entry) = envelope::open::<C, V>(self.settings.schema, &bytes) else {
            self.stats.add(Count::Foreign);
            return Seen::Unusable { stamp };
        };
        let meta = entry.meta;
        let stale_part = meta.keep.saturating_sub(meta.fresh);
        let fresh_for = left.map(|left| left.saturating_sub(stale_part));
        // A left of zero says that it came into being between the two reads: it is fresh.
        let stale = left.is_some_and(|left| !left.is_zero() && left <= stale_part);
        Seen::Found(Found {
            hit: Hit {
                value: entry.value.map(Arc::new),
                source: Source::Store,
                age: left.map(|left| meta.keep.saturating_sub(left)),
                stale,
            },
            stamp,
            fresh_for,
            meta,
        })
    }

    /// Takes a value into the first level, and keeps it for a time when the store is down.
    fn remember(&self, name: &Arc<str>, ticket: Option<&Ticket>, found: &Found<V>) {
        if let Some(last_seen) = &self.last_seen {
            last_seen.insert(name.clone(), found.hit.value.clone());
        }
        let (Some(level), Some(ticket), Some(fresh_for)) = (&self.l1, ticket, found.fresh_for)
        else {
            return;
        };
        if found.hit.stale || fresh_for.is_zero() {
            return;
        }
        let taken = level.insert(
            name,
            ticket,
            Incoming {
                value: found.hit.value.clone(),
                fresh_for,
                load_time: found.meta.load_time,
                age: found.hit.age.unwrap_or_default(),
                stamp: &found.stamp,
                tags: found
                    .meta
                    .tags
                    .iter()
                    .map(|stamp| tags::shard_of(&stamp.tag))
                    .collect(),
            },
        );
        if !taken {
            self.stats.add(Count::InsertRefused);
        }
    }

    fn count_hit(&self, hit: &Hit<V>) {
        self.count_hits(std::iter::once(hit));
    }

    fn count_hits<'h>(&self, hits: impl Iterator<Item = &'h Hit<V>>)
    where
        V: 'h,
    {
        let (mut all, mut negative, mut stale) = (0, 0, 0);
        for hit in hits {
            all += 1;
            negative += u64::from(hit.value.is_none());
            stale += u64::from(hit.stale);
        }
        self.stats.add_many(Count::Hit, all);
        self.stats.add_many(Count::NegativeHit, negative);
        self.stats.add_many(Count::Stale, stale);
    }

    async fn fetch(self: &Arc<Self>, name: &str, loader: Loader<V>) -> Result<Hit<V>> {
        let entity = self.keys.entity(name)?;
        let name: Arc<str> = name.into();
        let mut loader = Some(loader);
        loop {
            let ticket = self.l1.as_ref().map(|level| level.ticket(&name));
            let purpose = match self.read(&entity).await {
                Ok(Seen::Found(found)) if !found.hit.stale => {
                    self.remember(&name, ticket.as_ref(), &found);
                    self.count_hit(&found.hit);
                    let early = match (self.settings.early, found.fresh_for) {
                        (Some(early), Some(left)) if found.hit.value.is_some() => {
                            early.draws(found.meta.load_time, left)
                        }
                        _ => false,
                    };
                    if early {
                        self.stats.add(Count::Early);
                        let purpose = Purpose::Refresh { seen: found.stamp };
                        drop(self.board(&name, &entity, &mut loader, purpose)?);
                    }
                    return Ok(found.hit);
                }
                Ok(Seen::Found(found)) => {
                    let purpose = Purpose::Refresh { seen: found.stamp };
                    let mut seat = self.board(&name, &entity, &mut loader, purpose)?;
                    if !self.settings.soft.is_zero() {
                        let landed = tokio::time::timeout(self.settings.soft, seat.landed()).await;
                        if let Ok(Some(landing)) = landed
                            && let Some(hit) = landing.hit(&seat)
                        {
                            return Ok(hit);
                        }
                    }
                    self.count_hit(&found.hit);
                    return Ok(found.hit);
                }
                Ok(Seen::Unusable { stamp }) => Purpose::Miss { seen: stamp },
                Ok(Seen::Nothing) => Purpose::Miss { seen: Vec::new() },
                Err(error) if is_down(&error) && self.settings.down == Down::Load => {
                    Purpose::Bypass
                }
                Err(error) => return self.last_word(&name, error),
            };
            self.stats.add(Count::Miss);
            let mut seat = self.board(&name, &entity, &mut loader, purpose)?;
            match seat.landed().await {
                Some(Landing::Failed(error)) => {
                    return self.last_word(&name, Error::shared(&error));
                }
                Some(landing) => {
                    if let Some(hit) = landing.hit(&seat) {
                        return Ok(hit);
                    }
                    // It was read before this caller came, and was invalidated meanwhile: ask again.
                }
                None => return Err(Error::unavailable("the load was abandoned")),
            }
            if loader.is_none() {
                // Only a caller that started a flight has given its loader away, and such a caller was answered.
                return Err(Error::unavailable("the load brought nothing"));
            }
        }
    }

    /// Starts a flight with this caller's loader, or joins the one under way.
    fn board(
        self: &Arc<Self>,
        name: &Arc<str>,
        entity: &Entity,
        loader: &mut Option<Loader<V>>,
        purpose: Purpose,
    ) -> Result<Seat<Landing<V>>> {
        let runtime = self
            .store
            .runtime()
            .ok_or_else(|| Error::config("a cache loads within a tokio runtime"))?;
        let start = |pilot: flight::Pilot<Landing<V>>| {
            if let Some(loader) = loader.take() {
                let (inner, name, entity) = (self.clone(), name.clone(), entity.clone());
                runtime.spawn(async move {
                    let landing = inner
                        .fly(&name, &entity, loader, purpose, &pilot.progress)
                        .await;
                    pilot.land(landing);
                });
            }
        };
        Ok(match self.settings.stampede {
            Stampede::Off => Flights::charter(start),
            Stampede::Lease | Stampede::Local => self.flights.board(name, start),
        })
    }

    fn refresh_early(self: &Arc<Self>, name: &str, seen: Vec<u8>, loader: Loader<V>) -> Result<()> {
        let entity = self.keys.entity(name)?;
        self.stats.add(Count::Early);
        let purpose = Purpose::Refresh { seen };
        self.board(&name.into(), &entity, &mut Some(loader), purpose)
            .map(drop)
    }

    /// What is left to say when the store failed or the load did.
    fn last_word(&self, name: &str, error: Error) -> Result<Hit<V>> {
        if is_down(&error)
            && let Some(value) = self.last_seen.as_ref().and_then(|seen| seen.get(name))
        {
            self.stats.add(Count::Stale);
            return Ok(Hit {
                value,
                source: Source::L1,
                age: None,
                stale: true,
            });
        }
        Err(error)
    }

    /// Notes when the store fails.
    fn watched<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && is_down(error)
        {
            self.stats.add(Count::Down);
            *self.down_until.lock() = Some(Instant::now() + DOWN_FOR);
        }
        result
    }

    /// Whether the store failed a moment ago and there is another way to answer. Without that, every read
    /// would wait for the store's whole deadline while it is down.
    fn resting(&self) -> bool {
        if self.settings.down == Down::Refuse {
            return false;
        }
        let mut until = self.down_until.lock();
        match *until {
            Some(at) if Instant::now() < at => true,
            Some(_) => {
                *until = None;
                false
            }
            None => false,
        }
    }

    async fn remove(&self, names: &[String]) -> Result<()> {
        let entities = names
            .iter()
            .map(|name| self.keys.entity(name))
            .collect::<Result<Vec<_>>>()?;
        let mut batch = Batch::new();
        for (name, entity) in names.iter().zip(&entities) {
            batch.push(lease::invalidate(entity, &self.bus, name));
        }
        let results = batch.run::<u64>(&self.store).await;
        // After the store, so that whoever comes now reads there what is left. Also if it failed: it may
        // have been carried out.
        for name in names {
            self.forget(name);
            self.stats.add(Count::Invalidation);
        }
        for result in results? {
            result?;
        }
        Ok(())
    }

    /// Forgets a key in this process.
    pub(crate) fn forget(&self, name: &str) {
        self.flights.detach(name);
        if let Some(level) = &self.l1 {
            level.changed(name);
        }
        if let Some(last_seen) = &self.last_seen {
            last_seen.remove(name);
        }
    }
}

/// What a write-through says of its value.
pub(crate) fn notes(tags: Vec<Arc<str>>, version: u64) -> load::Notes {
    load::Notes {
        tags,
        ttl: None,
        version,
    }
}

/// Whether the store cannot answer now.
pub(crate) fn is_down(error: &Error) -> bool {
    error.is_unavailable() || (error.is_timeout() && !error.is_user())
}
