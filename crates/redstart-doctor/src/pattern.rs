//! Key patterns: `user:42:cart` and `user:43:cart` are both `user:*:cart`.

use std::collections::{HashMap, HashSet};

use crate::text::printable;

/// Different names at one place, from which on they are taken for ids. The first word of a key names what it is
/// for, so it takes more.
const IDS: usize = 12;
const FIRST_IDS: usize = 40;

/// The pattern of one name: numbers, uuids, hashes, addresses and other random parts become `*`.
pub(crate) fn generalise(name: &[u8]) -> String {
    let text = printable(name);
    let mut out = String::with_capacity(text.len());
    let mut token = String::new();
    for c in text.chars() {
        if is_separator(c) {
            push(&mut out, &token);
            token.clear();
            out.push(c);
        } else {
            token.push(c);
        }
    }
    push(&mut out, &token);
    out
}

fn is_separator(c: char) -> bool {
    matches!(
        c,
        ':' | '/' | '|' | '{' | '}' | '#' | ' ' | ',' | '=' | '?' | '&' | '[' | ']'
    )
}

fn push(out: &mut String, token: &str) {
    if token.is_empty() {
        return;
    }
    if is_random(token) {
        out.push('*');
        return;
    }
    // `order-42`, `10.0.0.7`, `user_7_cart`: the numbers only.
    let mut last_star = false;
    let mut digits = false;
    for c in token.chars() {
        if c.is_ascii_digit() {
            if !digits && !last_star {
                out.push('*');
            }
            digits = true;
            last_star = true;
            continue;
        }
        digits = false;
        // Numbers with dots or dashes between them are one id: an address, a date, a uuid.
        if last_star
            && matches!(c, '.' | '-' | '+' | '@')
            && token
                .chars()
                .all(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | '@'))
        {
            continue;
        }
        last_star = false;
        out.push(c);
    }
}

/// Uuids, hashes, tokens, mail addresses.
fn is_random(token: &str) -> bool {
    let letters = token.chars().filter(char::is_ascii_alphabetic).count();
    let digits = token.chars().filter(char::is_ascii_digit).count();
    let hex = token.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let plain = token
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '+' | '.'));
    (hex && digits > 0 && letters > 0 && token.len() >= 6)
        || (hex && token.len() >= 16)
        || (plain && token.len() >= 16 && digits >= 3 && letters >= 3 && !token.contains('.'))
        || (token.len() >= 20 && plain && is_mixed_case(token) && !token.contains(['.', '-', '_']))
        || (token.contains('@') && token.contains('.'))
}

fn is_mixed_case(token: &str) -> bool {
    let changes = token
        .as_bytes()
        .windows(2)
        .filter(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase())
        .count();
    changes >= 3
}

/// Maps patterns to broader ones where many differ in one word only: `lock:ann`, `lock:bob` and ten more are
/// `lock:*`. Names the rules know by their own (`keep`) are left alone.
pub(crate) fn merge(patterns: &[String]) -> HashMap<String, String> {
    let mut current: Vec<Vec<String>> = patterns
        .iter()
        .map(|pattern| pattern.split(':').map(str::to_owned).collect())
        .collect();
    let longest = current.iter().map(Vec::len).max().unwrap_or(0);
    for place in (0..longest.min(12)).rev() {
        let mut seen: HashMap<Vec<String>, HashSet<String>> = HashMap::new();
        let without = |tokens: &[String]| {
            let mut rest = tokens.to_vec();
            rest[place] = String::new();
            rest
        };
        for tokens in &current {
            if tokens.len() > place && tokens.len() > 1 {
                seen.entry(without(tokens))
                    .or_default()
                    .insert(tokens[place].clone());
            }
        }
        let enough = if place == 0 { FIRST_IDS } else { IDS };
        for tokens in &mut current {
            if tokens.len() > place
                && tokens.len() > 1
                && seen
                    .get(&without(tokens))
                    .is_some_and(|names| names.len() >= enough)
            {
                tokens[place] = "*".to_owned();
            }
        }
    }
    patterns
        .iter()
        .zip(current)
        .map(|(pattern, tokens)| (pattern.clone(), tokens.join(":")))
        .collect()
}

