//! Collectors: each gathers the facts of one stage. What it may not see, it notes.

pub(crate) mod keys;
pub(crate) mod library;
pub(crate) mod monitor;
pub(crate) mod recognition;
pub(crate) mod server;
pub(crate) mod stream;

/// Something that could not be seen.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Blind {
    /// What: a command, a node, a stage.
    pub what: String,
    /// Why, and what the report lacks because of it.
    pub why: String,
}

/// Notes of what could not be seen, each once.
#[derive(Default)]
pub(crate) struct Blinds(pub(crate) Vec<Blind>);

impl Blinds {
    pub(crate) fn note(&mut self, what: impl Into<String>, why: impl std::fmt::Display) {
        let blind = Blind {
            what: what.into(),
            why: why.to_string(),
        };
        if self.0.len() < 100 && !self.0.iter().any(|known| known.what == blind.what) {
            self.0.push(blind);
        }
    }
}
