//! Django's cache: `<prefix>:<version>:<key>`, pickled values; whole numbers are stored as they are.

use std::collections::BTreeMap;

use crate::{
    found::{Found, KeySet},
    glimpse::Glimpse,
    library::Library,
    look::Look,
};

/// What was seen under one prefix and version.
#[derive(Default)]
struct Seen {
    pickles: usize,
    numbers: usize,
    /// Keys without a TTL.
    bare: usize,
    /// Names that only Django's own code writes.
    own: bool,
}

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    // By what stands before the version: what is under each version.
    let mut prefixes: BTreeMap<String, BTreeMap<String, Seen>> = BTreeMap::new();
    for glimpse in look.seen() {
        let Some(prefix) = prefix(glimpse.name()) else {
            continue;
        };
        let (pickle, number) = (is_pickle(glimpse), is_number(glimpse));
        if !pickle && !number {
            continue;
        }
        let first = prefix.split(':').next().unwrap_or_default().to_owned();
        let versions = prefixes.entry(first).or_default();
        let seen = versions.entry(prefix.to_owned()).or_default();
        seen.pickles += usize::from(pickle);
        seen.numbers += usize::from(number);
        seen.bare += usize::from(glimpse.ttl.is_none());
        seen.own |= pickle && is_own(glimpse.name(), prefix);
    }
    for versions in prefixes.into_values() {
        let with_pickles = versions.values().filter(|seen| seen.pickles > 0);
        let many = with_pickles.count() > VERSIONS;
        for (prefix, seen) in versions.iter().filter(|(_, seen)| seen.pickles > 0) {
            let mut one = Found::new(
                Library::DjangoCache,
                format!("{prefix}*"),
                confidence(seen, many),
            )
            .because(format!(
                "{prefix}… holds pickled values behind a prefix and a version"
            ))
            .keys(KeySet::default().prefix(prefix));
            if seen.own {
                one = one.because("some names are those that only Django's own code writes");
            }
            found.push(one);
        }
    }
}

fn confidence(seen: &Seen, many: bool) -> f64 {
    match seen.pickles {
        // One pickle may be anybody's, and with many numbers they are ids of entities.
        0 | 1 => 0.5,
        _ if many => 0.5,
        _ if seen.own => 0.85,
        // Whole numbers beside pickles, and all of them end, as a cache's entries do by default.
        _ if seen.numbers > 0 && seen.bare == 0 => 0.8,
        // An application may keep pickles of its own by tenant or by year.
        _ => 0.6,
    }
}

/// More versions of one cache than this are not in use at the same time.
const VERSIONS: usize = 2;

/// Without a prefix of the application's own a key begins with a colon; the rest are the names of Django's modules.
fn is_own(name: &str, prefix: &str) -> bool {
    let key = &name[prefix.len()..];
    let modules = [
        "django.contrib.",
        "views.decorators.cache.",
        "template.cache.",
    ];
    prefix.starts_with(':') || modules.iter().any(|module| key.starts_with(module))
}

/// `shop:1:` of `shop:1:product:7`.
fn prefix(name: &str) -> Option<&str> {
    let (first, rest) = name.split_once(':')?;
    let (version, key) = rest.split_once(':')?;
    let numeric =
        !version.is_empty() && version.len() <= 4 && version.bytes().all(|b| b.is_ascii_digit());
    (numeric && !key.is_empty()).then(|| &name[..first.len() + version.len() + 2])
}

fn is_number(glimpse: &Glimpse) -> bool {
    let text = glimpse
        .text()
        .and_then(|text| std::str::from_utf8(text).ok());
    text.is_some_and(|text| text.parse::<i64>().is_ok())
}

/// A pickle of protocol 2 to 5 begins with its protocol and ends with a full stop.
fn is_pickle(glimpse: &Glimpse) -> bool {
    let begins = |head: &[u8]| matches!(head, [0x80, 2..=5, ..]);
    match (glimpse.text(), glimpse.head()) {
        (Some(whole), _) => begins(whole) && whole.last() == Some(&b'.'),
        (None, Some(head)) => begins(head),
        (None, None) => false,
    }
}
