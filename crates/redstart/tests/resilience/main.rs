//! Resilience: circuits that a fleet shares.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod breaker;
// Only debug builds can break a script.
mod mutation;

#[path = "../served/engine.rs"]
mod served;
