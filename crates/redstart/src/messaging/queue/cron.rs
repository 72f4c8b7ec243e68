//! Jobs that are enqueued by a cron expression.
//!
//! The entries are kept in the queue; every worker of the queue looks after them. Of several workers that see a tick,
//! one enqueues its run: the same script moves the entry from the tick that was seen to the next. Ticks follow the
//! server's clock. A tick whose script was lost in a failover, before a replica had it, fires again there, under the same id:
//! the id of a run is made from the entry and the tick.

use std::{
    borrow::Cow,
    future::{Future, IntoFuture},
    pin::Pin,
    time::Duration,
};

use croner::{
    Cron,
    parser::{CronParser, Seconds},
};
use jiff::{Timestamp, Zoned, tz::TimeZone};
use serde::{Deserialize, Serialize};

use super::{
    Enqueued, Job, JobId, JobPolicy, Queue,
    record::{Body, Options},
    script::{CRON_FIRE, CRON_PAUSE, CRON_PUT, CRON_REMOVE},
};
use crate::{
    codec::{Codec, Json},
    duration::millis,
    error::{Error, Result},
    observe,
};

/// A tick is missed, not just late, after this, or after half the time to the next if that is shorter.
const LATE: Duration = Duration::from_secs(30);
/// [`MissedTicks::RunAll`] makes up for this many ticks at most.
const MAKE_UP: usize = 1000;
/// What one script enqueues, unless one job alone is larger: it must arrive within the deadline.
const FIRE_BYTES: usize = 512 * 1024;
/// Begins the expression of an entry without a calendar.
const EVERY: &str = "@every ";

/// What happens to ticks that passed while no worker ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MissedTicks {
    /// One run for all of them.
    RunOnce,
    /// No run: wait for the next tick.
    Skip,
    /// One run for each, a thousand at most.
    RunAll,
}

/// An entry as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Stored {
    expression: String,
    time_zone: String,
    name: String,
    payload: String,
    missed: MissedTicks,
    #[serde(default)]
    policy: JobPolicy,
}

/// A cron entry.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CronEntry {
    /// Its name in the queue.
    pub id: String,
    /// The cron expression, such as `0 3 * * *`.
    pub expression: String,
    /// The time zone of the expression.
    pub time_zone: String,
    /// The name of the job that it enqueues.
    pub job: String,
    /// What happens to ticks that were missed.
    pub missed: MissedTicks,
    /// The next tick since the Unix epoch; `None` if there will be no other, or while the entry is paused.
    pub next: Option<Duration>,
    /// Whether it is [paused](Queue::pause_cron).
    pub paused: bool,
}

impl CronEntry {
    /// The next ticks, `count` at most, since the Unix epoch. None while the entry is paused.
    pub fn upcoming(&self, count: usize) -> Vec<Duration> {
        let Ok(schedule) = Schedule::parse(&self.expression, &self.time_zone) else {
            return Vec::new();
        };
        let first = self.next.map(|next| next.as_micros() as i64);
        std::iter::successors(first, |tick| schedule.after(*tick))
            .take(count)
            .map(|tick| Duration::from_micros(tick as u64))
            .collect()
    }
}

