//! Counters per minute and kind of job.

use std::{collections::BTreeMap, time::Duration};

use super::QueueInspector;
use crate::error::Result;

/// Counters that one command reads.
const PAGE: usize = 1000;

/// What a worker adds to the counters, by kind of job.
#[derive(Default)]
pub(super) struct History(BTreeMap<String, Tally>);

const BUCKETS: usize = 32;

#[derive(Default)]
struct Tally {
    done: u64,
    failed: u64,
    wait: [u64; BUCKETS],
    run: [u64; BUCKETS],
}

/// The bucket of a time: 0 is up to 1 ms, and each further one twice that.
fn bucket(time: Duration) -> usize {
    let millis = time.as_micros().div_ceil(1000).max(1);
    (128 - (millis - 1).leading_zeros() as usize).min(BUCKETS - 1)
}

impl History {
    /// Counts a run of a job: whether it was done, how long it waited and how long it ran.
    pub(super) fn note(&mut self, kind: &str, is_done: bool, waited: Duration, ran: Duration) {
        if !self.0.contains_key(kind) {
            self.0.insert(kind.to_owned(), Tally::default());
        }
        if let Some(tally) = self.0.get_mut(kind) {
            let what = if is_done {
                &mut tally.done
            } else {
                &mut tally.failed
            };
            *what += 1;
            tally.wait[bucket(waited)] += 1;
            tally.run[bucket(ran)] += 1;
        }
    }

    /// The counters and how much is added to each; none twice.
    pub(super) fn tallies(&self) -> Vec<(String, u64)> {
        let mut tallies = Vec::new();
        for (kind, tally) in &self.0 {
            let mut add = |name: &str, bucket: Option<usize>, count: u64| {
                if count > 0 {
                    let bucket = bucket.map_or_else(String::new, |bucket| bucket.to_string());
                    tallies.push((format!("{kind}|{name}{bucket}"), count));
                }
            };
            add("done", None, tally.done);
            add("failed", None, tally.failed);
            for bucket in 0..BUCKETS {
                add("wait", Some(bucket), tally.wait[bucket]);
                add("run", Some(bucket), tally.run[bucket]);
            }
        }
        tallies
    }
}

/// What happened to the jobs of one kind in one minute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueMinute {
    /// When the minute began, since the Unix epoch.
    pub at: Duration,
    /// The kind of job.
    pub kind: String,
    /// Runs that were done.
    pub done: u64,
    /// Runs that failed.
    pub failed: u64,
    /// How long jobs waited from when they were due until they were taken.
    pub wait: Spread,
    /// How long runs took.
    pub run: Spread,
}

/// How times are spread, by buckets whose limits double: up to 1 ms, 2 ms, 4 ms …
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    buckets: BTreeMap<u32, u64>,
}

impl Spread {
    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.buckets.values().sum()
    }

    /// A time that this share of all (0 to 1) did not exceed: the limit of its bucket, so at most twice the real
    /// one. `None` if nothing was counted.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let wanted = (self.count() as f64 * share.clamp(0.0, 1.0))
            .ceil()
            .max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return Some(Duration::from_millis(1 << bucket));
            }
        }
        None
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.buckets {
            *self.buckets.entry(*bucket).or_default() += count;
        }
    }
}

impl QueueInspector {
    /// The counters per minute and kind that are [kept](super::QueueBuilder::history), oldest first. Read in pages; see
    /// [`recent_history`](Self::recent_history) for a part of them. Runs that ended together are counted when the last of
    /// them was written; if the store refuses that one because its worker lost its lease, none of them is counted.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn history(&self) -> Result<Vec<QueueMinute>> {
        self.minutes_since(0).await
    }

    /// The same for the last `period` only, by the server's clock.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn recent_history(&self, period: Duration) -> Result<Vec<QueueMinute>> {
        let now = self.queue().time().await?;
        let since = now.saturating_sub(period).as_secs() / 60;
        self.minutes_since(since).await
    }

    /// Reads the names of counters from the newest minute on, and their values, until a minute.
    async fn minutes_since(&self, since: u64) -> Result<Vec<QueueMinute>> {
        let (store, entity) = (self.queue().store(), self.queue().entity());
        let mut found: Vec<(String, u64)> = Vec::new();
        // From the newest, so that minutes which are removed meanwhile move no others.
        for page in 0.. {
            let mut range = redis::cmd("ZRANGE");
            range
                .arg(entity.part("history"))
                .arg("+inf")
                .arg(since)
                .arg("BYSCORE")
                .arg("REV")
                .arg("LIMIT")
                .arg(page * PAGE)
                .arg(PAGE);
            let names: Vec<String> = store.query(&range).await?;
            if names.is_empty() {
                break;
            }
            let mut get = redis::cmd("HMGET");
            get.arg(entity.part("tallies")).arg(&names);
            let amounts: Vec<Option<u64>> = store.query(&get).await?;
            let full = names.len() == PAGE;
            found.extend(
                names
                    .into_iter()
                    .zip(amounts)
                    .filter_map(|(n, a)| Some((n, a?))),
            );
            if !full {
                break;
            }
        }
        let mut minutes: BTreeMap<(u64, String), QueueMinute> = BTreeMap::new();
        for (name, amount) in found {
            let Some((minute, rest)) = name.split_once('|') else {
                continue;
            };
            let (Ok(minute), Some((kind, what))) = (minute.parse::<u64>(), rest.rsplit_once('|'))
            else {
                continue;
            };
            let entry = minutes
                .entry((minute, kind.to_owned()))
                .or_insert_with(|| QueueMinute {
                    at: Duration::from_secs(minute * 60),
                    kind: kind.to_owned(),
                    ..QueueMinute::default()
                });
            let spread = |spread: &mut Spread, bucket: &str| {
                if let Ok(bucket) = bucket.parse::<u32>() {
                    spread.buckets.insert(bucket.min(31), amount);
                }
            };
            match what {
                "done" => entry.done = amount,
                "failed" => entry.failed = amount,
                _ => match (what.strip_prefix("wait"), what.strip_prefix("run")) {
                    (Some(bucket), _) => spread(&mut entry.wait, bucket),
                    (_, Some(bucket)) => spread(&mut entry.run, bucket),
                    _ => {}
                },
            }
        }
        Ok(minutes.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_at_least_the_time_and_at_most_twice_it() {
        for micros in [1, 999, 1000, 1001, 2000, 2001, 4000, 70_000, 3_600_000_000] {
            let time = Duration::from_micros(micros);
            let limit = Duration::from_millis(1 << bucket(time));
            assert!(limit >= time, "{time:?} {limit:?}");
            assert!(
                limit <= (time * 2).max(Duration::from_millis(1)),
                "{time:?} {limit:?}"
            );
        }
        let mut spread = Spread::default();
        assert_eq!(spread.percentile(0.5), None);
        spread.buckets = BTreeMap::from([(0, 98), (5, 1), (10, 1)]);
        assert_eq!(spread.percentile(0.5), Some(Duration::from_millis(1)));
        assert_eq!(spread.percentile(0.99), Some(Duration::from_millis(32)));
        assert_eq!(spread.percentile(1.0), Some(Duration::from_millis(1024)));
    }
}
