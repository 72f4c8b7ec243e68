//! How much is allowed in which time.

use std::time::Duration;

use crate::error::{Error, Result};

/// The longest period of a quota.
const MAX_PERIOD: Duration = Duration::from_secs(366 * 24 * 3600);

/// A number of units per period, and for a token bucket how many may come at once.
///
/// Invalid values are refused when the limiter is built.
///
/// ```
/// use redstart::limiting::Quota;
/// use std::time::Duration;
///
/// let api = Quota::per_second(10).burst(100);
/// let mail = Quota::per(3, Duration::from_secs(3600));
/// assert_eq!(mail, Quota::per_hour(3));
/// # let _ = api;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a quota does nothing until a limiter has it"]
pub struct Quota {
    units: u64,
    period: Duration,
    burst: Option<u64>,
}

impl Quota {
    /// `units` in each `period`.
    pub const fn per(units: u64, period: Duration) -> Self {
        Self {
            units,
            period,
            burst: None,
        }
    }

    /// `units` in each second.
    pub const fn per_second(units: u64) -> Self {
        Self::per(units, Duration::from_secs(1))
    }

    /// `units` in each minute.
    pub const fn per_minute(units: u64) -> Self {
        Self::per(units, Duration::from_secs(60))
    }

    /// `units` in each hour.
    pub const fn per_hour(units: u64) -> Self {
        Self::per(units, Duration::from_secs(3600))
    }

    /// `units` in each day.
    pub const fn per_day(units: u64) -> Self {
        Self::per(units, Duration::from_secs(86400))
    }

    /// How many units may come at once: the capacity of a token bucket. Without it, the units of one period.
    ///
    /// Windows have no burst; a limiter of windows refuses it.
    pub const fn burst(mut self, units: u64) -> Self {
        self.burst = Some(units);
        self
    }

    /// The units per period.
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// The period.
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// The most that can be taken at once.
    pub fn capacity(&self) -> u64 {
        self.burst.unwrap_or(self.units)
    }

    pub(super) fn has_burst(&self) -> bool {
        self.burst.is_some()
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.units == 0 {
            return Err(Error::config("a quota of zero units admits nothing"));
        }
        if self.burst == Some(0) {
            return Err(Error::config("a burst of zero admits nothing"));
        }
        if self.period < Duration::from_millis(1) || self.period > MAX_PERIOD {
            return Err(Error::config(
                "the period of a quota must be from 1 ms to 366 days",
            ));
        }
        Ok(())
    }

    /// The period of a window in milliseconds.
    pub(super) fn window_ms(&self) -> Result<u64> {
        if self.has_burst() {
            return Err(Error::config(
                "a window does not take a burst; its limit is the units of the quota",
            ));
        }
        if !self.period.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(Error::config(
                "a window must be a whole number of milliseconds",
            ));
        }
        u64::try_from(self.period.as_millis()).map_err(|_| Error::config("the window is too long"))
    }
}

/// Numbers of Lua are exact below this, with room for a sum of two.
pub(super) const EXACT: u64 = 1 << 52;