impl Queue {
    /// Enqueues a job by a cron expression of five fields (minute, hour, day, month, weekday), or six with seconds
    /// first. It is read in UTC unless [another time zone](CronPut::time_zone) is set. Await the returned value.
    ///
    /// An entry with the same id is replaced. An entry whose schedule is unchanged keeps its next tick, so every instance
    /// of a program may put its entries when it starts. Ticks are enqueued while any worker runs, also if all are busy
    /// or the queue is paused.
    ///
    /// The job of a tick has an id that depends only on the queue, the entry and the tick. If a failover loses a tick that
    /// had fired, it fires again with that id, so an effect in another system that is keyed by
    /// [the job's id](super::JobContext::id) happens once. A job of that tick that the queue still knows is not added again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::{Job, MissedTicks, Queue}};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Report;
    /// # impl Job for Report { const NAME: &'static str = "report"; }
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "reports")?;
    /// queue.cron("nightly", "0 3 * * *", &Report, MissedTicks::RunOnce).time_zone("Europe/Berlin").await?;
    /// assert_eq!(queue.cron_entries().await?[0].job, "report");
    /// assert!(queue.cron("bad", "0 99 * * *", &Report, MissedTicks::Skip).await.unwrap_err().is_config());
    /// # Ok(()) }
    /// ```
    pub fn cron<'a, J: Job + Sync>(
        &'a self,
        id: &'a str,
        expression: &'a str,
        job: &'a J,
        missed: MissedTicks,
    ) -> CronPut<'a, J> {
        CronPut {
            queue: self,
            id,
            expression: Cow::Borrowed(expression),
            job,
            missed,
            time_zone: "UTC",
        }
    }

    /// Enqueues a job every so often, from a millisecond on. Ticks are at multiples of the period since the Unix epoch,
    /// so that they do not depend on when a program was started. Otherwise as [`cron`](Self::cron).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use std::time::Duration;
    /// # use redstart::{Store, messaging::{Job, MissedTicks, Queue}};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Poll;
    /// # impl Job for Poll { const NAME: &'static str = "poll"; }
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "feeds")?;
    /// queue.every("poll", Duration::from_secs(90), &Poll, MissedTicks::RunOnce).await?;
    /// let entry = &queue.cron_entries().await?[0];
    /// let runs = entry.upcoming(3);
    /// assert_eq!(runs[2] - runs[1], Duration::from_secs(90));
    /// assert!(queue.pause_cron("poll").await?);
    /// assert!(queue.cron_entries().await?[0].paused);
    /// # Ok(()) }
    /// ```
    pub fn every<'a, J: Job + Sync>(
        &'a self,
        id: &'a str,
        period: Duration,
        job: &'a J,
        missed: MissedTicks,
    ) -> CronPut<'a, J> {
        CronPut {
            queue: self,
            id,
            expression: Cow::Owned(format!("{EVERY}{}ms", millis(period))),
            job,
            missed,
            time_zone: "UTC",
        }
    }

    /// Stops the ticks of one entry until [`resume_cron`](Self::resume_cron); `false` if there is no such entry. Ticks
    /// that pass meanwhile are not made up for. Putting the entry again does not resume it.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn pause_cron(&self, id: &str) -> Result<bool> {
        self.set_cron_paused(id, "").await
    }

    /// Lets the ticks of an entry go on with the next one; `false` if there is no such entry.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn resume_cron(&self, id: &str) -> Result<bool> {
        let Some(stored) = self.stored_cron(id).await? else {
            return Ok(false);
        };
        let now = self.time().await?.as_micros() as i64;
        let schedule = Schedule::parse(&stored.expression, &stored.time_zone)?;
        let next = schedule.after(now).unwrap_or(i64::MAX / 2048);
        self.set_cron_paused(id, &next.to_string()).await
    }

    async fn set_cron_paused(&self, id: &str, next: &str) -> Result<bool> {
        let known: u8 = CRON_PAUSE
            .on(self.entity())
            .part("cron")
            .part("crontab")
            .part("cron_paused")
            .arg(&self.0.channel)
            .arg(id)
            .arg(next)
            .idempotent()
            .run(self.store())
            .await?;
        Ok(known == 1)
    }

    /// Enqueues the job of an entry now, beside its ticks; `None` if there is no such entry.
    ///
    /// # Errors
    ///
    /// As for [`enqueue`](Self::enqueue).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, the job may or may not have been added.
    pub async fn run_cron(&self, id: &str) -> Result<Option<Enqueued>> {
        let Some(stored) = self.stored_cron(id).await? else {
            return Ok(None);
        };
        let options = self.options_of(&stored.name, stored.policy);
        let body = Body::raw(&stored.name, stored.payload.as_bytes(), &options);
        self.add(body, &options).await.map(Some)
    }

    async fn stored_cron(&self, id: &str) -> Result<Option<Stored>> {
        let mut get = redis::cmd("HGET");
        get.arg(self.entity().part("crontab")).arg(id);
        let stored: Option<Vec<u8>> = self.store().query(&get).await?;
        stored.map(|stored| Json::decode(&stored)).transpose()
    }

    /// Removes a cron entry; `false` if there was none. Jobs that it enqueued stay.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn remove_cron(&self, id: &str) -> Result<bool> {
        let removed: u8 = CRON_REMOVE
            .on(self.entity())
            .part("cron")
            .part("crontab")
            .part("cron_paused")
            .arg(id)
            .idempotent()
            .run(self.store())
            .await?;
        Ok(removed == 1)
    }

    /// All cron entries, by id.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn cron_entries(&self) -> Result<Vec<CronEntry>> {
        let mut pipeline = redis::pipe();
        pipeline
            .cmd("HGETALL")
            .arg(self.entity().part("crontab"))
            .cmd("ZRANGE")
            .arg(self.entity().part("cron"))
            .arg(0)
            .arg(-1)
            .arg("WITHSCORES")
            .cmd("SMEMBERS")
            .arg(self.entity().part("cron_paused"));
        type Entries = (Vec<(String, Vec<u8>)>, Vec<(String, f64)>, Vec<String>);
        let (stored, next, paused): Entries = self.store().pipeline(&pipeline).await?;
        let mut entries: Vec<CronEntry> = stored
            .into_iter()
            .filter_map(|(id, stored)| {
                let stored: Stored = Json::decode(&stored).ok()?;
                let next = next.iter().find(|(other, _)| *other == id);
                Some(CronEntry {
                    expression: stored.expression,
                    time_zone: stored.time_zone,
                    job: stored.name,
                    missed: stored.missed,
                    next: next.map(|(_, micros)| Duration::from_micros(*micros as u64)),
                    paused: paused.contains(&id),
                    id,
                })
            })
            .collect();
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(entries)
    }

    /// Enqueues the runs of due entries: of each its id, its tick and its definition. Called by workers. An entry that
    /// fails does not keep the others from their ticks.
    pub(super) async fn tick(&self, now: i64, due: Vec<(Vec<u8>, i64, Vec<u8>)>) -> Result<()> {
        let mut failure = None;
        for (id, tick, stored) in due {
            let plan = Json::decode::<Stored>(&stored).and_then(|stored| {
                let schedule = Schedule::parse(&stored.expression, &stored.time_zone)?;
                Ok((stored, schedule))
            });
            let fired = match plan {
                Ok((stored, schedule)) => self.fire_all(&id, tick, now, stored, &schedule).await,
                // Written by another program; it must not be tried again and again.
                Err(error) => {
                    tracing::warn!(%error, "an unreadable cron entry was disabled");
                    self.fire(&id, tick, None, &[]).await.map(drop)
                }
            };
            failure = fired.err().or(failure);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Enqueues the runs of one entry, in pieces that fit into the deadline.
    async fn fire_all(
        &self,
        id: &[u8],
        mut tick: i64,
        now: i64,
        stored: Stored,
        schedule: &Schedule,
    ) -> Result<()> {
        let (mut runs, next) = schedule.runs(tick, now, stored.missed);
        let options = self.options_of(&stored.name, stored.policy);
        loop {
            let piece = runs.min((FIRE_BYTES / stored.payload.len().max(1)).max(1));
            runs -= piece;
            // Each run that is made up for is one tick.
            let mut ticks = std::iter::successors(Some(tick), |tick| schedule.after(*tick));
            let bodies: Vec<Body> = (&mut ticks)
                .take(piece)
                .map(|tick| {
                    let run = self.run_of_tick(id, tick);
                    Body::with_id(run, &stored.name, stored.payload.as_bytes(), &options)
                })
                .collect();
            let to = match runs {
                0 => next,
                _ => ticks.next(),
            };
            match to {
                // Another worker fires it from here on.
                _ if !self.fire(id, tick, to, &bodies).await? => return Ok(()),
                Some(to) if runs > 0 => tick = to,
                _ => return Ok(()),
            }
        }
    }

    /// The id of the job of a tick: the same if the tick fires again, as after a failover. It begins with the time of the
    /// tick, as other ids with the time of their making.
    fn run_of_tick(&self, entry: &[u8], tick: i64) -> JobId {
        let queue = self.entity().key().as_str().as_bytes();
        let mut digest = sha1_smol::Sha1::new();
        for part in [queue, entry] {
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        digest.update(&tick.to_be_bytes());
        let mut id = [0; 16];
        id[..6].copy_from_slice(&(tick / 1000).to_be_bytes()[2..]);
        id[6..].copy_from_slice(&digest.digest().bytes()[..10]);
        JobId(id)
    }

    /// Enqueues jobs of an entry that is still at this tick, and moves it on; `false` if it is elsewhere.
    async fn fire(&self, id: &[u8], tick: i64, to: Option<i64>, bodies: &[Body]) -> Result<bool> {
        let mut call = self
            .call(&CRON_FIRE, &["cron"])
            .arg(id)
            .arg(tick)
            .arg(to.map_or(String::new(), |to| to.to_string()));
        for body in bodies {
            call = call.arg(&body.bytes[..]);
        }
        // A repeated request finds that the entry has moved on.
        let fired: u8 = call.idempotent().run(self.store()).await?;
        Ok(fired == 1)
    }
}

/// A cron entry to be put; made by [`Queue::cron`], sent when it is awaited.
#[must_use = "an entry is put when this is awaited"]
pub struct CronPut<'a, J> {
    queue: &'a Queue,
    id: &'a str,
    expression: Cow<'a, str>,
    job: &'a J,
    missed: MissedTicks,
    time_zone: &'a str,
}

impl<'a, J> CronPut<'a, J> {
    /// The time zone by its IANA name.
    pub fn time_zone(mut self, name: &'a str) -> Self {
        self.time_zone = name;
        self
    }
}

/// Returns whether the entry is new or was changed.
///
/// # Errors
///
/// [`is_config`](Error::is_config) for an invalid expression or time zone, or an expression that never fires;
/// otherwise those of the store.
impl<'a, J: Job + Sync> IntoFuture for CronPut<'a, J> {
    type Output = Result<bool>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let queue = self.queue;
        Box::pin(observe::operation(
            "queue.cron",
            queue.namespace(),
            async move {
                if self.id.is_empty() || self.id.len() > 255 {
                    return Err(Error::config("a cron entry's id must have 1 to 255 bytes"));
                }
                let schedule = Schedule::parse(&self.expression, self.time_zone)?;
                // Checks the payload's size as enqueue does.
                Body::new(self.job, &Options::new(J::policy()), queue.0.max_payload)?;
                let payload = String::from_utf8(Json::encode(self.job)?)
                    .map_err(|_| Error::codec("the value cannot be encoded"))?;
                let now = queue.time().await?.as_micros() as i64;
                let first = schedule
                    .after(now)
                    .ok_or_else(|| Error::config("the cron expression never fires"))?;
                let stored = Stored {
                    expression: self.expression.clone().into_owned(),
                    time_zone: self.time_zone.to_owned(),
                    name: J::NAME.to_owned(),
                    payload,
                    missed: self.missed,
                    policy: J::policy(),
                };
                let changed: u8 = CRON_PUT
                    .on(queue.entity())
                    .part("cron")
                    .part("crontab")
                    .part("cron_paused")
                    .arg(&queue.0.channel)
                    .arg(self.id)
                    .arg(Json::encode(&stored)?)
                    .arg(first)
                    .arg(&*self.expression)
                    .arg(self.time_zone)
                    .run(queue.store())
                    .await?;
                Ok(changed == 1)
            },
        ))
    }
}

