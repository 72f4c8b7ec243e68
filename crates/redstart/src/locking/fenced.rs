//! Values that refuse writes of stale lock holders.

use super::fence::{FenceToken, sealed::Sealed};
use crate::{
    error::Result,
    key::{Keys, Layout},
    observe,
    script::Script,
    store::Store,
};

pub(super) static WRITE: Script = Script::new("fenced.write", include_str!("fenced/write.lua"));

/// What became of a fenced write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a stale write changed nothing"]
pub enum FencedWrite {
    /// It was written.
    Done,
    /// A higher token was seen before; nothing was changed.
    Stale {
        /// The highest token seen.
        highest: FenceToken,
    },
}

/// Values that only the newest lock holder can change. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, locking::{FencedValues, FencedWrite, Mutex}};
/// let store = Store::connect("memory://").await?;
/// let mutex = Mutex::new(&store, "shop", "order:5001")?;
/// let orders = FencedValues::new(&store, "shop", "orders")?;
///
/// let guard = mutex.try_lock().await?.expect("nobody else holds it");
/// let old = guard.fence();
/// guard.release().await?;
///
/// let guard = mutex.try_lock().await?.expect("it was released");
/// assert_eq!(orders.set("5001", "paid", guard.fence()).await?, FencedWrite::Done);
/// // The first holder resumes and still believes that it holds the lock.
/// let late = orders.set("5001", "cancelled", old).await?;
/// assert!(matches!(late, FencedWrite::Stale { .. }));
/// assert_eq!(orders.get("5001").await?.as_deref(), Some(&b"paid"[..]));
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// The comparison and the write are one script: no write with a lower [token](FenceToken) lands after a write with a
/// higher one.
///
/// # Keys
///
/// | key | type | TTL |
/// |---|---|---|
/// | `<namespace>:fenced.<name>:{<entity>}` | hash: `fence`, `value` | none: without the highest token, old tokens would be accepted again |
///
/// # Round trips
///
/// One for each operation: a script of two or three commands, or one HGET.
///
/// # While the store is down
///
/// Writes fail, and nothing is written.
///
/// # Metrics
///
/// Operations `fenced.write` and `fenced.read`; event `fenced.stale`.
#[derive(Clone, Debug)]
pub struct FencedValues {
    store: Store,
    keys: Keys,
}

/// The settings of [`FencedValues`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct FencedValuesBuilder {
    store: Store,
    namespace: String,
    name: String,
    layout: Option<Layout>,
}

impl FencedValuesBuilder {
    /// Uses keys that the application already has; see [`Layout`].
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Makes the values. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a namespace or name that breaks the
    /// [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<FencedValues> {
        let mut keys = Keys::named(&self.namespace, "fenced", &self.name)?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(FencedValues {
            store: self.store,
            keys,
        })
    }
}

impl FencedValues {
    /// Starts with the values `name` in `namespace`.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> FencedValuesBuilder {
        FencedValuesBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            layout: None,
        }
    }

    /// The values `name` in `namespace`, with all defaults.
    ///
    /// # Errors
    ///
    /// Those of [`FencedValuesBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Writes a value, unless a higher token was seen before. A holder may write any number of times.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for an empty or too long entity, and those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value may have been written; never with a stale token.
    pub async fn set(
        &self,
        entity: &str,
        value: impl AsRef<[u8]>,
        fence: FenceToken,
    ) -> Result<FencedWrite> {
        self.write(entity, "set", value.as_ref(), fence).await
    }

    /// Deletes a value under the same rule. The highest token stays.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Self::set).
    ///
    /// # Cancel safety
    ///
    /// As [`set`](Self::set).
    pub async fn delete(&self, entity: &str, fence: FenceToken) -> Result<FencedWrite> {
        self.write(entity, "delete", b"", fence).await
    }

    /// Only records the token: from now on lower ones are refused. A new holder that starts with a long computation can
    /// lock out its predecessors at once.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Self::set).
    ///
    /// # Cancel safety
    ///
    /// As [`set`](Self::set).
    pub async fn admit(&self, entity: &str, fence: FenceToken) -> Result<FencedWrite> {
        self.write(entity, "admit", b"", fence).await
    }

    async fn write(
        &self,
        entity: &str,
        verb: &'static str,
        value: &[u8],
        fence: FenceToken,
    ) -> Result<FencedWrite> {
        observe::operation("fenced.write", self.keys.namespace(), async {
            let entity = self.keys.entity(entity)?;
            let (done, highest): (i64, u64) = WRITE
                .on(&entity)
                .key()
                .arg(fence.get())
                .arg(verb)
                .arg(value)
                // The same token may write the same value twice.
                .idempotent()
                .run(&self.store)
                .await?;
            if done == 1 {
                return Ok(FencedWrite::Done);
            }
            observe::event("fenced.stale");
            Ok(FencedWrite::Stale {
                highest: Sealed::issued(highest),
            })
        })
        .await
    }

    /// The value, if there is one.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Self::set).
    pub async fn get(&self, entity: &str) -> Result<Option<Vec<u8>>> {
        self.read(entity, "value").await
    }

    /// The highest token seen, if there was one.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Self::set).
    pub async fn highest(&self, entity: &str) -> Result<Option<FenceToken>> {
        let highest: Option<u64> = self.read(entity, "fence").await?;
        highest.map(FenceToken::new).transpose()
    }

    async fn read<T: redis::FromRedisValue>(
        &self,
        entity: &str,
        field: &'static str,
    ) -> Result<Option<T>> {
        observe::operation("fenced.read", self.keys.namespace(), async {
            let entity = self.keys.entity(entity)?;
            self.store
                .query(redis::cmd("HGET").arg(entity.key()).arg(field))
                .await
        })
        .await
    }
}
