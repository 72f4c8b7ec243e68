//! How many users were active, and how many came back: one bit per user and day, combined on the server.

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

pub(super) static MARK: Script = Script::new(
    "activity.mark",
    concat!(include_str!("keep.lua"), include_str!("activity/mark.lua")),
);
pub(super) static COMBINE: Script =
    Script::new("activity.count", include_str!("activity/combine.lua"));

/// Active users per day, exactly, for dense ids.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use jiff::civil::date;
/// use redstart::{Store, counting::{Activity, Keep}};
/// let store = Store::connect("memory://").await?;
/// let active = Activity::new(&store, "app", "active", 1_000_000, Keep::Forever)?;
///
/// let (monday, tuesday) = (date(2026, 11, 16), date(2026, 11, 17));
/// active.mark("web", monday, &[1, 2, 3]).await?;
/// active.mark("web", tuesday, &[3, 4]).await?;
///
/// assert_eq!(active.daily("web", monday).await?, 3);
/// assert_eq!(active.over("web", monday..=tuesday).await?, 4);
/// assert_eq!(active.retained("web", monday, tuesday).await?, 1);
/// assert!(active.mark("web", monday, &[1_000_000]).await.unwrap_err().is_config());
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// Counts are exact: of a day, of any days together (weekly, monthly active users), of those active on both of two
/// days (retention). Ids at or above the capacity are refused before the call, because a single stray id would make
/// the server allocate memory up to it (a bit at 2³²−1 takes 512 MB and blocks the server meanwhile).
///
/// # Limits
///
/// Memory is capacity ÷ 8 bytes per day once the highest ids are active. For sparse ids use
/// [`Uniques`](super::Uniques). Combining days reads all of them on the server: about 0.1 ms for each day of a million
/// users.
///
/// # Keys
///
/// `<ns>:activity.<name>:{<metric>}:<date>`. All days of a metric share a hash tag, so a Cluster can combine them.
///
/// # Round trips
///
/// One per call, and one more for every 5,000 users of a `mark`; `mark_today` asks the server for its time once a
/// minute.
///
/// # While the store is down
///
/// Every call fails.
///
/// # Metrics
///
/// Operations: `activity.mark`, `activity.count`.
#[derive(Clone, Debug)]
pub struct Activity {
    store: Store,
    keys: Keys,
    capacity: u32,
    keep: Keep,
    zone: TimeZone,
    clock: ServerClock,
}

/// Settings of [`Activity`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct ActivityBuilder {
    store: Store,
    namespace: String,
    name: String,
    capacity: u32,
    keep: Keep,
    zone: TimeZone,
    layout: Option<Layout>,
}

impl ActivityBuilder {
    /// The time zone in which [`Activity::mark_today`] takes the date; UTC by default.
    pub fn zone(mut self, zone: TimeZone) -> Self {
        self.zone = zone;
        self
    }

    /// Uses keys that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Builds the activity.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name, a capacity of 0 or over
    /// [`Activity::MAX_CAPACITY`], or a lifetime of zero.
    pub fn build(self) -> Result<Activity> {
        if !(1..=Activity::MAX_CAPACITY).contains(&self.capacity) {
            return Err(Error::config(format!(
                "the capacity must be between 1 and {}, not {}",
                Activity::MAX_CAPACITY,
                self.capacity
            )));
        }
        let mut keys = Keys::named(&self.namespace, "activity", &self.name)?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(Activity {
            clock: ServerClock::new(&self.store),
            store: self.store,
            keys,
            capacity: self.capacity,
            keep: self.keep.check()?,
            zone: self.zone,
        })
    }
}

impl Activity {
    /// The largest capacity: 16 MB per day.
    pub const MAX_CAPACITY: u32 = 1 << 27;
    /// The most days that are combined at once.
    pub const MAX_DAYS: usize = 400;

