//! Rate limiters: never above the limit, and not below it where the demand was there.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redstart::{
    Result, Store,
    limiting::{Algorithm, Limiter, Quota},
};

use super::{Bed, Claims, Op, Workload, counters};

super::patterns! { "rate limiting":
    "fixed_window", "subject", 1.0,
    "each subject is admitted exactly its limit in each window", Limited::fixed_window;
    "sliding_window", "subject", 1.0,
    "each subject is admitted exactly its limit in each rolling window", Limited::sliding_window;
    "sliding_counter", "subject", 1.0,
    "each subject is admitted its limit and not one more", Limited::sliding_counter;
    "token_bucket", "subject", 1.0,
    "each subject is admitted its burst plus the refill, and not one more", Limited::token_bucket;
}

/// What a subject is admitted at once.
pub(crate) const LIMIT: u64 = 20;
/// The window of half of the subjects, or the time in which their bucket refills by the limit: much longer than a run, so
/// that what they are admitted is known exactly.
const PERIOD: Duration = Duration::from_secs(3600);
/// The window of the others: shorter than a run, so that windows turn and buckets refill meanwhile.
const TURNING: Duration = Duration::from_secs(1);
/// Grants that are kept of each subject whose window turns, and subjects whose grants are compared: each pair is.
const KEPT: usize = 1000;
const COMPARED: usize = 64;

pub(super) struct Limited {
    limiter: Limiter,
    turning: Limiter,
    algorithm: Algorithm,
    store: Store,
    started: Duration,
    epoch: Instant,
    calls: Vec<AtomicU64>,
    admitted: Vec<AtomicU64>,
    /// Of subjects whose window turns: between which times each call was admitted.
    grants: Vec<Mutex<Vec<(Duration, Duration)>>>,
    unknown: AtomicU64,
    claims: Claims,
}

impl Limited {
    async fn fixed_window(bed: &Bed) -> Result<Self> {
        Self::open(bed, Algorithm::FixedWindow).await
    }

    async fn sliding_window(bed: &Bed) -> Result<Self> {
        Self::open(bed, Algorithm::SlidingWindow).await
    }

    async fn sliding_counter(bed: &Bed) -> Result<Self> {
        Self::open(bed, Algorithm::SlidingCounter).await
    }

    async fn token_bucket(bed: &Bed) -> Result<Self> {
        Self::open(bed, Algorithm::TokenBucket).await
    }

    async fn open(bed: &Bed, algorithm: Algorithm) -> Result<Self> {
        let limiter = |name: &str, period| {
            let quota = match algorithm {
                Algorithm::TokenBucket => Quota::per(LIMIT, period).burst(LIMIT),
                _ => Quota::per(LIMIT, period),
            };
            Limiter::builder(&bed.store, &bed.namespace, name, algorithm, quota).build()
        };
        let subjects = bed.entities(1_000_000);
        Ok(Self {
            limiter: limiter("api", PERIOD)?,
            turning: limiter("turning", TURNING)?,
            algorithm,
            store: bed.store.clone(),
            started: bed.store.time().await?,
            epoch: Instant::now(),
            grants: (0..subjects).map(|_| Mutex::default()).collect(),
            calls: counters(subjects),
            admitted: counters(subjects),
            unknown: AtomicU64::new(0),
            claims: Claims::default(),
        })
    }

    /// Whether the window of a subject turns during a run.
    fn turns(subject: usize) -> bool {
        subject % 2 == 1
    }

    /// What the limit admits at most within a time, wherever it begins.
    fn most_within(&self, time: Duration) -> u64 {
        let periods = (time.as_micros() / TURNING.as_micros()) as u64;
        match self.algorithm {
            Algorithm::TokenBucket => {
                LIMIT + (time.as_secs_f64() / TURNING.as_secs_f64() * LIMIT as f64) as u64 + 1
            }
            // A window may end in the middle of the time.
            Algorithm::FixedWindow | Algorithm::SlidingCounter => LIMIT * (periods + 2),
            _ => LIMIT * (periods + 1),
        }
    }

