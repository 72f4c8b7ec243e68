//! Sliding window counter: close to the log, in constant memory.
//!
//! Two counters: this window's, and the previous one's weighed by how much of it is still in view. It assumes that
//! the previous window's requests came evenly, and is off by as much as they did not.
//!
//! # The error
//!
//! The worst case is arithmetic: a burst at the very end of a window is forgotten evenly all through the next
//! one, so that a rolling window can see up to twice the limit less one. A burst at the very beginning is long out of
//! view and still weighs, so that something is refused that the log would admit. Measured:
//!
#![doc = include_str!("sliding_counter/error.md")]
//!
//! The comparison itself is in whole numbers and exact; so is `retry_after`. The tick is a millisecond.
//!
//! The key is `<namespace>:sliding_counter:{<subject>}`. A check is TIME, GET and SET; a refused one TIME and GET.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Store, limiting::{Down, Limiter, Quota}};
//! let store = Store::connect("memory://").await?;
//! let search = Limiter::sliding_counter(&store, "search", Quota::per_minute(1000)).on_store_down(Down::Allow).build()?;
//! assert!(search.check("user:42", 999).await?.is_allowed());
//! assert_eq!(search.peek("user:42").await?.remaining, 1);
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

static CHECK: Script = Script::new(
    "sliding_counter.check",
    concat!(
        include_str!("sliding_counter/rule.lua"),
        include_str!("sliding_counter/check.lua")
    ),
);
static REFUND: Script = Script::new(
    "sliding_counter.refund",
    include_str!("sliding_counter/refund.lua"),
);

#[derive(Debug)]
struct SlidingCounter {
    limit: u64,
    window_ms: u64,
}

pub(super) fn rule(quota: Quota) -> Result<Box<dyn Rule>> {
    let window_ms = quota.window_ms()?;
    match quota.units().checked_mul(window_ms) {
        Some(product) if product < EXACT => Ok(Box::new(SlidingCounter {
            limit: quota.units(),
            window_ms,
        })),
        _ => Err(Error::config(
            "the quota is too large to be counted exactly",
        )),
    }
}

impl Rule for SlidingCounter {
    fn kind(&self) -> Kind {
        Kind::SlidingCounter
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn check(&self) -> &'static Script {
        &CHECK
    }

    fn refund(&self) -> Option<&'static Script> {
        Some(&REFUND)
    }

    fn name(&self) -> &'static str {
        "counter"
    }

    fn args(&self, cost: u64) -> [u64; 3] {
        [cost, self.limit, self.window_ms]
    }

    fn refund_args(&self, cost: u64, receipt: &str) -> Vec<String> {
        vec![
            cost.to_string(),
            self.window_ms.to_string(),
            receipt.to_owned(),
        ]
    }

    fn wait(&self, ticks: u64) -> Duration {
        Duration::from_millis(ticks)
    }

    /// The state is the estimate times the window.
    fn remaining(&self, state: u64) -> u64 {
        (self.limit * self.window_ms).saturating_sub(state) / self.window_ms
    }

    fn reset(&self, _state: u64, reset: u64) -> Duration {
        Duration::from_millis(reset)
    }
}
