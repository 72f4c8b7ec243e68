//! Sorted sets.

use crate::registry::Spec;

pub(crate) static COMMANDS: &[Spec] = &[];
