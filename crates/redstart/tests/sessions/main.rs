//! Sessions and trails, on every backend.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

// Only debug builds can break a script.
mod mutation;
mod session;
mod trail;
