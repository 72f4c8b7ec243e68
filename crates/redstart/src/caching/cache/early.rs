//! Early refresh: a popular value is loaded again before it expires, so that no reader waits for it.
//!
//! XFetch draws, at every read, a moment ahead of now and refreshes if the value would have expired by then:
//! `now − δ·β·ln(U) ≥ expiry` with U uniform in (0, 1] and δ the time that the last load took. The chance of
//! an early refresh with a gap g left is e^(−g/(β·δ)): close to zero long before the expiry, close to one at the
//! end; the slower the load, the earlier refreshes begin.

use std::time::Duration;

/// How early values are refreshed before they expire.
///
/// ```
/// use redstart::caching::XFetch;
///
/// let eager = XFetch { beta: 2.0 }; // begins twice as early as the default of 1
/// # let _ = eager;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct XFetch {
    /// The factor on the measured load time. 1 is the classic choice; more refreshes earlier.
    pub beta: f64,
}

impl Default for XFetch {
    fn default() -> Self {
        Self { beta: 1.0 }
    }
}

impl XFetch {
    /// Whether this read should refresh a value with `gap` left that took `load_time` to load.
    pub(crate) fn draws(self, load_time: Duration, gap: Duration) -> bool {
        let scale = self.beta * load_time.as_secs_f64();
        // Less than once in 10^17 reads: not worth a logarithm.
        if gap.as_secs_f64() > 40.0 * scale {
            return false;
        }
        // random() is in [0, 1), and the formula needs (0, 1].
        refreshes(scale, gap, 1.0 - crate::chance::random::<f64>())
    }
}

fn refreshes(scale: f64, gap: Duration, u: f64) -> bool {
    -scale * u.ln() >= gap.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gap below which a draw `u` refreshes is `-βδ·ln(u)`: it must be exponential with mean βδ.
    #[test]
    fn early_draws_follow_the_exponential_law() {
        for (beta, millis) in [(1.0, 20), (0.5, 300), (3.0, 7)] {
            let (rule, load) = (XFetch { beta }, Duration::from_millis(millis));
            let scale = beta * load.as_secs_f64();
            // Kolmogorov–Smirnov over the law at many gaps: each empirical share has its own draws, and the
            // bound is the 1 in 10^6 quantile of the binomial, so a false alarm is out of the question.
            let draws = 1_000_000 / 50;
            for step in 0..50 {
                let gap = Duration::from_secs_f64(scale * f64::from(step) * 0.1);
                let early = (0..draws).filter(|_| rule.draws(load, gap)).count();
                let expected = (-gap.as_secs_f64() / scale).exp();
                let spread = (expected * (1.0 - expected) / f64::from(draws)).sqrt();
                let share = early as f64 / f64::from(draws);
                assert!(
                    (share - expected).abs() <= 5.0 * spread + 1e-6,
                    "gap {gap:?}: {share} instead of {expected}"
                );
            }
        }
    }

    /// The same by its distribution: 10^6 thresholds against the exponential, by Kolmogorov–Smirnov.
    #[test]
    fn a_million_thresholds_pass_the_ks_test() {
        let scale = 0.02;
        let n = 1_000_000u32;
        // The threshold of a draw, found from the decision itself by bisection on the gap.
        let mut thresholds: Vec<f64> = (0..n)
            .map(|_| {
                let u = 1.0 - crate::chance::random::<f64>();
                let (mut low, mut high) = (0u64, 2_000_000_000u64);
                while high - low > 1000 {
                    let middle = low.midpoint(high);
                    if refreshes(scale, Duration::from_nanos(middle), u) {
                        low = middle;
                    } else {
                        high = middle;
                    }
                }
                low as f64 / 1e9
            })
            .collect();
        thresholds.sort_by(f64::total_cmp);
        let worst = thresholds
            .iter()
            .enumerate()
            .map(|(i, gap)| {
                let law = 1.0 - (-gap / scale).exp();
                let (before, after) = (
                    f64::from(i as u32) / f64::from(n),
                    f64::from(i as u32 + 1) / f64::from(n),
                );
                (law - before).abs().max((after - law).abs())
            })
            .fold(0.0, f64::max);
        // 2.7/√n: a right law fails once in a million runs (2·e^(−2·2.7²)); the bisection adds at most 1 µs / scale.
        let bound = 2.7 / f64::from(n).sqrt() + 1e-6 / scale;
        assert!(worst < bound, "D = {worst}, bound {bound}");
    }

    #[test]
    fn an_expired_value_is_always_refreshed() {
        assert!(
            (0..1000).all(|_| XFetch::default().draws(Duration::from_millis(1), Duration::ZERO))
        );
        assert!((0..1000).all(|_| XFetch::default().draws(Duration::ZERO, Duration::ZERO)));
    }
}
