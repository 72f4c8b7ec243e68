//! Bloom filters.

/// A scaling Bloom filter.
#[derive(Clone, Default)]
pub(crate) struct Bloom;
