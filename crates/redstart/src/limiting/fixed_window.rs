//! Fixed window: one counter for each window of the server's clock.
//!
//! Windows are aligned: a quota per day begins anew at midnight UTC, one per minute with each minute.
//!
//! **What it does not promise:** the limit in every rolling window. Someone who spends everything at the end of
//! one window and everything at the beginning of the next gets twice the limit in a short time. Where that matters,
//! take a [`sliding_counter`](super::sliding_counter) or a [`sliding_window`](super::sliding_window).
//!
//! The tick is a millisecond. A check is TIME, GET and SET; a refused one is TIME and GET. The key is
//! `<namespace>:fixed_window:{<subject>}`; it holds the count and the end of its window, at which it expires.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Store, limiting::{Down, Limiter, Quota}};
//! let store = Store::connect("memory://").await?;
//! let mails = Limiter::fixed_window(&store, "mail", Quota::per_day(2)).on_store_down(Down::Fail).build()?;
//! assert!(mails.check("user:42", 2).await?.is_allowed());
//! assert!(!mails.check("user:42", 1).await?.is_allowed());
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
    "fixed_window.check",
    concat!(
        include_str!("fixed_window/rule.lua"),
        include_str!("fixed_window/check.lua")
    ),
);
static REFUND: Script = Script::new(
    "fixed_window.refund",
    include_str!("fixed_window/refund.lua"),
);

pub(super) fn rule(quota: Quota) -> Result<Box<dyn Rule>> {
    if quota.units() >= EXACT {
        return Err(Error::config(
            "the quota is too large to be counted exactly",
        ));
    }
    Ok(Box::new(Windowed {
        kind: Kind::FixedWindow,
        name: "fixed",
        check: &CHECK,
        refund: &REFUND,
        limit: quota.units(),
        window: quota.window_ms()?,
        tick: Duration::from_millis(1),
        unit: 1,
        names_requests: false,
    }))
}
