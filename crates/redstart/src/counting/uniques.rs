//! About how many different visitors: HyperLogLog per day, rolled up to weeks and months.

use std::ops::RangeInclusive;

use jiff::{ToSpan as _, civil::Date, tz::TimeZone};

use crate::{
    clock::ServerClock,
    counting::{Keep, check_date},
    error::{Error, Result},
    key::{Keys, Layout},
    observe,
    script::Script,
    store::Store,
};

pub(super) static ADD: Script = Script::new(
    "uniques.add",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("keep.lua"),
        include_str!("uniques/add.lua")
    ),
);
pub(super) static COUNT: Script = Script::new("uniques.count", include_str!("uniques/count.lua"));
pub(super) static ROLL_UP: Script =
    Script::new("uniques.roll_up", include_str!("uniques/roll_up.lua"));

/// Days that are counted together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DaySpan {
    /// One day.
    Day(Date),
    /// The ISO week that the day is in: Monday to Sunday.
    Week(Date),
    /// The month that the day is in.
    Month(Date),
    /// Any days, the last included; at most 1,100 of them.
    Range(RangeInclusive<Date>),
}

impl DaySpan {
    const MAX_DAYS: usize = 1100;

    fn days(&self) -> Result<Vec<Date>> {
        let bad = |error| {
            Error::config("the span is outside the supported date range").with_source(error)
        };
        let (first, last) = match self {
            DaySpan::Day(day) => (*day, *day),
            DaySpan::Week(day) => {
                let back = i64::from(day.weekday().to_monday_zero_offset());
                let monday = day.checked_sub(back.days()).map_err(bad)?;
                (monday, monday.checked_add(6.days()).map_err(bad)?)
            }
            DaySpan::Month(day) => (day.first_of_month(), day.last_of_month()),
            DaySpan::Range(range) => (*range.start(), *range.end()),
        };
        check_date(first)?;
        check_date(last)?;
        if first > last {
            return Err(Error::config(format!(
                "the span ends on {last}, before it begins on {first}"
            )));
        }
        let days: Vec<Date> = first
            .series(1.day())
            .take_while(|day| *day <= last)
            .take(Self::MAX_DAYS + 1)
            .collect();
        if days.len() > Self::MAX_DAYS {
            return Err(Error::config(format!(
                "a span has at most {} days",
                Self::MAX_DAYS
            )));
        }
        Ok(days)
    }

    /// The part of the key under which a rolled-up week or month is kept.
    fn part(&self) -> Option<String> {
        match self {
            DaySpan::Day(_) | DaySpan::Range(_) => None,
            // The ISO year, which differs from the calendar's around New Year.
            DaySpan::Week(day) => {
                let week = day.iso_week_date();
                Some(format!("w:{:04}-W{:02}", week.year(), week.week()))
            }
            DaySpan::Month(day) => Some(format!("m:{:04}-{:02}", day.year(), day.month())),
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
    /// The day is past its lifetime; nothing was written.
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

    /// The range that contains the true number with a probability of 95 %.
    pub fn bounds(self) -> (u64, u64) {
        let off = self.count as f64 * Self::STANDARD_ERROR * 1.96;
        let (low, high) = (self.count as f64 - off, self.count as f64 + off);
        (low.floor().max(0.0) as u64, high.ceil() as u64)
    }
}

/// Unique visitors by day, week, month or any range of days.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use jiff::civil::date;
/// use redstart::{Store, counting::{DaySpan, Keep, Uniques}};
/// let store = Store::connect("memory://").await?;
/// let visitors = Uniques::new(&store, "site", "visitors", Keep::Forever)?;
///
/// visitors.add("home", date(2026, 12, 31), ["ann", "bob"]).await?;
/// visitors.add("home", date(2027, 1, 1), ["bob", "cid"]).await?;
///
/// assert_eq!(visitors.count("home", &DaySpan::Day(date(2027, 1, 1))).await?.count, 2);
/// // Both days are in week 53 of 2026, and bob counts once.
/// assert_eq!(visitors.count("home", &DaySpan::Week(date(2027, 1, 1))).await?.count, 3);
///
/// // Today, by the server's clock.
/// visitors.add_today("home", ["ann"]).await?;
/// let today = DaySpan::Day(visitors.today().await?);
/// assert_eq!(visitors.count("home", &today).await?.count, 1);
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - A visitor counts once in every span, however often they come and on however many of its days.
/// - Estimates have a standard error of 0.81 %; small numbers are exact or nearly so.
/// - [`roll_up`](Self::roll_up) may run at any time, repeatedly or never: it only makes a week or month outlive its
///   days. It builds under another name and renames, so a reader never sees a partial result.
/// - A day's key gets its expiry from the script that writes it. A day past its lifetime is not revived:
///   [`Recorded::TooLate`].
///
/// # Limits
///
/// No intersections ("visited on both days"): the error of a difference of estimates has no bound.
/// [`Activity`](super::Activity) answers that exactly for dense ids.
///
/// # Keys
///
/// `<ns>:uniques.<name>:{<metric>}:d:<date>` for a day, `…:w:<iso year>-W<week>` and `…:m:<year>-<month>` for what was
/// rolled up; at most 12 KB each. All keys of a metric share a hash tag, so a Cluster can merge them.
///
/// # Round trips
///
/// One per call; `add_today` asks the server for its time once a minute. A count over *n* days merges *n* sketches on
/// the server, about 20 µs each.
///
/// # While the store is down
///
/// Every call fails.
///
/// # Metrics
///
/// Operations: `uniques.add`, `uniques.count`, `uniques.roll_up`.
#[derive(Clone, Debug)]
pub struct Uniques {
    store: Store,
    keys: Keys,
    keep_days: Keep,
    keep_rolled_up: Keep,
    zone: TimeZone,
    clock: ServerClock,
}

/// Settings of [`Uniques`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct UniquesBuilder {
    store: Store,
    namespace: String,
    name: String,
    keep_days: Keep,
    keep_rolled_up: Keep,
    zone: TimeZone,
    layout: Option<Layout>,
}

impl UniquesBuilder {
    /// How long weeks and months that were rolled up are kept after they ended; for ever by default.
    pub fn keep_rolled_up(mut self, keep: Keep) -> Self {
        self.keep_rolled_up = keep;
        self
    }

