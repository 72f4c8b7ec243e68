//! Sessions and trails, on every backend.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod mutation;
mod session;
mod trail;
