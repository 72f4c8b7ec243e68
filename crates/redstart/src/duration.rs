//! Durations as the integers that scripts and commands take.
//!
//! Both conversions round up, so that a time that is not zero never becomes zero, and both stop at a century:
//! a Lua number is exact below 2^53, and a server adds its own clock to what it is given.

use std::time::Duration;

/// The longest time that is sent to a server. Longer ones are cut to it.
pub(crate) const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Whole milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    rounded_up(time, 1_000_000)
}

/// Whole microseconds.
pub(crate) fn micros(time: Duration) -> u64 {
    rounded_up(time, 1_000)
}

fn rounded_up(time: Duration, nanos: u128) -> u64 {
    // At most a century in microseconds, which is below 2^52.
    time.min(LONGEST).as_nanos().div_ceil(nanos) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_stay_exact_in_lua() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_micros(1500)), 2);
        assert_eq!(micros(Duration::from_micros(1500)), 1500);
        assert_eq!(micros(Duration::from_nanos(1)), 1);
        assert!(micros(Duration::MAX) < 1 << 52);
        assert_eq!(millis(Duration::MAX), LONGEST.as_millis() as u64);
    }
}
