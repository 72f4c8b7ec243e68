//! Counting: plain and windowed counters, unique visitors, check-ins, activity.
//!
//! | pattern | question it answers | state |
//! |---|---|---|
//! | [`Counter`] | how many, exactly, and hand it over without losing any | one integer |
//! | [`Windowed`] | how many a minute, an hour, a day | one hash that prunes itself |
//! | [`Uniques`] | how many different visitors, about | 12 KB a day at most, whatever the number |
//! | [`CheckIns`] | on which days was this user here, and for how many in a row | 46 bytes a user and year |
//! | [`Activity`] | how many users were active, and how many came back | one bit a user and day |
//!
//! Days are civil dates ([`jiff::civil::Date`]): which day it is where the user is, the application knows and
//! says. What is kept for a limited time expires by the server's clock, a day later than strictly needed, so
//! that it is whole in every time zone until the end.

use std::time::Duration;

use jiff::{ToSpan as _, civil::Date, tz::TimeZone};

use crate::error::{Error, Result};

pub mod activity;
pub mod check_ins;
pub mod counter;
pub mod uniques;
pub mod windowed;

pub use activity::Activity;
pub use check_ins::CheckIns;
pub use counter::Counter;
pub use uniques::Uniques;
pub use windowed::Windowed;

/// How long counts are kept. There is no default: a key without an end is a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keep {
    /// Until somebody deletes them.
    Forever,
    /// For this long; each pattern says from when on.
    For(Duration),
}

impl Keep {
    /// Longer than this, a deadline in milliseconds would leave the range of exact numbers in Lua.
    const MAX: Duration = Duration::from_secs(1000 * 366 * 24 * 3600);

    fn check(self) -> Result<Self> {
        match self {
            Keep::For(time) if time < Duration::from_millis(1) => Err(Error::config(
                "counts must be kept for at least a millisecond",
            )),
            Keep::For(time) if time > Self::MAX => Err(Error::config(
                "counts are kept for a thousand years at most, or forever",
            )),
            keep => Ok(keep),
        }
    }

    /// Milliseconds, 0 for ever: what the scripts take.
    fn millis(self) -> u64 {
        match self {
            Keep::Forever => 0,
            Keep::For(time) => u64::try_from(time.as_millis()).unwrap_or(0),
        }
    }

    /// When what belongs to days up to `last` ends, in milliseconds since the epoch; 0 for never. One day
    /// more than UTC needs, because the day `last` ends up to twelve hours later elsewhere.
    fn until(self, last: Date) -> Result<i64> {
        match self {
            Keep::Forever => Ok(0),
            Keep::For(_) => {
                let out_of_range =
                    |error| Error::config("the date is out of range").with_source(error);
                let end = last
                    .checked_add(2.days())
                    .and_then(|day| day.to_zoned(TimeZone::UTC))
                    .map_err(out_of_range)?
                    .timestamp()
                    .as_millisecond();
                Ok(end + i64::try_from(self.millis()).unwrap_or(0))
            }
        }
    }
}

/// Dates that the patterns here take: four-digit years, so that keys sort and expiries fit.
fn check_date(date: Date) -> Result<()> {
    if (2000..=2199).contains(&date.year()) {
        Ok(())
    } else {
        Err(Error::config(format!(
            "{date} is not between 2000 and 2199"
        )))
    }
}

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
