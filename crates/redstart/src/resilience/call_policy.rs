//! One policy around calls of a dependency.

use std::{fmt, future::Future, num::NonZeroUsize, sync::Arc, time::Duration};

use futures_util::future::{Either, select};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{Admitted, Breaker};
use crate::observe;

mod retry;

use retry::Budget;
pub use retry::RetryPlan;

/// How a service calls a dependency: with a timeout, repetitions within a budget, a bulkhead, hedging, and the
/// fleet's circuit breaker, each of them if it is wanted. Cheap to clone; clones share the bulkhead and the budget.
///
/// From the outside to the inside: the deadline of the whole; repetitions; and for each attempt a place in the bulkhead,
/// the admission of the breaker, the timeout, and within it the hedge.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::{num::{NonZeroU32, NonZeroUsize}, time::Duration};
/// use redstart::{Store, resilience::{Breaker, CallPolicy, PolicyError, RetryPlan}};
///
/// let store = Store::connect("memory://").await?;
/// let breaker = Breaker::builder(&store, "shop", "payments").open().await?;
/// let payments = CallPolicy::builder()
///     .timeout(Duration::from_millis(500))
///     .retry(RetryPlan::attempts(NonZeroU32::new(3).unwrap()))
///     .bulkhead(NonZeroUsize::new(64).unwrap(), Duration::ZERO)
///     .breaker(breaker)
///     .build();
///
/// let paid = payments.call(|| async { Ok::<_, std::io::Error>("paid") }).await;
/// match paid {
///     Ok(receipt) => assert_eq!(receipt, "paid"),
///     Err(PolicyError::Open { retry_after }) => println!("try again in {retry_after:?}"),
///     Err(error) => println!("{error}"),
/// }
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - Repetitions and hedges together are at most the [budget](RetryPlan::budget)'s share of the calls, so that a
///   dependency that is down for all is not buried under them.
/// - At most as many attempts are under way as the bulkhead has places, hedges included in the attempt that they belong to.
/// - Attempts that the breaker refuses are not made and not repeated.
/// - The slower one of a hedged pair is dropped and counts for nothing.
///
/// # Limits
///
/// A call that is repeated or hedged may be carried out twice. Repeat only what is safe to repeat, or protect it by an
/// [`Idempotency`](super::Idempotency) key. Bulkhead and budget are those of this process.
///
/// # Round trips
///
/// Those of the [`Breaker`].
///
/// # While the store is down
///
/// The breaker breaks alone; the rest does not need the store.
///
/// # Metrics
///
/// Events: `policy.retried`, `policy.hedged`, `policy.timed_out`, `policy.full`, `policy.budget_empty`.
#[derive(Clone, Debug)]
pub struct CallPolicy(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: CallPolicyBuilder,
    budget: Budget,
    places: Option<Semaphore>,
}

/// Settings of a [`CallPolicy`].
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct CallPolicyBuilder {
    deadline: Option<Duration>,
    timeout: Option<Duration>,
    retry: Option<RetryPlan>,
    bulkhead: Option<(NonZeroUsize, Duration)>,
    hedge: Option<Duration>,
    breaker: Option<Breaker>,
}

impl CallPolicyBuilder {
    /// How long the whole may take, with all attempts and pauses.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How long one attempt may take. An attempt that takes longer is dropped and is a failure.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Makes a failed call again.
    pub fn retry(mut self, plan: RetryPlan) -> Self {
        self.retry = Some(plan);
        self
    }

    /// At most so many attempts at a time. Others wait up to `wait` for a place, and are then refused.
    pub fn bulkhead(mut self, places: NonZeroUsize, wait: Duration) -> Self {
        self.bulkhead = Some((places, wait));
        self
    }

    /// Makes the call a second time if it has not ended after this time, and takes the one that succeeds first: against
    /// rare slow answers. A good value is the time within which 95 % of the calls end. Hedges are paid from the
    /// [budget](RetryPlan::budget), which is a fifth of the calls without [`retry`](Self::retry).
    pub fn hedge(mut self, after: Duration) -> Self {
        self.hedge = Some(after);
        self
    }

