//! What a bounded look at one key shows.

use std::time::Duration;

/// A key as a bounded look shows it.
#[derive(Clone, Debug)]
pub(crate) struct Glimpse {
    pub(crate) key: Vec<u8>,
    /// `None` if it never expires.
    pub(crate) ttl: Option<Duration>,
    pub(crate) shape: Shape,
}

#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// No key.
    Absent,
    /// A string: its length and first bytes.
    Text { len: u64, head: Vec<u8> },
    /// A hash: its fields (or some of them), with their values where those are short.
    Hash {
        len: u64,
        fields: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    },
    /// A list: its first element, unless the elements are large.
    List { len: u64, first: Option<Vec<u8>> },
    /// A set: some of its members, unless they are large.
    Set { len: u64, some: Vec<Vec<u8>> },
    /// A sorted set: its first member, unless the members are large.
    Sorted {
        len: u64,
        first: Option<(Vec<u8>, f64)>,
    },
    /// A stream: the fields of its first entry.
    Stream {
        len: u64,
        first: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// A type of a module.
    Other,
}

impl Glimpse {
    pub(crate) fn exists(&self) -> bool {
        !matches!(self.shape, Shape::Absent)
    }

    /// The key as text; keys of libraries are.
    pub(crate) fn name(&self) -> &str {
        std::str::from_utf8(&self.key).unwrap_or("")
    }

    /// The whole string, if it is one and short enough to have been read whole.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        match &self.shape {
            Shape::Text { len, head } if *len == head.len() as u64 => Some(head),
            _ => None,
        }
    }

    /// The string's first bytes.
    pub(crate) fn head(&self) -> Option<&[u8]> {
        match &self.shape {
            Shape::Text { head, .. } => Some(head),
            _ => None,
        }
    }

    /// Whether it is a hash that has all these fields.
    pub(crate) fn has_fields(&self, wanted: &[&str]) -> bool {
        let Shape::Hash { fields, .. } = &self.shape else {
            return false;
        };
        let has = |name: &&str| fields.iter().any(|(field, _)| field == name.as_bytes());
        wanted.iter().all(has)
    }

    /// The value of a field of a hash, if it is short.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let Shape::Hash { fields, .. } = &self.shape else {
            return None;
        };
        let (_, value) = fields.iter().find(|(field, _)| field == name.as_bytes())?;
        std::str::from_utf8(value.as_deref()?).ok()
    }

    /// The fields of a hash.
    pub(crate) fn fields(&self) -> &[(Vec<u8>, Option<Vec<u8>>)] {
        match &self.shape {
            Shape::Hash { fields, .. } => fields,
            _ => &[],
        }
    }

    /// The first element of a list, or the first member of a sorted set.
    pub(crate) fn first(&self) -> Option<&[u8]> {
        match &self.shape {
            Shape::List { first, .. } => first.as_deref(),
            Shape::Sorted { first, .. } => first.as_ref().map(|(member, _)| &**member),
            _ => None,
        }
    }

    /// Some members of a set.
    pub(crate) fn members(&self) -> &[Vec<u8>] {
        match &self.shape {
            Shape::Set { some, .. } => some,
            _ => &[],
        }
    }

    /// A stream's first entry has this field.
    pub(crate) fn entry_has(&self, name: &str) -> bool {
        match &self.shape {
            Shape::Stream { first, .. } => first.iter().any(|(field, _)| field == name.as_bytes()),
            _ => false,
        }
    }

    /// Elements, members or bytes.
    pub(crate) fn len(&self) -> u64 {
        match &self.shape {
            Shape::Text { len, .. }
            | Shape::Hash { len, .. }
            | Shape::List { len, .. }
            | Shape::Set { len, .. }
            | Shape::Sorted { len, .. }
            | Shape::Stream { len, .. } => *len,
            Shape::Absent | Shape::Other => 0,
        }
    }

    /// A whole number as a string.
    pub(crate) fn is_count(&self) -> bool {
        self.text().is_some_and(|text| {
            !text.is_empty() && text.len() <= 19 && text.iter().all(u8::is_ascii_digit)
        })
    }
}

/// A JSON object whose beginning has these names as its own. The text may be cut off, so it is not parsed: only names at
/// the outermost level are compared.
pub(crate) fn json_has(text: &[u8], names: &[&str]) -> bool {
    let keys = json_keys(text);
    names
        .iter()
        .all(|name| keys.iter().any(|key| key == name.as_bytes()))
}

/// A number, a word or the beginning of anything else under a name at the outermost level of a JSON object.
pub(crate) fn json_value<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut found = None;
    walk_json(text, |key, rest| {
        if key == name.as_bytes() && found.is_none() {
            found = Some(rest);
        }
    });
    let rest = found?
        .trim_ascii_start()
        .strip_prefix(b":")?
        .trim_ascii_start();
    let end = rest
        .iter()
        .position(|byte| matches!(byte, b',' | b'}' | b']'));
    Some(&rest[..end.unwrap_or(rest.len())])
}

/// The names at the outermost level of a JSON object, as far as the text goes.
pub(crate) fn json_keys(text: &[u8]) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    walk_json(text, |key, _| keys.push(key.to_owned()));
    keys
}

/// Calls `each` with each name at the outermost level and the text after it.
fn walk_json<'a>(text: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) {
    if text.trim_ascii_start().first() != Some(&b'{') {
        return;
    }
    let (mut depth, mut at) = (0_usize, 0);
    let mut expects_key = false;
    while at < text.len() {
        match text[at] {
            b'{' | b'[' => {
                depth += 1;
                expects_key = depth == 1;
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' => expects_key = depth == 1,
            b'"' => {
                let start = at + 1;
                at = start;
                while at < text.len() && text[at] != b'"' {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
                if expects_key && at < text.len() {
                    each(&text[start..at], &text[at + 1..]);
                    expects_key = false;
                }
            }
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_an_object_are_read_even_if_it_is_cut_off() {
        let text = br#"{"class":"A","args":[{"jid":1},"x\"y"],"jid":"17","ret"#;
        assert_eq!(json_keys(text), [&b"class"[..], b"args", b"jid"]);
        assert!(json_has(text, &["class", "jid"]));
        assert!(!json_has(text, &["retry"]));
        assert_eq!(json_value(text, "jid"), Some(&br#""17""#[..]));
        assert_eq!(
            json_value(b"{\"at\": 17.5, \"b\":1}", "at"),
            Some(&b"17.5"[..])
        );
        assert!(json_keys(b"[1]").is_empty());
        assert!(json_keys(b"{\"a\\").is_empty());
    }
}
