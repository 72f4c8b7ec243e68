//! Cache entries that other programs write too, with stampede protection added.
//!
//! Old programs read a key, and on a miss they compute the value and store it, all of them at the same time. [`SharedCache`] uses the same keys and
//! the same format, so that both sides read what the other one wrote. What it adds is beside the entries, where old programs do not look.
//!
//! # Promises
//!
//! - **One load per key** among the processes that use this type, while the lease lasts. Old programs still load on their own.
//! - **Old readers understand every entry**: it is in their format and nothing is wrapped around it.
//! - **Nothing old is stored after an [invalidation](SharedCache::invalidate)** by this type: it takes the lease away, and what was
//!   loaded before is not stored.
//! - An entry that this type cannot read is never overwritten: the value is loaded, and the entry is left to those who wrote it.
//! - An entry that an old program stores while this type loads is not overwritten either, readable or not: it is newer than what the load has read.
//!
//! # Limits
//!
//! An old program that deletes a key to invalidate it does not end a load that is under way: what was read before can be stored
//! afterwards, as between old programs. Absence is not remembered.
//!
//! # Keys
//!
//! | key | type | TTL |
//! |---|---|---|
//! | the old programs' key | string: the entry | the ttl, less up to a tenth, so that entries do not end together |
//! | `{<that key>}:fill` | string: the token of the one who loads | the time a load may take |
//!
//! # Round trips
//!
//! A hit: one. A miss: three (read, lease, fill).
//!
//! # While the store is down
//!
//! The error is returned; [`get_or_load`](SharedCache::get_or_load)'s caller can load on its own.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use redstart::{
    Store,
    key::{Entity, Keys, Layout},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{Error, Result},
    script::Lua,
};

mod pickle;

static LEASE: Lua = Lua::new(include_str!("cache/lease.lua"));
static FILL: Lua = Lua::new(include_str!("cache/fill.lua"));

/// How often a process looks again whether another one has loaded what it waits for.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_MAX: Duration = Duration::from_millis(200);

/// The format of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum EntryFormat {
    /// Plain JSON.
    #[default]
    Json,
    /// Python's pickles, which Django writes by default; whole numbers are stored as digits. Only plain data: see
    /// [`SharedCacheBuilder::django`].
    Pickle,
}

impl EntryFormat {
    fn read<T: DeserializeOwned>(self, bytes: &[u8]) -> Option<T> {
        match self {
            Self::Json => serde_json::from_slice(bytes).ok(),
            Self::Pickle => match pickle::read(bytes) {
                Some(value) => serde_json::from_value(value).ok(),
                // Django stores whole numbers as they are.
                None if is_whole(bytes) => serde_json::from_slice(bytes).ok(),
                None => None,
            },
        }
    }

    fn write<T: Serialize>(self, value: &T) -> Result<Vec<u8>> {
        // serde's message may quote the value, so it is not kept.
        let cannot = |_| Error::invalid("the value cannot be represented in the cache's format");
        match self {
            Self::Json => serde_json::to_vec(value).map_err(cannot),
            Self::Pickle => {
                let value = serde_json::to_value(value).map_err(cannot)?;
                match value.is_i64() || value.is_u64() {
                    true => Ok(value.to_string().into_bytes()),
                    false => Ok(pickle::write(&value)),
                }
            }
        }
    }
}

