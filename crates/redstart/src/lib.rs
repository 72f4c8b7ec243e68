//! The patterns that people build on Redis and Valkey, done right.
//!
//! # Choose
//!
//! | you need | module |
//! |---|---|
//! | rows of a database close at hand, one load for a thousand callers | [`caching`] |
//! | so many requests and no more | [`limiting`] |
//! | only one at a time, or at most *n*, or one leader | [`locking`] |
//! | to stop calling what fails; to do something once for each key | [`resilience`] |
//! | to sell what there is and not more | [`commerce`] |
//! | work in the background, messages, event logs | [`messaging`] |
//! | users who stay logged in | [`sessions`] |
//! | who is best; draws by weight | [`ranking`] |
//! | how many, how many different, how many days in a row | [`counting`] |
//! | seen before? near? who follows whom? a record by its number | [`membership`], [`location`], [`social`], [`storage`] |
//!
//! The command `redstart guide` does the same with words of your own. Each module's page says what a pattern
//! promises, what it does not, its keys, its round trips, and what happens while the store is down.
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
//! An ordinary "no" is a value. An [`Error`] means that something failed: ask it
//! [`is_timeout`](Error::is_timeout), [`is_unavailable`](Error::is_unavailable), [`is_config`](Error::is_config), and
//! [`is_in_doubt`](Error::is_in_doubt) before you repeat a write.
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
//! With `memory://?cluster_strict=1` it also refuses what a Cluster would refuse.
//!
//! # Go to production
//!
//! - **Sentinel**, `redis+sentinel://h1,h2,h3/master-name`: the store asks all sentinels, takes the master that most of
//!   them name, checks that it is one, and follows a failover. Replication is asynchronous: what was acknowledged
//!   and not replicated is lost with the master. Locks have [fence tokens](locking::FenceToken) for that.
//! - **Cluster**, `redis+cluster://h1,h2`: every pattern's keys share one slot for each entity, and patterns that
//!   spread on purpose have one for each shard. MOVED and ASK are followed; pipelines go to all nodes at once.
//! - Set the deadline for your service (`?timeout=250ms`), choose each pattern's policy while the store is down, and
//!   watch the [metrics](observe).
//! - Call [`Store::settle`] before the program ends, so that dropped guards are released and not left to expire.
//!
//! # What promises cost
//!
//! Most operations are one round trip of one script; their pages say where it is more. A subscription is a
//! connection of its own, and so is a blocking read. The seam itself costs nothing that can be measured beside
//! bare redis-rs; `cargo xtask bench store` shows it on your machine.
//!
//! # Further
//!
//! - [`adopting`]: beside keys and libraries that exist, without a migration
//! - [`anti_patterns`]: the races that people write by hand, and the calls that close them
//! - [`store`], [`key`], [`script`], [`codec`], [`observe`], [`error`]: what the patterns stand on

#![forbid(unsafe_code)]

#[cfg(any(feature = "counting", feature = "ranking"))]
mod clock;
pub mod codec;
mod down;
mod duration;
pub mod error;
pub mod key;
pub mod observe;
pub mod script;
pub mod store;
mod token;

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
pub use store::Store;

#[doc(no_inline)]
pub use redis;
