//! Circuit breaker: the whole fleet stops calling a dependency that fails, for a while.
//!
//! What is passed from one part to the next:
//!
//! ```text
//! Breaker ── try_admit ──> Admission ── succeeded / failed ──> CallOutcome
//!    │                        │                                   │ closed: pending, sent by `report`
//!    │ Policy                 │ half-open: a probe, a lease        │ probe: sent at once
//!    v                        v                                   v
//!  View (shared circuit as this instance knows it)  <── answers, messages ──  circuit in the store
//!  Local (a breaker of this process alone, while the store is down)
//! ```

mod admission;
mod builder;
mod keep;
mod local;
mod policy;
mod probe;
mod report;
mod view;

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    task::AbortHandle,
};

use crate::{
    duration::{micros, millis},
    error::Result,
    key::Entity,
    observe,
    script::{Call, Script},
    store::{Clock, Store},
    watch,
};
use local::Local;
use policy::Policy;
use report::Pending;
use view::View;

pub use admission::{Admission, Admitted};
pub use builder::BreakerBuilder;
pub use policy::CallWindow;

pub(super) static LOOK: Script = Script::new(
    "breaker.look",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("breaker/circuit.lua"),
        include_str!("breaker/look.lua")
    ),
);
pub(super) static RETURN: Script = Script::new(
    "breaker.return",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("breaker/circuit.lua"),
        include_str!("breaker/return.lua")
    ),
);
pub(super) static FORCE: Script = Script::new(
    "breaker.force",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("breaker/circuit.lua"),
        include_str!("breaker/force.lua")
    ),
);
pub(super) static REPORT_COUNT: Script = Script::new(
    "breaker.report_count",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("breaker/circuit.lua"),
        include_str!("breaker/judge.lua"),
        include_str!("breaker/report_count.lua")
    ),
);
pub(super) static REPORT_TIME: Script = Script::new(
    "breaker.report_time",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("breaker/circuit.lua"),
        include_str!("breaker/judge.lua"),
        include_str!("breaker/report_time.lua")
    ),
);
pub(super) static ADMIT: Script = Script::new(
    "breaker.admit",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("breaker/circuit.lua"),
        include_str!("breaker/admit.lua")
    ),
);
pub(super) static PROBED: Script = Script::new(
    "breaker.probed",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("breaker/circuit.lua"),
        include_str!("breaker/probed.lua")
    ),
);

/// The state of a circuit, as far as this instance knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CircuitState {
    /// Calls go through.
    Closed,
    /// Calls are refused.
    Open,
    /// Probes go through.
    HalfOpen,
}

struct Inner {
    store: Store,
    clock: Clock,
    entity: Entity,
    /// Parts of the entity, named after the window.
    window: String,
    trouble: String,
    policy: Policy,
    instance: String,
    keep: Duration,
    view: Mutex<View>,
    local: Mutex<Local>,
    pending: Mutex<Pending>,
    /// One report at a time.
    reporting: AsyncMutex<()>,
    wake: Notify,
    changes: watch::Sender<CircuitState>,
}

impl Inner {
    /// A call of a script with the keys and arguments that all of them begin with.
    fn script(&self, script: &'static Script) -> Call<'_> {
        self.script_open_for(script, self.policy.open_for)
    }

    fn script_open_for(&self, script: &'static Script, open_for: Duration) -> Call<'_> {
        script
            .on(&self.entity)
            .key()
            .part(&self.window)
            .part("probes")
            .part(&self.trouble)
            .arg(self.entity.channel("state"))
            .arg(millis(self.keep))
            .arg(micros(open_for))
            .arg(self.policy.probes)
    }
}

/// Ends the background task with the last handle.
struct Owner {
    inner: Arc<Inner>,
    keeper: AbortHandle,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// Circuit breaker: the whole fleet stops calling a dependency that fails, for a while. Cheap to clone.
///
/// Closed, every call goes through. Too many failures (or slow calls) open the circuit, and calls are refused at once.
/// After a while it is half-open: a few probes go through, and their results close it or open it again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, resilience::{Breaker, CallError, CallWindow}};
/// use std::time::Duration;
///
/// let store = Store::connect("memory://").await?;
/// let payments = Breaker::builder(&store, "shop", "payments")
///     .window(CallWindow::Count(20))
///     .failure_rate(0.5)
///     .min_calls(4)
///     .open_for(Duration::from_secs(30))
///     .open()
///     .await?;
///
/// for _ in 0..4 {
///     let result: Result<(), _> = payments.call(async || Err("connection refused")).await;
///     assert!(matches!(result, Err(CallError::Failed(_))));
/// }
/// payments.flush().await?;
/// let refused = payments.call(async || Ok::<_, &str>("paid")).await;
/// assert!(matches!(refused, Err(CallError::Open { .. })));
///
/// store.advance(Duration::from_secs(30))?;
/// let probe = payments.call(async || Ok::<_, &str>("paid")).await;
/// assert!(probe.is_ok());
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - One circuit for all instances. Its changes are one script, timed by the server.
/// - Half-open, at most the configured number of [probes](BreakerBuilder::probes) is under way at once *over the whole
///   fleet*, each as a lease by the server's time. The place of a probe whose process died is free when its lease ends;
///   that of a cancelled call is free at once.
/// - A result counts only in the generation in which its call was admitted. Late results of an older generation, and of
///   probes whose lease is over, are dropped.
/// - One bad machine does not open the circuit for all, if
///   [`distinct_instances`](BreakerBuilder::distinct_instances) asks for trouble seen by several.
///
/// # Limits
///
/// An instance learns of a change by a message, or, if that was lost, when its view is
/// [refreshed](BreakerBuilder::refresh). Until then it lets calls through that the circuit would refuse; their
/// results are dropped.
///
/// # Keys
///
/// `<namespace>:breaker:{<name>}` and its parts `probes`, `window:<window>` and `trouble:<window>`; sharded channel
/// `state`. All of them expire when the circuit was quiet for long enough. Instances with different windows share the
/// circuit, but not what they count.
///
/// # Round trips
///
/// None per call while closed or open. Outcomes are reported in the background: at once after a failure, but not more
/// often than every 50 ms, otherwise every second; only what is new is sent. The admission of a probe and its result are
/// one script each.
///
/// # While the store is down
///
/// Each instance breaks alone by the same policy, starting from the last known state of the shared circuit. The same holds
/// while the store refuses writes (no memory, a full disk, too few replicas): the shared circuit is in force again when it
/// takes them.
///
/// # Metrics
///
/// Operations: `breaker.admit`, `breaker.report`, `breaker.force`. Events: `breaker.rejected`, `breaker.probe`,
/// `breaker.opened`, `breaker.half_open`, `breaker.closed` (as seen by this instance), `breaker.store_down`.
#[derive(Clone)]
pub struct Breaker(Arc<Owner>);

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker")
            .field("key", self.0.inner.entity.key())
            .field("policy", &self.0.inner.policy)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Why a call has no result.
#[derive(Debug, PartialEq, Eq)]
pub enum CallError<E> {
    /// The circuit is open: nothing was called.
    Open {
        /// When it is worth trying again.
        retry_after: Duration,
    },
    /// The call was made and failed.
    Failed(E),
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { retry_after } => {
                write!(f, "the circuit is open, try again in {retry_after:?}")
            }
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for CallError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open { .. } => None,
            Self::Failed(error) => Some(error),
        }
    }
}

impl Breaker {
    /// The settings of the breaker `name` in a namespace. Have one breaker per dependency.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> BreakerBuilder {
        BreakerBuilder::new(store, namespace, name)
    }

