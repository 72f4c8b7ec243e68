//! Django's cache: `<prefix>:<version>:<key>`, pickled values; whole numbers are stored as they are.

use std::collections::BTreeMap;

use crate::{
    found::{Found, KeySet},
    glimpse::Glimpse,
    library::Library,
    look::Look,
};

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    // By what stands before the version: the pickles under each version.
    let mut prefixes: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for glimpse in look.seen() {
        if let Some(prefix) = prefix(glimpse.name())
            && is_pickle(glimpse)
        {
            let first = prefix.split(':').next().unwrap_or_default().to_owned();
            let versions = prefixes.entry(first).or_default();
            *versions.entry(prefix.to_owned()).or_default() += 1;
        }
    }
    for versions in prefixes.into_values() {
        let many = versions.len() > VERSIONS;
        for (prefix, pickles) in versions {
            let confidence = match (pickles, many) {
                (2.., false) => 0.85,
                // One pickle may be anybody's, and with many numbers they are ids of entities.
                _ => 0.5,
            };
            found.push(
                Found::new(Library::DjangoCache, format!("{prefix}*"), confidence)
                    .because(format!(
                        "{prefix}… holds pickled values behind a prefix and a version"
                    ))
                    .keys(KeySet::default().prefix(&prefix)),
            );
        }
    }
}

/// More versions of one cache than this are not in use at the same time.
const VERSIONS: usize = 2;

/// `shop:1:` of `shop:1:product:7`.
fn prefix(name: &str) -> Option<&str> {
    let (first, rest) = name.split_once(':')?;
    let (version, key) = rest.split_once(':')?;
    let numeric =
        !version.is_empty() && version.len() <= 4 && version.bytes().all(|b| b.is_ascii_digit());
    (numeric && !key.is_empty()).then(|| &name[..first.len() + version.len() + 2])
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
