//! Circuit breaker: a dependency that fails is left alone for a while, by the whole fleet.
//!
//! Closed, every call goes through. Too many failures (or slow calls) open the circuit: calls are refused at once. After
//! a while it is half-open: a few probes go through, and their results close it or open it again.
//!
//! # What it promises
//!
//! - One circuit for all instances. Its changes are one script, timed by the server.
//! - Half-open, at most K probes are on their way at once *over the whole fleet*, each as a lease by the server's time.
//!   The place of a probe whose process died is free when its lease ends.
//! - A result counts only in the generation in which its call was admitted; late ones of an older generation, and of
//!   probes whose lease is over, are dropped.
//! - One bad machine does not open the circuit for all, if [`distinct_instances`](Builder::distinct_instances) asks for
//!   trouble seen by several.
//! - Closed, a call makes no round trip. Instances keep a view of the circuit, fed by pub/sub and
//!   [refreshed by age](Builder::refresh); what they saw goes out in the background: at once after a failure (one
//!   report at a time, with all that came meanwhile), otherwise every second.
//! - While the store is down each instance breaks by itself, by the same policy, from where the shared circuit stood.
//!
//! Therefore an instance may learn of a change with a delay: a message's way, or the age of its view if the message was
//! lost. It then lets a few calls through that the circuit would refuse; their results are dropped.
//!
//! # Keys and cost
//!
//! `<namespace>:breaker:{<name>}` and its parts `window` and `probes`; channel part `state`. A report, an admission
//! of a probe and its result are one script each. All keys end when the circuit was quiet for long enough.
//!
//! Operations: `breaker.admit`, `breaker.report`. Events: `breaker.rejected`, `breaker.probe`, `breaker.opened`,
//! `breaker.half_open`, `breaker.closed` (as seen by this instance), `breaker.store_down`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Store, resilience::breaker::{Breaker, CallError, Window}};
//! use std::time::Duration;
//!
//! let store = Store::connect("memory://").await?;
//! let payments = Breaker::new(&store, "shop", "payments")
//!     .window(Window::Count(20))
//!     .failure_rate(0.5)
//!     .min_calls(4)
//!     .open_for(Duration::from_secs(30))
//!     .build()
//!     .await?;
//!
//! for _ in 0..4 {
//!     let result: Result<(), _> = payments.call(async || Err("connection refused")).await;
//!     assert!(matches!(result, Err(CallError::Failed(_))));
//! }
//! payments.flush().await?;
//! let refused = payments.call(async || Ok::<_, &str>("paid")).await;
//! assert!(matches!(refused, Err(CallError::Open { .. })));
//! # Ok(()) }
//! ```

mod admission;
mod builder;
mod local;
mod view;

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    task::AbortHandle,
    time::Instant,
};

use crate::{
    error::{Error, Result},
    key::Entity,
    observe,
    script::{Call, Script},
    store::Store,
};
use admission::AdmissionKind;
use local::{Admit, Local};

pub use admission::{Admission, Admitted};
pub use builder::Builder;

macro_rules! script {
    ($name:literal, $file:literal) => {
        Script::new(
            $name,
            concat!(
                include_str!("breaker/circuit.lua"),
                include_str!(concat!("breaker/", $file))
            ),
        )
    };
}

static LOOK: Script = script!("breaker.look", "look.lua");
static REPORT: Script = script!("breaker.report", "report.lua");
static ADMIT: Script = script!("breaker.admit", "admit.lua");
static PROBED: Script = script!("breaker.probed", "probed.lua");

/// The most calls of a window: each report reads all of them.
const MAX_CALLS: u32 = 1000;
const MAX_TIME: Duration = Duration::from_secs(24 * 3600);
/// A full set of probes is looked at again after this, if no message says that it changed.
const FULL_RETRY: Duration = Duration::from_millis(100);
/// What was seen waits at most so long, if nothing failed.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// More results than this wait for no report: the oldest are dropped.
const MAX_PENDING: usize = 10_000;

/// Which calls decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The last so many, of the whole fleet.
    Count(u32),
    /// Those of the last so long, in tenths of it.
    Time(Duration),
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    failed: bool,
    slow: bool,
}

impl Outcome {
    fn letter(self) -> char {
        match (self.failed, self.slow) {
            (false, false) => 'o',
            (true, false) => 'f',
            (false, true) => 's',
            (true, true) => 'b',
        }
    }

    fn is_good(self) -> bool {
        !self.failed && !self.slow
    }
}

#[derive(Clone, Debug)]
struct Policy {
    window: Window,
    min_calls: u32,
    /// In a million.
    failures: u64,
    slow: u64,
    slow_after: Option<Duration>,
    open_for: Duration,
    probes: u32,
    distinct: u32,
    lease: Duration,
}

/// What this instance knows of the circuit.
#[derive(Clone, Copy, Debug)]
struct View {
    state: Seen,
    generation: u64,
    /// All places of probes are taken, at least for now.
    full_until: Option<Instant>,
    /// The store is down.
    alone: bool,
    /// When this was learned.
    learned: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Closed,
    Open { until: Instant },
    HalfOpen,
}

