//! On which days a user was active: check-ins, streaks, a calendar.

use std::fmt;

use jiff::{
    ToSpan as _,
    civil::{Date, Weekday},
    tz::TimeZone,
};

use crate::{
    clock::ServerClock,
    counting::{Keep, check_date},
    error::Result,
    key::{Entity, Keys, Layout},
    observe,
    script::Script,
    store::Store,
};

pub(super) static MARK: Script = Script::new(
    "check_ins.mark",
    concat!(include_str!("keep.lua"), include_str!("check_ins/mark.lua")),
);

/// Daily check-ins of users, with streaks and a calendar.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use jiff::{civil::date, tz::TimeZone};
/// use redstart::{Store, counting::{CheckIns, Keep}};
/// let store = Store::connect("memory://").await?;
/// let check_ins = CheckIns::new(&store, "app", "visits", Keep::Forever)?;
///
/// for day in [date(2027, 12, 30), date(2027, 12, 31), date(2028, 1, 1)] {
///     assert!(check_ins.mark("ann", day).await?);
/// }
/// assert!(!check_ins.mark("ann", date(2028, 1, 1)).await?);
///
/// let streaks = check_ins.streaks("ann", date(2028, 1, 2)).await?;
/// assert_eq!((streaks.current, streaks.longest), (3, 3));
/// println!("{}", check_ins.month("ann", date(2027, 12, 1)).await?);
///
/// // Today where the user lives, by the server's clock.
/// assert!(check_ins.mark_today("bob", &TimeZone::UTC).await?);
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - A day is marked once. Marking it again changes nothing and returns `false`.
/// - Streaks continue across the ends of months and years and across leap days.
/// - The current streak ends today or yesterday, so that it does not look broken before the user had a chance to
///   check in.
/// - The date is the user's civil day: the application passes the date, or the user's time zone.
///
/// # Keys
///
/// `<ns>:check_ins.<name>:{<user>}:<year>`, a bitmap of the days of the year, 46 bytes.
///
/// # Round trips
///
/// One per call; `mark_today` asks the server for its time once a minute. Streaks read all years of the user at
/// once. A calendar is read by month, so the bounds of a page do not change while days are marked.
///
/// # While the store is down
///
/// Every call fails.
///
/// # Metrics
///
/// Operations: `check_ins.mark`, `check_ins.unmark`, `check_ins.checked`, `check_ins.month`, `check_ins.streaks`.
#[derive(Clone, Debug)]
pub struct CheckIns {
    store: Store,
    keys: Keys,
    keep: Keep,
    clock: ServerClock,
}

/// Settings of [`CheckIns`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct CheckInsBuilder {
    store: Store,
    namespace: String,
    name: String,
    keep: Keep,
    layout: Option<Layout>,
}

impl CheckInsBuilder {
    /// Uses keys that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Builds the check-ins.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a bad namespace or name, or a lifetime of zero.
    pub fn build(self) -> Result<CheckIns> {
        let mut keys = Keys::named(&self.namespace, "check_ins", &self.name)?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(CheckIns {
            clock: ServerClock::new(&self.store),
            store: self.store,
            keys,
            keep: self.keep.check()?,
        })
    }
}

/// Days in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Streaks {
    /// The run of days that ends today or yesterday.
    pub current: u32,
    /// The longest run.
    pub longest: u32,
}

/// A month with its check-ins. Printed, it is a calendar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Month {
    first: Date,
    days: Vec<bool>,
}

impl Month {
    /// The first day of the month.
    pub fn first(&self) -> Date {
        self.first
    }

    /// Whether each day of the month was checked in, the first day first.
    pub fn days(&self) -> &[bool] {
        &self.days
    }

    /// How many days were checked in.
    pub fn count(&self) -> u32 {
        self.days.iter().map(|checked| u32::from(*checked)).sum()
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:^28}",
            format!("{:04}-{:02}", self.first.year(), self.first.month())
        )?;
        writeln!(f, " Mo  Tu  We  Th  Fr  Sa  Su")?;
        let offset = usize::from(self.first.weekday().to_monday_zero_offset() as u8);
        write!(f, "{}", "    ".repeat(offset))?;
        let mut weekday = self.first.weekday();
        for (day, checked) in (1..).zip(&self.days) {
            match checked {
                true => write!(f, "[{day:>2}]")?,
                false => write!(f, " {day:>2} ")?,
            }
            let last = day == self.days.len();
            if weekday == Weekday::Sunday || last {
                writeln!(f)?;
            }
            weekday = weekday.next();
        }
        Ok(())
    }
}