    /// The state of the circuit, as far as this instance knows. No round trip.
    pub fn state(&self) -> CircuitState {
        self.0.inner.state()
    }

    /// The changes of the circuit that this instance sees from now on.
    pub fn changes(&self) -> CircuitChanges {
        let changes = self.0.inner.changes.subscribe();
        CircuitChanges(changes)
    }

    /// Makes the call if the circuit lets it through. An `Err` is a failure.
    ///
    /// # Errors
    ///
    /// [`CallError::Open`] if it was not made, [`CallError::Failed`] with its own error if it failed.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the call is dropped and counts neither way; a probe's place is free.
    pub async fn call<T, E>(
        &self,
        call: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<T, CallError<E>> {
        self.call_if(call, |_| true).await
    }

    /// [`call`](Self::call) with a predicate for failures: a refused request may be the caller's own fault.
    ///
    /// # Errors
    ///
    /// Those of [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// That of [`call`](Self::call).
    pub async fn call_if<T, E>(
        &self,
        call: impl AsyncFnOnce() -> Result<T, E>,
        is_failure: impl FnOnce(&E) -> bool,
    ) -> Result<T, CallError<E>> {
        let admission = match self.try_admit().await {
            Admitted::Yes(admission) => admission,
            Admitted::No { retry_after } => return Err(CallError::Open { retry_after }),
        };
        match call().await {
            Ok(value) => {
                admission.succeeded().await;
                Ok(value)
            }
            Err(error) => {
                if is_failure(&error) {
                    admission.failed().await;
                } else {
                    admission.succeeded().await;
                }
                Err(CallError::Failed(error))
            }
        }
    }

    /// Asks for permission to make one call. While the circuit is closed or open, that takes no round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the place of a probe that was admitted meanwhile is given back.
    pub async fn try_admit(&self) -> Admitted {
        let admitted = self.0.inner.admit().await;
        match &admitted {
            Admitted::No { .. } => observe::event("breaker.rejected"),
            Admitted::Yes(admission) if admission.is_probe() => observe::event("breaker.probe"),
            Admitted::Yes(_) => {}
        }
        admitted
    }

    /// Reports all outcomes so far, now. The background does it otherwise.
    ///
    /// # Errors
    ///
    /// The store's errors.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the outcomes that were being reported may not count.
    pub async fn flush(&self) -> Result<()> {
        self.0.inner.report().await
    }

    /// Opens the circuit for all instances for `time`, by an operator's decision. It is then probed as usual.
    ///
    /// # Errors
    ///
    /// The store's errors.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the circuit may or may not be open.
    pub async fn force_open(&self, time: Duration) -> Result<()> {
        self.force("o", time).await
    }

    /// Closes the circuit for all instances and forgets what they saw, by an operator's decision.
    ///
    /// # Errors
    ///
    /// The store's errors.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the circuit may or may not be closed.
    pub async fn reset(&self) -> Result<()> {
        self.force("c", Duration::ZERO).await
    }

    async fn force(&self, state: &str, open_for: Duration) -> Result<()> {
        let inner = &*self.0.inner;
        let asked = inner.clock.now();
        let call = inner.script_open_for(&FORCE, open_for).arg(state);
        let call = call.run::<Vec<String>>(&inner.store);
        let said = observe::operation("breaker.force", inner.entity.namespace(), call).await?;
        inner.learn(&said, asked);
        Ok(())
    }
}

/// The changes of a circuit; made by [`Breaker::changes`].
#[derive(Clone, Debug)]
pub struct CircuitChanges(watch::Receiver<CircuitState>);

impl CircuitChanges {
    /// Waits for the next change and returns the new state; `None` when the last handle of the breaker is gone. Changes
    /// that follow each other faster than they are read are merged into the last one.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn next(&mut self) -> Option<CircuitState> {
        self.0.changed().await.ok()?;
        Some(*self.0.borrow_and_update())
    }
}
