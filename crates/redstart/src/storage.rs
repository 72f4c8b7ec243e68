//! Storage: arrays of fixed-size records in one string.

pub mod array;

pub use array::FixedArray;

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
