//! Job schedulers of BullMQ: jobs that come again by a period or a cron pattern.
//!
//! A scheduler is a hash and an entry in the sorted set `repeat`. It has one job at a time; the worker that takes it adds the next.

use std::time::Duration;

use croner::{
    Cron,
    parser::{CronParser, Seconds},
};
use jiff::{Timestamp, tz::TimeZone};
use serde_json::Value;

use super::{BullQueue, NewJob, SCHEDULE, UNSCHEDULE, worker::millis};
use crate::{
    error::{Error, Result},
    script::Arg,
};

/// When the jobs of a scheduler come.
///
/// ```
/// use std::time::Duration;
/// use redstart_adopt::bullmq::Repeat;
///
/// # fn main() -> redstart_adopt::Result<()> {
/// let minutely = Repeat::every(Duration::from_secs(60))?;
/// let nightly = Repeat::cron("0 3 * * *")?.time_zone("Europe/Berlin")?.limit(30);
/// assert!(Repeat::cron("0 99 * * *").unwrap_err().is_invalid());
/// # let _ = (minutely, nightly); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Repeat {
    when: When,
    limit: Option<u32>,
}

#[derive(Clone, Debug)]
enum When {
    /// In milliseconds.
    Every(u64),
    Cron {
        pattern: String,
        cron: Box<Cron>,
        zone: Option<(String, TimeZone)>,
    },
}

impl Repeat {
    /// The first job comes at once, each other one this long after the one before.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for less than a millisecond.
    pub fn every(period: Duration) -> Result<Self> {
        match millis(period) {
            0 => Err(Error::invalid(
                "the period of a scheduler must be at least a millisecond",
            )),
            period => Ok(Self {
                when: When::Every(period),
                limit: None,
            }),
        }
    }

    /// By a cron pattern of five fields, or six with seconds first, in UTC. Node reads the same pattern: keep to what both know, which is
    /// numbers, ranges, lists and steps.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an invalid pattern.
    pub fn cron(pattern: &str) -> Result<Self> {
        let cron = CronParser::builder()
            .seconds(Seconds::Optional)
            .build()
            .parse(pattern)
            .map_err(|_| Error::invalid("the cron pattern of a scheduler is invalid"))?;
        Ok(Self {
            when: When::Cron {
                pattern: pattern.to_owned(),
                cron: Box::new(cron),
                zone: None,
            },
            limit: None,
        })
    }

    /// Reads the pattern in this time zone, such as `Europe/Berlin`.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a time zone that is not known, and for a period, which has none.
    pub fn time_zone(mut self, name: &str) -> Result<Self> {
        let When::Cron { zone, .. } = &mut self.when else {
            return Err(Error::invalid("a period has no time zone"));
        };
        let known = TimeZone::get(name).map_err(|_| Error::invalid("unknown time zone"))?;
        *zone = Some((name.to_owned(), known));
        Ok(self)
    }

    /// Makes at most this many jobs (default without end).
    #[must_use]
    pub fn limit(mut self, jobs: u32) -> Self {
        self.limit = Some(jobs);
        self
    }

    /// When the next job of a pattern is due, in milliseconds since 1970.
    fn due(&self, now: Duration) -> Result<Option<u64>> {
        let When::Cron { cron, zone, .. } = &self.when else {
            return Ok(None);
        };
        let zone = zone
            .as_ref()
            .map_or(TimeZone::UTC, |(_, zone)| zone.clone());
        let now = i64::try_from(now.as_millis()).ok();
        let now = now.and_then(|now| Timestamp::from_millisecond(now).ok());
        let next = now.and_then(|now| cron.find_next_occurrence(&now.to_zoned(zone), false).ok());
        let next = next.and_then(|next| u64::try_from(next.timestamp().as_millisecond()).ok());
        match next {
            Some(next) => Ok(Some(next)),
            None => Err(Error::invalid(
                "the cron pattern of a scheduler never fires",
            )),
        }
    }
}

impl BullQueue {
    /// Creates a job scheduler, or replaces the one of this id, and adds its next job, whose id is returned. The job is a template: it cannot
    /// have an id, a delay or a deduplication of its own.
    ///
    /// Two round trips with a pattern, one with a period. The jobs that follow are added by the workers: this crate's for periods, Node's
    /// for both.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an empty id, for such a template, for a pattern that never fires, and if a job of the next
    /// time exists already; otherwise those of the store. Calling it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the scheduler may have been written, as a whole.
    pub async fn upsert_scheduler(
        &self,
        id: &str,
        repeat: &Repeat,
        template: &NewJob,
    ) -> Result<String> {
        if id.is_empty() {
            return Err(Error::invalid("a job scheduler needs an id"));
        }
        let own = template.own_options();
        if ["jobId", "delay", "de"]
            .iter()
            .any(|name| own.contains_key(*name))
        {
            return Err(Error::invalid(
                "the template of a job scheduler cannot have an id, a delay or a deduplication",
            ));
        }
        let due = match &repeat.when {
            When::Every(_) => None,
            When::Cron { .. } => repeat.due(self.store.time().await?)?,
        };
        let (every, pattern, zone) = match &repeat.when {
            When::Every(period) => (period.to_string(), "", ""),
            When::Cron { pattern, zone, .. } => {
                let zone = zone.as_ref().map_or("", |(name, _)| name.as_str());
                (String::new(), pattern.as_str(), zone)
            }
        };
        let options = Value::Object(own).to_string();
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let limit = number(repeat.limit.map(u64::from)).unwrap_or_default();
        let due = number(due).unwrap_or_default();
        let args: [&(dyn Arg + Sync); 11] = [
            &self.prefix,
            &self.major,
            &id,
            &template.name,
            &template.data,
            &options,
            &every,
            &pattern,
            &zone,
            &limit,
            &due,
        ];
        let reply: Vec<String> = SCHEDULE.run(&self.store, &self.keys, &args).await?;
        match reply.into_iter().next() {
            Some(job) if !job.is_empty() => Ok(job),
            _ => Err(Error::invalid(
                "the scheduler was not written: a job of its next time exists and has been taken or has ended",
            )),
        }
    }

    /// Removes a job scheduler and its next job; `false` if there is no such scheduler. A job that waits to be run or runs is not removed.
    ///
    /// # Errors
    ///
    /// Those of the store. Calling it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the scheduler may have been removed.
    pub async fn remove_scheduler(&self, id: &str) -> Result<bool> {
        let args: [&(dyn Arg + Sync); 3] = [&self.prefix, &self.major, &id];
        UNSCHEDULE.run(&self.store, &self.keys, &args).await
    }
}
