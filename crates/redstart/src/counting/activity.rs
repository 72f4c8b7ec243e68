//! How many users were active, and how many came back: one bit a user and day, combined on the server.
//!
//! # Promise
//!
//! Exact counts: of a day, of any days together (weekly, monthly active users), of those active on both of two
//! days (retention). Ids at or above the capacity are refused before the call, because one stray id would
//! make the server fill memory up to it (a bit at 2³²−1 takes 512 MB and blocks the server while it does).
//!
//! # Not promised
//!
//! Memory is capacity ÷ 8 bytes a day once the highest ids are active. For sparse ids use
//! [`Uniques`](super::Uniques). Combining days reads all of them on the server: about 0.1 ms for each day of a
//! million users.
//!
//! # Keys and cost
//!
//! `<ns>:activity:{<metric>}:<date>`. One round trip each; one tag a metric, so a Cluster can combine them.
//! While the store is down every call fails.
//!
//! Operations: `activity.mark`, `activity.active`, `activity.retained`.

use std::ops::RangeInclusive;

use jiff::{ToSpan as _, civil::Date};

use crate::{
    counting::{Keep, check_date},
    error::{Error, Result},
    key::Keys,
    observe,
    script::Script,
    store::Store,
};

static MARK: Script = Script::new("activity.mark", include_str!("activity/mark.lua"));
static COMBINE: Script = Script::new("activity.combine", include_str!("activity/combine.lua"));

/// Activity of one namespace. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use jiff::civil::date;
/// use redstart::{Store, counting::{Activity, Keep}};
/// let store = Store::connect("memory://").await?;
/// let active = Activity::new(&store, "app", 1_000_000, Keep::Forever)?;
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
#[derive(Clone, Debug)]
pub struct Activity {
    store: Store,
    keys: Keys,
    capacity: u32,
    keep: Keep,
}

impl Activity {
    /// The largest capacity: 16 MB a day.
    pub const MAX_CAPACITY: u32 = 1 << 27;
    /// The most days that are combined at once.
    pub const MAX_DAYS: usize = 400;

    /// Activity in `namespace` of users with ids below `capacity`; a day is kept for the given time after it
    /// ended.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace, a capacity of 0 or over
    /// [`MAX_CAPACITY`](Self::MAX_CAPACITY), or a lifetime of zero.
    pub fn new(store: &Store, namespace: &str, capacity: u32, keep: Keep) -> Result<Self> {
        if !(1..=Self::MAX_CAPACITY).contains(&capacity) {
            return Err(Error::config(format!(
                "the capacity is between 1 and {}, not {capacity}",
                Self::MAX_CAPACITY
            )));
        }
        Ok(Self {
            store: store.clone(),
            keys: Keys::new(namespace, "activity")?,
            capacity,
            keep: keep.check()?,
        })
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
    /// Dropped before it is done, any of them may be marked; marking them again is harmless.
    pub async fn mark(&self, metric: &str, day: Date, users: &[u32]) -> Result<u64> {
        check_date(day)?;
        if let Some(stray) = users.iter().find(|user| **user >= self.capacity) {
            return Err(Error::config(format!(
                "the id {stray} is not below the capacity {}",
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
                "between 1 and {} days are combined",
                Self::MAX_DAYS
            )));
        }
        self.combine(metric, &all, "OR", "activity.active").await
    }

    /// Users active on both days: of those active on `first`, how many were active on `later` too.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn retained(&self, metric: &str, first: Date, later: Date) -> Result<u64> {
        check_date(first)?;
        check_date(later)?;
        self.combine(metric, &[first, later], "AND", "activity.retained")
            .await
    }

    async fn combine(
        &self,
        metric: &str,
        days: &[Date],
        how: &'static str,
        operation: &'static str,
    ) -> Result<u64> {
        let entity = self.keys.entity(metric)?;
        observe::operation(operation, self.keys.namespace(), async {
            let mut call = COMBINE.on(&entity).part("tmp");
            for day in days {
                call = call.part(&day.to_string());
            }
            call.arg(how).idempotent().run(&self.store).await
        })
        .await
    }
}
