//! A limiter on the keys of rate-limiter-flexible (npm), which counts together with Node.
//!
//! The library keeps one string per key, `<keyPrefix>:<key>`, with the points that were consumed in the current window, and its TTL is the
//! rest of the window. [`FlexibleLimiter`] does the same in one script, so that both sides together admit exactly what the limit allows.
//!
//! # Promises
//!
//! Counts are common and exact: each request of either side is counted once, on the server. As in the library, refused requests count too.
//! A key that Node blocked is refused here, and the reverse.
//!
//! # Limits
//!
//! The algorithm is the library's: fixed windows that begin with the first request, which admit up to twice the limit around their edges. For
//! `RateLimiterRedis` and `RateLimiterValkey`; a duration of 0, which never ends, is not supported. What Node keeps in its own memory
//! (`inMemoryBlockOnConsumed`, `insuranceLimiter`, `execEvenly`) is Node's.
//!
//! # Keys
//!
//! | key | type | TTL |
//! |---|---|---|
//! | `<prefix>:<key>` | string: points consumed | the rest of the window, or of the block |
//!
//! # Round trips
//!
//! One for each operation.
//!
//! # While the store is down
//!
//! The error is returned; the caller decides.

use std::{num::NonZeroU32, time::Duration};

use redis::cmd;
use redstart::Store;

use crate::{
    error::{Error, Result},
    script::Lua,
};

static CONSUME: Lua = Lua::new(include_str!("limiter/consume.lua"));

/// A limiter that shares its keys with rate-limiter-flexible.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use std::{num::NonZeroU32, time::Duration};
/// use redstart::Store;
/// use redstart_adopt::limiter::FlexibleLimiter;
///
/// let store = Store::connect("memory://").await?;
/// // new RateLimiterRedis({ keyPrefix: "login", points: 2, duration: 60 })
/// let login = FlexibleLimiter::builder(&store, NonZeroU32::new(2).unwrap(), Duration::from_secs(60))
///     .key_prefix("login")
///     .build()?;
/// assert!(login.consume("203.0.113.7", 1).await?.is_allowed());
/// assert!(login.consume("203.0.113.7", 1).await?.is_allowed());
/// assert!(!login.consume("203.0.113.7", 1).await?.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FlexibleLimiter {
    settings: FlexibleLimiterBuilder,
}

/// The settings of a [`FlexibleLimiter`]. They must be those of the library's limiter with the same prefix.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct FlexibleLimiterBuilder {
    store: Store,
    points: NonZeroU32,
    duration: Duration,
    prefix: String,
    block: Duration,
    block_on: u32,
}

impl FlexibleLimiterBuilder {
    /// `keyPrefix` (default `rlflx`). An empty one gives keys without a prefix and a colon.
    pub fn key_prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// `blockDuration`: how long a key stays blocked that exceeds the limit (default until its window ends).
    pub fn block_for(mut self, duration: Duration) -> Self {
        self.block = duration;
        self
    }

    /// `blockOnConsumed`: the points at which a key is blocked (default as soon as the limit is exceeded).
    pub fn block_on_consumed(mut self, points: u32) -> Self {
        self.block_on = points;
        self
    }

    /// Makes the limiter. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a duration or a block that is not in whole seconds, since the library cuts off the rest, for a
    /// duration of 0, and for `block_on_consumed` below the limit.
    pub fn build(self) -> Result<FlexibleLimiter> {
        let whole = |duration: Duration| duration.subsec_nanos() == 0;
        if self.duration.is_zero() || !whole(self.duration) || !whole(self.block) {
            return Err(Error::invalid(
                "a limiter of rate-limiter-flexible has windows and blocks of whole seconds, at least one",
            ));
        }
        if self.block_on > 0 && self.block_on < self.points.get() {
            return Err(Error::invalid(
                "a key cannot be blocked before it has consumed its points",
            ));
        }
        Ok(FlexibleLimiter { settings: self })
    }
}

/// What a key has consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "only its `is_allowed` says whether the request may go on"]
#[non_exhaustive]
pub struct Points {
    /// `consumedPoints`: in this window, with refused requests. Negative after rewards.
    pub consumed: i64,
    /// `remainingPoints`.
    pub remaining: u64,
    /// `msBeforeNext`: until the window ends, or the block. `None` if the key never ends.
    pub reset: Option<Duration>,
    allowed: bool,
}

