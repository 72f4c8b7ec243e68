//! express-rate-limit with rate-limit-redis: `rl:<client>`, a counter with a TTL. The prefix can be another.

use crate::{
    found::{Found, KeySet},
    library::Library,
    look::Look,
};

use super::{by_pattern, has_script, rate_limiter_flexible::is_counter};

/// Increment and get of versions 4 to 6.
pub(super) const SCRIPTS: &[&str] = &[
    "895b92e1712734e1b464999be23953485475357b",
    "6aeb97ed6086dcdeafdc6fda3999a0d0e38ec96a",
];

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    let script = has_script(look, SCRIPTS);
    let other = has_script(look, super::rate_limiter_flexible::SCRIPTS);
    let counters = by_pattern(look, found, is_counter);
    let alone = counters.len() == 1;
    for pattern in counters.into_keys() {
        let confidence = match (script, pattern.starts_with("rl:")) {
            (true, true) => 0.88,
            (true, false) if alone && !other => 0.7,
            (false, true) => 0.5,
            _ => continue,
        };
        let mut one = Found::new(Library::ExpressRateLimit, &pattern, confidence)
            .because("a counter with a TTL for each client")
            .keys(KeySet::default().pattern(&pattern));
        if script {
            one = one.because("the server has the scripts of rate-limit-redis");
        }
        found.push(one);
    }
}