fn is_whole(bytes: &[u8]) -> bool {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// A cache whose entries other programs read and write. Cheap to clone; clones share the loads of the process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use std::time::Duration;
/// use redstart::Store;
/// use redstart_adopt::cache::SharedCache;
///
/// let store = Store::connect("memory://").await?;
/// let products = SharedCache::<Vec<String>>::builder(&store, Duration::from_secs(300))
///     .prefix("product:")
///     .build()?;
/// let names = products.get_or_load("7", || async { anyhow::Ok(vec!["tea".to_owned()]) }).await?;
/// assert_eq!(names, ["tea"]);
/// // An old program reads plain JSON.
/// let entry: String = store.query(redis::cmd("GET").arg("product:7")).await?;
/// assert_eq!(entry, r#"["tea"]"#);
/// # Ok(()) }
/// ```
pub struct SharedCache<T> {
    inner: Arc<Inner>,
    value: PhantomData<fn() -> T>,
}

struct Inner {
    settings: SharedCacheBuilder<()>,
    /// One for each key that is being loaded by this process.
    flights: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// The settings of a [`SharedCache`].
#[must_use = "a builder does nothing until it is built"]
pub struct SharedCacheBuilder<T> {
    store: Store,
    prefix: String,
    format: EntryFormat,
    ttl: Duration,
    lease: Duration,
    refresh: Duration,
    value: PhantomData<fn() -> T>,
}

impl<T> SharedCacheBuilder<T> {
    /// What keys begin with (default nothing).
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// The keys and the format of Django's own Redis cache with this `KEY_PREFIX` (often empty) and `VERSION` (1 unless it is set):
    /// `<prefix>:<version>:<key>`, pickled. Entries with anything but plain data in them, such as dates or
    /// objects, cannot be read here and are left as they are. With a JSON serializer in Django, set the [format](Self::format) after
    /// this.
    pub fn django(self, prefix: &str, version: u32) -> Self {
        self.prefix(&format!("{prefix}:{version}:"))
            .format(EntryFormat::Pickle)
    }

    /// The format of the entries (default JSON).
    pub fn format(mut self, format: EntryFormat) -> Self {
        self.format = format;
        self
    }

    /// How long a load may take before another process loads too (default 10 s).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Loads an entry again when it has less than this left, by one caller, while the others are served (default: not).
    pub fn refresh_ahead(mut self, remaining: Duration) -> Self {
        self.refresh = remaining;
        self
    }

    /// Makes the cache. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a ttl or a lease under a millisecond or over ten years, and for refreshing an entry
    /// before it is half-way through its ttl.
    pub fn build(self) -> Result<SharedCache<T>> {
        const LONGEST: Duration = Duration::from_secs(10 * 366 * 86_400);
        let fits = |duration: Duration| (Duration::from_millis(1)..=LONGEST).contains(&duration);
        if !fits(self.ttl) || !fits(self.lease) {
            return Err(Error::invalid(
                "the ttl and the lease of a cache must be between a millisecond and ten years",
            ));
        }
        if self.refresh > self.ttl / 2 {
            return Err(Error::invalid(
                "an entry is refreshed in the second half of its ttl at the earliest",
            ));
        }
        Ok(SharedCache {
            inner: Arc::new(Inner {
                settings: SharedCacheBuilder {
                    store: self.store,
                    prefix: self.prefix,
                    format: self.format,
                    ttl: self.ttl,
                    lease: self.lease,
                    refresh: self.refresh,
                    value: PhantomData,
                },
                flights: Mutex::default(),
            }),
            value: PhantomData,
        })
    }
}

/// What is stored under a key.
enum Seen<T> {
    Missing,
    /// In another format, or of another type.
    Unreadable,
    Value {
        value: T,
        left: Option<Duration>,
        /// The SHA-1 of the entry.
        digest: String,
    },
}

impl<T: Serialize + DeserializeOwned> SharedCache<T> {
    /// Starts with entries that live for `ttl`.
    pub fn builder(store: &Store, ttl: Duration) -> SharedCacheBuilder<T> {
        SharedCacheBuilder {
            store: store.clone(),
            prefix: String::new(),
            format: EntryFormat::default(),
            ttl,
            lease: Duration::from_secs(10),
            refresh: Duration::ZERO,
            value: PhantomData,
        }
    }

    /// The entry of a key; `None` if it does not exist or cannot be read.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a key that cannot be used; otherwise those of the store.
    pub async fn get(&self, key: &str) -> Result<Option<T>> {
        match self.look(&self.inner.entity(key)?).await? {
            Seen::Value { value, .. } => Ok(Some(value)),
            Seen::Missing | Seen::Unreadable => Ok(None),
        }
    }

    /// The entry of a key, or what `load` gives, which is stored. Of many callers that miss at the same time, one loads; the others wait for
    /// it, at most until its lease ends.
    ///
    /// If `load` fails, its error goes to this caller alone, and one of the others tries.
    ///
    /// # Errors
    ///
    /// Those of `load`; [`is_invalid`](Error::is_invalid) for a key that cannot be used or a value that cannot be represented; otherwise those of the
    /// store.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it loads, the others wait until its lease ends.
    pub async fn get_or_load<E, F>(&self, key: &str, load: impl FnOnce() -> F) -> Result<T, E>
    where
        E: From<Error>,
        F: Future<Output = Result<T, E>>,
    {
        let entity = self.inner.entity(key)?;
        let mut pause = LOOK;
        loop {
            match self.look(&entity).await? {
                Seen::Missing => {}
                Seen::Unreadable => return load().await,
                Seen::Value {
                    value,
                    left,
                    digest,
                } => {
                    if left.is_none_or(|left| left >= self.inner.settings.refresh) {
                        return Ok(value);
                    }
                    return self.refreshed(&entity, value, &digest, load).await;
                }
            }
            let flight = self.inner.flight(&entity);
            let Ok(_here) = flight.lock.try_lock() else {
                // Somebody else in this process loads it or waits for another process: look when that is over.
                drop(flight.lock.lock().await);
                continue;
            };
            let token = format!("{:032x}", rand::random::<u128>());
            let (leased, entry) = self.inner.lease(&entity, &token, true).await?;
            if leased {
                return self.fill(&entity, &token, "", load).await;
            }
            if entry.is_none() {
                tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
                pause = (pause * 2).min(LOOK_MAX);
            }
        }
    }

    /// A fresh value, or the one that ends soon if somebody else loads it.
    async fn refreshed<E, F>(
        &self,
        entity: &Entity,
        value: T,
        digest: &str,
        load: impl FnOnce() -> F,
    ) -> Result<T, E>
    where
        E: From<Error>,
        F: Future<Output = Result<T, E>>,
    {
        let token = format!("{:032x}", rand::random::<u128>());
        let leased = self.inner.lease(entity, &token, false).await;
        if !leased.is_ok_and(|(leased, _)| leased) {
            return Ok(value);
        }
        match self.fill(entity, &token, digest, load).await {
            Ok(fresh) => Ok(fresh),
            // It is still good.
            Err(_) => Ok(value),
        }
    }

    /// Loads under a lease, and stores the value unless the entry is another one by then than the one with this digest.
    async fn fill<E, F>(
        &self,
        entity: &Entity,
        token: &str,
        digest: &str,
        load: impl FnOnce() -> F,
    ) -> Result<T, E>
    where
        E: From<Error>,
        F: Future<Output = Result<T, E>>,
    {
        let settings = &self.inner.settings;
        let value = match load().await {
            Ok(value) => value,
            Err(error) => {
                if let Err(error) = self.inner.store(entity, token, digest, None).await {
                    tracing::debug!(%error, "the lease of a failed load ends by itself");
                }
                return Err(error);
            }
        };
        let bytes = settings.format.write(&value)?;
        let stored = self.inner.store(entity, token, digest, Some(&bytes));
        if let Err(error) = stored.await {
            // The caller has its value; the next one loads again.
            tracing::warn!(%error, "a loaded entry could not be stored");
        }
        Ok(value)
    }

    async fn look(&self, entity: &Entity) -> Result<Seen<T>> {
        let settings = &self.inner.settings;
        let mut look = redis::pipe();
        look.cmd("GET").arg(entity.key());
        look.cmd("PTTL").arg(entity.key());
        let (entry, left): (Option<Vec<u8>>, i64) = settings.store.pipeline(&look).await?;
        let Some(entry) = entry else {
            return Ok(Seen::Missing);
        };
        Ok(match settings.format.read(&entry) {
            Some(value) => Seen::Value {
                value,
                left: u64::try_from(left).ok().map(Duration::from_millis),
                digest: match settings.refresh.is_zero() {
                    // It is needed only to refresh.
                    true => String::new(),
                    false => sha1_smol::Sha1::from(&entry).digest().to_string(),
                },
            },
            None => Seen::Unreadable,
        })
    }

    /// Stores a value, whatever is there, and ends a load that is under way.
    ///
    /// # Errors
    ///
    /// As [`get_or_load`](Self::get_or_load).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the value may have been stored.
    pub async fn put(&self, key: &str, value: &T) -> Result<()> {
        let entity = self.inner.entity(key)?;
        let bytes = self.inner.settings.format.write(value)?;
        let mut put = redis::pipe();
        put.atomic();
        put.cmd("DEL").arg(entity.part("fill")).ignore();
        put.cmd("SET")
            .arg(entity.key())
            .arg(bytes)
            .arg("PX")
            .arg(self.inner.ttl_ms())
            .ignore();
        Ok(self.inner.settings.store.pipeline(&put).await?)
    }

    /// Removes an entry. What is being loaded for it by this type is not stored any more. Whether there was an entry.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the entry may be gone.
    pub async fn invalidate(&self, key: &str) -> Result<bool> {
        let entity = self.inner.entity(key)?;
        let mut remove = redis::pipe();
        remove.atomic();
        remove.cmd("DEL").arg(entity.part("fill")).ignore();
        remove.cmd("DEL").arg(entity.key());
        let (removed,): (bool,) = self.inner.settings.store.pipeline(&remove).await?;
        Ok(removed)
    }
}

/// A load of this process; the last one who drops it forgets it.
struct Flight<'a> {
    inner: &'a Inner,
    key: &'a str,
    lock: Arc<tokio::sync::Mutex<()>>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut flights = self
            .inner
            .flights
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // This one and the map's.
        if Arc::strong_count(&self.lock) <= 2 {
            flights.remove(self.key);
        }
    }
}

