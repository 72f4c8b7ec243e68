//! Locks of Redisson: a hash whose fields are `<uuid>:<thread>` and whose values count re-entries.

use crate::{
    found::{Found, KeySet},
    glimpse::Glimpse,
    library::Library,
    look::Look,
};

use super::by_pattern;

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    for (pattern, keys) in by_pattern(look, found, is_lock) {
        let mut one = Found::new(Library::Redisson, &pattern, 0.93)
            .because("a hash whose fields are a client's UUID with a thread and whose values count")
            .keys(KeySet::default().pattern(&pattern));
        if keys.iter().all(|glimpse| glimpse.ttl.is_none()) {
            one.confidence = 0.7;
            one = one.because("without a TTL, which Redisson would set");
        }
        found.push(one);
    }
}

fn is_lock(glimpse: &Glimpse) -> bool {
    let fields = glimpse.fields();
    let holder = |name: &[u8]| {
        let name = std::str::from_utf8(name).unwrap_or_default();
        name.split_once(':').is_some_and(|(client, thread)| {
            client.len() == 36
                && client.matches('-').count() == 4
                && client.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
                && thread.parse::<u64>().is_ok()
        })
    };
    let counts = |value: &Option<Vec<u8>>| {
        let text = value
            .as_deref()
            .and_then(|value| std::str::from_utf8(value).ok());
        text.is_some_and(|text| text.parse::<u32>().is_ok())
    };
    !fields.is_empty()
        && fields
            .iter()
            .all(|(name, value)| name == b"mode" || (holder(name) && counts(value)))
        && fields.iter().any(|(name, _)| name != b"mode")
}
