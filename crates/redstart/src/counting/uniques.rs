//! How many different visitors, about: HyperLogLog by day, rolled up to weeks and months.
//!
//! # Promise
//!
//! - A visitor counts once in every period, however often and in however many days of it they come.
//! - Estimates have a standard error of 0.81 %; small numbers are exact or nearly so.
//! - [`roll_up`](Uniques::roll_up) may run at any time, twice or never: it only makes a period outlive its days.
//!   It builds under another name and renames, so a reader never sees half of it.
//! - A day's key gets its expiry in the step that writes it. A day past its retention is not revived:
//!   [`Recorded::TooLate`].
//!
//! # Not promised
//!
//! Intersections ("visited on both days"). The error of a difference of estimates has no bound, so there is no
//! such method; [`Activity`](super::Activity) answers that exactly for dense ids.
//!
//! # Keys and cost
//!
//! `<ns>:uniques:{<metric>}:d:<date>` a day, `…:w:<iso year>-W<week>` and `…:m:<year>-<month>` what was rolled up; at
//! most 12 KB each. One tag a metric, so a Cluster can merge them. `add` is one round trip for any number of
//! ids; a count over *n* days merges *n* sketches on the server, about 20 µs each.
//!
//! While the store is down every call fails.
//!
//! Operations: `uniques.add`, `uniques.count`, `uniques.roll_up`.

use std::ops::RangeInclusive;

use jiff::{ToSpan as _, civil::Date};

use crate::{
    counting::{Keep, check_date},
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::Script,
    store::Store,
};

static ADD: Script = Script::new("uniques.add", include_str!("uniques/add.lua"));
static COUNT: Script = Script::new("uniques.count", include_str!("uniques/count.lua"));
static ROLL_UP: Script = Script::new("uniques.roll_up", include_str!("uniques/roll_up.lua"));

/// A span of days that is counted as one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Period {
    /// One day.
    Day(Date),
    /// The ISO week that the day is in: Monday to Sunday.
    Week(Date),
    /// The month that the day is in.
    Month(Date),
    /// Any days, the last included; at most 1,100 of them.
    Range(RangeInclusive<Date>),
}

impl Period {
    const MAX_DAYS: usize = 1100;

    fn days(&self) -> Result<Vec<Date>> {
        let bad = |error| Error::config("the period leaves the calendar").with_source(error);
        let (first, last) = match self {
            Period::Day(day) => (*day, *day),
            Period::Week(day) => {
                let back = i64::from(day.weekday().to_monday_zero_offset());
                let monday = day.checked_sub(back.days()).map_err(bad)?;
                (monday, monday.checked_add(6.days()).map_err(bad)?)
            }
            Period::Month(day) => (day.first_of_month(), day.last_of_month()),
            Period::Range(range) => (*range.start(), *range.end()),
        };
        check_date(first)?;
        check_date(last)?;
        if first > last {
            return Err(Error::config(format!(
                "the period ends on {last}, before it begins on {first}"
            )));
        }
        let days: Vec<Date> = first
            .series(1.day())
            .take_while(|day| *day <= last)
            .take(Self::MAX_DAYS + 1)
            .collect();
        if days.len() > Self::MAX_DAYS {
            return Err(Error::config(format!(
                "a period has at most {} days",
                Self::MAX_DAYS
            )));
        }
        Ok(days)
    }

    /// The part of the key under which the period is kept when it was rolled up.
    fn part(&self) -> Option<String> {
        match self {
            Period::Day(_) | Period::Range(_) => None,
            // The ISO year, which is not the calendar's in the days around New Year.
            Period::Week(day) => {
                let week = day.iso_week_date();
                Some(format!("w:{:04}-W{:02}", week.year(), week.week()))
            }
            Period::Month(day) => Some(format!("m:{:04}-{:02}", day.year(), day.month())),
        }
    }
}

fn day_part(day: Date) -> String {
    format!("d:{day}")
}

/// Whether [`Uniques::add`] changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// At least one of the ids was probably new that day.
    New,
    /// All of them were probably known.
    Known,
    /// The day is past its retention; nothing was written.
    TooLate,
}

/// An estimated number of different visitors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// The estimate.
    pub count: u64,
}

impl Estimate {
    /// The standard error, relative to the count.
    pub const STANDARD_ERROR: f64 = 0.0081;

    /// Where the truth is 19 times out of 20.
    pub fn bounds(self) -> (u64, u64) {
        let off = self.count as f64 * Self::STANDARD_ERROR * 1.96;
        let (low, high) = (self.count as f64 - off, self.count as f64 + off);
        (low.floor().max(0.0) as u64, high.ceil() as u64)
    }
}

