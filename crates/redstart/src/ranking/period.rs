//! The periods of a board: which one a moment is in, its name, and when it ends.
//!
//! A board has one time zone, so a week is the same week for every player. Weeks are named by the ISO year: 1 January
//! 2027 is in `2026-W53`.

use jiff::{Timestamp, ToSpan as _, Unit, Zoned, ZonedRound, civil::Date, tz::TimeZone};

use crate::error::{Error, Result};

/// How long a board runs before it starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Period {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first of a month to the first of the next.
    Month,
    /// It never ends.
    All,
}

/// One period of a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeriodId {
    label: String,
    start: Timestamp,
    end: Option<Timestamp>,
}

impl PeriodId {
    /// The name in keys: `2026-11-15`, `2026-W46`, `2026-11` or `all`.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The first moment.
    pub fn start(&self) -> Timestamp {
        self.start
    }

    /// The first moment after it. `None` for [`Period::All`].
    pub fn end(&self) -> Option<Timestamp> {
        self.end
    }

    pub(super) fn contains(&self, at: Timestamp) -> bool {
        self.start <= at && self.end.is_none_or(|end| at < end)
    }
}

impl Period {
    /// The period that a moment is in.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) at the end of the calendar.
    pub fn at(self, moment: Timestamp, zone: &TimeZone) -> Result<PeriodId> {
        self.of(moment.to_zoned(zone.clone()).date(), zone)
    }

    /// The period that a civil day of the board's time zone is in.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) at the end of the calendar.
    pub fn of(self, day: Date, zone: &TimeZone) -> Result<PeriodId> {
        let bad = |error: jiff::Error| {
            Error::config("the period is outside the supported date range").with_source(error)
        };
        let (label, first, next) = match self {
            Period::All => {
                let start = Timestamp::UNIX_EPOCH;
                return Ok(PeriodId {
                    label: "all".to_owned(),
                    start,
                    end: None,
                });
            }
            Period::Day => (day.to_string(), day, day.checked_add(1.day()).map_err(bad)?),
            Period::Week => {
                let back = i64::from(day.weekday().to_monday_zero_offset());
                let monday = day.checked_sub(back.days()).map_err(bad)?;
                let week = day.iso_week_date();
                let label = format!("{:04}-W{:02}", week.year(), week.week());
                (label, monday, monday.checked_add(7.days()).map_err(bad)?)
            }
            Period::Month => {
                let first = day.first_of_month();
                let label = format!("{:04}-{:02}", day.year(), day.month());
                (label, first, first.checked_add(1.month()).map_err(bad)?)
            }
        };
        Ok(PeriodId {
            label,
            start: start_of_day(first, zone).map_err(bad)?,
            end: Some(start_of_day(next, zone).map_err(bad)?),
        })
    }
}

/// The first moment of a day, which is not 00:00 where clocks jump over midnight.
fn start_of_day(day: Date, zone: &TimeZone) -> Result<Timestamp, jiff::Error> {
    let noon: Zoned = day.at(12, 0, 0, 0).to_zoned(zone.clone())?;
    let start = noon.start_of_day()?;
    debug_assert!(
        start
            .round(ZonedRound::new().smallest(Unit::Second))
            .is_ok()
    );
    Ok(start.timestamp())
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    #[test]
    fn every_day_from_2018_to_2040_is_in_the_right_period() {
        for zone in ["UTC", "America/Sao_Paulo", "Asia/Kolkata", "Pacific/Apia"] {
            let zone = TimeZone::get(zone).expect("a time zone");
            let mut previous: Option<[PeriodId; 3]> = None;
            let mut day = date(2018, 1, 1);
            while day < date(2041, 1, 1) {
                let periods = [Period::Day, Period::Week, Period::Month]
                    .map(|p| p.of(day, &zone).expect("a period"));
                for period in &periods {
                    // A period holds its first and its last moment and not the one after.
                    let end = period.end().expect("an end");
                    let last = end - jiff::SignedDuration::from_nanos(1);
                    assert!(
                        period.contains(period.start())
                            && period.contains(last)
                            && !period.contains(end)
                    );
                }
                if let Some(previous) = &previous {
                    for (old, new) in previous.iter().zip(&periods) {
                        // Either the same period, or one that begins when the other ends.
                        assert!(
                            old == new || old.end() == Some(new.start()),
                            "{day} {old:?} {new:?}"
                        );
                    }
                }
                let week = day.iso_week_date();
                assert_eq!(
                    periods[1].label(),
                    format!("{}-W{:02}", week.year(), week.week())
                );
                assert_eq!(periods[2].label(), day.strftime("%Y-%m").to_string());
                assert_eq!(periods[0].label(), day.strftime("%Y-%m-%d").to_string());
                previous = Some(periods);
                day = day.tomorrow().expect("a day");
            }
        }
        let utc = TimeZone::UTC;
        assert_eq!(
            Period::Week
                .of(date(2027, 1, 1), &utc)
                .expect("a week")
                .label(),
            "2026-W53"
        );
        assert_eq!(
            Period::Week
                .of(date(2024, 12, 30), &utc)
                .expect("a week")
                .label(),
            "2025-W01"
        );
    }
}
