//! A counter that can be handed over without losing a count.
//!
//! # Promise
//!
//! - [`add`](Counter::add) is atomic, and the lifetime is set by the same step that counts.
//! - [`take`](Counter::take) reads and resets in one step: no count falls between the two.
//! - [`drain`](Counter::drain) hands the count out under an id and keeps it until [`ack`](Counter::ack). If the
//!   reply is lost or the process dies, the next `drain` hands out the same batch with the same id. So the sum
//!   of acknowledged batches and the rest is always the sum of what was added.
//!
//! # Not promised
//!
//! A batch may be handed out twice (two drainers, or one that died before its `ack`). Store the id with the
//! sum in your database, in one transaction, and ignore an id that is there already.
//!
//! An `add` whose reply was lost is [in doubt](crate::Error::is_in_doubt) and is not repeated.
//!
//! # Keys and cost
//!
//! `<ns>:counter:{<name>}` holds the count, `…:batch` the batch that is out. Each call is one round trip.
//! While the store is down every call fails; nothing is counted locally.
//!
//! Operations: `counter.add`, `counter.get`, `counter.take`, `counter.drain`, `counter.ack`.

use crate::{
    counting::Keep,
    error::{Error, Result},
    key::{Keys, Layout},
    observe,
    script::Script,
    store::Store,
};

static ADD: Script = Script::new("counter.add", include_str!("counter/add.lua"));
static TAKE: Script = Script::new("counter.take", include_str!("counter/take.lua"));
static DRAIN: Script = Script::new("counter.drain", include_str!("counter/drain.lua"));
static ACK: Script = Script::new("counter.ack", include_str!("counter/ack.lua"));

/// Counters of one namespace. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, counting::{Counter, Keep}};
/// let store = Store::connect("memory://").await?;
/// let clicks = Counter::new(&store, "clicks", Keep::Forever)?;
///
/// clicks.add("banner", 3).await?;
/// assert_eq!(clicks.add("banner", 4).await?, 7);
///
/// // Hand the count to a database, crash-safe.
/// let batch = clicks.drain("banner").await?.expect("something was counted");
/// assert_eq!(batch.count, 7);
/// // … INSERT the sum with batch.id as its unique key, then:
/// assert!(clicks.ack("banner", &batch.id).await?);
/// assert_eq!(clicks.get("banner").await?, 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Counter {
    store: Store,
    keys: Keys,
    keep: Keep,
}

/// What [`Counter::drain`] handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Batch {
    /// Names the batch for [`Counter::ack`] and for the receiver's duplicate check.
    pub id: String,
    /// What was counted since the batch before.
    pub count: i64,
}

impl Counter {
    /// Counters in `namespace`, each kept since its last `add` for the given time.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or a lifetime of zero.
    pub fn new(store: &Store, namespace: &str, keep: Keep) -> Result<Self> {
        Ok(Self {
            store: store.clone(),
            keys: Keys::new(namespace, "counter")?,
            keep: keep.check()?,
        })
    }

    /// The same counters under keys that the application already has.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.keys = self.keys.layout(layout);
        self
    }

    /// Adds `n`, which may be negative, and returns the count.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query); the server's own if the count would leave the range of an `i64`.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, it may or may not have counted.
    pub async fn add(&self, name: &str, n: i64) -> Result<i64> {
        let entity = self.keys.entity(name)?;
        observe::operation("counter.add", self.keys.namespace(), async {
            ADD.on(&entity)
                .key()
                .arg(n)
                .arg(self.keep.millis())
                .run(&self.store)
                .await
        })
        .await
    }

    /// The count; 0 if nothing was counted.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn get(&self, name: &str) -> Result<i64> {
        let entity = self.keys.entity(name)?;
        observe::operation("counter.get", self.keys.namespace(), async {
            let count: Option<i64> = self
                .store
                .query(redis::cmd("GET").arg(entity.key()))
                .await?;
            Ok(count.unwrap_or(0))
        })
        .await
    }

    /// Reads the count and sets it to 0 in one step. Its lifetime goes on as it was.
    ///
    /// If the reply is lost, so is the count; use [`drain`](Self::drain) where that matters.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the count may be gone.
    pub async fn take(&self, name: &str) -> Result<i64> {
        let entity = self.keys.entity(name)?;
        observe::operation("counter.take", self.keys.namespace(), async {
            TAKE.on(&entity).key().run(&self.store).await
        })
        .await
    }

    /// Hands out what was counted, under an id, and keeps it until [`ack`](Self::ack). The batch that is out
    /// already is handed out again first. `None` if there is nothing.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query). No count is lost by any of them: ask again.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any time, the next call hands out the same batch.
    pub async fn drain(&self, name: &str) -> Result<Option<Batch>> {
        let entity = self.keys.entity(name)?;
        let id = format!("{:032x}", rand::random::<u128>());
        observe::operation("counter.drain", self.keys.namespace(), async {
            // A batch that is out is returned as it is, so sending this twice is harmless.
            let call = DRAIN.on(&entity).key().part("batch").arg(id).idempotent();
            let batch: Option<(String, i64)> = call.run(&self.store).await?;
            Ok(batch.map(|(id, count)| Batch { id, count }))
        })
        .await
    }

    /// Forgets a batch that has arrived. `false` if it was not the one that is out: acknowledged before.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query), and [`is_config`](Error::is_config) for an empty id.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the batch may be handed out once more.
    pub async fn ack(&self, name: &str, id: &str) -> Result<bool> {
        if id.is_empty() {
            return Err(Error::config("a batch's id is not empty"));
        }
        let entity = self.keys.entity(name)?;
        observe::operation("counter.ack", self.keys.namespace(), async {
            ACK.on(&entity)
                .part("batch")
                .arg(id)
                .idempotent()
                .run(&self.store)
                .await
        })
        .await
    }
}
