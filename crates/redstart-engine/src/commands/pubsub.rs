//! Publish and subscribe.

use crate::registry::Spec;

pub(crate) static COMMANDS: &[Spec] = &[];
