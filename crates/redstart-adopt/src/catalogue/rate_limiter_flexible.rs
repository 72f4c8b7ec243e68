//! rate-limiter-flexible: `<prefix>:<key>`, a counter with a TTL. The prefix is `rlflx` unless it is set.

use crate::{
    found::{Found, KeySet},
    glimpse::Glimpse,
    library::Library,
    look::Look,
};

use super::{by_pattern, has_script};

/// Increment.
pub(super) const SCRIPTS: &[&str] = &["a1de965f42e177aa339706bd580f049065eca79a"];

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    let script = has_script(look, SCRIPTS);
    let counters = by_pattern(look, found, is_counter);
    let alone = counters.len() == 1;
    for pattern in counters.into_keys() {
        let confidence = match (script, pattern.starts_with("rlflx:"), alone) {
            (true, true, _) => 0.92,
            // Counters of a limiter have no shape of their own: the script shows that there is one, not that these are its counters.
            (true, false, true) => 0.7,
            (true, false, false) => 0.65,
            (false, true, _) => 0.6,
            (false, false, _) => continue,
        };
        let mut one = Found::new(Library::RateLimiterFlexible, &pattern, confidence)
            .because("a counter with a TTL for each client")
            .keys(KeySet::default().pattern(&pattern));
        if script {
            one = one.because("the server has the library's script");
        }
        found.push(one);
    }
}

/// A small count with a TTL, for an entity.
pub(super) fn is_counter(glimpse: &Glimpse) -> bool {
    let pattern = crate::pattern::of(&glimpse.key);
    glimpse.is_count() && glimpse.len() <= 9 && glimpse.ttl.is_some() && pattern.ends_with('*')
}
