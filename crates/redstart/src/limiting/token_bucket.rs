//! Token bucket: a burst up to the capacity, then a steady rate.
//!
//! A bucket of `capacity` tokens is full at first. Each request takes its cost; tokens come back one by one at the quota's
//! rate. The generic cell rate algorithm (GCRA) is the same arithmetic, and it is how the state is kept: not the tokens
//! but the *debt*, the time until the bucket is full again. An idle subject has no key.
//!
//! # Promises
//!
//! A rate such as three tokens per second is exact, not rounded to 333 333 µs: a token is a million parts, and three parts
//! come back each microsecond.
//!
//! A refund gives back the cost of the grant, but not more than what time has not paid off yet: crediting all of it late
//! would let through more than the capacity at once.
//!
//! # Keys
//!
//! One string, or none: the quota decides which script runs.
//!
//! | quota | state | tick | commands of a check, allowed / refused |
//! |---|---|---|---|
//! | a token every whole number of milliseconds (10 per second, 6 per minute) | the key's remaining TTL is the debt | 1 ms | PTTL, SET / PTTL |
//! | any other (3 per second, 1500 per second) | one value, in parts that make the rate exact | 1 µs | TIME, GET, SET / TIME, GET |
//! | any, if it is [refundable](super::LimiterBuilder::refundable) | the same, and an account of what was taken | 1 µs | TIME, GET, SET / TIME, GET |
//!
//! # Round trips
//!
//! One script.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Store, limiting::{Limiter, Quota}};
//! let store = Store::connect("memory://").await?;
//! let uploads = Limiter::token_bucket(&store, "shop", "upload", Quota::per_second(3).burst(30))
//!     .refundable()
//!     .build()?;
//!
//! let grant = uploads.check("user:42", 20).await?.allowed().expect("a full bucket");
//! // The upload did not happen.
//! uploads.refund(grant).await?;
//! assert_eq!(uploads.peek("user:42").await?.remaining, 30);
//! # Ok(()) }
//! ```

use std::time::Duration;

use super::{
    quota::{EXACT, Quota},
    rule::Rule,
};
use crate::{
    error::{Error, Result},
    script::Script,
};

pub(super) static CHECK_WHOLE: Script = Script::new(
    "token_bucket.check_whole",
    concat!(
        include_str!("token_bucket/whole.lua"),
        include_str!("token_bucket/check_whole.lua")
    ),
);
pub(super) static CHECK_EXACT: Script = Script::new(
    "token_bucket.check_exact",
    concat!(
        include_str!("token_bucket/exact.lua"),
        include_str!("token_bucket/check_exact.lua")
    ),
);
pub(super) static CHECK_LEDGER: Script = Script::new(
    "token_bucket.check_ledger",
    concat!(
        include_str!("token_bucket/ledger.lua"),
        include_str!("token_bucket/check_ledger.lua")
    ),
);
pub(super) static REFUND: Script = Script::new(
    "token_bucket.refund",
    include_str!("token_bucket/refund.lua"),
);

/// A bucket whose tokens come every `interval` milliseconds.
#[derive(Debug)]
struct Whole {
    interval: u64,
    capacity: u64,
}

/// A bucket whose tokens are `token` parts, of which `rate` come back each microsecond.
#[derive(Debug)]
struct Exact {
    token: u64,
    rate: u64,
    capacity: u64,
    refundable: bool,
}

