//! Social: who follows whom.
//!
//! | pattern | for |
//! |---|---|
//! | [`Graph`] | follows, blocks, mutual follows and suggestions, on one slot or spread over a Cluster |

pub mod graph;

pub use graph::Graph;

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
