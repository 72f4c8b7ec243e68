//! Which arithmetic decides.

use std::fmt;

use super::{
    fixed_window, quota::Quota, rule::Rule, sliding_counter, sliding_window, token_bucket,
};
use crate::error::Result;

/// Which arithmetic decides. Each has a page: [`token_bucket`], [`fixed_window`], [`sliding_window`],
/// [`sliding_counter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A burst up to the capacity, then a steady rate.
    TokenBucket,
    /// One counter for each window of the clock.
    FixedWindow,
    /// A log: exact in every rolling window.
    SlidingWindow,
    /// Two counters: close to the log in constant memory.
    SlidingCounter,
}

impl Algorithm {
    pub(super) fn rule(self, quota: Quota, refundable: bool) -> Result<Box<dyn Rule>> {
        quota.check()?;
        match self {
            Self::TokenBucket => token_bucket::rule(quota, refundable),
            Self::FixedWindow => fixed_window::rule(quota),
            Self::SlidingWindow => sliding_window::rule(quota),
            Self::SlidingCounter => sliding_counter::rule(quota),
        }
    }

    /// What tells the state of this limit from that of any other: two limits that differ share no key.
    pub(super) fn fingerprint(self, quota: Quota, refundable: bool) -> String {
        let letter = match self {
            Self::TokenBucket if refundable => 'r',
            Self::TokenBucket => 't',
            Self::FixedWindow => 'f',
            Self::SlidingWindow => 'l',
            Self::SlidingCounter => 'c',
        };
        let nanos = quota.period().as_nanos();
        let mut text = match nanos.is_multiple_of(1_000_000) {
            true => format!("{letter}{}/{}", quota.units(), nanos / 1_000_000),
            false => format!("{letter}{}/{nanos}n", quota.units()),
        };
        if quota.capacity() != quota.units() {
            text.push_str(&format!("+{}", quota.capacity()));
        }
        text
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TokenBucket => "token bucket",
            Self::FixedWindow => "fixed window",
            Self::SlidingWindow => "sliding window",
            Self::SlidingCounter => "sliding counter",
        })
    }
}
