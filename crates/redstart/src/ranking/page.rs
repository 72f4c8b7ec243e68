//! Entries of a board, page by page.

use crate::error::{Error, Result};

/// A member of a board.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BoardEntry {
    /// Its rank, from 1.
    pub rank: u64,
    /// Its name.
    pub member: String,
    /// Its score.
    pub score: f64,
}

/// Entries of a board, the best first, and where the next page starts.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BoardPage {
    /// The entries, with their ranks at the time of the call.
    pub entries: Vec<BoardEntry>,
    /// Where the next page starts; `None` after the last entry.
    pub next: Option<BoardCursor>,
}

/// Where a page ended: the score and the name of its last entry. It is text, so that a web service can hand it out.
///
/// The next page starts behind that point, even if members joined, left or moved meanwhile: a member whose own score
/// does not change is never skipped and never returned twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoardCursor(String);

impl BoardCursor {
    pub(super) fn new(stored: &str, member: &str) -> Self {
        Self(format!("{stored}:{member}"))
    }

    /// The cursor as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A cursor from its text. It is validated when it is used.
    pub fn from_text(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The stored score as text, and the member.
    pub(super) fn split(&self) -> Result<(&str, &str)> {
        match self.0.split_once(':') {
            Some((stored, member))
                if !member.is_empty() && stored.parse::<f64>().is_ok_and(f64::is_finite) =>
            {
                Ok((stored, member))
            }
            _ => Err(Error::config("invalid leaderboard cursor")),
        }
    }
}

pub(super) fn check_page(n: u32, most: u32) -> Result<()> {
    if n > most {
        return Err(Error::config(format!(
            "a page must have at most {most} entries"
        )));
    }
    Ok(())
}
