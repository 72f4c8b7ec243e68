//! A counter whose count can be handed over without losing any.

use crate::{
    counting::Keep,
    error::{Error, Result},
    key::{Keys, Layout},
    observe,
    script::Script,
    store::Store,
    token::token,
};

pub(super) static ADD: Script = Script::new("counter.add", include_str!("counter/add.lua"));
pub(super) static TAKE: Script = Script::new("counter.take", include_str!("counter/take.lua"));
pub(super) static DRAIN: Script = Script::new("counter.drain", include_str!("counter/drain.lua"));
pub(super) static ACK: Script = Script::new("counter.ack", include_str!("counter/ack.lua"));

/// Exact counters, with a hand-over that loses no count.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, counting::{Counter, Keep}};
/// let store = Store::connect("memory://").await?;
/// let clicks = Counter::new(&store, "shop", "clicks", Keep::Forever)?;
///
/// clicks.add("banner", 3).await?;
/// assert_eq!(clicks.add("banner", 4).await?, 7);
///
/// // Hand the count to a database, crash-safe.
/// let drained = clicks.drain("banner").await?.expect("something was counted");
/// assert_eq!(drained.count, 7);
/// // … INSERT the sum with drained.id as its unique key, then:
/// assert!(clicks.ack("banner", &drained.id).await?);
/// assert_eq!(clicks.get("banner").await?, 0);
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - [`add`](Self::add) is atomic, and the script that counts also sets the lifetime. The lifetime starts at the
///   last `add`.
/// - [`take`](Self::take) reads and resets in one step: no count is lost between the two.
/// - [`drain`](Self::drain) hands the count out under an id and keeps it until [`ack`](Self::ack). If the reply is
///   lost or the process dies, the next `drain` returns the same count with the same id. The sum of all
///   acknowledged counts plus the rest is always the sum of what was added.
///
/// # Limits
///
/// A count may be handed out twice (two drainers, or one that died before its `ack`). Store the id with the sum in
/// your database, in one transaction, and ignore an id that is there already.
///
/// An `add` whose reply was lost is [in doubt](crate::Error::is_in_doubt) and is not repeated.
///
/// # Keys
///
/// `<ns>:counter.<name>:{<counter>}` holds the count, `…:batch` the drained count until it is acknowledged.
///
/// # Round trips
///
/// One per call.
///
/// # While the store is down
///
/// Every call fails. Nothing is counted locally.
///
/// # Metrics
///
/// Operations: `counter.add`, `counter.get`, `counter.take`, `counter.drain`, `counter.ack`.
#[derive(Clone, Debug)]
pub struct Counter {
    store: Store,
    keys: Keys,
    keep: Keep,
}

/// What [`Counter::drain`] handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a drained count is handed out again until it is acknowledged"]
pub struct Drained {
    /// Identifies the count, for [`Counter::ack`] and for the receiver's duplicate check.
    pub id: String,
    /// What was counted since the last acknowledged `drain`.
    pub count: i64,
}

/// Settings of [`Counter`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct CounterBuilder {
    store: Store,
    namespace: String,
    name: String,
    keep: Keep,
    layout: Option<Layout>,
}

impl CounterBuilder {
    /// Uses keys that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Builds the counters.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name, or a lifetime of zero.
    pub fn build(self) -> Result<Counter> {
        let mut keys = Keys::named(&self.namespace, "counter", &self.name)?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(Counter {
            store: self.store,
            keys,
            keep: self.keep.check()?,
        })
    }
}

impl Counter {
    /// Builds the counters `name`, each kept for the given time after its last `add`.
    pub fn builder(store: &Store, namespace: &str, name: &str, keep: Keep) -> CounterBuilder {
        CounterBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            keep,
            layout: None,
        }
    }

    /// The counters `name` with default settings.
    ///
    /// # Errors
    ///
    /// As [`CounterBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str, keep: Keep) -> Result<Self> {
        Self::builder(store, namespace, name, keep).build()
    }

    /// Adds `n`, which may be negative, and returns the count.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query); the server's own if the count would leave the range of an `i64`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `n` may or may not have been added.
    pub async fn add(&self, counter: &str, n: i64) -> Result<i64> {
        let entity = self.keys.entity(counter)?;
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
    pub async fn get(&self, counter: &str) -> Result<i64> {
        let entity = self.keys.entity(counter)?;
        observe::operation("counter.get", self.keys.namespace(), async {
            let reads = self.store.stale_reads();
            let count: Option<i64> = reads.query(redis::cmd("GET").arg(entity.key())).await?;
            Ok(count.unwrap_or(0))
        })
        .await
    }

    /// Reads the count and sets it to 0 in one step. The remaining lifetime stays as it is.
    ///
    /// If the reply is lost, so is the count; use [`drain`](Self::drain) where that matters.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the count may be lost.
    pub async fn take(&self, counter: &str) -> Result<i64> {
        let entity = self.keys.entity(counter)?;
        observe::operation("counter.take", self.keys.namespace(), async {
            TAKE.on(&entity).key().run(&self.store).await
        })
        .await
    }

    /// Hands out what was counted, under an id, and keeps it until [`ack`](Self::ack). A count that is still
    /// outstanding is handed out again first. `None` if there is nothing.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query). No error loses a count: call it again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped at any time, the next call hands out the same count.
    pub async fn drain(&self, counter: &str) -> Result<Option<Drained>> {
        let entity = self.keys.entity(counter)?;
        observe::operation("counter.drain", self.keys.namespace(), async {
            // An outstanding count is returned unchanged, so sending this twice is harmless.
            let call = DRAIN.on(&entity).key().part("batch");
            let drained: Option<(String, i64)> =
                call.arg(token()).idempotent().run(&self.store).await?;
            Ok(drained.map(|(id, count)| Drained { id, count }))
        })
        .await
    }

    /// Forgets a drained count that has arrived. `false` if it is not outstanding: it was acknowledged before.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query), and [`is_config`](Error::is_config) for an empty id. After another error it may be
    /// forgotten: call it again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the count may be handed out once more.
    pub async fn ack(&self, counter: &str, id: &str) -> Result<bool> {
        if id.is_empty() {
            return Err(Error::config("the id of a drained count must not be empty"));
        }
        let entity = self.keys.entity(counter)?;
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
