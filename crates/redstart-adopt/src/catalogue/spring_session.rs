//! Spring Session: `<namespace>:sessions:<id>`, a hash with `creationTime`, `lastAccessedTime`, `maxInactiveInterval` and `sessionAttr:*`.

use std::collections::BTreeMap;

use crate::{
    found::{Found, KeySet},
    glimpse::Glimpse,
    library::Library,
    look::Look,
};

const FIELDS: &[&str] = &["creationTime", "lastAccessedTime", "maxInactiveInterval"];

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    // By namespace: whether the values are serialised Java objects, which others do not write under these names.
    let mut namespaces: BTreeMap<String, bool> = BTreeMap::new();
    for glimpse in look.seen().filter(|glimpse| glimpse.has_fields(FIELDS)) {
        if let Some((namespace, _)) = glimpse.name().split_once(":sessions:") {
            *namespaces.entry(namespace.to_owned()).or_default() |= is_serialised(glimpse);
        }
    }
    for (namespace, serialised) in namespaces {
        let confidence = if serialised { 0.96 } else { 0.65 };
        let mut one = Found::new(
            Library::SpringSession,
            format!("{namespace}:sessions:*"),
            confidence,
        )
        .because(format!("hashes with {}", FIELDS.join(", ")))
        .keys(
            KeySet::default()
                .prefix(format!("{namespace}:sessions:"))
                .prefix(format!("{namespace}:expirations:"))
                .prefix(format!("{namespace}:index:")),
        );
        if serialised {
            one = one.because("their values are serialised Java objects");
        }
        found.push(one);
    }
}

/// Whether all these fields begin as Java's serialisation does.
fn is_serialised(glimpse: &Glimpse) -> bool {
    let fields = glimpse.fields().iter();
    let mut times = fields.filter(|(name, _)| FIELDS.iter().any(|known| name == known.as_bytes()));
    let java = |value: &Option<Vec<u8>>| {
        let value = value.as_deref().unwrap_or_default();
        value.starts_with(b"\xac\xed\x00\x05")
    };
    times.clone().count() == FIELDS.len() && times.all(|(_, value)| java(value))
}
