//! Write-through: the database first, then the cache, with nothing old left in between.

use std::{future::Future, sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    cache::{Cache, CacheKey, Inner},
    tags::{self, Snapshot},
};
use crate::{
    codec::{Codec, Postcard},
    duration::millis,
    error::{Error, Result},
    key::Entity,
    observe,
    script::Script,
    token::token,
};

pub(crate) static FENCE: Script = Script::new(
    "cache.fence",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("write_through/fence.lua")
    ),
);
pub(crate) static SETTLE: Script = Script::new(
    "cache.settle",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("write_through/settle.lua")
    ),
);

/// What a commit did.
#[derive(Clone, Debug)]
pub struct Written<V> {
    row: Option<(Option<V>, u64)>,
    tags: Vec<Arc<str>>,
}

impl<V> Written<V> {
    /// The row's new value and its version: a number that the database raises with every change of the row.
    pub fn row(value: V, version: u64) -> Self {
        Self {
            row: Some((Some(value), version)),
            tags: Vec::new(),
        }
    }

    /// The row was deleted, at this version: the cache remembers that there is none.
    pub fn deleted(version: u64) -> Self {
        Self {
            row: Some((None, version)),
            tags: Vec::new(),
        }
    }

    /// The row was changed: the cache removes it, and the next reader loads it. For rows without a version.
    pub fn changed() -> Self {
        Self {
            row: None,
            tags: Vec::new(),
        }
    }

    /// Adds a tag to the cached value.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the tag is empty, over 512 bytes, or has control characters.
    pub fn tag(mut self, tag: impl AsRef<str>) -> Result<Self> {
        tags::check(tag.as_ref())?;
        self.tags.push(tag.as_ref().into());
        Ok(self)
    }
}

/// The state of the cache after a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheUpdate {
    /// The new value is cached.
    Stored,
    /// Another writer has shown a newer row, or the key was invalidated after the fence was taken.
    Older,
    /// Nothing is cached; the next reader loads.
    Removed,
    /// The store failed after the commit; nothing old outlives the fence.
    LeftToFence,
}

/// Writes rows through a cache.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, caching::{Cache, CacheUpdate, WriteThrough, Written}};
///
/// let store = Store::connect("memory://").await?;
/// let prices = Cache::<str, u64>::builder(&store, "shop", "price").build()?;
/// let write = WriteThrough::new(&prices);
///
/// let settled = write.put("anvil", async {
///     // UPDATE products SET price = 20, version = version + 1 … RETURNING version
///     Ok::<_, redstart::Error>(Written::row(20, 7))
/// }).await?;
/// assert_eq!(settled, CacheUpdate::Stored);
/// assert_eq!(prices.get("anvil").await?.unwrap().value.as_deref(), Some(&20));
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - **Before the commit** the key is fenced: leases end, no new ones are given, and what is cached lives no
///   longer than the fence. Readers without a value load without the cache meanwhile.
/// - **After the commit** the new value is stored if it is the newest that any writer has shown, by the row's
///   version. A write that has no version, or whose outcome is in doubt, removes what is cached. Then the writer's fence is
///   lifted.
/// - **Two writers**: W1 commits, W2 commits, W2 stores, W1 stores. W1's row is older and is not stored. Nor is a row whose
///   key was [invalidated](Cache::invalidate) while its write was under way.
/// - **A writer that dies** between commit and cache leaves its fence. Nothing is filled while that lasts, and
///   what was cached is gone when it ends: nothing old lives longer than the fence.
/// - Entries of other versions of the program under the same key are removed too.
///
/// # Limits
///
/// An invalidation while writes are under way also keeps those that begin before all of these have ended from storing their
/// row: the next reader loads it.
///
/// Cache and database are not one transaction: a reader may see the old value until the write is settled.
/// A commit that takes longer than half of its fence is in doubt; so is one whose future was dropped. Then the cached
/// value is removed and the fence is left to expire. The time is counted by this process. Where its clock stands still while the
/// machine is suspended, as on Linux, a commit that goes on afterwards is not noticed as late: its fence may have ended, and a
/// reader may have filled the old value meanwhile, until the write is settled.
///
/// # Keys
///
/// Those of the [cache](Cache#keys).
///
/// # Round trips
///
/// Two around the commit, one before and one after; one more beforehand to read the tags.
///
/// # While the store is down
///
/// The write is refused before the commit, because it could leave an old value behind. If the store fails after
/// the commit, the write has succeeded, and the fence does the rest ([`CacheUpdate::LeftToFence`]).
///
/// # Metrics
///
/// Operation: `cache.write`.
pub struct WriteThrough<K: ?Sized, V, C = Postcard> {
    cache: Cache<K, V, C>,
    lasts: Duration,
}