/// Where the circuit stands, as far as this instance knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Calls go through.
    Closed,
    /// Calls are refused.
    Open,
    /// Probes go through.
    HalfOpen,
}

struct Inner {
    store: Store,
    entity: Entity,
    policy: Policy,
    instance: String,
    keep: Duration,
    view: Mutex<View>,
    local: Mutex<Local>,
    /// What was seen and not reported: the generation of the call, and how it ended.
    pending: Mutex<Vec<(u64, Outcome)>>,
    /// One report at a time.
    reporting: AsyncMutex<()>,
    wake: Notify,
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

/// A circuit breaker that a fleet shares. Cheap to clone. See the [module](self).
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
    /// The breaker `name` in a namespace: one a dependency.
    #[allow(
        clippy::new_ret_no_self,
        reason = "the pattern is made through its builder"
    )]
    pub fn new(store: &Store, namespace: &str, name: &str) -> Builder {
        Builder::new(store, namespace, name)
    }

    /// Where the circuit stands, as far as this instance knows. No round trip.
    pub fn state(&self) -> State {
        let inner = &*self.0.inner;
        let view = *inner.view.lock();
        if view.alone {
            return match inner.local.lock().state {
                local::State::Closed => State::Closed,
                local::State::Open { .. } => State::Open,
                local::State::HalfOpen { .. } => State::HalfOpen,
            };
        }
        match view.state {
            Seen::Closed => State::Closed,
            Seen::Open { .. } => State::Open,
            Seen::HalfOpen => State::HalfOpen,
        }
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

    /// [`call`](Self::call) with a say in what is a failure: a refused request may be the caller's own fault.
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

    /// Asks for leave to make one call. While closed, and while open, that takes no round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, a probe's place may be taken until its lease ends.
    pub async fn try_admit(&self) -> Admitted {
        let inner = &self.0.inner;
        let now = Instant::now();
        let view = *inner.view.lock();
        let admitted = if view.alone {
            inner.admit_alone(now)
        } else {
            match view.state {
                Seen::Closed => {
                    Admitted::Yes(inner.admission(view.generation, AdmissionKind::Call))
                }
                Seen::Open { until } if now < until => Admitted::No {
                    retry_after: until - now,
                },
                _ => match view.full_until {
                    Some(until) if now < until => Admitted::No {
                        retry_after: until - now,
                    },
                    _ => inner.admit_probe().await,
                },
            }
        };
        match &admitted {
            Admitted::No { .. } => observe::event("breaker.rejected"),
            Admitted::Yes(admission) if admission.is_probe() => observe::event("breaker.probe"),
            Admitted::Yes(_) => {}
        }
        admitted
    }

    /// Reports all that was seen so far, now. The background does it otherwise.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, what was being reported may not count.
    pub async fn flush(&self) -> Result<()> {
        self.0.inner.report().await
    }
}

impl Inner {
    fn admission(self: &Arc<Self>, generation: u64, kind: AdmissionKind) -> Admission {
        Admission {
            inner: self.clone(),
            generation,
            kind,
            started: Instant::now(),
            open: true,
        }
    }

