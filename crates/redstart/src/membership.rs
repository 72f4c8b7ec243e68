//! Membership: has this been seen before?
//!
//! | pattern | for |
//! |---|---|
//! | [`Bloom`] | "certainly not" or "probably yes" about millions of elements, at 10 to 24 bits each |

pub mod bloom;

pub use bloom::Bloom;

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
