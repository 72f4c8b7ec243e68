//! Resilience: circuit breakers and idempotency keys.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod breaker;
mod call_policy;
mod idempotency;
// Only debug builds can break a script.
mod mutation;

#[path = "../served/engine.rs"]
mod served;