    /// Builds the activity `name` of users with ids below `capacity`; a day is kept for the given time after it
    /// ended.
    pub fn builder(
        store: &Store,
        namespace: &str,
        name: &str,
        capacity: u32,
        keep: Keep,
    ) -> ActivityBuilder {
        ActivityBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            capacity,
            keep,
            zone: TimeZone::UTC,
            layout: None,
        }
    }

    /// The activity `name` with default settings.
    ///
    /// # Errors
    ///
    /// As [`ActivityBuilder::build`].
    pub fn new(
        store: &Store,
        namespace: &str,
        name: &str,
        capacity: u32,
        keep: Keep,
    ) -> Result<Self> {
        Self::builder(store, namespace, name, capacity, keep).build()
    }

    /// The date by the server's clock, in the time zone of the [builder](ActivityBuilder::zone).
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn today(&self) -> Result<Date> {
        self.clock.today(&self.zone).await
    }

    /// Marks users as active [today](Self::today); returns how many of them were not yet.
    ///
    /// # Errors
    ///
    /// As [`mark`](Self::mark).
    ///
    /// # Cancel safety
    ///
    /// As [`mark`](Self::mark).
    pub async fn mark_today(&self, metric: &str, users: &[u32]) -> Result<u64> {
        let today = self.today().await?;
        self.mark(metric, today, users).await
    }

    /// Marks users as active on a day; returns how many of them were not yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an id at or above the capacity or a date before 2000, and then
    /// nothing is written; otherwise those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, any of them may be marked; marking them again is harmless.
    pub async fn mark(&self, metric: &str, day: Date, users: &[u32]) -> Result<u64> {
        check_date(day)?;
        if let Some(stray) = users.iter().find(|user| **user >= self.capacity) {
            return Err(Error::config(format!(
                "id {stray} is not below the capacity {}",
                self.capacity
            )));
        }
        let entity = self.keys.entity(metric)?;
        let until = self.keep.until(day)?;
        observe::operation("activity.mark", self.keys.namespace(), async {
            let mut fresh = 0;
            // Chunks keep each script short, so that a large import does not block other clients.
            for chunk in users.chunks(5000) {
                let call = MARK
                    .on(&entity)
                    .part(&day.to_string())
                    .arg(until)
                    .arg(chunk);
                fresh += call.run::<u64>(&self.store).await?;
            }
            Ok(fresh)
        })
        .await
    }

    /// Users active on a day.
    ///
    /// # Errors
    ///
    /// As [`over`](Self::over).
    pub async fn daily(&self, metric: &str, day: Date) -> Result<u64> {
        self.over(metric, day..=day).await
    }

    /// Users active on at least one of the seven days that end with `day`.
    ///
    /// # Errors
    ///
    /// As [`over`](Self::over).
    pub async fn weekly(&self, metric: &str, day: Date) -> Result<u64> {
        self.over(metric, day.saturating_sub(6.days())..=day).await
    }

    /// Users active on at least one of the thirty days that end with `day`.
    ///
    /// # Errors
    ///
    /// As [`over`](Self::over).
    pub async fn monthly(&self, metric: &str, day: Date) -> Result<u64> {
        self.over(metric, day.saturating_sub(29.days())..=day).await
    }

    /// Users active on at least one of these days.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a range that is empty or longer than
    /// [`MAX_DAYS`](Self::MAX_DAYS); otherwise those of the [store](Store::query).
    pub async fn over(&self, metric: &str, days: RangeInclusive<Date>) -> Result<u64> {
        check_date(*days.start())?;
        check_date(*days.end())?;
        let all: Vec<Date> = days
            .start()
            .series(1.day())
            .take_while(|day| day <= days.end())
            .take(Self::MAX_DAYS + 1)
            .collect();
        if all.is_empty() || all.len() > Self::MAX_DAYS {
            return Err(Error::config(format!(
                "between 1 and {} days can be combined",
                Self::MAX_DAYS
            )));
        }
        self.combine(metric, &all, "OR").await
    }

    /// Users active on both days: of those active on `first`, how many were active on `later` too.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn retained(&self, metric: &str, first: Date, later: Date) -> Result<u64> {
        check_date(first)?;
        check_date(later)?;
        self.combine(metric, &[first, later], "AND").await
    }

    async fn combine(&self, metric: &str, days: &[Date], how: &'static str) -> Result<u64> {
        let entity = self.keys.entity(metric)?;
        observe::operation("activity.count", self.keys.namespace(), async {
            let mut call = COMBINE.on(&entity).part("tmp");
            for day in days {
                call = call.part(&day.to_string());
            }
            call.arg(how).idempotent().run(&self.store).await
        })
        .await
    }
}