enum Schedule {
    Cron {
        cron: Box<Cron>,
        zone: TimeZone,
    },
    /// In microseconds.
    Every(i64),
}

impl Schedule {
    fn parse(expression: &str, time_zone: &str) -> Result<Self> {
        if let Some(period) = expression.strip_prefix(EVERY) {
            let millis = period
                .strip_suffix("ms")
                .and_then(|n| n.parse::<i64>().ok());
            return match millis.and_then(|millis| millis.checked_mul(1000)) {
                Some(micros) if micros > 0 => Ok(Self::Every(micros)),
                _ => Err(Error::config("a period must be at least a millisecond")),
            };
        }
        let cron = CronParser::builder()
            .seconds(Seconds::Optional)
            .build()
            .parse(expression)
            .map_err(|error| Error::config("invalid cron expression").with_source(error))?;
        let zone = TimeZone::get(time_zone)
            .map_err(|error| Error::config("unknown time zone").with_source(error))?;
        Ok(Self::Cron {
            cron: Box::new(cron),
            zone,
        })
    }

    /// The first tick after a time, both in microseconds.
    fn after(&self, micros: i64) -> Option<i64> {
        match self {
            Self::Every(period) => micros.checked_sub(micros % period)?.checked_add(*period),
            Self::Cron { cron, zone } => {
                let from: Zoned = Timestamp::from_microsecond(micros)
                    .ok()?
                    .to_zoned(zone.clone());
                let next = cron.find_next_occurrence(&from, false).ok()?;
                Some(next.timestamp().as_microsecond())
            }
        }
    }

