//! Sliding window counter: close to the log, in constant memory.
//!
//! Two counters: this window's, and the previous one's weighted by how much of it is still in view. It assumes that the
//! previous window's requests were spread evenly, and its error is as large as the deviation from that.
//!
//! # Promises
//!
//! The comparison is in whole numbers and exact, and so is `retry_after`. The tick is a millisecond.
//!
//! # Limits
//!
//! The worst case is arithmetic: a burst at the very end of a window fades evenly through the next one, so that a rolling
//! window can see up to twice the limit less one. A burst at the very beginning is long out of view and still counts, so
//! that something is refused that the log would admit. Measured:
//!
#![doc = include_str!("sliding_counter/error.md")]
//!
//! # Keys
//!
//! One string with the number of the window and both counts.
//!
//! # Round trips
//!
//! One script: TIME, GET and SET for an admitted request, TIME and GET for a refused one.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Down, Store, limiting::{Limiter, Quota}};
//! let store = Store::connect("memory://").await?;
//! let search = Limiter::sliding_counter(&store, "shop", "search", Quota::per_minute(1000))
//!     .on_store_down(Down::Allow)
//!     .build()?;
//! assert!(search.check("user:42", 999).await?.is_allowed());
//! assert_eq!(search.peek("user:42").await?.remaining, 1);
//! # Ok(()) }
//! ```

use std::time::Duration;

use super::{
    quota::{EXACT, Quota},
    rule::Rule,
    window::WindowRule,
};
use crate::{
    error::{Error, Result},
    script::Script,
};

pub(super) static CHECK: Script = Script::new(
    "sliding_counter.check",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("sliding_counter/rule.lua"),
        include_str!("sliding_counter/check.lua")
    ),
);
pub(super) static REFUND: Script = Script::new(
    "sliding_counter.refund",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("sliding_counter/refund.lua")
    ),
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
    Ok(Box::new(WindowRule {
        name: "counter",
        check: &CHECK,
        refund: &REFUND,
        limit: quota.units(),
        window,
        tick: Duration::from_millis(1),
        unit: window,
        needs_id: false,
    }))
}
