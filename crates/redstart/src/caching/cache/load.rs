//! What a loader returns, and what it can say about the value.

use std::{
    any::Any, collections::HashMap, error::Error as StdError, future::Future, marker::PhantomData,
    panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration,
};

use futures_util::FutureExt;
use parking_lot::Mutex;

use super::CacheKey;
use crate::{
    caching::tags,
    error::{Error, Result},
};

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;
type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// The loader of one key.
pub(crate) type Loader<V> = Box<dyn FnOnce(Load) -> BoxFuture<Loaded<V>> + Send>;
/// The loader of many keys, as the application wrote it.
pub(crate) type ManyLoader<K, V> =
    Arc<dyn Fn(LoadMany<K>, Vec<K>) -> BoxFuture<HashMap<String, V>> + Send + Sync>;
/// A loader of some keys that is ready to run: a value and its notes for each of them, in order.
pub(crate) type BatchLoader<V> = Box<dyn FnOnce() -> BoxFuture<Vec<(Option<V>, Notes)>> + Send>;

/// What a loader found.
///
/// ```
/// use redstart::caching::Loaded;
///
/// assert_eq!(Loaded::from(Some(7)), Loaded::Found(7));
/// assert_eq!(Loaded::<u8>::from(None), Loaded::Absent);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded<V> {
    /// The value.
    Found(V),
    /// There is no such value. That is remembered too, for the negative TTL.
    Absent,
}

impl<V> From<Option<V>> for Loaded<V> {
    fn from(value: Option<V>) -> Self {
        value.map_or(Self::Absent, Self::Found)
    }
}

/// What a loader said about a value.
#[derive(Clone, Default)]
pub(crate) struct Notes {
    pub(crate) tags: Vec<Arc<str>>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) version: u64,
    pub(crate) no_store: bool,
}

impl Notes {
    fn tag(&mut self, tag: &str) -> Result<()> {
        tags::check(tag)?;
        if !self.tags.iter().any(|known| **known == *tag) {
            self.tags.push(tag.into());
        }
        Ok(())
    }
}

/// Given to a loader, to say more about the value.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, caching::{Cache, Loaded}};
///
/// let store = Store::connect("memory://").await?;
/// let cache = Cache::<u64, String>::builder(&store, "shop", "product").build()?;
/// cache.get_or_load(&7, |load| async move {
///     load.tag("brand:acme")?;            // invalidate_tag("brand:acme") makes it a miss
///     load.ttl(Duration::from_secs(5));   // this one is short-lived
///     Ok::<_, redstart::Error>(Loaded::Found("anvil".to_owned()))
/// }).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Load {
    notes: Arc<Mutex<Notes>>,
}

impl Load {
    /// Adds a tag to the value.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the tag is empty, over 512 bytes, or has control characters.
    pub fn tag(&self, tag: impl AsRef<str>) -> Result<()> {
        self.notes.lock().tag(tag.as_ref())
    }

    /// Gives this value a TTL of its own, at most ten years. Zero is the same as [`no_store`](Self::no_store).
    pub fn ttl(&self, ttl: Duration) {
        self.notes.lock().ttl = Some(ttl);
    }

    /// Says which version of its row the value is, so that a write-through never replaces it by an older one.
    pub fn version(&self, version: u64) {
        self.notes.lock().version = version;
    }

    /// Returns the value to the callers that wait for it, and does not store it.
    pub fn no_store(&self) {
        self.notes.lock().no_store = true;
    }
}

/// Given to a loader of many keys, to say more about each value.
#[derive(Clone)]
pub struct LoadMany<K> {
    notes: Arc<Mutex<HashMap<String, Notes>>>,
    key: PhantomData<fn(&K)>,
}

impl<K: CacheKey> LoadMany<K> {
    fn new() -> Self {
        Self {
            notes: Arc::default(),
            key: PhantomData,
        }
    }

    fn with<T>(&self, key: &K, note: impl FnOnce(&mut Notes) -> T) -> T {
        let mut notes = self.notes.lock();
        note(notes.entry(key.name().into_owned()).or_default())
    }

    /// Adds a tag to the value of a key.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the tag is empty, over 512 bytes, or has control characters.
    pub fn tag(&self, key: &K, tag: impl AsRef<str>) -> Result<()> {
        self.with(key, |notes| notes.tag(tag.as_ref()))
    }

    /// Gives the value of a key a TTL of its own, at most ten years. Zero is the same as
    /// [`no_store`](Self::no_store).
    pub fn ttl(&self, key: &K, ttl: Duration) {
        self.with(key, |notes| notes.ttl = Some(ttl));
    }

