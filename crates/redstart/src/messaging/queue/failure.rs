//! Dead letters by what went wrong: one bad deploy is one line.

use std::{collections::BTreeMap, time::Duration};

use super::{DeadLetter, DeadLetters};
use crate::error::Result;

/// Dead letters whose errors are the same but for numbers, ids and quoted text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadGroup {
    /// The error as [`normalized_error`] has it.
    pub error: String,
    /// How many letters there are.
    pub count: u64,
    /// How many of each kind of job.
    pub kinds: BTreeMap<String, u64>,
    /// When the first of them died, since the Unix epoch.
    pub first: Duration,
    /// When the last of them died.
    pub last: Duration,
    /// The error of the last one as it was.
    pub example: String,
    /// The name of the last letter.
    pub letter: String,
}

/// An error without what differs from case to case: numbers and ids become `#`, quoted text becomes `"…"`, and only the
/// first line counts.
///
/// ```
/// use redstart::messaging::normalized_error;
///
/// let one = normalized_error("timeout after 3001 ms for order 7f3a9c21-55aa \"Ann's\"");
/// let other = normalized_error("timeout after 12 ms for order 0b11e4d9-1c2e \"Bob\"\nbacktrace …");
/// assert_eq!(one, other);
/// assert_eq!(one, "timeout after # ms for order # \"…\"");
/// ```
pub fn normalized_error(error: &str) -> String {
    let line = error.lines().next().unwrap_or("");
    let mut text = String::with_capacity(line.len().min(300));
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        if text.len() > 300 {
            text.push('…');
            break;
        }
        if matches!(first, '"' | '`' | '\'') {
            let after = &rest[1..];
            // An apostrophe inside a word is not a quotation mark.
            let inside = first == '\'' && text.ends_with(char::is_alphanumeric);
            if let Some(end) = after.find(first).filter(|_| !inside) {
                text.push(first);
                text.push('…');
                text.push(first);
                rest = &after[end + 1..];
                continue;
            }
        }
        if first.is_alphanumeric() {
            let end = rest
                .find(|c: char| !c.is_alphanumeric() && c != '_' && c != '-')
                .unwrap_or(rest.len());
            let word = &rest[..end];
            text.push_str(if is_variable(word) { "#" } else { word });
            rest = &rest[end..];
            continue;
        }
        text.push(first);
        rest = &rest[first.len_utf8()..];
    }
    text
}

/// Whether a word is a number or an id: it has a digit, and beside digits only hexadecimal letters, a unit at its end,
/// or it is long.
fn is_variable(word: &str) -> bool {
    if !word.contains(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let word = word.strip_prefix("0x").unwrap_or(word);
    let plain = |c: char| c.is_ascii_hexdigit() || c == '-' || c == '_';
    let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    word.chars().all(plain)
        || number.chars().all(|c| c.is_ascii_digit() || c == '_')
        || word.len() >= 16
}

impl DeadLetters {
    /// The letters by what went wrong, most frequent first. Reads all letters, page by page.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn groups(&self) -> Result<Vec<DeadGroup>> {
        let mut groups: BTreeMap<String, DeadGroup> = BTreeMap::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.list(after.as_deref()).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.letter.clone());
            for letter in page {
                add(&mut groups, letter);
            }
        }
        let mut groups: Vec<DeadGroup> = groups.into_values().collect();
        groups.sort_by(|a, b| b.count.cmp(&a.count).then(b.last.cmp(&a.last)));
        Ok(groups)
    }
}

fn add(groups: &mut BTreeMap<String, DeadGroup>, letter: DeadLetter) {
    let error = normalized_error(&letter.reason);
    let group = groups.entry(error.clone()).or_insert_with(|| DeadGroup {
        error,
        count: 0,
        kinds: BTreeMap::new(),
        first: letter.at,
        last: letter.at,
        example: String::new(),
        letter: String::new(),
    });
    group.count += 1;
    let kind = letter.job.map_or_else(|| "?".to_owned(), |job| job.name);
    *group.kinds.entry(kind).or_default() += 1;
    group.first = group.first.min(letter.at);
    if letter.at >= group.last {
        group.last = letter.at;
        group.example = letter.reason;
        group.letter = letter.letter;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_case_to_case_is_left_out() {
        for (error, expected) in [
            ("", ""),
            ("refused", "refused"),
            ("HTTP 503 from 10.0.0.7:8080", "HTTP # from #.#.#.#:#"),
            ("took 30s, limit 1500ms", "took #, limit #"),
            ("no user 'ann' in `db`", "no user '…' in `…`"),
            ("can't connect", "can't connect"),
            ("key 0xdeadbeef00 of s3", "key # of s3"),
            ("id 550e8400-e29b-41d4-a716-446655440000 gone", "id # gone"),
            ("an open \" quote 5", "an open \" quote #"),
            (
                "utf8 is no number, v2 neither",
                "utf8 is no number, v2 neither",
            ),
        ] {
            assert_eq!(normalized_error(error), expected, "{error}");
        }
        assert!(normalized_error(&"é".repeat(1000)).len() <= 2100);
    }
}
