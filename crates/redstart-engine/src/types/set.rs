//! Sets.

/// Sets.
#[derive(Clone, Default)]
pub(crate) struct Set;

impl Set {
    pub(crate) fn encoding(&self) -> &'static str {
        "listpack"
    }
}
