//! Rate limiters: never above the limit, and not below it where the demand was there.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
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
/// The window, or the time in which a bucket refills by the limit: much longer than a run.
const PERIOD: Duration = Duration::from_secs(3600);

pub(super) struct Limited {
    limiter: Limiter,
    algorithm: Algorithm,
    store: Store,
    started: Duration,
    calls: Vec<AtomicU64>,
    admitted: Vec<AtomicU64>,
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
        let quota = Quota::per(LIMIT, PERIOD);
        let quota = match algorithm {
            Algorithm::TokenBucket => quota.burst(LIMIT),
            _ => quota,
        };
        let subjects = bed.entities(1_000_000);
        Ok(Self {
            limiter: Limiter::builder(&bed.store, &bed.namespace, "api", algorithm, quota)
                .build()?,
            algorithm,
            store: bed.store.clone(),
            started: bed.store.time().await?,
            calls: counters(subjects),
            admitted: counters(subjects),
            unknown: AtomicU64::new(0),
            claims: Claims::default(),
        })
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

#[async_trait]
impl Workload for Limited {
    async fn operate(&self, op: Op) -> Result<()> {
        let subject = op.index(self.calls.len());
        let decision = self.limiter.check(&format!("e{subject}"), 1).await;
        if decision.is_err() {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
        let allowed = decision?.is_allowed();
        self.calls[subject].fetch_add(1, Ordering::Relaxed);
        self.admitted[subject].fetch_add(u64::from(allowed), Ordering::Relaxed);
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        let most = self.most().await?;
        let unknown = self.unknown.load(Ordering::Relaxed);
        for (subject, admitted) in self.admitted.iter().enumerate() {
            let admitted = admitted.load(Ordering::Relaxed);
            let calls = self.calls[subject].load(Ordering::Relaxed);
            self.claims.hold(admitted <= most, || {
                format!("subject {subject} was admitted {admitted} times, the limit allows {most}")
            });
            // Calls whose replies were lost may have used the limit.
            let least = calls.min(LIMIT).saturating_sub(unknown);
            self.claims.hold(admitted >= least, || {
                format!("subject {subject} was admitted {admitted} of {calls} calls, fewer than its limit of {LIMIT}")
            });
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
            "{admitted} calls admitted, at most {LIMIT} per subject"
        ))
    }
}
