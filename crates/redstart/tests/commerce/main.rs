//! Commerce: stock that is never sold twice and never lost.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

// Only debug builds can break a script.
mod mutation;
mod stock;

#[path = "../served/engine.rs"]
mod served;