/// Unique visitors of one namespace. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use jiff::civil::date;
/// use redstart::{Store, counting::{Keep, Uniques, uniques::Period}};
/// let store = Store::connect("memory://").await?;
/// let visitors = Uniques::new(&store, "site", Keep::Forever)?;
///
/// visitors.add("home", date(2026, 12, 31), ["ann", "bob"]).await?;
/// visitors.add("home", date(2027, 1, 1), ["bob", "cid"]).await?;
///
/// assert_eq!(visitors.count("home", &Period::Day(date(2027, 1, 1))).await?.count, 2);
/// // Both days are in week 53 of 2026, and bob counts once.
/// assert_eq!(visitors.count("home", &Period::Week(date(2027, 1, 1))).await?.count, 3);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Uniques {
    store: Store,
    keys: Keys,
    keep_days: Keep,
    keep_periods: Keep,
}

impl Uniques {
    /// The longest id in bytes.
    pub const MAX_ID: usize = 4096;
    /// The most ids of one call.
    pub const MAX_IDS: usize = 100_000;

    /// Visitors in `namespace`; each day is kept for the given time after it ended.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or a lifetime of zero.
    pub fn new(store: &Store, namespace: &str, keep_days: Keep) -> Result<Self> {
        Ok(Self {
            store: store.clone(),
            keys: Keys::new(namespace, "uniques")?,
            keep_days: keep_days.check()?,
            keep_periods: Keep::Forever,
        })
    }

    /// How long weeks and months that were rolled up are kept after they ended.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a lifetime of zero.
    pub fn keep_periods(mut self, keep: Keep) -> Result<Self> {
        self.keep_periods = keep.check()?;
        Ok(self)
    }

    /// Records visitors of a day.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for no ids or too many, an empty or too long id, or a date before 2000;
    /// otherwise those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, it may or may not have recorded them; recording them again is harmless.
    pub async fn add<I>(&self, metric: &str, day: Date, ids: I) -> Result<Recorded>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        check_date(day)?;
        let entity = self.keys.entity(metric)?;
        let mut call = ADD
            .on(&entity)
            .part(&day_part(day))
            .arg(self.keep_days.until(day)?)
            .idempotent();
        let mut count = 0;
        for id in ids {
            let id = id.as_ref();
            if id.is_empty() || id.len() > Self::MAX_ID {
                return Err(Error::config(format!(
                    "an id has 1 to {} bytes",
                    Self::MAX_ID
                )));
            }
            count += 1;
            if count > Self::MAX_IDS {
                return Err(Error::config(format!(
                    "at most {} ids at once",
                    Self::MAX_IDS
                )));
            }
            call = call.arg(id);
        }
        if count == 0 {
            return Err(Error::config("no ids were given"));
        }
        observe::operation("uniques.add", self.keys.namespace(), async {
            Ok(match call.run::<i64>(&self.store).await? {
                -1 => Recorded::TooLate,
                0 => Recorded::Known,
                _ => Recorded::New,
            })
        })
        .await
    }

    /// Estimates the different visitors of a period, from its days and from what was rolled up.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a range that is empty or too long; otherwise those of the
    /// [store](Store::query).
    pub async fn count(&self, metric: &str, period: &Period) -> Result<Estimate> {
        let entity = self.keys.entity(metric)?;
        let days = period.days()?;
        observe::operation("uniques.count", self.keys.namespace(), async {
            let mut call = COUNT.on(&entity);
            for part in parts(period, &days) {
                call = call.part(&part);
            }
            Ok(Estimate {
                count: call.idempotent().run(&self.store).await?,
            })
        })
        .await
    }

    /// Merges the days of a week or month into one key that outlives them, and returns its estimate.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a single day or a range, which have no key of their own; otherwise
    /// those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the period was rolled up or not; never half.
    pub async fn roll_up(&self, metric: &str, period: &Period) -> Result<Estimate> {
        let entity: Entity = self.keys.entity(metric)?;
        let days = period.days()?;
        let Some(part) = period.part() else {
            return Err(Error::config(
                "weeks and months are rolled up, not days and ranges",
            ));
        };
        let until = match days.last() {
            Some(last) => self.keep_periods.until(*last)?,
            None => 0,
        };
        observe::operation("uniques.roll_up", self.keys.namespace(), async {
            let mut call = ROLL_UP.on(&entity).part(&format!("tmp:{part}")).part(&part);
            for day in &days {
                call = call.part(&day_part(*day));
            }
            Ok(Estimate {
                count: call.arg(until).idempotent().run(&self.store).await?,
            })
        })
        .await
    }
}

fn parts(period: &Period, days: &[Date]) -> Vec<String> {
    days.iter()
        .map(|day| day_part(*day))
        .chain(period.part())
        .collect()
}