    /// The time zone in which [`Uniques::add_today`] takes the date; UTC by default.
    pub fn zone(mut self, zone: TimeZone) -> Self {
        self.zone = zone;
        self
    }

    /// Uses keys that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Builds the counters.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name, or a lifetime of zero.
    pub fn build(self) -> Result<Uniques> {
        let mut keys = Keys::named(&self.namespace, "uniques", &self.name)?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(Uniques {
            clock: ServerClock::new(&self.store),
            store: self.store,
            keys,
            keep_days: self.keep_days.check()?,
            keep_rolled_up: self.keep_rolled_up.check()?,
            zone: self.zone,
        })
    }
}

impl Uniques {
    /// The longest id in bytes.
    pub const MAX_ID: usize = 4096;
    /// The most ids of one call.
    pub const MAX_IDS: usize = 100_000;

    /// Builds the visitor counts `name`; each day is kept for the given time after it ended.
    pub fn builder(store: &Store, namespace: &str, name: &str, keep: Keep) -> UniquesBuilder {
        UniquesBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            keep_days: keep,
            keep_rolled_up: Keep::Forever,
            zone: TimeZone::UTC,
            layout: None,
        }
    }

    /// The visitor counts `name` with default settings.
    ///
    /// # Errors
    ///
    /// As [`UniquesBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str, keep: Keep) -> Result<Self> {
        Self::builder(store, namespace, name, keep).build()
    }

    /// The date by the server's clock, in the time zone of the [builder](UniquesBuilder::zone).
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn today(&self) -> Result<Date> {
        self.clock.today(&self.zone).await
    }

    /// Records visitors of [today](Self::today).
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add).
    ///
    /// # Cancel safety
    ///
    /// As [`add`](Self::add).
    pub async fn add_today<I>(&self, metric: &str, ids: I) -> Result<Recorded>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let today = self.today().await?;
        self.add(metric, today, ids).await
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
    /// If the future is dropped, the visitors may or may not have been recorded; recording them again is harmless.
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
                    "ids must have 1 to {} bytes",
                    Self::MAX_ID
                )));
            }
            count += 1;
            if count > Self::MAX_IDS {
                return Err(Error::config(format!(
                    "at most {} ids per call",
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

    /// Estimates the different visitors of a span, from its days and from what was rolled up.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a range that is empty or too long; otherwise those of the
    /// [store](Store::query).
    pub async fn count(&self, metric: &str, span: &DaySpan) -> Result<Estimate> {
        let entity = self.keys.entity(metric)?;
        let days = span.days()?;
        observe::operation("uniques.count", self.keys.namespace(), async {
            let mut call = COUNT.on(&entity);
            for part in parts(span, &days) {
                call = call.part(&part);
            }
            Ok(Estimate {
                count: call.idempotent().run(&self.store).await?,
            })
        })
        .await
    }

    /// Merges the days of a week or month into one key that outlives them, and returns the estimate.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a single day or a range, which have no key; otherwise
    /// those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the span was rolled up or not; never partially.
    pub async fn roll_up(&self, metric: &str, span: &DaySpan) -> Result<Estimate> {
        let entity = self.keys.entity(metric)?;
        let days = span.days()?;
        let Some(part) = span.part() else {
            return Err(Error::config("only weeks and months can be rolled up"));
        };
        let until = match days.last() {
            Some(last) => self.keep_rolled_up.until(*last)?,
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

fn parts(span: &DaySpan, days: &[Date]) -> Vec<String> {
    days.iter()
        .map(|day| day_part(*day))
        .chain(span.part())
        .collect()
}
