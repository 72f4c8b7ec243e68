//! Hashes.

/// Hashes.
#[derive(Clone, Default)]
pub(crate) struct Hash;

impl Hash {
    pub(crate) fn encoding(&self) -> &'static str {
        "listpack"
    }
}