impl<K, V, C> WriteThrough<K, V, C>
where
    K: CacheKey + ?Sized,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// Writes through this cache, with fences of ten seconds.
    pub fn new(cache: &Cache<K, V, C>) -> Self {
        Self {
            cache: cache.clone(),
            lasts: Duration::from_secs(10),
        }
    }

    /// How long a fence lasts if its writer dies (default ten seconds). A commit may take half of it.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if it is under 10 ms or over an hour.
    pub fn fence_for(mut self, lasts: Duration) -> Result<Self> {
        if !(Duration::from_millis(10)..=Duration::from_secs(3600)).contains(&lasts) {
            return Err(Error::config("a fence must last from 10 ms to an hour"));
        }
        self.lasts = lasts;
        Ok(self)
    }

    /// Fences the key, runs the commit, and brings the cache up to date.
    ///
    /// # Errors
    ///
    /// Before the commit, those of the store: nothing was written. [`is_user`](Error::is_user) if the commit
    /// failed; [`is_timeout`](Error::is_timeout) if half of the fence passed before the commit had ended: [in doubt](Error::is_in_doubt) if
    /// it had begun; [`is_codec`](Error::is_codec) if the committed value cannot be encoded, which leaves the
    /// key uncached.
    ///
    /// # Cancel safety
    ///
    /// Dropped during the commit, nobody knows whether the row was changed: the cached value is removed and
    /// the fence is left to expire.
    pub async fn put<F, E>(&self, key: &K, commit: F) -> Result<CacheUpdate>
    where
        F: Future<Output = Result<Written<V>, E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let namespace = self.cache.inner.keys.namespace().clone();
        observe::operation("cache.write", &namespace, async {
            let fence = self.fence(key).await?;
            // Counted from before the fence was asked for: its reply may have come late, or the process may have stood still.
            let clock = self.cache.inner.store.clock();
            let left = (self.lasts / 2).saturating_sub(fence.elapsed());
            if left.is_zero() {
                fence.abandon().await;
                return Err(Error::timeout(format!(
                    "to fence the key took longer than {:?}, half of the fence: nothing was committed",
                    self.lasts / 2
                )));
            }
            let commit = tokio::select! {
                biased;
                committed = commit => Some(committed),
                () = clock.sleep(left) => None,
            };
            match commit {
                Some(Ok(written)) => fence.settle(written).await,
                Some(Err(error)) => {
                    fence.abandon().await;
                    Err(Error::user("the commit failed", error))
                }
                // Dropping the fence states the doubt.
                None => Err(Error::timeout(format!(
                    "the commit took longer than {:?}, half of its fence",
                    self.lasts / 2
                ))
                .doubt(true)),
            }
        })
        .await
    }

    /// Fences a key. Commit, and then [`settle`](Fence::settle); for commits that do not fit in one future.
    ///
    /// # Errors
    ///
    /// Those of the store, and [`is_config`](Error::is_config) for an invalid key. Do not commit then.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, a fence may be left until it expires.
    pub async fn fence(&self, key: &K) -> Result<Fence<V, C>> {
        let inner = &self.cache.inner;
        let name = key.name();
        let entity = inner.keys.entity(&name)?;
        let token = token();
        let taken = inner.store.clock().now();
        // Before the commit, as a loader's is before its load.
        let snapshot = inner.tags.snapshot(&inner.store).await?;
        FENCE
            .on(&entity)
            .key()
            .part("lease")
            .part("fence")
            .arg(&token)
            .arg(millis(self.lasts))
            .arg(entity.channel("wake"))
            .arg(&inner.bus)
            .arg(format!("k{name}"))
            // The same token fences once.
            .idempotent()
            .run::<()>(&inner.store)
            .await?;
        inner.forget(&name);
        Ok(Fence {
            inner: inner.clone(),
            name: name.into(),
            entity,
            token,
            snapshot,
            taken,
            settled: false,
        })
    }
}

