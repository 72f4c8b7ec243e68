//! Places.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

// Only debug builds can break a script.
mod mutation;
mod places;
