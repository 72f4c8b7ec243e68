//! The patterns that people build on Redis and Valkey, done right.
//!
//! # Choose
//!
//! | you need | module |
//! |---|---|
//! | database rows in a cache, one load for a thousand callers | [`caching`] |
//! | a cap on the request rate | [`limiting`] |
//! | one holder at a time, at most *n*, or one leader | [`locking`] |
//! | to stop calling a service that fails; to carry out a repeated request once | [`resilience`] |
//! | to sell limited stock without overselling | [`commerce`] |
//! | background jobs, messages, event logs | [`messaging`] |
//! | users who stay logged in | [`sessions`] |
//! | ranks and scores; random choice by weight | [`ranking`] |
//! | counts, unique visitors, daily streaks | [`counting`] |
//! | a membership filter | [`membership`] |
//! | positions and distances | [`location`] |
//! | followers | [`social`] |
//! | fixed-size records by index | [`storage`] |
//!
//! The command `redstart guide` answers the same question in your own words. Each page says what a pattern promises
//! and what it does not, its keys, its round trips, and what happens while the store is down.
//!
//! # Connect
//!
//! A [`Store`] is made from a URL and is cheap to clone. Only the URL changes between a laptop and production.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::Store;
//! let store = Store::connect("memory://").await?;   // redis://host, redis+cluster://h1,h2, …
//! println!("{:?}", store.health().await?);
//! # Ok(()) }
//! ```
//!
//! # A first pattern
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! # let store = redstart::Store::connect("memory://").await?;
//! use std::time::Duration;
//! use redstart::locking::{LockedRun, Mutex};
//!
//! let order = Mutex::builder(&store, "shop", "order:5001").ttl(Duration::from_secs(30)).build()?;
//! match order.with(Duration::from_secs(5), |lease| async move { lease.fence() }).await? {
//!     LockedRun::Done(fence) => println!("held with token {fence}"),
//!     LockedRun::Busy => println!("somebody else held it for 5 s; nothing was done"),
//!     LockedRun::Lost(_) => println!("the lease was lost during the work"),
//! }
//! # Ok(()) }
//! ```
//!
//! Every pattern is made in the same way: `X::builder(&store, namespace, name)`, settings, and then `build()?`, or
//! `open().await?` where that needs a round trip. `X::new` is the shortcut with defaults. Namespace and name make the
//! keys, so two instances share state only if both are equal.
//!
//! An ordinary "no" is a value. An [`Error`] means that something failed: ask it
//! [`is_timeout`](Error::is_timeout), [`is_unavailable`](Error::is_unavailable), [`is_config`](Error::is_config), and
//! [`is_in_doubt`](Error::is_in_doubt) before you repeat a write. What a pattern answers while its store is down is set by
//! `on_store_down` ([`Down`]); by default it is the error.
//!
//! # Combine patterns
//!
//! A request of a shop goes through several of them. The order matters:
//!
//! 1. **Session**, then **limits**: know the user before you count for them. Limit by address before the session too, or
//!    an attacker makes you look up sessions for free.
//! 2. **Idempotency** around everything that has an effect, so that a repeated request gets the first answer.
//! 3. **Stock**: hold the unit before you charge. If the payment fails for certain, cancel the hold. If its outcome is
//!    unknown, leave the hold: it expires, and until then nobody else buys the unit that may have been paid for.
//! 4. **Breaker** around the call to the payment provider, inside the idempotent work: an open breaker is a certain "not
//!    done", which frees the key for the next attempt.
//! 5. **Queue** for what may happen later: the receipt, the score. Enqueue with a unique key, since the work that enqueues
//!    may run twice.
//!
//! The example `shop` is such a service, with tests that move the clock.
//!
//! # Test with a clock of your own
//!
//! The embedded engine has one clock for TTLs, limiters, leases and blocked commands, and it can be moved:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! # let store = redstart::Store::connect("memory://").await?;
//! use std::time::Duration;
//! use redstart::limiting::{Limiter, Quota};
//!
//! let daily = Limiter::fixed_window(&store, "shop", "export", Quota::per_day(1)).build()?;
//! assert!(daily.check("ann", 1).await?.is_allowed());
//! assert!(!daily.check("ann", 1).await?.is_allowed());
//! store.advance(Duration::from_secs(86400))?;                // a day passes at once
//! assert!(daily.check("ann", 1).await?.is_allowed());
//! # Ok(()) }
//! ```
//!
//! With `memory://?cluster_strict=1` it also rejects what a Cluster would reject.
//!
//! # Go to production
//!
//! - **Sentinel**, `redis+sentinel://h1,h2,h3/master-name`: the store asks all sentinels, takes the master that most of
//!   them name, checks that it is one, and follows a failover. Replication is asynchronous: what was acknowledged
//!   and not replicated is lost with the master. Locks have [fence tokens](locking::FenceToken) for that.
//! - **Cluster**, `redis+cluster://h1,h2`: all keys of an entity share one slot, and patterns that spread on purpose have
//!   one slot per shard. MOVED and ASK are followed; a pipeline goes to all nodes at once.
//! - Set the deadline for your service (`?timeout=250ms`), choose each pattern's policy while the store is down, and
//!   watch the [metrics](observe).
//! - Call [`Store::settle`] before the program ends, so that dropped guards are released instead of left to expire.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `engine` | yes | the embedded engine behind `memory://` and `file://` |
//! | `tls` | yes | `rediss://` and its variants, by rustls |
//! | `from-manager` |  | `Store: From<redis::aio::ConnectionManager>`, for applications that have one |
//! | `from-cluster` |  | `Store: From<redis::cluster_async::ClusterConnection>`, for applications that have one |
//! | `testing` |  | the module `testing`: faults on purpose on `memory://`, for the tests of applications |
//! | `caching` | yes | the family [`caching`] |
//! | `limiting` | yes | the family [`limiting`] |
//! | `locking` | yes | the family [`locking`] |
//! | `resilience` | yes | the family [`resilience`] |
//! | `commerce` | yes | the family [`commerce`] |
//! | `messaging` | yes | the family [`messaging`] |
//! | `sessions` | yes | the family [`sessions`] |
//! | `ranking` | yes | the family [`ranking`] |
//! | `counting` | yes | the family [`counting`] |
//! | `membership` | yes | the family [`membership`] |
//! | `location` | yes | the family [`location`] |
//! | `social` | yes | the family [`social`] |
//! | `storage` | yes | the family [`storage`] |
//! | `lz4` |  | compression of cached values above a size, as a codec |
//! | `sqlite` |  | a write-behind sink for SQLite |
//! | `postgres` |  | a write-behind sink for Postgres |
//!
//! # Cost
//!
//! Most operations are one round trip of one script; their pages say where it is more. A subscription uses a
//! connection of its own, and so does a blocking read. `cargo xtask bench store` measures the store beside bare redis-rs
//! on your machine.
//!
//! # Further
//!
//! - [`adopting`]: beside keys and libraries that exist, without a migration
//! - [`anti_patterns`]: the races that people write by hand, and the calls that close them
//! - [`store`], [`key`], [`script`], [`codec`], [`observe`]: what the patterns are built on

