//! Selling what is scarce.
//!
//! | module | what it is for |
//! |---|---|
//! | [`stock`] | flash-sale stock: never sold twice, never lost |

pub mod stock;

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
