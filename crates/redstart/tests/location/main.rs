//! Places.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

// Only debug builds can break a script.
#[cfg(debug_assertions)]
mod mutation;
mod places;