/// The words of a pattern in lower case: `rateLimit:*` has `rate` and `limit`.
pub(crate) fn words(pattern: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut before = ' ';
    for c in pattern.chars() {
        let edge = c.is_uppercase() && before.is_lowercase();
        if (!c.is_alphanumeric() || edge) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// What a key is for, as far as its name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Lock,
    Limit,
    Cache,
    Session,
    Queue,
    Cart,
    Score,
    Place,
    Visitors,
}

const ROLES: &[(Role, &[&str])] = &[
    (
        Role::Lock,
        &["lock", "locks", "mutex", "lck", "semaphore", "distlock"],
    ),
    (
        Role::Limit,
        &[
            "ratelimit",
            "ratelimits",
            "limit",
            "limits",
            "limiter",
            "throttle",
            "throttles",
            "quota",
            "attempts",
            "tries",
            "rl",
            "rlflx",
        ],
    ),
    (
        Role::Cache,
        &[
            "cache", "cached", "caches", "page", "fragment", "memo", "views", "rendered",
        ],
    ),
    (Role::Session, &["session", "sessions", "sess", "sid"]),
    (
        Role::Queue,
        &[
            "queue", "queues", "jobs", "job", "tasks", "task", "todo", "work", "inbox", "outbox",
        ],
    ),
    (Role::Cart, &["cart", "basket"]),
    (
        Role::Score,
        &[
            "score",
            "scores",
            "points",
            "rank",
            "elo",
            "leaderboard",
            "highscore",
            "xp",
        ],
    ),
    (
        Role::Place,
        &[
            "lat",
            "lon",
            "lng",
            "latitude",
            "longitude",
            "coords",
            "coord",
            "location",
            "position",
            "geo",
            "gps",
        ],
    ),
    (
        Role::Visitors,
        &[
            "visitors", "visitor", "uniques", "unique", "uv", "seen", "dau", "mau", "viewers",
            "visited",
        ],
    ),
];

/// `mylock`, `orderlock`; not `block` or `clock`.
fn is_lock(word: &str) -> bool {
    const OTHERS: &[&str] = &[
        "block", "clock", "unlock", "flock", "deadlock", "warlock", "padlock", "wedlock",
    ];
    word.ends_with("lock") && !OTHERS.iter().any(|other| word.ends_with(other))
}

/// Whether the name has the word `locked`: of a lock, or of an account.
pub(crate) fn says_locked(pattern: &str) -> bool {
    words(pattern).iter().any(|word| word == "locked")
}

/// Whether a part of a name is random, and not only a number.
pub(crate) fn has_random_part(name: &[u8]) -> bool {
    let text = String::from_utf8_lossy(name);
    text.split(is_separator).any(is_random)
}

/// Whether the pattern's name says this role.
pub(crate) fn has_role(pattern: &str, role: Role) -> bool {
    let words = words(pattern);
    ROLES
        .iter()
        .filter(|(known, _)| *known == role)
        .any(|(_, names)| words.iter().any(|word| names.contains(&word.as_str())))
        || (role == Role::Lock && words.iter().any(|word| is_lock(word)))
        || (role == Role::Limit
            && words
                .iter()
                .any(|word| word.ends_with("limit") || word.ends_with("limiter")))
        || (role == Role::Limit
            && words
                .windows(2)
                .any(|pair| pair[0] == "rate" && pair[1].starts_with("limit")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_many_kinds_become_stars() {
        for (name, pattern) in [
            ("user:42:cart", "user:*:cart"),
            ("sess:9f86d081884c7d65", "sess:*"),
            ("job:550e8400-e29b-41d4-a716-446655440000", "job:*"),
            ("rate:10.0.0.7", "rate:*"),
            ("order-42", "order-*"),
            ("lock:order:5001", "lock:order:*"),
            ("shop:cache.product:{77}", "shop:cache.product:{*}"),
            ("mail:ann@example.org", "mail:*"),
            ("leaderboard", "leaderboard"),
            ("day:2026-11-15", "day:*"),
        ] {
            assert_eq!(generalise(name.as_bytes()), pattern);
        }
    }

    #[test]
    fn many_names_at_one_place_are_ids_and_few_are_not() {
        let mut patterns: Vec<String> = ('a'..='p').map(|c| format!("lock:{c}{c}x")).collect();
        patterns.extend(["app:cache".to_owned(), "app:queue".to_owned()]);
        let merged = merge(&patterns);
        assert_eq!(merged["lock:aax"], "lock:*");
        assert_eq!(merged["app:cache"], "app:cache");
    }

    #[test]
    fn roles_are_whole_words() {
        assert!(has_role("lock:*", Role::Lock));
        assert!(has_role("orderLock:*", Role::Lock));
        assert!(!has_role("block:*", Role::Lock));
        assert!(!has_role("clock:*", Role::Lock));
        assert!(has_role("mylock", Role::Lock));
        assert!(!has_role("flock:sheep", Role::Lock));
        assert!(has_role("rate_limit:*", Role::Limit));
        assert!(!has_role("rate:usd", Role::Limit));
    }
}