    /// How many runs are due for the ticks from `tick` until now, and the next tick.
    fn runs(&self, tick: i64, now: i64, missed: MissedTicks) -> (usize, Option<i64>) {
        // Find the last tick that has passed; most times it is the first.
        let (mut last, mut ticks) = (tick, 1);
        let mut next = self.after(last);
        while let Some(at) = next
            && at <= now
        {
            // An entry of every minute has half a million ticks per year; nobody wants all of them.
            if ticks >= MAKE_UP {
                next = self.after(now);
                last = now;
                break;
            }
            last = at;
            ticks += 1;
            next = self.after(last);
        }
        let runs = match missed {
            MissedTicks::RunOnce => 1,
            MissedTicks::RunAll => ticks,
            MissedTicks::Skip => {
                let half = next.map_or(i64::MAX, |next| (next - last) / 2);
                let late = (LATE.as_micros() as i64).min(half);
                usize::from(ticks < MAKE_UP && now - last <= late)
            }
        };
        (runs, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000_000;

    #[test]
    fn missed_ticks_are_run_as_the_policy_says() {
        let schedule = Schedule::parse("* * * * *", "UTC").unwrap();
        let tick = 1_763_193_600_000_000;
        let runs = |now, missed| schedule.runs(tick, now, missed);
        // In time.
        for missed in [MissedTicks::RunOnce, MissedTicks::Skip, MissedTicks::RunAll] {
            assert_eq!(runs(tick + 1000, missed), (1, Some(tick + MINUTE)));
        }
        // Ten minutes and 45 seconds later: eleven ticks.
        let now = tick + 10 * MINUTE + 45_000_000;
        assert_eq!(
            runs(now, MissedTicks::RunOnce),
            (1, Some(tick + 11 * MINUTE))
        );
        assert_eq!(
            runs(now, MissedTicks::RunAll),
            (11, Some(tick + 11 * MINUTE))
        );
        assert_eq!(runs(now, MissedTicks::Skip), (0, Some(tick + 11 * MINUTE)));
        // A year later.
        let now = tick + 365 * 24 * 60 * MINUTE;
        assert_eq!(runs(now, MissedTicks::RunAll).0, MAKE_UP);
        assert_eq!(runs(now, MissedTicks::RunOnce), (1, Some(now + MINUTE)));
    }

    #[test]
    fn ticks_follow_the_time_zone() {
        // 2026-03-29 is when Berlin goes from UTC+1 to UTC+2.
        let schedule = Schedule::parse("0 12 * * *", "Europe/Berlin").unwrap();
        let saturday: Timestamp = "2026-03-28T00:00:00Z".parse().unwrap();
        let first = schedule.after(saturday.as_microsecond()).unwrap();
        let second = schedule.after(first).unwrap();
        assert_eq!(second - first, 23 * 60 * MINUTE);
    }
}
