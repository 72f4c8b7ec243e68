//! What keys may be that no library owns: caches and locks that were made by hand.
//!
//! There is less to go by than with a library: a cache is strings of one shape that never expire, and so are records that
//! exist nowhere else. A guess is never surer than 0.6, and a person must say that it is right before a step is carried out.

use serde_json::Value;

use crate::{
    glimpse::{Glimpse, Shape, json_keys},
    look::Look,
    migration::Declared,
    pattern::Group,
    text::printable,
};

/// Keys that no library owns, and what they may be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Guess {
    /// What they may be.
    pub what: Declared,
    /// The pattern of the keys, [printable](crate::printable).
    pub subject: String,
    /// From 0 to 0.6.
    pub confidence: f64,
    /// What speaks for it, in printable words for a person. Contains names of keys and fields, no values.
    pub evidence: Vec<String>,
}

/// Fewer keys than this are no cache.
const ENTRIES: usize = 3;

/// The value of a hand-made lock is a token, a host, a process or a time: not longer than this.
const TOKEN: u64 = 128;

/// A guess for each of the groups that gives reason for one.
pub(crate) fn all(look: &Look<'_>, unowned: &[Group]) -> Vec<Guess> {
    let guess = |group: &Group| {
        let mut seen = Vec::new();
        for glimpse in look.seen() {
            if group.examples.contains(&glimpse.key) {
                seen.push(glimpse);
            }
        }
        locks(group, &seen).or_else(|| cache(group, &seen))
    };
    unowned.iter().filter_map(guess).collect()
}

fn locks(group: &Group, seen: &[&Glimpse]) -> Option<Guess> {
    let word = words(&group.pattern).find(|word| {
        matches!(
            word.as_str(),
            "lock" | "locks" | "locked" | "mutex" | "lease"
        )
    })?;
    let is_token = |glimpse: &&Glimpse| {
        let text = glimpse.text().unwrap_or_default();
        let plain = text.iter().all(|byte| byte.is_ascii_graphic());
        // A counter that is down to nothing holds nothing.
        glimpse.len() <= TOKEN && !text.is_empty() && plain && text != b"0"
    };
    if seen.is_empty() || !seen.iter().all(is_token) {
        return None;
    }
    let bare = seen.iter().filter(|glimpse| glimpse.ttl.is_none()).count();
    let mut evidence = vec![format!("short strings, and the name says {word}")];
    if bare > 0 {
        evidence.push(format!(
            "{bare} of {} that were looked at have no TTL: a holder that dies keeps them for ever",
            seen.len()
        ));
    }
    Some(Guess {
        what: Declared::Locks,
        subject: printable(&group.pattern),
        confidence: if bare == 0 { 0.6 } else { 0.55 },
        evidence,
    })
}

fn cache(group: &Group, seen: &[&Glimpse]) -> Option<Guess> {
    if group.count < ENTRIES || seen.len() < 2 || !group.pattern.contains('*') {
        return None;
    }
    let bare = seen.iter().filter(|glimpse| glimpse.ttl.is_none()).count();
    if bare * 2 < seen.len() {
        return None;
    }
    let form = form(seen.first()?)?;
    if !seen.iter().all(|glimpse| self::form(glimpse) == Some(form)) {
        return None;
    }
    let mut evidence = vec![format!(
        "{} keys with values of one shape: {form}",
        group.count
    )];
    if form == OBJECT {
        let mut names = json_keys(seen.first()?.head()?);
        for glimpse in seen {
            let others = json_keys(glimpse.head().unwrap_or_default());
            names.retain(|name| others.contains(name));
        }
        let name = names.first()?;
        evidence.push(format!(
            "all of them have {}",
            printable(&String::from_utf8_lossy(name))
        ));
    }
    evidence.push(format!(
        "{bare} of {} that were looked at have no TTL",
        seen.len()
    ));
    let named = words(&group.pattern).any(|word| word.starts_with("cache"));
    Some(Guess {
        what: Declared::Cache,
        subject: printable(&group.pattern),
        confidence: if named { 0.6 } else { 0.55 },
        evidence,
    })
}

const OBJECT: &str = "JSON objects";

/// What a value is that programs put into a cache. Numbers and words are not: they are as often counters and flags.
fn form(glimpse: &Glimpse) -> Option<&'static str> {
    let Shape::Text { len, head } = &glimpse.shape else {
        return None;
    };
    form_of(head, *len == head.len() as u64)
}

/// The same for the first bytes of a value, which may be all of it.
pub(crate) fn form_of(head: &[u8], is_whole: bool) -> Option<&'static str> {
    // What is cut off cannot be parsed.
    let json = match is_whole {
        true => serde_json::from_slice::<Value>(head).is_ok(),
        false => !head.is_empty(),
    };
    match head.trim_ascii_start() {
        [b'{', ..] if json => Some(OBJECT),
        [b'[', ..] if json => Some("JSON arrays"),
        [b'<', ..] => Some("HTML or XML"),
        [0x80, 2..=5, ..] => Some("pickles"),
        [0x04, 0x08, ..] => Some("marshalled Ruby objects"),
        [0x1f, 0x8b, ..] => Some("gzip"),
        _ => None,
    }
}

/// The words of a name, in lower case.
fn words(name: &str) -> impl Iterator<Item = String> {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern;

    fn glimpse(key: &str, value: &[u8]) -> Glimpse {
        Glimpse {
            key: key.as_bytes().to_owned(),
            ttl: None,
            shape: Shape::Text {
                len: value.len() as u64,
                head: value.to_owned(),
            },
        }
    }

    fn guess(key: &str, values: &[&str]) -> Option<Declared> {
        let keys: Vec<String> = (0..values.len())
            .map(|n| key.replace('N', &n.to_string()))
            .collect();
        let seen: Vec<Glimpse> = keys
            .iter()
            .zip(values)
            .map(|(key, value)| glimpse(key, value.as_bytes()))
            .collect();
        let group = pattern::group(keys.iter().map(String::as_bytes)).remove(0);
        let seen: Vec<&Glimpse> = seen.iter().collect();
        locks(&group, &seen)
            .or_else(|| cache(&group, &seen))
            .map(|guess| guess.what)
    }

    #[test]
    fn one_shape_without_a_ttl_is_a_cache_and_a_short_value_of_a_lock_is_a_lock() {
        let tea = r#"{"name":"tea"}"#;
        assert_eq!(guess("product:N", &[tea; 3]), Some(Declared::Cache));
        assert_eq!(guess("product:N", &[tea; 2]), None, "too few");
        assert_eq!(guess("product:N", &[tea, tea, "17"]), None, "two shapes");
        let cup = r#"{"size":3}"#;
        assert_eq!(
            guess("product:N", &[tea, tea, cup]),
            None,
            "no common field"
        );
        assert_eq!(guess("visits:N", &["17"; 3]), None, "counters");
        assert_eq!(guess("lock:stock", &["1"]), Some(Declared::Locks));
        assert_eq!(
            guess("stock-lock:N", &["host-17:4711"; 2]),
            Some(Declared::Locks)
        );
        assert_eq!(guess("clock:N", &["17"; 3]), None, "another word");
        assert_eq!(guess("lock:stock:inside", &["0"]), None);
        assert_eq!(guess("lock:N", &[tea; 3]), Some(Declared::Locks));
    }
}
