//! Location: who and what is near.
//!
//! | pattern | for |
//! |---|---|
//! | [`Places`] | positions of members, and those near a point or another member |
//! | [`PrivatePlaces`] | the same, but nothing except rounded distances comes out |

pub mod places;

pub use places::{Places, PrivatePlaces};

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