impl Points {
    /// Whether the points are within the limit.
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }
}

impl FlexibleLimiter {
    /// Starts with `points` in each window of `duration`.
    pub fn builder(
        store: &Store,
        points: NonZeroU32,
        duration: Duration,
    ) -> FlexibleLimiterBuilder {
        FlexibleLimiterBuilder {
            store: store.clone(),
            points,
            duration,
            prefix: "rlflx".to_owned(),
            block: Duration::ZERO,
            block_on: 0,
        }
    }

    fn key(&self, key: &str) -> String {
        match self.settings.prefix.as_str() {
            "" => key.to_owned(),
            prefix => format!("{prefix}:{key}"),
        }
    }

    /// Consumes points, as `consume` does: they count whether or not they are allowed.
    ///
    /// # Errors
    ///
    /// Those of the store. After [`is_in_doubt`](redstart::Error::is_in_doubt) the points may have been counted.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the points may have been counted.
    pub async fn consume(&self, key: &str, points: u32) -> Result<Points> {
        self.change(key, points.into(), self.settings.block).await
    }

    /// Adds points without blocking the key, as `penalty` does.
    ///
    /// # Errors
    ///
    /// As [`consume`](Self::consume).
    ///
    /// # Cancel safety
    ///
    /// As [`consume`](Self::consume).
    pub async fn penalty(&self, key: &str, points: u32) -> Result<Points> {
        self.change(key, points.into(), Duration::ZERO).await
    }

    /// Gives points back, as `reward` does.
    ///
    /// # Errors
    ///
    /// As [`consume`](Self::consume).
    ///
    /// # Cancel safety
    ///
    /// As [`consume`](Self::consume).
    pub async fn reward(&self, key: &str, points: u32) -> Result<Points> {
        self.change(key, -i64::from(points), Duration::ZERO).await
    }

    async fn change(&self, key: &str, points: i64, block: Duration) -> Result<Points> {
        let settings = &self.settings;
        let (consumed, left): (i64, i64) = CONSUME
            .run(
                &settings.store,
                &[self.key(key)],
                &[
                    &points,
                    &settings.duration.as_secs(),
                    &settings.points.get(),
                    &block.as_secs(),
                    &settings.block_on,
                ],
            )
            .await?;
        Ok(self.points(consumed, left))
    }

    fn points(&self, consumed: i64, left: i64) -> Points {
        let limit = i64::from(self.settings.points.get());
        Points {
            consumed,
            remaining: u64::try_from(limit.saturating_sub(consumed)).unwrap_or(0),
            reset: u64::try_from(left).ok().map(Duration::from_millis),
            allowed: consumed <= limit,
        }
    }

    /// What a key has consumed; `None` if nothing in this window. Only reads.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn get(&self, key: &str) -> Result<Option<Points>> {
        let key = self.key(key);
        let mut look = redis::pipe();
        look.cmd("GET").arg(&key);
        look.cmd("PTTL").arg(&key);
        let (consumed, left): (Option<i64>, i64) = self.settings.store.pipeline(&look).await?;
        Ok(consumed.map(|consumed| self.points(consumed, left)))
    }

    /// Refuses a key for this long, as `block` does.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for less than a second; otherwise those of the store. Calling it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the key may be blocked.
    pub async fn block(&self, key: &str, duration: Duration) -> Result<()> {
        if duration.as_secs() == 0 {
            return Err(Error::invalid("a block lasts at least a second"));
        }
        let settings = &self.settings;
        let points = settings
            .block_on
            .max(settings.points.get().saturating_add(1));
        let set = cmd("SET")
            .arg(self.key(key))
            .arg(points)
            .arg("EX")
            .arg(duration.as_secs())
            .take();
        Ok(settings.store.query(&set).await?)
    }

    /// Forgets what a key has consumed, and its block. Whether there was something.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the key may be gone.
    pub async fn delete(&self, key: &str) -> Result<bool> {
        let delete = cmd("DEL").arg(self.key(key)).take();
        Ok(self.settings.store.query(&delete).await?)
    }
}
