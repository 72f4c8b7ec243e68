//! Token bucket: a burst up to the capacity, then a steady rate.
//!
//! A bucket of `capacity` tokens is full at first. Each request takes its cost; tokens come back one by one, at
//! the quota's rate. The generic cell rate algorithm (GCRA) is the same arithmetic, and it is how the state is
//! kept: not the tokens but the *debt*, the time until the bucket is full again. An idle subject has no key.
//!
//! # Which script runs
//!
//! The quota decides when the limiter is built:
//!
//! | quota | state | tick | commands of a check, allowed / refused |
//! |---|---|---|---|
//! | a token comes every whole number of milliseconds (10 a second, 100 a second, 6 a minute) | none: the key's remaining TTL is the debt | 1 ms | PTTL, SET / PTTL |
//! | any other (3 a second, 1500 a second) | one value, in units that make the rate exact | 1 µs | TIME, GET, SET / TIME, GET |
//! | any, if it is [refundable](super::Builder::refundable) | the same and an account of what was taken | 1 µs | TIME, GET, SET / TIME, GET |
//!
//! A rate such as three tokens a second is exact, not rounded to 333 333 µs: a token is a million units and the
//! bucket gets three of them each microsecond.
//!
//! # Refunds
//!
//! Had a grant never been made, the debt would be lower by what is *left* of the grant: time pays debts back, and
//! what it has paid is not there to be credited again. So a refund gives back the grant's cost, but not more than
//! the debt that there would be without all that was taken after it. Crediting the whole cost late would let
//! through more than the capacity at once. A bucket keeps this account only if it is asked to.
//!
//! # Keys
//!
//! `<namespace>:token_bucket:{<subject>}` for whole milliseconds; otherwise a part of it that names the units,
//! so that a changed quota does not misread the state of the old one.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Store, limiting::{Down, Limiter, Quota}};
//! let store = Store::connect("memory://").await?;
//! let limiter = Limiter::token_bucket(&store, "upload", Quota::per_second(3).burst(30))
//!     .refundable()
//!     .on_store_down(Down::Fail)
//!     .build()?;
//!
//! let grant = limiter.check("user:42", 20).await?.allowed().expect("a full bucket");
//! // The upload did not happen after all.
//! limiter.refund(grant).await?;
//! assert_eq!(limiter.peek("user:42").await?.remaining, 30);
//! # Ok(()) }
//! ```

use std::time::Duration;

use super::{
    limiter::Kind,
    quota::{EXACT, Quota},
    rule::Rule,
};
use crate::{
    error::{Error, Result},
    script::Script,
};

/// The check of one bucket, without a function: this is the hottest script of all.
///
/// KEYS `[1]` the bucket; ARGV cost, room, rate in the bucket's units. Returns the debt after taking, or minus
/// the wait.
macro_rules! check_one {
    ($look:literal, $take:literal) => {
        concat!(
            "local key, cost, room, rate = KEYS[1], ARGV[1], ARGV[2], ARGV[3]\n",
            include_str!($look),
            "if over > 0 then return -over end\n",
            include_str!($take),
            "return debt\n"
        )
    };
}

/// The same as a function of the script that asks several: wait, debt, commit.
macro_rules! function {
    ($name:literal, $look:literal, $take:literal) => {
        concat!(
            "local function ",
            $name,
            "(key, cost, room, rate)\n",
            include_str!($look),
            "if over > 0 then return over, debt end\nreturn 0, debt, function()\n",
            include_str!($take),
            "return debt\nend\nend\n"
        )
    };
}

/// The Lua functions of all buckets.
macro_rules! functions {
    () => {
        concat!(
            $crate::limiting::token_bucket::function!(
                "whole_bucket",
                "token_bucket/whole_look.lua",
                "token_bucket/whole_take.lua"
            ),
            $crate::limiting::token_bucket::function!(
                "exact_bucket",
                "token_bucket/exact_look.lua",
                "token_bucket/exact_take.lua"
            ),
            include_str!("token_bucket/ledger.lua")
        )
    };
}
pub(super) use {function, functions};

static CHECK_WHOLE: Script = Script::new(
    "token_bucket.check_whole",
    check_one!("token_bucket/whole_look.lua", "token_bucket/whole_take.lua"),
);
static CHECK_EXACT: Script = Script::new(
    "token_bucket.check_exact",
    check_one!("token_bucket/exact_look.lua", "token_bucket/exact_take.lua"),
);
static CHECK_LEDGER: Script = Script::new(
    "token_bucket.check_ledger",
    concat!(
        include_str!("token_bucket/ledger.lua"),
        include_str!("token_bucket/check_ledger.lua")
    ),
);
static REFUND: Script = Script::new(
    "token_bucket.refund",
    include_str!("token_bucket/refund.lua"),
);

/// A bucket whose tokens come every `interval` milliseconds.
#[derive(Debug)]
struct Whole {
    interval: u64,
    capacity: u64,
}

/// A bucket whose tokens are `token` units, of which `rate` come each microsecond.
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
    // token / rate microseconds a token, in lowest terms.
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
    fn kind(&self) -> Kind {
        Kind::TokenBucket
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn check(&self) -> &'static Script {
        &CHECK_WHOLE
    }

    fn refund(&self) -> Option<&'static Script> {
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
    fn kind(&self) -> Kind {
        Kind::TokenBucket
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn part(&self) -> Option<String> {
        let ledger = if self.refundable { "ledger-" } else { "" };
        Some(format!("{ledger}{}/{}", self.rate, self.token))
    }

    fn check(&self) -> &'static Script {
        if self.refundable {
            &CHECK_LEDGER
        } else {
            &CHECK_EXACT
        }
    }

    fn refund(&self) -> Option<&'static Script> {
        self.refundable.then_some(&REFUND)
    }

    fn name(&self) -> &'static str {
        if self.refundable { "ledger" } else { "exact" }
    }

    fn names_requests(&self) -> bool {
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
        // One token is a million units and three come each microsecond.
        assert_eq!(rule.part().unwrap(), "3/1000000");
        assert_eq!(rule.wait(1), Duration::from_micros(1));
        assert_eq!(rule.wait(1_000_000), Duration::from_micros(333_334));
    }
}