    /// Calls only while the circuit lets them through, and reports how they ended. An attempt that the
    /// [deadline](Self::deadline) cuts off counts as failed if it had at least half of the time that it might have taken, and
    /// otherwise neither way.
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// The policy.
    pub fn build(self) -> CallPolicy {
        let share = self.retry.map_or(0.2, |plan| plan.share);
        let places = self
            .bulkhead
            .map(|(places, _)| Semaphore::new(places.get().min(Semaphore::MAX_PERMITS)));
        CallPolicy(Arc::new(Inner {
            settings: self,
            budget: Budget::new(share),
            places,
        }))
    }
}

/// Why a call has no result.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError<E> {
    /// The last attempt failed.
    Failed(E),
    /// The last attempt, or the whole, took too long.
    TimedOut,
    /// All places of the bulkhead are taken: nothing was called. A call that was made and failed, and finds no place when it is
    /// repeated, has failed.
    Full,
    /// The circuit is open: the last attempt was not made.
    Open {
        /// When it is worth trying again.
        retry_after: Duration,
    },
}

impl<E: fmt::Display> fmt::Display for PolicyError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::TimedOut => f.write_str("the call took too long"),
            Self::Full => f.write_str("too many calls are under way"),
            Self::Open { retry_after } => {
                write!(f, "the circuit is open, try again in {retry_after:?}")
            }
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for PolicyError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(error) => Some(error),
            _ => None,
        }
    }
}

impl CallPolicy {
    /// Starts the settings of a policy. Without any, a call is only a call.
    pub fn builder() -> CallPolicyBuilder {
        CallPolicyBuilder::default()
    }