    /// Says which version of its row the value of a key is.
    pub fn version(&self, key: &K, version: u64) {
        self.with(key, |notes| notes.version = version);
    }

    /// Returns the value of a key and does not store it.
    pub fn no_store(&self, key: &K) {
        self.with(key, |notes| notes.no_store = true);
    }
}

/// Boxes a loader of one key.
pub(crate) fn boxed<V, F, Fut, R, E>(loader: F) -> Loader<V>
where
    F: FnOnce(Load) -> Fut + Send + 'static,
    Fut: Future<Output = Result<R, E>> + Send + 'static,
    R: Into<Loaded<V>>,
    E: Into<BoxError>,
{
    Box::new(move |load| {
        let future = loader(load);
        Box::pin(async move { future.await.map(Into::into).map_err(Into::into) })
    })
}

/// Boxes a loader of many keys.
pub(crate) fn boxed_many<K, V, F, Fut, R, E>(loader: F) -> ManyLoader<K, V>
where
    K: CacheKey,
    F: Fn(LoadMany<K>, Vec<K>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send + 'static,
    R: IntoIterator<Item = (K, V)>,
    E: Into<BoxError>,
{
    Arc::new(move |load, keys| {
        let future = loader(load, keys);
        Box::pin(async move {
            let values = future.await.map_err(Into::into)?.into_iter();
            Ok(values
                .map(|(key, value)| (key.name().into_owned(), value))
                .collect())
        })
    })
}

/// One key, ready to run.
pub(crate) fn batch_of_one<V: Send + 'static>(loader: Loader<V>) -> BatchLoader<V> {
    Box::new(move || {
        Box::pin(async move {
            let notes = Arc::<Mutex<Notes>>::default();
            let loaded = loader(Load {
                notes: notes.clone(),
            });
            let value = match loaded.await? {
                Loaded::Found(value) => Some(value),
                Loaded::Absent => None,
            };
            let notes = std::mem::take(&mut *notes.lock());
            Ok(vec![(value, notes)])
        })
    })
}

/// Many keys, ready to run. A key that the loader does not return is absent.
pub(crate) fn batch_of_many<K, V>(loader: &ManyLoader<K, V>, keys: Vec<K>) -> BatchLoader<V>
where
    K: CacheKey + Clone + Send + Sync + 'static,
    V: Send + 'static,
{
    let loader = loader.clone();
    Box::new(move || {
        Box::pin(async move {
            let load = LoadMany::new();
            let notes = load.notes.clone();
            let mut values = loader(load, keys.clone()).await?;
            let mut notes = std::mem::take(&mut *notes.lock());
            Ok(keys
                .iter()
                .map(|key| {
                    let name = key.name();
                    let notes = notes.remove(&*name).unwrap_or_default();
                    (values.remove(&*name), notes)
                })
                .collect())
        })
    })
}

/// A loader of many keys, for one of them.
pub(crate) fn single<K, V>(loader: &ManyLoader<K, V>, key: &K) -> Loader<V>
where
    K: CacheKey + Clone + Send + Sync + 'static,
    V: Send + 'static,
{
    let batch = batch_of_many(loader, vec![key.clone()]);
    Box::new(move |load| {
        Box::pin(async move {
            let (value, notes) = batch().await?.pop().unwrap_or_default();
            *load.notes.lock() = notes;
            Ok(Loaded::from(value))
        })
    })
}

/// Runs the application's code. Its error, its panic and its delay become errors of ours.
pub(crate) async fn guarded<T>(
    hard: Duration,
    work: impl FnOnce() -> BoxFuture<T> + Send,
) -> Result<T> {
    let work = AssertUnwindSafe(async move { work().await }).catch_unwind();
    match tokio::time::timeout(hard, work).await {
        Ok(Ok(Ok(value))) => Ok(value),
        Ok(Ok(Err(error))) => Err(match error.downcast::<Error>() {
            // An invalid tag or another misuse stays what it is.
            Ok(error) if error.is_config() => *error,
            Ok(error) => Error::user("the loader failed", error),
            Err(error) => Error::user("the loader failed", error),
        }),
        Ok(Err(panic)) => Err(Error::user(
            "the loader panicked",
            panic_text(panic.as_ref()).to_owned(),
        )),
        Err(_) => Err(Error::timeout(format!(
            "the loader took longer than its hard limit of {hard:?}"
        ))),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
