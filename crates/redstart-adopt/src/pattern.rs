//! Keys into patterns: what differs from entity to entity becomes `*`.
//!
//! ```
//! use redstart_adopt::pattern::{group, of};
//!
//! assert_eq!(of(b"user:1017:session"), "user:*:session");
//! assert_eq!(of(b"celery-task-meta-332a73db-f060-4658-adeb-5f938050af56"), "celery-task-meta-*");
//!
//! // Names that are no ids are only seen by comparing keys.
//! let names = ["ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal"];
//! let keys: Vec<String> = names.iter().map(|name| format!("cart:{name}:items")).collect();
//! let groups = group(keys.iter().map(String::as_bytes));
//! assert_eq!(groups[0].pattern, "cart:*:items");
//! assert_eq!(groups[0].count, 8);
//! ```

use std::collections::{BTreeMap, HashMap};

/// Keys of one pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Group {
    /// The pattern: `user:*:session`.
    pub pattern: String,
    /// How many of the keys have it.
    pub count: usize,
    /// A few of them.
    pub examples: Vec<Vec<u8>>,
}

/// The examples that a group keeps.
const EXAMPLES: usize = 8;

/// As many names in one place of a key are taken for names of entities.
pub(crate) const MANY: usize = 8;

/// The pattern of one key: numbers, UUIDs, hashes, dates, addresses and random tokens become `*`.
pub fn of(key: &[u8]) -> String {
    let key = String::from_utf8_lossy(key);
    let mut out = String::with_capacity(key.len());
    let mut segment = String::new();
    for c in key.chars() {
        if is_separator(c) {
            push_segment(&mut out, &segment);
            segment.clear();
            out.push(c);
        } else if c.is_control() || c == char::REPLACEMENT_CHARACTER {
            segment.push('?');
        } else {
            segment.push(c);
        }
    }
    push_segment(&mut out, &segment);
    out
}

/// Keys by their patterns, the most frequent first.
pub fn group<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Vec<Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for key in keys {
        let pattern = of(key);
        let group = groups.entry(pattern).or_insert_with_key(|pattern| Group {
            pattern: pattern.clone(),
            count: 0,
            examples: Vec::new(),
        });
        group.count += 1;
        if group.examples.len() < EXAMPLES {
            group.examples.push(key.to_owned());
        }
    }
    let mut groups: Vec<Group> = merge(groups.into_values().collect());
    groups.sort_by(|a, b| b.count.cmp(&a.count).then(a.pattern.cmp(&b.pattern)));
    groups
}

/// Patterns that differ in one place only, in which many names stand, become one.
fn merge(groups: Vec<Group>) -> Vec<Group> {
    let mut wider: HashMap<String, Vec<usize>> = HashMap::new();
    for (at, group) in groups.iter().enumerate() {
        for general in generalised(&group.pattern) {
            wider.entry(general).or_default().push(at);
        }
    }
    // The widest first; by name, so that the result does not depend on the order of a map.
    let mut wider: Vec<(String, Vec<usize>)> = wider
        .into_iter()
        .filter(|(_, members)| members.len() >= MANY)
        .collect();
    wider.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then(a.0.cmp(&b.0)));
    let mut taken = vec![false; groups.len()];
    let mut merged = Vec::new();
    for (pattern, members) in wider {
        let members: Vec<usize> = members.into_iter().filter(|at| !taken[*at]).collect();
        if members.len() < MANY {
            continue;
        }
        let mut group = Group {
            pattern,
            count: 0,
            examples: Vec::new(),
        };
        for at in members {
            taken[at] = true;
            group.count += groups[at].count;
            let room = EXAMPLES - group.examples.len();
            let some = groups[at].examples.iter().take(room.min(1));
            group.examples.extend(some.cloned());
        }
        merged.push(group);
    }
    let rest = groups.into_iter().zip(taken).filter(|(_, taken)| !taken);
    merged.extend(rest.map(|(group, _)| group));
    merged
}

/// The pattern with each of its literal segments but the first replaced by `*`.
fn generalised(pattern: &str) -> Vec<String> {
    let mut bounds = Vec::new();
    let mut start = 0;
    for (at, c) in pattern.char_indices() {
        if is_separator(c) {
            bounds.push((start, at));
            start = at + c.len_utf8();
        }
    }
    bounds.push((start, pattern.len()));
    let literal = |&(from, to): &(usize, usize)| from < to && !pattern[from..to].contains('*');
    bounds
        .iter()
        .skip(1)
        .filter(|bounds| literal(bounds))
        .map(|&(from, to)| format!("{}*{}", &pattern[..from], &pattern[to..]))
        .collect()
}

