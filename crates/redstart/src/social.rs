//! Social: who follows whom.
//!
//! | pattern | for |
//! |---|---|
//! | [`Graph`] | follows, blocks, mutual follows and suggestions, in one slot or spread over a Cluster |

use crate::script::Script;

mod graph;

pub use graph::{
    Edge, EdgeCursor, EdgePage, FollowCounts, Followed, Graph, GraphBuilder, Repaired, Suggestion,
};

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&Script] = &[
    &graph::APPLY,
    &graph::CHANGE,
    &graph::COMPLETE,
    &graph::INTEND,
    &graph::PAGE,
    &graph::PENDING,
    &graph::POSTPONE,
    &graph::UNBLOCK,
];
