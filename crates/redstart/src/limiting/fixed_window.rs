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

#[derive(Debug)]
struct FixedWindow {
    limit: u64,
    window_ms: u64,
}

pub(super) fn rule(quota: Quota) -> Result<Box<dyn Rule>> {
    let window_ms = quota.window_ms()?;
    if quota.units() >= EXACT {
        return Err(Error::config(
            "the quota is too large to be counted exactly",
        ));
    }
    Ok(Box::new(FixedWindow {
        limit: quota.units(),
        window_ms,
    }))
}

impl Rule for FixedWindow {
    fn kind(&self) -> Kind {
        Kind::FixedWindow
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
        "fixed"
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

    fn remaining(&self, state: u64) -> u64 {
        self.limit.saturating_sub(state)
    }

    fn reset(&self, _state: u64, reset: u64) -> Duration {
        Duration::from_millis(reset)
    }
}
