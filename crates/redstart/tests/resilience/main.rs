//! Resilience: circuits that a fleet shares.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod breaker;
// Only debug builds can break a script.
#[cfg(debug_assertions)]
mod mutation;

#[path = "../served/engine.rs"]
mod served;