    /// In every stretch of time, what was surely admitted within it is within the limit.
    fn sweep(&self, subject: usize, grants: &mut [(Duration, Duration)]) {
        grants.sort_unstable_by_key(|(_, to)| *to);
        for (begin, _) in grants.iter() {
            let mut inside = 0;
            for (from, to) in grants.iter() {
                if from < begin {
                    continue;
                }
                inside += 1;
                let time = *to - *begin;
                let most = self.most_within(time);
                self.claims.hold(inside <= most, || {
                    format!("subject {subject} was admitted {inside} times within {time:?}, the limit allows {most}")
                });
                if inside > most {
                    return;
                }
            }
        }
    }

    /// What the limit admits at most in the time that the run took.
    async fn most(&self) -> Result<u64> {
        let ended = self.store.time().await?;
        Ok(match self.algorithm {
            Algorithm::FixedWindow => {
                let window = |time: Duration| time.as_secs() / PERIOD.as_secs();
                LIMIT * (window(ended) - window(self.started) + 1)
            }
            Algorithm::SlidingCounter => {
                // The estimate of the previous window fades as the next one goes on.
                let window = |time: Duration| time.as_secs() / PERIOD.as_secs();
                match window(ended) - window(self.started) {
                    0 => LIMIT,
                    windows => LIMIT * (windows + 1),
                }
            }
            Algorithm::TokenBucket => {
                let run = ended.saturating_sub(self.started).as_secs_f64();
                LIMIT + (run / PERIOD.as_secs_f64() * LIMIT as f64).ceil() as u64
            }
            _ => LIMIT * (1 + ended.saturating_sub(self.started).as_secs() / PERIOD.as_secs()),
        })
    }
}

impl Workload for Limited {
    async fn operate(&self, op: Op) -> Result<()> {
        let subject = op.index(self.calls.len());
        let limiter = match Self::turns(subject) {
            true => &self.turning,
            false => &self.limiter,
        };
        let from = self.epoch.elapsed();
        let decision = limiter.check(&format!("e{subject}"), 1).await;
        if decision.is_err() {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
        let allowed = decision?.is_allowed();
        self.calls[subject].fetch_add(1, Ordering::Relaxed);
        self.admitted[subject].fetch_add(u64::from(allowed), Ordering::Relaxed);
        if allowed && Self::turns(subject) {
            let to = self.epoch.elapsed();
            let mut grants = self.grants[subject].lock();
            if grants.len() < KEPT {
                grants.push((from, to));
            }
        }
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        let most = self.most().await?;
        let unknown = self.unknown.load(Ordering::Relaxed);
        for (subject, admitted) in self.admitted.iter().enumerate() {
            let admitted = admitted.load(Ordering::Relaxed);
            let calls = self.calls[subject].load(Ordering::Relaxed);
            self.claims
                .hold(admitted <= most || Self::turns(subject), || {
                    format!(
                        "subject {subject} was admitted {admitted} times, the limit allows {most}"
                    )
                });
            // Calls whose replies were lost may have used the limit.
            let least = calls.min(LIMIT).saturating_sub(unknown);
            self.claims.hold(admitted >= least, || {
                format!("subject {subject} was admitted {admitted} of {calls} calls, fewer than its limit of {LIMIT}")
            });
        }
        let mut grants: Vec<_> = self
            .grants
            .iter()
            .enumerate()
            .map(|(subject, grants)| (subject, std::mem::take(&mut *grants.lock())))
            .filter(|(_, grants)| !grants.is_empty())
            .collect();
        grants.sort_by_key(|(_, grants)| std::cmp::Reverse(grants.len()));
        for (subject, grants) in grants.iter_mut().take(COMPARED) {
            self.sweep(*subject, grants);
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        let touched = |calls: &&AtomicU64| calls.load(Ordering::Relaxed) > 0;
        self.calls.iter().filter(touched).count() as u64
    }

    fn figure(&self) -> Option<String> {
        let admitted: u64 = self
            .admitted
            .iter()
            .map(|n| n.load(Ordering::Relaxed))
            .sum();
        Some(format!(
            "{admitted} calls admitted, at most {LIMIT} per subject and window"
        ))
    }
}
