//! Sliding window log: exact in every rolling window.
//!
//! # Promises
//!
//! A unit that was admitted at `t` counts until `t + window`. `retry_after` is when the entry that frees the *last needed*
//! slot leaves: for a cost of five that is later than when the oldest one does. A refund removes the grant from the log,
//! as if it had never been made. The tick is a microsecond.
//!
//! # Limits
//!
//! Memory grows with the limit, about 100 bytes per unit; limits up to 10,000 are accepted. The work of an admitted
//! request grows with its cost, about half a microsecond of server time per unit: a cost of 10,000 takes some
//! milliseconds. All else is bounded.
//!
//! # Keys
//!
//! A sorted set with one member per admitted unit. It expires one window after the last admission.
//!
//! # Round trips
//!
//! One script: ZCOUNT, ZREMRANGEBYRANK, ZADD and PEXPIRE for an admitted request; a refused one only reads.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Down, Store, limiting::{Limiter, Quota}};
//! let store = Store::connect("memory://").await?;
//! let logins = Limiter::sliding_window(&store, "shop", "login", Quota::per_minute(3))
//!     .on_store_down(Down::Refuse)
//!     .build()?;
//! for _ in 0..3 {
//!     assert!(logins.check("10.0.0.7", 1).await?.is_allowed());
//! }
//! assert!(!logins.check("10.0.0.7", 1).await?.is_allowed());
//! # Ok(()) }
//! ```

use std::time::Duration;

use super::{quota::Quota, rule::Rule, window::WindowRule};
use crate::{
    error::{Error, Result},
    script::Script,
};

/// The largest limit of a log.
const MAX_LIMIT: u64 = 10_000;

pub(super) static CHECK: Script = Script::new(
    "sliding_window.check",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("sliding_window/rule.lua"),
        include_str!("sliding_window/check.lua")
    ),
);
pub(super) static REFUND: Script = Script::new(
    "sliding_window.refund",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("sliding_window/refund.lua")
    ),
);

pub(super) fn rule(quota: Quota) -> Result<Box<dyn Rule>> {
    if quota.units() > MAX_LIMIT {
        return Err(Error::config(format!(
            "a sliding window must have a limit of at most {MAX_LIMIT} units; use a sliding counter"
        )));
    }
    Ok(Box::new(WindowRule {
        name: "log",
        check: &CHECK,
        refund: &REFUND,
        limit: quota.units(),
        window: quota.window_ms()? * 1000,
        tick: Duration::from_micros(1),
        unit: 1,
        needs_id: true,
    }))
}
