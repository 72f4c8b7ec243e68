//! Idempotency keys: a request that arrives twice is carried out once and answered twice.

mod builder;
mod claim;
mod run;

use std::sync::Arc;

use crate::{
    Down, duration::millis, error::Result, key::Keys, observe, script::Script, store::Store,
};
use claim::LATE_CLAIM;

pub use builder::IdempotencyBuilder;
pub use run::{Run, WorkError};

pub(super) static BEGIN: Script = Script::new(
    "idempotency.begin",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("idempotency/keep.lua"),
        include_str!("idempotency/begin.lua")
    ),
);
pub(super) static RENEW: Script = Script::new(
    "idempotency.renew",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("idempotency/keep.lua"),
        include_str!("idempotency/renew.lua")
    ),
);
pub(super) static FINISH: Script = Script::new(
    "idempotency.finish",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("idempotency/keep.lua"),
        include_str!("idempotency/finish.lua")
    ),
);
pub(super) static RELEASE: Script = Script::new(
    "idempotency.release",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("idempotency/release.lua")
    ),
);
pub(super) static DOUBT: Script = Script::new(
    "idempotency.doubt",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("idempotency/keep.lua"),
        include_str!("idempotency/doubt.lua")
    ),
);

pub(super) static FORGET: Script = Script::new(
    "idempotency.forget",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("idempotency/forget.lua")
    ),
);

/// Idempotency keys: a request that arrives twice is carried out once and answered twice. Cheap to clone.
///
/// A client that got no answer does not know whether its request was carried out. It repeats the request under the
/// same key. The first request claims the key and leaves its result there; the repeat gets that result.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, resilience::{Idempotency, Run, WorkError}};
///
/// # async fn charge(_cents: u32) -> Result<String, &'static str> { Ok("receipt 17".to_owned()) }
/// let store = Store::connect("memory://").await?;
/// let payments = Idempotency::new(&store, "shop", "payments")?;
///
/// for _ in 0..2 {
///     match payments.run("key-1", b"pay 500", async { Ok(charge(500).await?) }).await? {
///         Run::Done(receipt) | Run::Replayed(receipt) => assert_eq!(receipt, "receipt 17"),
///         Run::NotDone(refusal) => println!("nothing was charged: {refusal}"),
///         Run::Busy { retry_after } => println!("the first request is still running, ask in {retry_after:?}"),
///         Run::Mismatch => println!("this key belongs to another request"),
///         Run::Unknown(_) => println!("find out whether the charge happened, then forget() the key"),
///     }
/// }
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - Of all runs with one key, only one executes at a time. A repeat meanwhile is [`Run::Busy`].
/// - The work runs in a task of its own. A caller that goes away (an HTTP server drops a handler when its client hangs
///   up) neither stops it nor frees the key.
/// - The result of a finished run is given to every repeat until its TTL ends. If it cannot be written at once, writing
///   is repeated in the background, also after the lease has ended, unless another run has the key.
/// - A key that arrives with another request (another fingerprint) is [`Run::Mismatch`].
/// - Work that started is never taken for work that did not happen: after a panic, a
///   [`WorkError::Unknown`], or the death of the process, repeats get [`Run::Unknown`] and not a second execution.
/// - A `run` that fails or is dropped before the work started leaves the key free. If the claim may have reached the
///   store, it is called off in the background; while the store is down for up to five minutes, or TTL and lease if these are
///   shorter. A claim that reaches the store after it was called off is refused for a minute, or for the lease if that is
///   longer; of at most a thousand runs of a key in that time.
///
/// # Limits
///
/// The work itself is not made atomic with the record of it. What happened in a process that died is
/// unknown until somebody looks, also if a caller was told [`Run::Done`] and the store could not be told before the
/// process died; [`repeat_unknown`](IdempotencyBuilder::repeat_unknown) runs such work again instead, for
/// work that may happen twice. Results are encoded with [`Postcard`](crate::codec::Postcard); a result of another Rust
/// type is an error, not a wrong value. A key that the server evicted, or lost in a crash or a failover, is forgotten, and its work
/// runs again, also beside a run that has claimed it before: use a server that does not evict.
///
/// If the lease ends before the work has started, for example because the process was paused, the run claims the key again
/// before it starts the work. A run that is paused while it works continues, and so does one whose machine was suspended, which
/// stops its monotonic clock too: with [`repeat_unknown`](IdempotencyBuilder::repeat_unknown), or if the key was
/// [forgotten](Self::forget) meanwhile, another run may have carried the work out.
///
/// # Keys
///
/// `<namespace>:idempotency.<name>:{<key>}`, a hash. It expires with the TTL, or with the marks of runs that were called off.
///
/// # Round trips
///
/// One before the work and one after it; one for each third of the lease while it runs.
///
/// # While the store is down
///
/// By [`on_store_down`](IdempotencyBuilder::on_store_down): [`Down::Fail`] returns the error, [`Down::Refuse`] answers
/// [`Run::Busy`], and [`Down::Allow`] carries the work out unprotected. Work that is not carried out is dropped before
/// the answer, with all it holds.
///
/// # Metrics
///
/// Operations: `idempotency.begin`, `idempotency.finish`, `idempotency.release`, `idempotency.doubt`,
/// `idempotency.forget`. Events: `idempotency.replayed`, `idempotency.busy`, `idempotency.mismatch`,
/// `idempotency.unknown`, `idempotency.late` (a result was not written at the first attempt), `idempotency.lost` (another
/// run has the key), `idempotency.store_down`.
#[derive(Clone, Debug)]
pub struct Idempotency(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    keys: Keys,
    ttl: std::time::Duration,
    lease: std::time::Duration,
    repeat_unknown: bool,
    down: Down,
}

impl Idempotency {
    /// The settings of the idempotency keys `name` in a namespace.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> IdempotencyBuilder {
        IdempotencyBuilder::new(store, namespace, name)
    }

    /// Idempotency keys with the default settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a bad namespace or name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Forgets what is recorded under a key, so that the next run carries its work out. For a run whose outcome was
    /// [unknown](Run::Unknown), once it is certain that nothing happened. A claim of that run that reaches the store after
    /// this is refused, as one that was called off.
    ///
    /// Returns `false` if a run has the key and its lease goes on: that run is not disturbed.
    ///
    /// # Errors
    ///
    /// The store's errors, and [`is_config`](crate::Error::is_config) for an empty or overlong key.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the key may or may not be forgotten, perhaps only later.
    pub async fn forget(&self, key: &str) -> Result<bool> {
        let inner = &*self.0;
        observe::operation("idempotency.forget", inner.keys.namespace(), async {
            let entity = inner.keys.entity(key)?;
            let call = FORGET.on(&entity).key();
            let refused_for = inner.lease.max(LATE_CLAIM);
            call.arg(millis(refused_for))
                .run::<bool>(&inner.store)
                .await
        })
        .await
    }
}
