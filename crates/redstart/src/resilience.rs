//! What keeps a service working when its dependencies fail.
//!
//! | pattern | purpose |
//! |---|---|
//! | [`Breaker`] | the whole fleet stops calling a dependency that fails, for a while |
//! | [`CallPolicy`] | timeout, repetitions within a budget, bulkhead, hedging and a breaker around each call |
//! | [`Idempotency`] | a request that arrives twice is carried out once and answered twice |

mod breaker;
mod call_policy;
mod idempotency;

pub use breaker::{
    Admission, Admitted, Breaker, BreakerBuilder, CallError, CallWindow, CircuitChanges,
    CircuitState,
};
pub use call_policy::{CallPolicy, CallPolicyBuilder, PolicyError, RetryPlan};
pub use idempotency::{Idempotency, IdempotencyBuilder, Run, WorkError};

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[
    &breaker::ADMIT,
    &breaker::FORCE,
    &breaker::LOOK,
    &breaker::PROBED,
    &breaker::REPORT_COUNT,
    &breaker::REPORT_TIME,
    &breaker::RETURN,
    &idempotency::BEGIN,
    &idempotency::DOUBT,
    &idempotency::FINISH,
    &idempotency::FORGET,
    &idempotency::RELEASE,
    &idempotency::RENEW,
];
