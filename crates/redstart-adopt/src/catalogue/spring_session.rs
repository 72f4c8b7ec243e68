//! Spring Session: `<namespace>:sessions:<id>`, a hash with `creationTime`, `lastAccessedTime`, `maxInactiveInterval` and `sessionAttr:*`.

use std::collections::BTreeSet;

use crate::{
    found::{Found, KeySet},
    library::Library,
    look::Look,
};

const FIELDS: &[&str] = &["creationTime", "lastAccessedTime", "maxInactiveInterval"];

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    let namespaces: BTreeSet<String> = look
        .seen()
        .filter(|glimpse| glimpse.has_fields(FIELDS))
        .filter_map(|glimpse| {
            let (namespace, _) = glimpse.name().split_once(":sessions:")?;
            Some(namespace.to_owned())
        })
        .collect();
    for namespace in namespaces {
        found.push(
            Found::new(
                Library::SpringSession,
                format!("{namespace}:sessions:*"),
                0.96,
            )
            .because(format!("hashes with {}", FIELDS.join(", ")))
            .keys(
                KeySet::default()
                    .prefix(format!("{namespace}:sessions:"))
                    .prefix(format!("{namespace}:expirations:"))
                    .prefix(format!("{namespace}:index:")),
            ),
        );
    }
}
