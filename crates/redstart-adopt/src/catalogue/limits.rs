//! limits (Python): `LIMITS:LIMITER/<parts>/<amount>/<multiples>/<granularity>`; a counter (fixed window), a list of times (moving
//! window) or two counters (sliding window).

use std::time::Duration;

use crate::{
    found::{Found, KeySet},
    glimpse::{Glimpse, Shape},
    library::Library,
    look::Look,
};

use super::{by_pattern, has_script};

/// Increment, moving window, sliding window and their relatives of versions 4 and 5.
pub(super) const SCRIPTS: &[&str] = &[
    "628bd136a573a06b346879695681af12ccef300f",
    "741eab638ba93ed71020bb821c45c022d0fa02c4",
    "e8ac2a60cb040b0dbb56815a1e9c6fd032ce62e7",
    "ad795214f59fe26d6fdec07973836dd16586f5ec",
    "e7a0a27d4101baabb124af209bb0245197a359a1",
    "f2994557f1daca13bfef97c2a31ca4b174e031ca",
];

/// What stands before every key, unless `key_prefix` was set.
const PREFIX: &str = "LIMITS:";

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    let script = has_script(look, SCRIPTS);
    for pattern in by_pattern(look, found, is_limit).into_keys() {
        // Paths that end in a unit of time are common; the prefix is the library's own.
        let confidence = match (pattern.starts_with(PREFIX), script) {
            (true, true) => 0.95,
            (true, false) => 0.8,
            (false, true) => 0.7,
            (false, false) => 0.6,
        };
        let mut one = Found::new(Library::Limits, &pattern, confidence)
            .because("the value expires within the window that the key names")
            .keys(
                KeySet::default()
                    .pattern(&pattern)
                    .pattern(format!("{pattern}/*")),
            );
        if script {
            one = one.because("the server has the library's scripts");
        }
        found.push(one);
    }
}

fn is_limit(glimpse: &Glimpse) -> bool {
    let Some(window) = window(glimpse.name()) else {
        return false;
    };
    // A moving window is kept for a second longer, a sliding one for two windows.
    let within = glimpse
        .ttl
        .is_some_and(|ttl| ttl <= window * 2 + Duration::from_secs(1));
    let shaped = match &glimpse.shape {
        Shape::List { first, .. } => first
            .as_deref()
            .and_then(|time| std::str::from_utf8(time).ok())
            .is_some_and(|time| time.parse::<f64>().is_ok()),
        _ => glimpse.is_count(),
    };
    within && shaped
}

/// The window that a key names.
fn window(name: &str) -> Option<Duration> {
    let name = name.trim_end_matches("/-1");
    let mut parts = name.rsplit('/');
    let seconds = match parts.next()? {
        "second" => 1,
        "minute" => 60,
        "hour" => 3_600,
        "day" => 86_400,
        "month" => 2_592_000,
        "year" => 31_104_000,
        _ => return None,
    };
    let multiples: u32 = parts.next()?.parse().ok()?;
    let _amount: u64 = parts.next()?.parse().ok()?;
    parts.next()?;
    Some(Duration::from_secs(seconds) * multiples)
}
