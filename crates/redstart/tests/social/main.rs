//! The social graph.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![recursion_limit = "256"]

mod celebrity;
mod crash;
mod graph;
mod mutation;
