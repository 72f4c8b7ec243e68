//! Sliding window log: exact in every rolling window.
//!
//! The log is a sorted set with one member for each admitted unit, so memory grows with the limit (about 100 bytes
//! a unit); limits up to [`MAX_LIMIT`] are accepted. A unit that was admitted at `t` counts until `t + window`.
//!
//! The tick is a microsecond. `retry_after` is when the entry that frees the *last needed* slot leaves: for a cost of
//! five that is not when the oldest one does. A refund strikes the grant from the log, as if it had never been.
//!
//! The key is `<namespace>:sliding_window:{<subject>}`. An admitted request costs ZCOUNT, ZREMRANGEBYSCORE, ZADD and
//! PEXPIRE; a refused one only reads.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Store, limiting::{Down, Limiter, Quota}};
//! let store = Store::connect("memory://").await?;
//! let logins = Limiter::sliding_window(&store, "login", Quota::per_minute(3)).on_store_down(Down::Refuse).build()?;
//! for _ in 0..3 {
//!     assert!(logins.check("10.0.0.7", 1).await?.is_allowed());
//! }
//! assert!(!logins.check("10.0.0.7", 1).await?.is_allowed());
//! # Ok(()) }
//! ```

use std::time::Duration;

use super::{limiter::Kind, quota::Quota, rule::Rule, window::Windowed};
use crate::{
    error::{Error, Result},
    script::Script,
};

/// The largest limit of a log: one script that admits that much at once still takes only some milliseconds.
pub const MAX_LIMIT: u64 = 10_000;

static CHECK: Script = Script::new(
    "sliding_window.check",
    concat!(
        include_str!("sliding_window/rule.lua"),
        include_str!("sliding_window/check.lua")
    ),
);
static REFUND: Script = Script::new(
    "sliding_window.refund",
    include_str!("sliding_window/refund.lua"),
);

pub(super) fn rule(quota: Quota) -> Result<Box<dyn Rule>> {
    if quota.units() > MAX_LIMIT {
        return Err(Error::config(format!(
            "a sliding window keeps a log of at most {MAX_LIMIT} units: take a sliding counter"
        )));
    }
    Ok(Box::new(Windowed {
        kind: Kind::SlidingWindow,
        name: "log",
        check: &CHECK,
        refund: &REFUND,
        limit: quota.units(),
        window: quota.window_ms()? * 1000,
        tick: Duration::from_micros(1),
        unit: 1,
        names_requests: true,
    }))
}
