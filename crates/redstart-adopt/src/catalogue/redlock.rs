//! redlock (npm): a string of 32 random hexadecimal digits with a TTL. That is little, and the script that the library sends does not
//! say which keys it was for.

use std::time::Duration;

use crate::{
    found::{Found, KeySet},
    library::Library,
    look::Look,
};

use super::{by_pattern, has_script, redis_py_lock::made_at};

/// A token of redis-py contains a time that is no longer ago than this. One of seventy random tokens has the form of such a token too,
/// but hardly any has such a time.
const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Lock, unlock, extend of version 4, and of version 5.
pub(super) const SCRIPTS: &[&str] = &[
    "e5a322e2634ef59a516e8ea150cb085afafee684",
    "0f0f23b9048b36752b5be114f357ba083449f908",
    "ce46f80993d5dac20dd066eb301a4e37994bdbed",
    "96da70f7716f27d278a5218544df37fd8b0a5e4c",
    "e4612211c9f8f51c257e26e056b0a654b3187242",
    "aed6f382e410db8ba7926d4e5e9aab410bf2a78a",
];

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    let script = has_script(look, SCRIPTS);
    let now = look.now;
    let locks = by_pattern(look, found, |glimpse| {
        let hex = |text: &[u8]| {
            text.len() == 32 && text.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        glimpse.ttl.is_some()
            && glimpse
                .text()
                .is_some_and(|text| hex(text) && !is_of_redis_py(text, now))
    });
    for pattern in locks.into_keys() {
        let named = super::names_a_lock(&pattern);
        // Many programs write random tokens of this length into locks: the script shows that there are locks of the library, not
        // that these are.
        let confidence = match (script, named) {
            (true, true) => 0.7,
            (true, false) => 0.55,
            (false, true) => 0.55,
            (false, false) => continue,
        };
        let mut one = Found::new(Library::Redlock, &pattern, confidence)
            .because("the value is 32 random hexadecimal digits with a TTL")
            .keys(KeySet::default().pattern(&pattern));
        if script {
            one = one.because("the server has the library's script");
        }
        found.push(one);
    }
}

fn is_of_redis_py(text: &[u8], now: Duration) -> bool {
    made_at(text).is_some_and(|at| at < now + Duration::from_secs(120) && at + TEN_YEARS > now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_in_the_form_of_a_uuid_are_not_of_redis_py() {
        let now = Duration::from_secs(1_794_784_800);
        assert!(is_of_redis_py(b"fe1a750ce14a11f1bf3902fc00000001", now));
        assert!(!is_of_redis_py(b"fe1a750ce14a17f1bf3902fc00000001", now));
        // The same form, and a time in the year 2800.
        assert!(!is_of_redis_py(b"fe1a750ce14a14f1bf3902fc00000001", now));
        assert!(!is_of_redis_py(b"fe1a750ce14a1bf1bf3902fc00000001", now));
    }
}
