//! Collectors: each gathers the facts of one stage. What it may not see, it notes.

use std::collections::HashSet;

use crate::{finding::hidden, text::printable, trace::command::fingerprint};

pub(crate) mod keys;
pub(crate) mod library;
pub(crate) mod monitor;
pub(crate) mod recognition;
pub(crate) mod server;
pub(crate) mod stream;

/// Notes that a report has at most.
const NOTES: usize = 100;
/// Further ones that are told apart, so that each counts once.
const COUNTED: usize = 10_000;

/// Something that could not be seen.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Blind {
    /// What: a command, a node, a stage.
    pub what: String,
    /// Why, and what the report lacks because of it.
    pub why: String,
    /// `what` without the name of a key, where it has one.
    #[serde(skip)]
    hidden: Option<String>,
}

impl Blind {
    /// A note without the name of any key.
    pub(crate) fn new(what: String, why: String) -> Self {
        Self {
            what,
            why,
            hidden: None,
        }
    }

    /// Hides the name of a key.
    pub(crate) fn redact(&mut self) {
        if let Some(hidden) = self.hidden.take() {
            self.what = hidden;
        }
    }
}

/// Notes of what could not be seen, each once.
#[derive(Default)]
pub(crate) struct Blinds {
    known: Vec<Blind>,
    more: HashSet<u64>,
}

impl Blinds {
    /// A note without the name of any key.
    pub(crate) fn note(&mut self, what: impl Into<String>, why: impl std::fmt::Display) {
        self.add(what.into(), None, why.to_string());
    }

    /// A note about one key, whose name comes last.
    pub(crate) fn note_key(&mut self, what: &str, name: &[u8], why: impl std::fmt::Display) {
        let name = printable(name);
        let hidden = format!("{what} {}", hidden(&name));
        self.add(format!("{what} {name}"), Some(hidden), why.to_string());
    }

    fn add(&mut self, what: String, hidden: Option<String>, why: String) {
        if self.known.iter().any(|known| known.what == what) {
            return;
        }
        if self.known.len() < NOTES {
            self.known.push(Blind { what, why, hidden });
        } else if self.more.len() < COUNTED {
            self.more.insert(fingerprint(what.as_bytes()));
        }
    }

    /// All of them, with the number of those that are too many.
    pub(crate) fn finish(mut self) -> Vec<Blind> {
        if !self.more.is_empty() {
            self.known.push(Blind::new(
                format!("and {} more", self.more.len()),
                format!("a report has at most {NOTES} such notes"),
            ));
        }
        self.known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_beyond_the_limit_are_counted() {
        let mut blinds = Blinds::default();
        for i in 0..NOTES + 7 {
            blinds.note(format!("server {i}"), "gone");
            blinds.note(format!("server {i}"), "gone");
        }
        let notes = blinds.finish();
        assert_eq!(notes.len(), NOTES + 1);
        assert_eq!(notes[NOTES].what, "and 7 more");
    }

    #[test]
    fn the_name_of_a_key_can_be_hidden() {
        let mut blinds = Blinds::default();
        blinds.note_key("entries of the stream", b"payroll:ann", "large");
        blinds.note("MONITOR on db:6379", "refused");
        let mut notes = blinds.finish();
        assert_eq!(notes[0].what, "entries of the stream payroll:ann");
        notes.iter_mut().for_each(Blind::redact);
        assert!(notes[0].what.starts_with("entries of the stream key-"));
        assert_eq!(notes[1].what, "MONITOR on db:6379");
    }
}