#![forbid(unsafe_code)]
// What several families share is unused in a build without them. The build with all features has no such allowance.
#![cfg_attr(
    not(all(
        feature = "engine",
        feature = "caching",
        feature = "commerce",
        feature = "counting",
        feature = "limiting",
        feature = "location",
        feature = "locking",
        feature = "membership",
        feature = "messaging",
        feature = "ranking",
        feature = "resilience",
        feature = "sessions",
        feature = "social",
        feature = "storage"
    )),
    allow(dead_code, unreachable_patterns, unused_imports, unused_macros)
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod chance;
#[cfg(any(feature = "counting", feature = "ranking"))]
mod clock;
pub mod codec;
mod down;
mod duration;
mod error;
pub mod key;
mod mend;
pub mod observe;
pub mod script;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod sim;
#[cfg(any(test, feature = "sim"))]
mod socket;
pub mod store;
mod task;
#[cfg(feature = "testing")]
pub mod testing;
mod token;
mod watch;

#[cfg(feature = "caching")]
pub mod caching;
#[cfg(feature = "commerce")]
pub mod commerce;
#[cfg(feature = "counting")]
pub mod counting;
#[cfg(feature = "limiting")]
pub mod limiting;
#[cfg(feature = "location")]
pub mod location;
#[cfg(feature = "locking")]
pub mod locking;
#[cfg(feature = "membership")]
pub mod membership;
#[cfg(feature = "messaging")]
pub mod messaging;
#[cfg(feature = "ranking")]
pub mod ranking;
#[cfg(feature = "resilience")]
pub mod resilience;
#[cfg(feature = "sessions")]
pub mod sessions;
#[cfg(feature = "social")]
pub mod social;
#[cfg(feature = "storage")]
pub mod storage;

#[doc = include_str!("docs/adopting.md")]
pub mod adopting {}

#[doc = include_str!("docs/anti_patterns.md")]
pub mod anti_patterns {}

pub use down::Down;
pub use error::{Error, Result};
pub use store::handle::Store;

#[doc(no_inline)]
pub use redis;

/// The programs in the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeDoctests;

#[cfg(test)]
mod tests {
    /// The table of features in this page has every feature of Cargo.toml.
    #[test]
    fn every_feature_is_documented() {
        let manifest = include_str!("../Cargo.toml");
        let page = include_str!("lib.rs");
        let (_, features) = manifest
            .split_once("[features]")
            .expect("a list of features");
        let (features, _) = features
            .split_once("[dependencies]")
            .expect("dependencies follow");
        let names = features.lines().filter_map(|line| line.split_once(" = ["));
        for (name, _) in names.filter(|(name, _)| !["default", "mutation", "sim"].contains(name)) {
            assert!(page.contains(&format!("//! | `{name}` |")), "{name}");
        }
    }
}
