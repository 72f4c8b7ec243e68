//! Membership: has this been seen before?
//!
//! | pattern | for |
//! |---|---|
//! | [`Bloom`] | "certainly not" or "probably yes" about millions of elements, at 10 to 24 bits each |

use crate::script::Script;

mod bloom;

pub use bloom::{Bloom, BloomBuilder, BloomMode, BloomRebuild, BloomScaling, BloomStats};

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&Script] = bloom::SCRIPTS;
