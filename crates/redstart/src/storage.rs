//! Storage: arrays of fixed-size records in one string.
//!
//! | pattern | for |
//! |---|---|
//! | [`FixedArray`] | random access to fixed-size records without a key or hash field for each |

use crate::script::Script;

mod array;
mod record;

pub use array::{FixedArray, FixedArrayBuilder};
pub use record::Record;

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&Script] = &[&array::SET];
