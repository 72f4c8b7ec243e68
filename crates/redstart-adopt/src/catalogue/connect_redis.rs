//! connect-redis: `sess:<id>`, a session of express-session as JSON with its `cookie`.

use crate::{
    found::{Found, KeySet},
    glimpse::json_has,
    library::Library,
    look::Look,
};

use super::by_pattern;

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    let sessions = by_pattern(look, found, |glimpse| {
        let head = glimpse.head().unwrap_or_default();
        let has = |part: &[u8]| head.windows(part.len()).any(|window| window == part);
        json_has(head, &["cookie"]) && has(b"\"originalMaxAge\"") && has(b"\"path\"")
    });
    for (pattern, keys) in sessions {
        let mut one = Found::new(Library::ConnectRedis, &pattern, 0.95)
            .because("JSON with the cookie of express-session")
            .keys(KeySet::default().pattern(&pattern));
        if keys.iter().any(|glimpse| glimpse.ttl.is_none()) {
            one.confidence = 0.85;
            one = one.because("some have no TTL");
        }
        found.push(one);
    }
}
