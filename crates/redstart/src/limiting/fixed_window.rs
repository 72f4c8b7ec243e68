//! Fixed window: one counter for each window of the server's clock.
//!
//! # Promises
//!
//! Windows are aligned to the clock: a quota per day starts over at midnight UTC, one per minute at each full minute.
//! The tick is a millisecond.
//!
//! # Limits
//!
//! It does not keep the limit in every rolling window. A caller that spends everything at the end of one window and
//! everything at the start of the next gets twice the limit in a short time. Where that matters, take a
//! [`sliding_counter`](super::sliding_counter) or a [`sliding_window`](super::sliding_window).
//!
//! # Keys
//!
//! One string with the count. It expires at the end of its window.
//!
//! # Round trips
//!
//! One script: GET, PTTL, INCRBY and PEXPIRETIME for an admitted request, GET and PTTL for a refused one; for the first of a window
//! GET, PTTL, TIME and SET.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Store, limiting::{Limiter, Quota}};
//! let store = Store::connect("memory://").await?;
//! let mails = Limiter::fixed_window(&store, "shop", "mail", Quota::per_day(2)).build()?;
//! assert!(mails.check("user:42", 2).await?.is_allowed());
//! assert!(!mails.check("user:42", 1).await?.is_allowed());
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
    "fixed_window.check",
    concat!(
        include_str!("fixed_window/rule.lua"),
        include_str!("fixed_window/check.lua")
    ),
);
pub(super) static REFUND: Script = Script::new(
    "fixed_window.refund",
    include_str!("fixed_window/refund.lua"),
);

pub(super) fn rule(quota: Quota) -> Result<Box<dyn Rule>> {
    if quota.units() >= EXACT {
        return Err(Error::config(
            "the quota is too large to be counted exactly",
        ));
    }
    Ok(Box::new(WindowRule {
        name: "fixed",
        check: &CHECK,
        refund: &REFUND,
        limit: quota.units(),
        window: quota.window_ms()?,
        tick: Duration::from_millis(1),
        unit: 1,
        needs_id: false,
    }))
}
