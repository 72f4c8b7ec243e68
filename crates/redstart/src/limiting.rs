//! Rate limiters: cap the request rate, decided by the server's clock.
//!
//! | algorithm | state | behaviour |
//! |---|---|---|
//! | [`token_bucket`] | one key, often without a value | bursts up to the capacity, then a steady rate |
//! | [`fixed_window`] | one counter per window | simple and cheap; up to twice the limit across a boundary |
//! | [`sliding_window`] | a log of what was admitted | exact in every rolling window; memory grows with the limit |
//! | [`sliding_counter`] | two counters | close to the log in constant memory; the error is [measured](sliding_counter) |
//!
//! All four have one type, the [`Limiter`], and answer with a [`Decision`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Down, Store, limiting::{Decision, Limiter, Quota}};
//!
//! let store = Store::connect("memory://").await?;
//! let limiter = Limiter::token_bucket(&store, "shop", "api", Quota::per_second(10).burst(2))
//!     .on_store_down(Down::Refuse)
//!     .build()?;
//!
//! assert!(limiter.check("user:42", 1).await?.is_allowed());
//! assert!(limiter.check("user:42", 1).await?.is_allowed());
//! let Decision::Limited { retry_after, .. } = limiter.check("user:42", 1).await? else { panic!() };
//! assert!(retry_after.as_millis() <= 100);
//! # Ok(()) }
//! ```
//!
//! # Promises
//!
//! - Time is the server's. A client's clock takes no part in any decision.
//! - A refused request changes nothing: the stored bytes are the same before and after.
//! - `retry_after` is exact: without other traffic, waiting that long is enough and one tick less is not. The tick is a
//!   millisecond, or a microsecond where the algorithm's page says so.
//! - A cost above the capacity is [`Decision::Never`], not an endless retry.
//! - A refund gives back at most what the grant still counts for, once, and never lifts a limit above its capacity.
//! - Two limits share state only if their namespaces, names, algorithms and quotas are the same.
//!
//! # Limits
//!
//! A changed quota starts with fresh state: for one period a subject may get the old quota and the new one. So does a subject whose state
//! the server evicted, and one that is checked [under another quota](Limiter::with_quota).
//!
//! The counters of a fixed window and of a sliding counter do not tell grants apart: a refund of a grant from before a
//! [reset](Limiter::reset), or from before the server lost the key, gives back what others have taken since, in the same window.
//!
//! # Keys
//!
//! `<namespace>:limiter.<name>:{<subject>}:<quota>` for the first limit and
//! `<namespace>:limiter.<name>:{<subject>}:<limit>:<quota>` for further ones, where `<quota>` is the algorithm's letter
//! (`t` token bucket, `r` refundable token bucket, `f` fixed window, `l` sliding window log, `c` sliding counter), units,
//! period in ms and burst, as in `t10/1000+100`. Every key expires when it no longer matters.
//!
//! # Round trips
//!
//! One script for each `check`, also for several limits at once; [`check_many`](Limiter::check_many) takes one round
//! trip per node. A [deny cache](LimiterBuilder::deny_cache) answers
//! repeats of a refused request without a round trip until the moment that the server named.
//! [Blocks](LimiterBuilder::lease_blocks) admit requests of hot subjects without one.
//!
//! # While the store is down
//!
//! What [`on_store_down`](LimiterBuilder::on_store_down) says; without it, the error.
//!
//! # Metrics
//!
//! Operations: `limiter.check`, `limiter.check_many`, `limiter.peek`, `limiter.refund`, `limiter.reset`. Events: `limiter.limited` (refused by
//! the store), `limiter.denied_locally` (refused by the deny cache), `limiter.store_down` (decided by the policy),
//! `limiter.shadowed` (admitted by shadow mode; what the others count was not refused then),
//! `limiter.refund_failed` (a refused request stays charged).

mod algorithm;
mod builder;
mod decision;
mod deny;
pub mod fixed_window;
mod lease;
mod limit;
mod limiter;
mod many;
mod quota;
mod refund;
mod rule;
mod share;
pub mod sliding_counter;
pub mod sliding_window;
pub mod token_bucket;
mod waiters;
mod window;

pub use algorithm::Algorithm;
pub use builder::LimiterBuilder;
pub use decision::{DecidedBy, Decision, Grant, Snapshot};
pub use limiter::Limiter;
pub use many::Together;
pub use quota::Quota;

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[
    &fixed_window::CHECK,
    &fixed_window::REFUND,
    &limiter::CHECK_ALL,
    &sliding_counter::CHECK,
    &sliding_counter::REFUND,
    &sliding_window::CHECK,
    &sliding_window::REFUND,
    &token_bucket::CHECK_EXACT,
    &token_bucket::CHECK_LEDGER,
    &token_bucket::CHECK_WHOLE,
    &token_bucket::REFUND,
];
