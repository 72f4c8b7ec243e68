//! What a loader gives, and what it can say while it loads.

use std::{
    any::Any, error::Error as StdError, future::Future, panic::AssertUnwindSafe, pin::Pin,
    sync::Arc, time::Duration,
};

use futures_util::FutureExt;
use parking_lot::Mutex;

use crate::{
    caching::tags,
    error::{Error, Result},
};

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;
pub(crate) type LoadFuture<V> = Pin<Box<dyn Future<Output = Result<Loaded<V>, BoxError>> + Send>>;
pub(crate) type Loader<V> = Box<dyn FnOnce(Load) -> LoadFuture<V> + Send>;

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

#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) tags: Vec<Arc<str>>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) version: u64,
}

/// Handed to a loader, to say more about the value than its bytes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, caching::{Cache, Loaded}};
///
/// let store = Store::connect("memory://").await?;
/// let cache = Cache::<u64, String>::builder(&store, "products").ttl(Duration::from_secs(60)).build()?;
/// cache.get_or_load(&7, |load| async move {
///     load.tag("brand:acme")?;            // invalidate_tag("brand:acme") makes it a miss
///     load.ttl(Duration::from_secs(5));   // this one is short-lived
///     Ok::<_, redstart::Error>(Loaded::Found("anvil".to_owned()))
/// }).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Load {
    pub(crate) notes: Arc<Mutex<Notes>>,
}

impl Load {
    pub(crate) fn new() -> Self {
        Self {
            notes: Arc::default(),
        }
    }

    /// Adds a tag to the value.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the tag is empty, over 512 bytes, or has control characters.
    pub fn tag(&self, tag: impl AsRef<str>) -> Result<()> {
        let tag = tag.as_ref();
        tags::check(tag)?;
        let mut notes = self.notes.lock();
        if !notes.tags.iter().any(|known| &**known == tag) {
            notes.tags.push(tag.into());
        }
        Ok(())
    }

    /// Gives this value a TTL of its own, instead of the cache's.
    pub fn ttl(&self, ttl: Duration) {
        self.notes.lock().ttl = Some(ttl);
    }

    /// Says which version of its row the value is, so that a write-through never replaces it by an older one.
    pub fn version(&self, version: u64) {
        self.notes.lock().version = version;
    }
}

/// Boxes a loader of any shape.
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

/// Runs the application's code: its error, its panic and its delay become errors of ours.
pub(crate) async fn guarded<T>(
    hard: Duration,
    work: impl FnOnce() -> Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>> + Send,
) -> Result<T> {
    let work = AssertUnwindSafe(async move { work().await }).catch_unwind();
    match tokio::time::timeout(hard, work).await {
        Ok(Ok(Ok(value))) => Ok(value),
        Ok(Ok(Err(error))) => Err(match error.downcast::<Error>() {
            // A wrong tag or another misuse stays what it is.
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
