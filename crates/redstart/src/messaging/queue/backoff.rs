//! The wait between two attempts.

use std::time::Duration;

/// The wait between attempts of a failing job.
///
/// ```
/// use std::time::Duration;
/// use redstart::messaging::Backoff;
///
/// let backoff = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(60));
/// for (attempt, ceiling) in [(1, 1), (2, 2), (3, 4), (20, 60)] {
///     let wait = backoff.wait(attempt);
///     assert!(wait <= Duration::from_secs(ceiling) && wait >= Duration::from_secs(ceiling) / 2);
/// }
/// assert_eq!(Backoff::fixed(Duration::from_secs(5)).wait(9), Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    doubles: bool,
}

impl Backoff {
    /// Doubles from `first` up to `most`. Each wait is a random time between half of that and all of it, so that jobs
    /// that failed together are not retried together.
    pub const fn exponential(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            doubles: true,
        }
    }

    /// Always the same wait.
    pub const fn fixed(wait: Duration) -> Self {
        Self {
            first: wait,
            most: wait,
            doubles: false,
        }
    }

    /// As it is stored: a letter for the shape, the first wait, the longest.
    pub(super) fn parts(&self) -> (u8, Duration, Duration) {
        (
            if self.doubles { b'e' } else { b'f' },
            self.first,
            self.most,
        )
    }

    /// The wait after an attempt; the first attempt is 1.
    pub fn wait(&self, attempt: u32) -> Duration {
        if !self.doubles {
            return self.first;
        }
        let factor = 2u32.saturating_pow(attempt.saturating_sub(1).min(31));
        let whole = self.first.saturating_mul(factor).min(self.most);
        whole.mul_f64(crate::chance::range(0.5..=1.0))
    }
}

impl Default for Backoff {
    /// One second, doubling up to ten minutes.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1), Duration::from_secs(600))
    }
}
