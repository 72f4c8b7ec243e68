//! What keeps a service working when its dependencies fail: circuit breakers and idempotency keys.
//!
//! | pattern | purpose |
//! |---|---|
//! | [`breaker`] | the whole fleet stops calling a dependency that fails, for a while |
//! | [`Idempotency`] | a request that arrives twice is carried out once and answered twice |

pub mod breaker;
mod idempotency;

pub use idempotency::{Idempotency, IdempotencyBuilder, Run, WorkError};

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[
    &idempotency::BEGIN,
    &idempotency::DOUBT,
    &idempotency::FINISH,
    &idempotency::RELEASE,
    &idempotency::RENEW,
];