    /// Makes the call by this policy. An `Err` is a failure, and is worth a repetition.
    ///
    /// # Errors
    ///
    /// See [`PolicyError`].
    ///
    /// # Cancel safety
    ///
    /// Dropped, what is under way is dropped and counts neither way for the breaker.
    pub async fn call<T, E, F>(&self, call: impl Fn() -> F) -> Result<T, PolicyError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.call_if(call, Result::is_err).await
    }

    /// [`call`](Self::call) with a predicate for failures: a refusal may be the caller's own fault, and a response with a
    /// status of 503 is a failure although it is a response. The last result is returned as it is.
    ///
    /// # Errors
    ///
    /// See [`PolicyError`].
    ///
    /// # Cancel safety
    ///
    /// That of [`call`](Self::call).
    pub async fn call_if<T, E, F>(
        &self,
        call: impl Fn() -> F,
        is_failure: impl Fn(&Result<T, E>) -> bool,
    ) -> Result<T, PolicyError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.0.budget.earn();
        let deadline = self.0.settings.deadline;
        let until = deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let mut attempt = 1;
        // How the attempt before ended.
        let mut before = None;
        loop {
            let ended = self.attempt(&call, &is_failure, until).await;
            let result = match ended {
                Ended::Done(result) => return result.map_err(PolicyError::Failed),
                Ended::Refused(error) => {
                    return match (error, before) {
                        // Something was called: that there is no place for another attempt is not what became of it.
                        (PolicyError::Full, Some(result)) => failed(result),
                        (error, _) => Err(error),
                    };
                }
                Ended::TooLate => return Err(too_late()),
                Ended::Failed(result) => result,
            };
            let Some(plan) = &self.0.settings.retry else {
                return failed(result);
            };
            if attempt >= plan.attempts.get() {
                return failed(result);
            }
            if !self.0.budget.pay() {
                observe::event("policy.budget_empty");
                return failed(result);
            }
            observe::event("policy.retried");
            if in_time(until, sleep(plan.pause(attempt))).await.is_none() {
                return Err(too_late());
            }
            before = Some(result);
            attempt += 1;
        }
    }

    /// One attempt, in its place and by the breaker's leave.
    async fn attempt<T, E, F>(
        &self,
        call: &impl Fn() -> F,
        is_failure: &impl Fn(&Result<T, E>) -> bool,
        until: Option<Instant>,
    ) -> Ended<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let settings = &self.0.settings;
        let _place = match (&self.0.places, settings.bulkhead) {
            (Some(places), Some((_, wait))) => {
                // The timer would wait until it is looked at, on a busy thread for long.
                let place = match wait.is_zero() {
                    true => Some(places.try_acquire().ok()),
                    false => in_time(until, timeout(wait, places.acquire()))
                        .await
                        .map(|place| place.ok().and_then(Result::ok)),
                };
                match place {
                    Some(Some(place)) => Some(place),
                    Some(None) => {
                        observe::event("policy.full");
                        return Ended::Refused(PolicyError::Full);
                    }
                    None => return Ended::TooLate,
                }
            }
            _ => None,
        };
        let admission = match &settings.breaker {
            None => None,
            Some(breaker) => match in_time(until, breaker.try_admit()).await {
                Some(Admitted::Yes(admission)) => Some(admission),
                Some(Admitted::No { retry_after }) => {
                    return Ended::Refused(PolicyError::Open { retry_after });
                }
                None => return Ended::TooLate,
            },
        };
        let began = Instant::now();
        let hedged = self.hedged(call, is_failure);
        let hedged = async {
            match settings.timeout {
                None => Some(hedged.await),
                Some(most) => timeout(most, hedged).await.ok(),
            }
        };
        let Some(result) = in_time(until, hedged).await else {
            // An attempt that began shortly before the end says nothing about what it called.
            let whole = settings.timeout.into_iter().chain(settings.deadline).min();
            let had = began.elapsed();
            if let Some(admission) = admission
                && whole.is_none_or(|whole| had >= whole / 2)
            {
                admission.failed_at_the_deadline();
            }
            return Ended::TooLate;
        };
        let failed = result.as_ref().is_none_or(is_failure);
        if result.is_none() {
            observe::event("policy.timed_out");
        }
        if let Some(admission) = admission {
            // If there is no time to tell the store, that goes on in the background.
            let _: Option<()> = in_time(until, admission.tell(failed)).await;
        }
        match result {
            Some(result) if !failed => Ended::Done(result),
            result => Ended::Failed(result),
        }
    }

    /// The call, and after a while a second one beside it.
    async fn hedged<T, E, F>(
        &self,
        call: &impl Fn() -> F,
        is_failure: &impl Fn(&Result<T, E>) -> bool,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let Some(after) = self.0.settings.hedge else {
            return call().await;
        };
        let first = std::pin::pin!(call());
        let first = match select(first, std::pin::pin!(sleep(after))).await {
            Either::Left((result, _)) => return result,
            Either::Right(((), first)) => first,
        };
        if !self.0.budget.pay() {
            observe::event("policy.budget_empty");
            return first.await;
        }
        observe::event("policy.hedged");
        let second = std::pin::pin!(call());
        // A failure of one of them leaves the other its chance.
        match select(first, second).await {
            Either::Left((result, second)) if is_failure(&result) => second.await,
            Either::Right((result, first)) if is_failure(&result) => first.await,
            Either::Left((result, _)) | Either::Right((result, _)) => result,
        }
    }
}

/// How an attempt ended.
enum Ended<T, E> {
    /// As it should.
    Done(Result<T, E>),
    /// Not as it should; `None` if it took too long.
    Failed(Option<Result<T, E>>),
    /// It was not made.
    Refused(PolicyError<E>),
    /// The deadline of the whole came before its end.
    TooLate,
}

/// What comes of it until the deadline.
async fn in_time<T>(until: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(work.await),
        Some(until) => timeout_at(until, work).await.ok(),
    }
}

/// What a caller gets of an attempt that failed; `None` if it took too long.
fn failed<T, E>(result: Option<Result<T, E>>) -> Result<T, PolicyError<E>> {
    match result {
        Some(result) => result.map_err(PolicyError::Failed),
        None => Err(PolicyError::TimedOut),
    }
}

fn too_late<E>() -> PolicyError<E> {
    observe::event("policy.timed_out");
    PolicyError::TimedOut
}