/// The bucket that fits the quota.
pub(super) fn rule(quota: Quota, refundable: bool) -> Result<Box<dyn Rule>> {
    let too_large = || Error::config("the quota is too large or too fine to be counted exactly");
    let capacity = quota.capacity();
    let period = quota.period().as_nanos();
    let units = u128::from(quota.units());
    if period.is_multiple_of(units * 1_000_000) && !refundable {
        let interval = u64::try_from(period / units / 1_000_000).map_err(|_| too_large())?;
        return match interval.checked_mul(capacity) {
            Some(full) if full < EXACT => Ok(Box::new(Whole { interval, capacity })),
            _ => Err(too_large()),
        };
    }
    // token / rate microseconds per token, in lowest terms.
    let (token, rate) = (period, units * 1000);
    let divisor = gcd(token, rate);
    let token = u64::try_from(token / divisor).map_err(|_| too_large())?;
    let rate = u64::try_from(rate / divisor).map_err(|_| too_large())?;
    // The state counts from the start of a second, so up to a second is added to the debt.
    let most = token
        .checked_mul(capacity)
        .and_then(|full| full.checked_add(rate.checked_mul(1_000_000)?));
    match most {
        Some(most) if most < EXACT => Ok(Box::new(Exact {
            token,
            rate,
            capacity,
            refundable,
        })),
        _ => Err(too_large()),
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Rule for Whole {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn check_script(&self) -> &'static Script {
        &CHECK_WHOLE
    }

    fn refund_script(&self) -> Option<&'static Script> {
        None
    }

    fn name(&self) -> &'static str {
        "whole"
    }

    fn args(&self, cost: u64) -> [u64; 3] {
        [
            cost * self.interval,
            (self.capacity - cost) * self.interval,
            0,
        ]
    }

    fn refund_args(&self, _cost: u64, _receipt: &str) -> Vec<String> {
        Vec::new()
    }

    fn wait(&self, ticks: u64) -> Duration {
        Duration::from_millis(ticks)
    }

    fn remaining(&self, state: u64) -> u64 {
        self.capacity.saturating_sub(state.div_ceil(self.interval))
    }

    fn reset(&self, state: u64, _reset: u64) -> Duration {
        Duration::from_millis(state)
    }

    fn state_refused(&self, cost: u64, wait: u64) -> u64 {
        (self.capacity - cost) * self.interval + wait
    }
}

impl Rule for Exact {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn check_script(&self) -> &'static Script {
        if self.refundable {
            &CHECK_LEDGER
        } else {
            &CHECK_EXACT
        }
    }

    fn refund_script(&self) -> Option<&'static Script> {
        self.refundable.then_some(&REFUND)
    }

    fn name(&self) -> &'static str {
        if self.refundable { "ledger" } else { "exact" }
    }

    fn needs_id(&self) -> bool {
        self.refundable
    }

    fn args(&self, cost: u64) -> [u64; 3] {
        [
            cost * self.token,
            (self.capacity - cost) * self.token,
            self.rate,
        ]
    }

    fn refund_args(&self, cost: u64, receipt: &str) -> Vec<String> {
        let (period, taken) = receipt.split_once(' ').unwrap_or((receipt, "0"));
        vec![
            (cost * self.token).to_string(),
            self.rate.to_string(),
            period.to_owned(),
            taken.to_owned(),
        ]
    }

    fn wait(&self, ticks: u64) -> Duration {
        Duration::from_micros(ticks.div_ceil(self.rate))
    }

    fn remaining(&self, state: u64) -> u64 {
        self.capacity.saturating_sub(state.div_ceil(self.token))
    }

    fn reset(&self, state: u64, _reset: u64) -> Duration {
        Duration::from_micros(state.div_ceil(self.rate))
    }

    fn state_refused(&self, cost: u64, wait: u64) -> u64 {
        (self.capacity - cost) * self.token + wait
    }

    fn credited(&self, answer: u64) -> u64 {
        answer / self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_decides_which_script_runs() {
        let name = |quota| rule(quota, false).map(|rule| rule.name());
        assert_eq!(name(Quota::per_second(10)).unwrap(), "whole");
        assert_eq!(name(Quota::per_second(1000)).unwrap(), "whole");
        assert_eq!(name(Quota::per_minute(7)).unwrap(), "exact");
        assert_eq!(name(Quota::per_second(3)).unwrap(), "exact");
        assert_eq!(name(Quota::per_second(1500)).unwrap(), "exact");
        assert!(name(Quota::per_day(u64::MAX)).unwrap_err().is_config());
        assert!(
            name(Quota::per_second(10).burst(u64::MAX))
                .unwrap_err()
                .is_config()
        );
    }

    #[test]
    fn odd_rates_are_exact() {
        let rule = rule(Quota::per_second(3), false).unwrap();
        // One token is a million parts, and three come back each microsecond.
        assert_eq!(rule.args(1), [1_000_000, 2_000_000, 3]);
        assert_eq!(rule.wait(1), Duration::from_micros(1));
        assert_eq!(rule.wait(1_000_000), Duration::from_micros(333_334));
    }
}
