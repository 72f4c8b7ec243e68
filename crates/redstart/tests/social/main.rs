//! The social graph.

#![recursion_limit = "256"]

mod graph;
