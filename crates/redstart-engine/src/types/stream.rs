//! Streams.

/// An append-only log of entries with consumer groups.
#[derive(Clone, Default)]
pub(crate) struct Stream;
