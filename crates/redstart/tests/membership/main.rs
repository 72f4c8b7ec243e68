//! Bloom filters.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bloom;
mod grid;
mod mutation;
