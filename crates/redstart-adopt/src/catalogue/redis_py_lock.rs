//! `redis.lock.Lock` of redis-py: a string that is the hexadecimal form of a UUID of version 1, mostly with a TTL.
//!
//! Such a UUID contains the time it was made: a lock's is recent, and a random token does not have one.

use std::time::Duration;

use crate::{
    found::{Found, KeySet},
    library::Library,
    look::Look,
};

use super::{by_pattern, has_script};

/// Release, extend, reacquire.
pub(super) const SCRIPTS: &[&str] = &[
    "c3f8721cbb97f72bc19e972846bd7aaf91901658",
    "a4e8783852e6b949f9ef3a97212805108459a890",
    "1cac51482acf5858da00f6d685d68f886cd6b6b2",
];

pub(super) fn find(look: &Look<'_>, found: &mut Vec<Found>) {
    let now = look.now;
    let locks = by_pattern(look, found, |glimpse| {
        glimpse
            .text()
            .and_then(made_at)
            .is_some_and(|at| at < now + Duration::from_secs(120) && at + DAY > now)
    });
    let script = has_script(look, SCRIPTS);
    for (pattern, keys) in locks {
        // A token of this kind is rare, but not a lock wherever it stands.
        let confidence = match (script, super::names_a_lock(&pattern)) {
            (true, true) => 0.92,
            (true, false) | (false, true) => 0.7,
            (false, false) => 0.6,
        };
        let mut one = Found::new(Library::RedisPyLock, &pattern, confidence)
            .because("the value is a UUID of version 1 made within the last day")
            .keys(KeySet::default().pattern(&pattern));
        if script {
            one = one.because("the server has the library's script");
        }
        if keys.iter().any(|glimpse| glimpse.ttl.is_none()) {
            one = one.because("held without a TTL: a holder that dies keeps it for ever");
        }
        found.push(one);
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// When the token of a lock of redis-py was made, since the Unix epoch; `None` for any other text.
///
/// The token is a UUID of version 1 in hexadecimal. One of 64 random texts of this length has that form too; few of those
/// have a time of this century.
pub fn made_at(text: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(text).ok()?;
    let lower = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 32 || !text.bytes().all(lower) {
        return None;
    }
    let variant = matches!(text.as_bytes()[16], b'8'..=b'9' | b'a'..=b'b');
    if text.as_bytes()[12] != b'1' || !variant {
        return None;
    }
    let low = u64::from_str_radix(&text[0..8], 16).ok()?;
    let middle = u64::from_str_radix(&text[8..12], 16).ok()?;
    let high = u64::from_str_radix(&text[13..16], 16).ok()?;
    let ticks = high << 48 | middle << 32 | low;
    // 100 ns since 15 October 1582.
    let since_1970 = ticks.checked_sub(0x01b2_1dd2_1381_4000)?;
    Some(Duration::from_micros(since_1970 / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_uuid_is_read() {
        let made = made_at(b"fe1a750ce14a11f1bf3902fc00000001").unwrap();
        assert_eq!(made.as_secs(), 1_794_784_763);
        assert_eq!(made_at(b"a8ab52454cb2aec0fc3c07f4884adb9a"), None);
        assert_eq!(made_at(b"fe1a750c"), None);
    }
}
