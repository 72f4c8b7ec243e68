//! Rate limiters: how often something may happen, decided by the server's clock.
//!
//! | module | state | promise |
//! |---|---|---|
//! | [`token_bucket`] | one key, often without a value | bursts up to the capacity, then a steady rate |
//! | [`fixed_window`] | one counter a window | simple and cheap; up to twice the limit across a boundary |
//! | [`sliding_window`] | a log of what was admitted | exact in every rolling window; memory grows with the limit |
//! | [`sliding_counter`] | two counters | close to the log in constant memory; the error is [measured](sliding_counter) |
//!
//! All four have one front, the [`Limiter`], and answer with a [`Decision`].
//!
//! # What all of them promise
//!
//! - Time is the server's. A client's clock takes no part in any decision.
//! - A refused request changes nothing: the stored bytes are the same before and after.
//! - `retry_after` is the truth: who waits that long and is alone is admitted, who waits one tick less is not.
//!   The tick is a millisecond, or a microsecond where the table of the kind says so.
//! - A cost above the capacity is [`Decision::Never`], not an endless retry.
//! - A refund gives back at most what the grant still weighs, once, and never lifts anything above its capacity.
//! - What happens while the store is down is [chosen](Down), never assumed.
//!
//! # Keys and cost
//!
//! One script and one round trip for each `check`, also for several limits at once. The key of a subject is
//! `<namespace>:<kind>:{<subject>}`; further limits of the same [`Limiter`] are parts of it. Every key has a TTL
//! that ends when it no longer matters.
//!
//! A [deny cache](Builder::deny_cache) answers repeats of a refused request without a round trip until the
//! moment that the server itself named.
//!
//! # Observability
//!
//! Operations: `limiter.check`, `limiter.peek`, `limiter.refund`, `limiter.reset`. Events: `limiter.limited` (the store said no),
//! `limiter.denied_locally` (the deny cache did), `limiter.store_down` (the policy decided).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Store, limiting::{Decision, Down, Limiter, Quota}};
//!
//! let store = Store::connect("memory://").await?;
//! let limiter = Limiter::token_bucket(&store, "api", Quota::per_second(10).burst(2))
//!     .on_store_down(Down::Refuse)
//!     .build()?;
//!
//! assert!(limiter.check("user:42", 1).await?.is_allowed());
//! assert!(limiter.check("user:42", 1).await?.is_allowed());
//! let Decision::Limited { retry_after, .. } = limiter.check("user:42", 1).await? else { panic!() };
//! assert!(retry_after.as_millis() <= 100);
//! # Ok(()) }
//! ```

mod deny;
pub mod fixed_window;
mod limiter;
mod quota;
mod rule;
pub mod sliding_counter;
pub mod sliding_window;
pub mod token_bucket;
mod turn;
mod window;

pub use limiter::{Builder, Decision, Down, Grant, Kind, Limiter, Snapshot, Source};
pub use quota::Quota;

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&crate::script::Script] = &[];
