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
    window::Windowed,
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

pub(super) fn rule(quota: Quota) -> Result<Box<dyn Rule>> {
    let window = quota.window_ms()?;
    if quota
        .units()
        .checked_mul(window)
        .is_none_or(|product| product >= EXACT)
    {
        return Err(Error::config(
            "the quota is too large to be counted exactly",
        ));
    }
    // The state is the estimate times the window.
    Ok(Box::new(Windowed {
        kind: Kind::SlidingCounter,
        name: "counter",
        check: &CHECK,
        refund: &REFUND,
        limit: quota.units(),
        window,
        tick: Duration::from_millis(1),
        unit: window,
        names_requests: false,
    }))
}
