//! How long counts are kept.

use std::time::Duration;

use jiff::{ToSpan as _, civil::Date, tz::TimeZone};

use crate::{
    duration::millis,
    error::{Error, Result},
};

/// How long counts are kept. There is no default: a key that never expires is a decision.
///
/// If instances of one name disagree, the longest lifetime applies: no write shortens the life of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keep {
    /// Until somebody deletes them.
    Forever,
    /// For this long, at most a century. Each pattern says when the time starts.
    For(Duration),
}

impl Keep {
    pub(super) fn check(self) -> Result<Self> {
        match self {
            Keep::For(Duration::ZERO) => Err(Error::config("a lifetime must be longer than zero")),
            keep => Ok(keep),
        }
    }

    /// Milliseconds, 0 for ever: what the scripts take.
    pub(super) fn millis(self) -> u64 {
        match self {
            Keep::Forever => 0,
            Keep::For(time) => millis(time),
        }
    }

    /// When keys for days up to `last` expire, in milliseconds since the epoch; 0 for never. One day later than
    /// UTC needs, because the day `last` ends up to twelve hours later elsewhere.
    pub(super) fn until(self, last: Date) -> Result<u64> {
        match self {
            Keep::Forever => Ok(0),
            Keep::For(time) => {
                let out_of_range =
                    |error| Error::config("the date is out of range").with_source(error);
                let end = last
                    .checked_add(2.days())
                    .and_then(|day| day.to_zoned(TimeZone::UTC))
                    .map_err(out_of_range)?
                    .timestamp()
                    .as_millisecond();
                // Dates are from 2000 on, so the end is positive.
                Ok(end.unsigned_abs() + millis(time))
            }
        }
    }
}
