//! Counting: plain and windowed counters, unique visitors, check-ins, activity.
//!
//! | pattern | question it answers | state |
//! |---|---|---|
//! | [`Counter`] | how many, exactly, with a hand-over that loses nothing | one integer |
//! | [`Windowed`] | how many per second, minute, hour or day | one hash that prunes itself |
//! | [`Uniques`] | about how many different visitors | at most 12 KB per day, whatever the number |
//! | [`CheckIns`] | on which days a user was active, and for how many in a row | 46 bytes per user and year |
//! | [`Activity`] | how many users were active, and how many came back | one bit per user and day |
//!
//! Days are civil dates ([`jiff::civil::Date`]). Where a method takes a date, the application says which day it is
//! for the user; the methods that end in `_today` take the day from the server's clock. Keys with a limited
//! lifetime expire by the server's clock, one day later than strictly needed, so that they are complete in every
//! time zone until the end.

use jiff::civil::Date;

use crate::{
    error::{Error, Result},
    script::Script,
};

mod activity;
mod check_ins;
mod counter;
mod keep;
mod uniques;
mod windowed;

pub use activity::{Activity, ActivityBuilder};
pub use check_ins::{CheckIns, CheckInsBuilder, Month, Streaks};
pub use counter::{Counter, CounterBuilder, Drained};
pub use keep::Keep;
pub use uniques::{DaySpan, Estimate, Recorded, Uniques, UniquesBuilder};
pub use windowed::{WindowCount, WindowSize, Windowed, WindowedBuilder};

/// Dates that the patterns here take: four-digit years, so that keys sort and expiries fit.
fn check_date(date: Date) -> Result<()> {
    if (2000..=2199).contains(&date.year()) {
        Ok(())
    } else {
        Err(Error::config(format!(
            "the date {date} is not between 2000 and 2199"
        )))
    }
}

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&Script] = &[
    &activity::COMBINE,
    &activity::MARK,
    &check_ins::MARK,
    &counter::ACK,
    &counter::ADD,
    &counter::DRAIN,
    &counter::TAKE,
    &uniques::ADD,
    &uniques::COUNT,
    &uniques::ROLL_UP,
    &windowed::ADD,
    &windowed::SERIES,
];
