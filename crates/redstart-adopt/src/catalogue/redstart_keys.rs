//! Redstart's own patterns: `<namespace>:<pattern>[.<name>]:{<entity>}[:<part>]`.

use std::collections::BTreeMap;

use crate::{
    found::{Found, KeySet},
    glimpse::{Glimpse, Shape},
    library::Library,
    look::Look,
};

use super::has_script;

/// The pattern of a key and the types that its keys have.
const PATTERNS: &[(&str, &str)] = &[
    ("activity", "string"),
    ("array", "string"),
    ("behind", "hash zset string stream"),
    ("bloom", "string"),
    ("breaker", "hash string"),
    ("cache", "string hash"),
    ("cache-index", "set"),
    ("cache-tag", "zset string"),
    ("check_ins", "string"),
    ("counter", "string hash"),
    ("fair", "string zset hash list"),
    ("fenced", "hash string"),
    ("graph", "zset set"),
    ("idempotency", "string hash"),
    ("leaderboard", "zset string hash"),
    ("leader", "string hash"),
    ("legacy", "string"),
    ("limiter", "string hash zset"),
    ("list", "list hash zset string"),
    ("lock", "string hash"),
    ("mutex", "string hash"),
    ("notify", "stream string list hash"),
    ("places", "zset hash"),
    ("priority", "zset string hash"),
    ("queue", "stream zset hash list string"),
    ("redlock", "string hash"),
    ("ring", "list string"),
    ("rw", "string zset hash"),
    ("semaphore", "zset hash string"),
    ("session", "hash string set"),
    ("sharded", "zset"),
    ("stock", "hash string zset stream"),
    ("stock_shard", "hash string zset stream"),
    ("stream", "stream string"),
    ("topic", "stream string set"),
    ("topics", "stream string"),
    ("trail", "list hash string"),
    ("uniques", "string"),
    ("view", "zset hash string list"),
    ("weighted", "zset"),
    ("windowed", "string hash"),
];

/// The scripts of the families that this program was built with.
pub(super) fn scripts() -> Vec<&'static str> {
    let all = redstart::script::all().into_iter();
    all.map(|script| script.digest()).collect()
}

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    // By namespace: how many keys, and how many of them have the header of our codec.
    let mut namespaces: BTreeMap<String, (usize, usize, Vec<String>)> = BTreeMap::new();
    for glimpse in look.seen() {
        let Some((namespace, pattern)) = split(glimpse.name()) else {
            continue;
        };
        if !fits(glimpse, pattern) {
            continue;
        }
        let (keys, sealed, patterns) = namespaces.entry(namespace.to_owned()).or_default();
        *keys += 1;
        *sealed += usize::from(is_sealed(glimpse));
        let pattern = pattern.split('.').next().unwrap_or(pattern).to_owned();
        if !patterns.contains(&pattern) {
            patterns.push(pattern);
        }
    }
    let script = has_script(look, &scripts());
    for (namespace, (keys, sealed, patterns)) in namespaces {
        // Names and types alone prove nothing.
        let confidence = match (sealed, script, patterns.len()) {
            (1.., _, _) => 0.95,
            (0, true, _) => 0.9,
            (0, false, 3..) => 0.65,
            (0, false, _) => 0.6,
        };
        let mut set = KeySet::default();
        for pattern in &patterns {
            set = set
                .prefix(format!("{namespace}:{pattern}:{{"))
                .prefix(format!("{namespace}:{pattern}."));
        }
        let mut one = Found::new(Library::Redstart, format!("{namespace}:*"), confidence)
            .because(format!(
                "{keys} keys have the form and the types of {}",
                patterns.join(", ")
            ))
            .keys(set);
        if sealed > 0 {
            one = one.because("values have the header of Redstart's codec");
        }
        if script {
            one = one.because("the server has a script of Redstart");
        }
        found.push(one);
    }
}

/// The namespace and the pattern of a key.
fn split(name: &str) -> Option<(&str, &str)> {
    let (before, _) = name.split_once(":{")?;
    let (namespace, pattern) = before.rsplit_once(':')?;
    let base = pattern.split('.').next()?;
    let known = PATTERNS.iter().any(|(known, _)| *known == base);
    (known && !namespace.is_empty()).then_some((namespace, pattern))
}

/// Whether the value has the header of our codec.
fn is_sealed(glimpse: &Glimpse) -> bool {
    let sealed = |head: &[u8]| head.starts_with(b"RS\x01") || head.starts_with(b"RC\x01");
    glimpse.head().is_some_and(sealed)
}

fn fits(glimpse: &Glimpse, pattern: &str) -> bool {
    let kind = match &glimpse.shape {
        Shape::Text { .. } => "string",
        Shape::Hash { .. } => "hash",
        Shape::List { .. } => "list",
        Shape::Set { .. } => "set",
        Shape::Sorted { .. } => "zset",
        Shape::Stream { .. } => "stream",
        Shape::Absent | Shape::Other => return false,
    };
    let base = pattern.split('.').next().unwrap_or(pattern);
    // These always have a TTL; their parts, such as the fence of a lock, need not. A key of the same name without one was
    // made by hand.
    let expires = matches!(base, "cache" | "idempotency" | "lock" | "session");
    if expires && glimpse.ttl.is_none() && glimpse.name().ends_with('}') && !is_sealed(glimpse) {
        return false;
    }
    PATTERNS
        .iter()
        .any(|(known, kinds)| *known == base && kinds.split(' ').any(|one| one == kind))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// The names of patterns in the library's own source: what stands first in quotes after one of these.
    const BEFORE: [&str; 4] = ["Keys::named(", "Keys::new(", "::entity(\"", "pattern: \""];

    fn names_in(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                names_in(&path, names);
                continue;
            }
            // The file of the keys itself has examples.
            if path.extension().is_none_or(|kind| kind != "rs") || path.ends_with("src/key.rs") {
                continue;
            }
            let source = fs::read_to_string(&path).unwrap();
            let source = source.split("#[cfg(test)]").next().unwrap_or_default();
            let code = source.lines().map(str::trim_start);
            let code: String = code.filter(|line| !line.starts_with("//")).collect();
            for before in BEFORE {
                for (at, _) in code.match_indices(before) {
                    let rest = &code[at + before.len() - usize::from(before.ends_with('"'))..];
                    let call = rest.split([')', ';', '}']).next().unwrap_or_default();
                    if let Some(name) = call.split('"').nth(1) {
                        names.insert(name.to_owned());
                    }
                }
            }
        }
    }

    #[test]
    fn every_pattern_of_the_library_is_known() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../redstart/src");
        let mut names = BTreeSet::new();
        names_in(&source, &mut names);
        assert!(names.len() > 30, "{names:?}");
        // The bus has a channel and no key; `app` is the namespace of a test.
        let elsewhere = ["cache-bus", "app"];
        let known = |name: &str| PATTERNS.iter().any(|(pattern, _)| *pattern == name);
        let missing: Vec<&String> = names
            .iter()
            .filter(|name| !known(name) && !elsewhere.contains(&name.as_str()))
            .collect();
        assert!(missing.is_empty(), "{missing:?} of {names:?}");
    }
}