impl Inner {
    fn entity(&self, key: &str) -> Result<Entity> {
        let prefix = self.settings.prefix.clone();
        let layout = Layout::new(move |key| format!("{prefix}{key}"));
        Ok(Keys::new("adopt", "cache")?.layout(layout).entity(key)?)
    }

    fn flight<'a>(&'a self, entity: &'a Entity) -> Flight<'a> {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let key = entity.key().as_str();
        Flight {
            inner: self,
            key,
            lock: flights.entry(key.to_owned()).or_default().clone(),
        }
    }

    fn ttl_ms(&self) -> u64 {
        let ttl = self
            .settings
            .ttl
            .mul_f64(1.0 - rand::random::<f64>() / 10.0);
        u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
    }

    async fn lease(
        &self,
        entity: &Entity,
        token: &str,
        if_missing: bool,
    ) -> Result<(bool, Option<Vec<u8>>)> {
        let ms = u64::try_from(self.settings.lease.as_millis()).unwrap_or(u64::MAX);
        let args: [&(dyn crate::script::Arg + Sync); 3] = [&token, &ms, &u8::from(if_missing)];
        LEASE.run(&self.settings.store, &keys(entity), &args).await
    }

    /// Ends a lease, and stores what was loaded under it.
    async fn store(
        &self,
        entity: &Entity,
        token: &str,
        digest: &str,
        entry: Option<&[u8]>,
    ) -> Result<bool> {
        let ttl = entry.map_or(0, |_| self.ttl_ms());
        FILL.run(
            &self.settings.store,
            &keys(entity),
            &[&token, &ttl, &entry.unwrap_or_default(), &digest],
        )
        .await
    }
}

fn keys(entity: &Entity) -> [String; 2] {
    let fill = entity.part("fill");
    [entity.key().as_str().to_owned(), fill.as_str().to_owned()]
}

impl<T> Clone for SharedCache<T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            value: PhantomData,
        }
    }
}

impl<T> fmt::Debug for SharedCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedCache")
            .field(&self.inner.settings.prefix)
            .finish()
    }
}

impl<T> fmt::Debug for SharedCacheBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCacheBuilder")
            .field("prefix", &self.prefix)
            .field("format", &self.format)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}
