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
    if head.starts_with(SIGNATURE) && is_header(&head[SIGNATURE.len()..]) {
        return Some(">=7.1");
    }
    let marshalled =
        head.starts_with(MARSHAL) && head.windows(ENTRY.len()).any(|part| part == ENTRY);
    marshalled.then_some("<7.1")
}

/// Whether this is what follows the signature: the type of the payload, the expiry in seconds or -1 as a double, and the length of a
/// version or -1; then the payload.
fn is_header(rest: &[u8]) -> bool {
    let Some((header, payload)) = rest.split_at_checked(13) else {
        return false;
    };
    // An object or a string in one of three encodings, and a flag for compression.
    let is_known = matches!(header[0] & 0x7f, 1..=4);
    let (mut expiry, mut version) = ([0; 8], [0; 4]);
    expiry.copy_from_slice(&header[1..9]);
    version.copy_from_slice(&header[9..]);
    let (expiry, version) = (f64::from_le_bytes(expiry), i32::from_le_bytes(version));
    let never = expiry.to_bits() == (-1.0_f64).to_bits();
    // From 2001 to the year 5138.
    let expires = never || (1e9..1e11).contains(&expiry);
    is_known && expires && (-1..1024).contains(&version) && !payload.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_header_is_an_entry() {
        let entry = |kind: u8, expiry: f64, version: i32| {
            let mut all = SIGNATURE.to_vec();
            all.push(kind);
            all.extend(expiry.to_le_bytes());
            all.extend(version.to_le_bytes());
            all.extend(b"payload");
            version_of(&all)
        };
        let version_of_long = version_of(b"\x00\x11 a text of twenty bytes");
        assert_eq!(version_of_long, None);
        for (kind, expiry, version, is) in [
            (1, -1.0, -1, true),
            (0x82, 1_794_784_761.5, 4, true),
            (0, -1.0, -1, false),
            (9, -1.0, -1, false),
            (1, 0.0, -1, false),
            (1, -1.0, -2, false),
        ] {
            assert_eq!(
                entry(kind, expiry, version).is_some(),
                is,
                "{kind} {expiry} {version}"
            );
        }
        assert_eq!(version_of(b"\x00\x11\x01"), None);
    }

    fn version_of(value: &[u8]) -> Option<&'static str> {
        version(Some(value))
    }
}
