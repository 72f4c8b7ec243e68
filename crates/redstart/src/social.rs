//! Social: who follows whom.
//!
//! | pattern | for |
//! |---|---|
//! | [`Graph`] | follows, blocks, mutual follows and suggestions, on one slot or spread over a Cluster |

pub mod graph;

pub use graph::Graph;
