//! Lists.

/// Lists.
#[derive(Clone, Default)]
pub(crate) struct List;

impl List {
    pub(crate) fn encoding(&self) -> &'static str {
        "listpack"
    }
}
