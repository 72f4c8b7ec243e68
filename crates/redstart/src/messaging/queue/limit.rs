//! How many jobs run at a time, and how many start in a time.

use std::time::Duration;

use crate::{
    duration::micros,
    error::{Error, Result},
};

/// A limit of a queue, of a kind of job or of each group: how many jobs run at a time, and how many start in a time.
/// It holds over all workers of the queue.
///
/// ```
/// use std::time::Duration;
/// use redstart::messaging::JobLimit;
///
/// // Two at a time, and 100 per minute, of which up to 10 at once.
/// let limit = JobLimit::concurrency(2).rate(100, Duration::from_secs(60)).burst(10);
/// # let _ = limit;
/// ```
///
/// Running jobs are counted in the queue's own keys. If a Cluster node fails without a replica while the slot of the queue moves, only
/// some of these keys survive: a limit may then count jobs that are lost, and hold back the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a limit is given to a queue's builder"]
pub struct JobLimit {
    concurrency: u32,
    rate: Option<(u32, Duration)>,
    burst: Option<u32>,
}

impl JobLimit {
    /// At most `jobs` jobs run at a time.
    pub const fn concurrency(jobs: u32) -> Self {
        Self {
            concurrency: jobs,
            rate: None,
            burst: None,
        }
    }

    /// At most `jobs` jobs start per `period`, evenly spread. With [`burst`](Self::burst) it is a token bucket.
    pub const fn per(jobs: u32, period: Duration) -> Self {
        Self {
            concurrency: 0,
            rate: Some((jobs, period)),
            burst: None,
        }
    }

    /// Also, at most `jobs` jobs start per `period`.
    pub const fn rate(mut self, jobs: u32, period: Duration) -> Self {
        self.rate = Some((jobs, period));
        self
    }

    /// How many jobs may start at once after a pause (default: as many as the rate has per period).
    pub const fn burst(mut self, jobs: u32) -> Self {
        self.burst = Some(jobs);
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        if let Some((jobs, period)) = self.rate
            && (jobs == 0 || period.is_zero() || micros(period) / u64::from(jobs) == 0)
        {
            return Err(Error::config(
                "a rate limit must be at most a job per microsecond and more than none",
            ));
        }
        if self.burst == Some(0) {
            return Err(Error::config("a burst must be at least 1"));
        }
        Ok(())
    }

    /// Jobs at a time, microseconds per job, jobs at once; 0 where there is no limit.
    pub(super) fn numbers(&self) -> [u64; 3] {
        let (every, jobs) = self.rate.map_or((0, 0), |(jobs, period)| {
            (micros(period) / u64::from(jobs), jobs)
        });
        [
            u64::from(self.concurrency),
            every,
            u64::from(self.burst.unwrap_or(jobs)),
        ]
    }

    /// Whether its jobs run one at a time, and so in their order.
    pub(super) fn is_in_order(&self) -> bool {
        self.concurrency == 1
    }
}