impl CheckIns {
    /// Builds the check-ins `name`; a year is kept for the given time after it ended.
    pub fn builder(store: &Store, namespace: &str, name: &str, keep: Keep) -> CheckInsBuilder {
        CheckInsBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            keep,
            layout: None,
        }
    }

    /// The check-ins `name` with default settings.
    ///
    /// # Errors
    ///
    /// As [`CheckInsBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str, keep: Keep) -> Result<Self> {
        Self::builder(store, namespace, name, keep).build()
    }

    /// The date by the server's clock in a time zone.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn today(&self, zone: &TimeZone) -> Result<Date> {
        self.clock.today(zone).await
    }

    /// Marks [today](Self::today) in the user's time zone; `false` if it was marked already.
    ///
    /// # Errors
    ///
    /// As [`mark`](Self::mark).
    ///
    /// # Cancel safety
    ///
    /// As [`mark`](Self::mark).
    pub async fn mark_today(&self, user: &str, zone: &TimeZone) -> Result<bool> {
        let today = self.today(zone).await?;
        self.mark(user, today).await
    }

    /// Marks a day; `false` if it was marked already.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a date that is not between 2000 and 2199; otherwise those of the
    /// [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the day may or may not be marked; marking it again is harmless.
    pub async fn mark(&self, user: &str, day: Date) -> Result<bool> {
        self.set(user, day, true, "check_ins.mark")
            .await
            .map(|was| !was)
    }

    /// Removes a mark; `false` if there was none.
    ///
    /// # Errors
    ///
    /// As [`mark`](Self::mark).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the mark may or may not be removed.
    pub async fn unmark(&self, user: &str, day: Date) -> Result<bool> {
        self.set(user, day, false, "check_ins.unmark").await
    }

    async fn set(&self, user: &str, day: Date, to: bool, operation: &'static str) -> Result<bool> {
        check_date(day)?;
        let entity = self.keys.entity(user)?;
        let last = Date::new(day.year(), 12, 31).unwrap_or(day);
        let until = self.keep.until(last)?;
        observe::operation(operation, self.keys.namespace(), async {
            let call = MARK.on(&entity).part(&year_part(day.year()));
            call.arg(bit(day))
                .arg(u8::from(to))
                .arg(until)
                .run(&self.store)
                .await
        })
        .await
    }

    /// Whether a day is marked.
    ///
    /// # Errors
    ///
    /// As [`mark`](Self::mark).
    pub async fn checked(&self, user: &str, day: Date) -> Result<bool> {
        check_date(day)?;
        let entity = self.keys.entity(user)?;
        observe::operation("check_ins.checked", self.keys.namespace(), async {
            let mut cmd = redis::cmd("GETBIT");
            cmd.arg(entity.part(&year_part(day.year()))).arg(bit(day));
            self.store.stale_reads().query(&cmd).await
        })
        .await
    }

    /// The month that `day` is in.
    ///
    /// # Errors
    ///
    /// As [`mark`](Self::mark).
    pub async fn month(&self, user: &str, day: Date) -> Result<Month> {
        check_date(day)?;
        let entity = self.keys.entity(user)?;
        observe::operation("check_ins.month", self.keys.namespace(), async {
            let mut cmd = redis::cmd("GET");
            cmd.arg(entity.part(&year_part(day.year())));
            let bits: Option<Vec<u8>> = self.store.stale_reads().query(&cmd).await?;
            let bits = bits.unwrap_or_default();
            let first = day.first_of_month();
            let days = first
                .series(1.day())
                .take(usize::from(day.days_in_month() as u8))
                .map(|day| is_set(&bits, bit(day)))
                .collect();
            Ok(Month { first, days })
        })
        .await
    }

    /// The current and the longest streak as of `today`. Later days do not count.
    ///
    /// # Errors
    ///
    /// As [`mark`](Self::mark).
    pub async fn streaks(&self, user: &str, today: Date) -> Result<Streaks> {
        check_date(today)?;
        let entity = self.keys.entity(user)?;
        observe::operation("check_ins.streaks", self.keys.namespace(), async {
            let years = self.years(&entity, today.year()).await?;
            let mut streaks = Streaks::default();
            let mut run = 0;
            // The run as of yesterday, for the case that today is not marked.
            let mut before = 0;
            for (year, bits) in years {
                let Ok(first) = Date::new(year, 1, 1) else {
                    continue;
                };
                for day in first
                    .series(1.day())
                    .take_while(|day| day.year() == year && *day <= today)
                {
                    before = run;
                    run = if is_set(&bits, bit(day)) { run + 1 } else { 0 };
                    streaks.longest = streaks.longest.max(run);
                }
            }
            streaks.current = if run > 0 { run } else { before };
            Ok(streaks)
        })
        .await
    }

    /// The user's years up to `last`, from the first one with a mark.
    async fn years(&self, entity: &Entity, last: i16) -> Result<Vec<(i16, Vec<u8>)>> {
        let mut cmd = redis::cmd("MGET");
        for year in 2000..=last {
            cmd.arg(entity.part(&year_part(year)));
        }
        let years: Vec<Option<Vec<u8>>> = self.store.stale_reads().query(&cmd).await?;
        Ok((2000..=last)
            .zip(years)
            .skip_while(|(_, bits)| bits.is_none())
            .map(|(year, bits)| (year, bits.unwrap_or_default()))
            .collect())
    }
}

fn year_part(year: i16) -> String {
    format!("{year:04}")
}

fn bit(day: Date) -> u16 {
    day.day_of_year().unsigned_abs() - 1
}

/// Bits as SETBIT numbers them: bit 0 is the highest of the first byte.
fn is_set(bits: &[u8], at: u16) -> bool {
    bits.get(usize::from(at / 8))
        .is_some_and(|byte| byte & (0x80 >> (at % 8)) != 0)
}
