//! Sorted sets.

/// Sorted sets.
#[derive(Clone, Default)]
pub(crate) struct SortedSet;

impl SortedSet {
    pub(crate) fn encoding(&self) -> &'static str {
        "listpack"
    }
}