    /// A call of a script with the keys and arguments that all of them begin with.
    fn script(&self, script: &'static Script) -> Call<'_> {
        script
            .on(&self.entity)
            .key()
            .part("window")
            .part("probes")
            .arg(self.entity.channel("state"))
            .arg(u64::try_from(self.keep.as_millis()).unwrap_or(u64::MAX))
            .arg(micros(self.policy.open_for))
            .arg(self.policy.probes)
    }

    /// Takes over what the store says. `asked` is from before the question was sent, so that open ends here
    /// no later than there.
    fn learn(&self, said: &[String], asked: Instant) {
        let number = |at: usize| said.get(at).and_then(|word| word.parse::<u64>().ok());
        let (Some(state), Some(generation), Some(left)) = (said.first(), number(1), number(2))
        else {
            return;
        };
        let seen = match state.as_str() {
            "o" => Seen::Open {
                until: asked + Duration::from_micros(left),
            },
            "h" => Seen::HalfOpen,
            _ => Seen::Closed,
        };
        let mut view = self.view.lock();
        // An answer may be overtaken by a message of a later change. Only an answer to a question that was
        // asked after that can mean that the store lost its generations.
        if generation < view.generation && asked < view.learned {
            return;
        }
        if view.generation != generation {
            match seen {
                Seen::Open { .. } => observe::event("breaker.opened"),
                Seen::HalfOpen => observe::event("breaker.half_open"),
                Seen::Closed => observe::event("breaker.closed"),
            }
            view.full_until = None;
        }
        view.state = seen;
        view.generation = generation;
        view.alone = false;
        view.learned = Instant::now();
    }

    /// The store cannot be asked: from here on this instance decides by itself, from where things stood.
    fn lose(&self, error: &Error) {
        let mut view = self.view.lock();
        if view.alone {
            return;
        }
        tracing::debug!(%error, "a breaker goes on by itself");
        observe::event("breaker.store_down");
        view.alone = true;
        let mut local = self.local.lock();
        match view.state {
            Seen::Closed if matches!(local.state, local::State::Closed) => {}
            Seen::Closed => local.turn(local::State::Closed),
            Seen::Open { until } => local.turn(local::State::Open { until }),
            Seen::HalfOpen => local.turn(local::State::HalfOpen { out: 0, ok: 0 }),
        }
    }

    async fn look(&self) {
        let asked = Instant::now();
        match self
            .script(&LOOK)
            .idempotent()
            .run::<Vec<String>>(&self.store)
            .await
        {
            Ok(said) => self.learn(&said, asked),
            Err(error) => self.lose(&error),
        }
    }

    fn admit_alone(self: &Arc<Self>, now: Instant) -> Admitted {
        let mut local = self.local.lock();
        match local.admit(&self.policy, now) {
            Admit::Call => {
                Admitted::Yes(self.admission(local.generation, AdmissionKind::LocalCall))
            }
            Admit::Probe => {
                Admitted::Yes(self.admission(local.generation, AdmissionKind::LocalProbe))
            }
            Admit::Refused(retry_after) => Admitted::No { retry_after },
        }
    }

    async fn admit_probe(self: &Arc<Self>) -> Admitted {
        let asked = Instant::now();
        let token = format!("{:x}", rand::random::<u128>());
        let call = self
            .script(&ADMIT)
            .arg(&token)
            .arg(micros(self.policy.lease));
        let call = call.idempotent().run::<Vec<String>>(&self.store);
        let said = match observe::operation("breaker.admit", self.entity.namespace(), call).await {
            Ok(said) => said,
            Err(error) => {
                self.lose(&error);
                return self.admit_alone(Instant::now());
            }
        };
        self.learn(&said, asked);
        let view = *self.view.lock();
        if said.get(3).is_some_and(|word| word == "1") {
            // By the generation that the script named: the view may have moved on since.
            let generation = said.get(1).and_then(|word| word.parse().ok());
            let kind = AdmissionKind::Probe { token };
            return Admitted::Yes(self.admission(generation.unwrap_or(view.generation), kind));
        }
        match view.state {
            Seen::Closed => Admitted::Yes(self.admission(view.generation, AdmissionKind::Call)),
            Seen::Open { until } => Admitted::No {
                retry_after: until.saturating_duration_since(Instant::now()),
            },
            Seen::HalfOpen => {
                let free = said.get(4).and_then(|word| word.parse().ok()).unwrap_or(0);
                let retry_after =
                    Duration::from_micros(free).clamp(Duration::from_millis(1), FULL_RETRY);
                self.view.lock().full_until = Some(asked + retry_after);
                Admitted::No { retry_after }
            }
        }
    }

    async fn probed(&self, token: &str, generation: u64, letter: &str) {
        let asked = Instant::now();
        let call = self.script(&PROBED).arg(token).arg(generation).arg(letter);
        // Taken twice, a result counts once: the first takes the token away.
        match call.idempotent().run::<Vec<String>>(&self.store).await {
            Ok(said) => self.learn(&said, asked),
            Err(error) => self.lose(&error),
        }
    }

    /// Notes how a call ended, and has it reported: soon, if that may open the circuit.
    fn record(&self, generation: u64, outcome: Outcome, now: Instant) {
        if self.view.lock().generation != generation {
            return;
        }
        // The local window is kept warm for when the store goes down.
        let mut local = self.local.lock();
        if local.record(&self.policy, outcome, now) {
            local.turn(local::State::Closed);
        }
        drop(local);
        let mut pending = self.pending.lock();
        if pending.len() >= MAX_PENDING {
            pending.drain(..MAX_PENDING / 2);
        }
        pending.push((generation, outcome));
        if !outcome.is_good() {
            self.wake.notify_one();
        }
    }

    async fn report(&self) -> Result<()> {
        let _one = self.reporting.lock().await;
        let pending = std::mem::take(&mut *self.pending.lock());
        let generation = self.view.lock().generation;
        let letters: String = pending
            .iter()
            .filter(|(of, _)| *of == generation)
            .map(|(_, outcome)| outcome.letter())
            .collect();
        if letters.is_empty() {
            return Ok(());
        }
        let (mode, size) = match self.policy.window {
            Window::Count(calls) => ("count", u64::from(calls)),
            Window::Time(span) => ("time", micros(span).div_ceil(10)),
        };
        let asked = Instant::now();
        let call = self
            .script(&REPORT)
            .arg(generation)
            .arg(&self.instance)
            .arg(letters)
            .arg(mode)
            .arg(size)
            .arg(self.policy.min_calls)
            .arg(self.policy.failures)
            .arg(self.policy.slow)
            .arg(self.policy.distinct);
        let call = call.run::<Vec<String>>(&self.store);
        match observe::operation("breaker.report", self.entity.namespace(), call).await {
            Ok(said) => {
                self.learn(&said, asked);
                Ok(())
            }
            Err(error) => {
                self.lose(&error);
                Err(error)
            }
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
