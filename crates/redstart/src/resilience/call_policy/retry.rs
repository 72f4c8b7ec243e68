//! When a failed call is made again, and how many of such calls there may be.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// How often a call is repeated, and with which pauses.
///
/// Pauses double from the first to the longest, and each is drawn at random from half of that to all of it, so that callers
/// that failed together do not return together.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "it does nothing until a policy has it"]
pub struct RetryPlan {
    pub(super) attempts: NonZeroU32,
    first: Duration,
    longest: Duration,
    pub(super) share: f64,
}

impl RetryPlan {
    /// So many attempts in all. The pauses are 50 ms to 2 s, and repetitions are up to a fifth of all calls.
    pub fn attempts(attempts: NonZeroU32) -> Self {
        Self {
            attempts,
            first: Duration::from_millis(50),
            longest: Duration::from_secs(2),
            share: 0.2,
        }
    }

    /// The first and the longest pause.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.first = first;
        self.longest = longest.max(first);
        self
    }

    /// The budget: how many repetitions and hedges there may be per call, from 0 to 1. When a dependency is down for all,
    /// callers that repeat every call only multiply its load; with a budget of 0.2 the load grows by a fifth at most.
    /// Ten are always in stock at the start, so that a quiet service can repeat too.
    pub fn budget(mut self, share: f64) -> Self {
        self.share = if share.is_finite() {
            share.clamp(0.0, 1.0)
        } else {
            0.0
        };
        self
    }

    /// The pause after the attempt with this number, counted from 1.
    pub(super) fn pause(&self, attempt: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << (attempt - 1).min(20));
        doubled
            .min(self.longest)
            .mul_f64(crate::chance::range(0.5..=1.0))
    }
}

/// Thousandths of a repetition.
const UNIT: u64 = 1000;
const AT_FIRST: u64 = 10 * UNIT;
const MOST: u64 = 100 * UNIT;

/// What repetitions are paid from: each call adds its share.
#[derive(Debug)]
pub(super) struct Budget {
    stock: AtomicU64,
    share: u64,
}

impl Budget {
    pub(super) fn new(share: f64) -> Self {
        Self {
            stock: AtomicU64::new(AT_FIRST),
            share: (share * UNIT as f64) as u64,
        }
    }

    /// A call was made.
    pub(super) fn earn(&self) {
        let add = |stock: u64| Some((stock + self.share).min(MOST));
        let _ = self
            .stock
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Pays for a repetition, if there is enough.
    pub(super) fn pay(&self) -> bool {
        let take = |stock: u64| stock.checked_sub(UNIT);
        self.stock
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_a_share_of_the_calls() {
        let budget = Budget::new(0.2);
        let mut repeated = 0;
        for _ in 0..10_000 {
            budget.earn();
            while budget.pay() {
                repeated += 1;
            }
        }
        assert_eq!(repeated, 10 + 2000);
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let plan = RetryPlan::attempts(NonZeroU32::MAX)
            .backoff(Duration::from_millis(10), Duration::from_millis(35));
        for (attempt, most) in [(1, 10), (2, 20), (3, 35), (1000, 35)] {
            let most = Duration::from_millis(most);
            for _ in 0..100 {
                let pause = plan.pause(attempt);
                assert!(pause <= most && pause >= most / 2, "{attempt}: {pause:?}");
            }
        }
    }
}
