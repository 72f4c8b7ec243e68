//! The cache of Rails: entries with a signature of their own since 7.1, marshalled `ActiveSupport::Cache::Entry` objects before.

use crate::{
    found::{Found, KeySet},
    library::Library,
    look::Look,
};

use super::by_pattern;

/// The first bytes of an entry since Rails 7.1.
const SIGNATURE: &[u8] = b"\x00\x11";
/// The first bytes of everything that Ruby marshalled.
const MARSHAL: &[u8] = b"\x04\x08";
const ENTRY: &[u8] = b"ActiveSupport::Cache::Entry";

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    let entries = by_pattern(look, found, |glimpse| version(glimpse.head()).is_some());
    for (pattern, keys) in entries {
        let version = keys.iter().find_map(|glimpse| version(glimpse.head()));
        found.push(
            Found::new(Library::RailsCache, &pattern, 0.93)
                .version(version.map(str::to_owned))
                .because("values are entries of ActiveSupport::Cache")
                .keys(KeySet::default().pattern(&pattern)),
        );
    }
}

fn version(head: Option<&[u8]>) -> Option<&'static str> {
    let head = head?;
    // After the signature: the type of the payload, then the expiry as a double.
    if head.starts_with(SIGNATURE) && head.len() > 15 {
        return Some(">=7.1");
    }
    let marshalled =
        head.starts_with(MARSHAL) && head.windows(ENTRY.len()).any(|part| part == ENTRY);
    marshalled.then_some("<7.1")
}