/// A fence around one key. Dropped without being settled, it removes the cached value and lasts until it expires,
/// because nobody knows whether the row was changed.
#[must_use = "a fence lasts until it is settled or expires"]
pub struct Fence<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    inner: Arc<Inner<V, C>>,
    name: Arc<str>,
    entity: Entity,
    token: String,
    snapshot: Snapshot,
    taken: Instant,
    settled: bool,
}

enum End<'a> {
    Set {
        bytes: &'a [u8],
        keep: Duration,
        version: [u8; 8],
    },
    Remove,
    Doubt,
}

impl<V, C> Fence<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// How long ago the fence was asked for, by the clock that its end follows too.
    fn elapsed(&self) -> Duration {
        let now = self.inner.store.clock().now();
        now.saturating_duration_since(self.taken)
    }

    /// After the commit: brings the cache up to date and lifts the fence.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the value cannot be encoded; it is not cached then. A store that fails
    /// is not an error: the row is committed, and the fence does the rest.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the cached value is removed or is the new one.
    pub async fn settle(mut self, written: Written<V>) -> Result<CacheUpdate> {
        let Some((value, version)) = written.row else {
            return Ok(self.end(End::Remove).await);
        };
        let notes = super::cache::notes(written.tags, version);
        let sealed = self
            .inner
            .seal(value.as_ref(), &notes, Some(&self.snapshot), self.elapsed());
        let sealed = match sealed {
            Ok(Some(sealed)) => sealed,
            Ok(None) => return Ok(self.end(End::Remove).await),
            Err(error) => {
                self.end(End::Remove).await;
                return Err(error);
            }
        };
        self.inner
            .index_entry(&self.name, &sealed)
            .await
            .or_else(|error| {
                if error.is_store_down() {
                    Ok(())
                } else {
                    Err(error)
                }
            })?;
        Ok(self
            .end(End::Set {
                bytes: &sealed.bytes,
                keep: sealed.meta.keep,
                version: version.to_be_bytes(),
            })
            .await)
    }

    /// The row was not changed: lifts the fence. The cached value is removed anyway.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the fence may be left until it expires.
    pub async fn abandon(mut self) {
        self.end(End::Remove).await;
    }

    async fn end(&mut self, end: End<'_>) -> CacheUpdate {
        let settled = settle(&self.inner, &self.name, &self.entity, &self.token, end).await;
        self.settled = true;
        settled
    }
}

async fn settle<V, C>(
    inner: &Inner<V, C>,
    name: &str,
    entity: &Entity,
    token: &str,
    end: End<'_>,
) -> CacheUpdate
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    let (verb, bytes, keep, version): (_, &[u8], _, &[u8]) = match &end {
        End::Set {
            bytes,
            keep,
            version,
        } => ("set", bytes, *keep, version),
        End::Remove => ("remove", b"", Duration::ZERO, b""),
        End::Doubt => ("doubt", b"", Duration::ZERO, b""),
    };
    let outcome = SETTLE
        .on(entity)
        .key()
        .part("lease")
        .part("fence")
        .part(&inner.beside)
        .arg(token)
        .arg(verb)
        .arg(bytes)
        .arg(millis(keep).max(1))
        .arg(version)
        .arg(entity.channel("wake"))
        .arg(&inner.bus)
        .arg(format!("k{name}"))
        // The second time its token is gone: what is cached is removed, which is always right.
        .idempotent()
        .run::<String>(&inner.store)
        .await;
    inner.forget(name);
    match outcome.as_deref() {
        Ok("set") => CacheUpdate::Stored,
        Ok("older") => CacheUpdate::Older,
        Ok(_) => CacheUpdate::Removed,
        Err(error) => {
            tracing::debug!(%error, "a write could not be settled; its fence will expire");
            CacheUpdate::LeftToFence
        }
    }
}

impl<V, C> Drop for Fence<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let (inner, name, entity) = (self.inner.clone(), self.name.clone(), self.entity.clone());
        let token = std::mem::take(&mut self.token);
        self.inner.store.defer(async move {
            settle(&inner, &name, &entity, &token, End::Doubt).await;
        });
    }
}