/// Whether a key has a pattern, in which `*` stands for any bytes.
pub fn matches(pattern: &[u8], key: &[u8]) -> bool {
    // The usual walk with one place to return to.
    let (mut p, mut k) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while k < key.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, k));
            p += 1;
        } else if pattern.get(p) == Some(&key[k]) || pattern.get(p) == Some(&b'?') {
            p += 1;
            k += 1;
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            p = at + 1;
            k = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Whether a key has a pattern, in which `*` stands for a part of a name, up to the next separator.
pub(crate) fn matches_parts(pattern: &[u8], key: &[u8]) -> bool {
    let parts = |text: &[u8]| -> Vec<Vec<u8>> {
        let ends = text.split_inclusive(|byte| is_separator(char::from(*byte)));
        ends.map(<[u8]>::to_vec).collect()
    };
    let (pattern, key) = (parts(pattern), parts(key));
    let separator = |part: &[u8]| {
        part.last()
            .copied()
            .filter(|b| is_separator(char::from(*b)))
    };
    pattern.len() == key.len()
        && pattern.iter().zip(&key).all(|(pattern, key)| {
            separator(pattern) == separator(key) && literal_matches(pattern, key)
        })
}

/// As [`matches`], with nothing but `*` as a wildcard.
fn literal_matches(pattern: &[u8], key: &[u8]) -> bool {
    let mut pieces = pattern.split(|byte| *byte == b'*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = key.strip_prefix(first) else {
        return false;
    };
    let Some(last) = pieces.next_back() else {
        return rest.is_empty();
    };
    for piece in pieces {
        let found =
            (0..=rest.len().saturating_sub(piece.len())).find(|at| rest[*at..].starts_with(piece));
        let Some(at) = found else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// The glob of SCAN for a pattern, in which nothing but `*` is a wildcard.
pub(crate) fn glob(pattern: &str) -> String {
    let mut glob = String::with_capacity(pattern.len());
    for c in pattern.chars() {
        if matches!(c, '[' | ']' | '?' | '\\' | '^') {
            glob.push('\\');
        }
        glob.push(c);
    }
    glob
}

fn is_separator(c: char) -> bool {
    matches!(c, ':' | '/' | '|' | '{' | '}' | '#' | ',' | ';' | ' ' | '=')
}

fn push_segment(out: &mut String, segment: &str) {
    if segment.is_empty() {
        return;
    }
    // A UUID first: what stands before it is a name, however long the whole is.
    let uuid = around_uuid(segment);
    if uuid.is_none() && is_id(segment) {
        out.push('*');
        return;
    }
    if let Some((before, after)) = uuid {
        push_segment(out, before);
        out.push('*');
        push_segment(out, after);
        return;
    }
    // Words joined by dots and dashes: each may be an id.
    let mut from = 0;
    let joints = segment.match_indices(['.', '-', '_']);
    for (at, joint) in joints.chain([(segment.len(), "")]) {
        let word = &segment[from..at];
        out.push_str(if is_id(word) { "*" } else { word });
        out.push_str(joint);
        from = at + joint.len();
    }
    // `*-*-*` and `*.*` are one thing.
    for joint in ["*-*", "*.*", "*_*"] {
        while let Some(at) = out.find(joint) {
            out.replace_range(at..at + joint.len(), "*");
        }
    }
}

/// Whether a word stands for an entity: a number, a hash, an address, a random token.
fn is_id(word: &str) -> bool {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    if digits > 0 && digits == word.len() {
        return true;
    }
    if word.contains('@') && word.contains('.') {
        return true;
    }
    let parts: Vec<&str> = word.split('.').collect();
    if parts.len() == 4 && parts.iter().all(|part| part.parse::<u8>().is_ok()) {
        return true;
    }
    if is_uuid(word.as_bytes()) {
        return true;
    }
    let hex = word.bytes().all(|b| b.is_ascii_hexdigit());
    if hex && word.len() >= 8 && digits > 0 {
        return true;
    }
    // Base64, base62, ULIDs: long, and letters and digits mixed.
    let token = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if word.len() >= 16 && digits > 0 && word.bytes().all(token) {
        let class = |b: u8| match b {
            b'0'..=b'9' => 0,
            b'a'..=b'z' => 1,
            b'A'..=b'Z' => 2,
            _ => 3,
        };
        // Dashes join words as often as they stand in tokens, so they do not count.
        let letters: Vec<u8> = word.bytes().filter(u8::is_ascii_alphanumeric).collect();
        let pairs = letters.windows(2);
        let changes = pairs
            .filter(|pair| class(pair[0]) != class(pair[1]))
            .count();
        return changes * 4 >= letters.len();
    }
    false
}

fn is_uuid(word: &[u8]) -> bool {
    word.len() == 36
        && word.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// What stands before and after the first UUID in a segment.
fn around_uuid(segment: &str) -> Option<(&str, &str)> {
    let bytes = segment.as_bytes();
    let at = (0..bytes.len().checked_sub(35)?).find(|at| is_uuid(&bytes[*at..at + 36]))?;
    Some((&segment[..at], &segment[at + 36..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_become_stars_and_words_stay() {
        for (key, pattern) in [
            ("user:17", "user:*"),
            ("user:17:cart", "user:*:cart"),
            ("user_17", "user_*"),
            ("cache:{user:17}:v2", "cache:{user:*}:v2"),
            ("sess:u8Zk3PqWmVtR0yXbN5cE2aLhJ7sDgF1o", "sess:*"),
            ("login:203.0.113.7", "login:*"),
            ("report:2026-11-15", "report:*"),
            ("mail:ann@example.org", "mail:*"),
            ("rq:job:35f7327c-0f7f-47fa-bd3b-a55ee08bb752", "rq:job:*"),
            ("bull:mail:wait", "bull:mail:wait"),
            ("stalled-check", "stalled-check"),
            ("order-2026-summary-v2x", "order-*-summary-v2x"),
            (
                "celery-task-meta-332a73db-f060-4658-adeb-5f938050af56",
                "celery-task-meta-*",
            ),
            ("a/b/550e8400", "a/b/*"),
            ("deadbeef", "deadbeef"),
            (
                "LIMITS:LIMITER/api/203.0.113.9/10/1/hour",
                "LIMITS:LIMITER/api/*/*/*/hour",
            ),
            ("", ""),
        ] {
            assert_eq!(of(key.as_bytes()), pattern, "{key}");
        }
        assert_eq!(of(b"a:\xff\xfe\n"), "a:???");
    }

    #[test]
    fn many_names_in_one_place_are_one_pattern_and_a_few_are_not() {
        let many: Vec<String> = (0..20).map(|n| format!("cart:{}:items", name(n))).collect();
        let groups = group(many.iter().map(String::as_bytes));
        assert_eq!(groups.len(), 1);
        assert_eq!(
            (groups[0].pattern.as_str(), groups[0].count),
            ("cart:*:items", 20)
        );
        assert_eq!(groups[0].examples.len(), EXAMPLES);

        let few: Vec<String> = (0..5).map(|n| format!("cart:{}:items", name(n))).collect();
        assert_eq!(group(few.iter().map(String::as_bytes)).len(), 5);
    }

    #[test]
    fn a_star_that_stands_for_a_part_does_not_reach_the_next() {
        for (pattern, key, expected) in [
            ("product:*", "product:7", true),
            ("product:*", "product:7:token", false),
            ("product:*", "product:", false),
            ("product:*:x", "product:7:x", true),
            ("a-*-b:*", "a-1-b:2", true),
            ("a-*-b:*", "a-1-c:2", false),
            ("*a*", "bab", true),
            ("a?:*", "ab:1", false),
            ("a?:*", "a?:1", true),
            ("a[b]:*", "a[b]:1", true),
            ("a[b]:*", "ab:1", false),
            ("x/*", "x:1", false),
        ] {
            let found = matches_parts(pattern.as_bytes(), key.as_bytes());
            assert_eq!(found, expected, "{pattern} {key}");
        }
        assert_eq!(glob(r"a[b]?\:*"), r"a\[b\]\?\\:*");
    }

    /// A name without digits.
    fn name(n: u8) -> String {
        format!("{}{}", char::from(b'a' + n), "nna")
    }

    proptest! {
        #[test]
        fn a_key_matches_its_own_pattern(key in "[a-z0-9:._{}@-]{0,60}") {
            prop_assert!(matches(of(key.as_bytes()).as_bytes(), key.as_bytes()), "{}", of(key.as_bytes()));
        }

        #[test]
        fn a_key_matches_its_own_pattern_part_by_part(key in "[a-z0-9:._{}@-]{0,60}") {
            prop_assert!(matches_parts(of(key.as_bytes()).as_bytes(), key.as_bytes()), "{}", of(key.as_bytes()));
        }

        #[test]
        fn every_key_is_in_one_group_that_it_matches(keys in proptest::collection::vec("[a-c]{1,2}:[a-z0-9]{1,6}(:x)?", 0..60)) {
            let groups = group(keys.iter().map(String::as_bytes));
            prop_assert_eq!(groups.iter().map(|group| group.count).sum::<usize>(), keys.len());
            for group in &groups {
                for example in &group.examples {
                    prop_assert!(matches(group.pattern.as_bytes(), example));
                }
            }
        }
    }
}
