//! Leases: who may load a key, who waits, and how those who wait are woken.

use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout_at},
};

use super::{Inner, Purpose, envelope::millis};
use crate::{
    error::Result,
    key::{Channel, Entity},
    script::{Call, Script},
    store::{Event, Listen, Store, Subscription},
};

static LEASE: Script = Script::new("cache.lease", include_str!("lease.lua"));
static FILL: Script = Script::new("cache.fill", include_str!("fill.lua"));
static RELEASE: Script = Script::new("cache.release", include_str!("release.lua"));
static INVALIDATE: Script = Script::new("cache.invalidate", include_str!("invalidate.lua"));

/// Subscriptions of waiting loads at one time; each is a connection.
pub(crate) const MAX_EARS: usize = 64;
/// How long a value that could not be refreshed is left alone, so that a broken source is not hammered.
pub(crate) const REST: Duration = Duration::from_secs(1);

/// The answer to a request for a lease.
pub(crate) enum Grant {
    Value {
        bytes: Vec<u8>,
        left: Option<Duration>,
    },
    Lease {
        token: String,
    },
    Wait(Duration),
    Fenced,
}

impl FromRedisValue for Grant {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut items = value.into_sequence().unwrap_or_default().into_iter();
        let mut next = || items.next().unwrap_or(Value::Nil);
        let word: String = redis::from_redis_value(next())?;
        Ok(match word.as_str() {
            "value" => {
                let bytes = redis::from_redis_value(next())?;
                let left: i64 = redis::from_redis_value(next())?;
                Self::Value {
                    bytes,
                    left: u64::try_from(left).ok().map(Duration::from_millis),
                }
            }
            "lease" => Self::Lease {
                token: redis::from_redis_value(next())?,
            },
            "wait" => {
                let left: i64 = redis::from_redis_value(next())?;
                Self::Wait(Duration::from_millis(u64::try_from(left).unwrap_or(0)))
            }
            _ => Self::Fenced,
        })
    }
}

pub(crate) fn token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

pub(crate) fn ask<'a>(
    entity: &'a Entity,
    token: &str,
    lasts: Duration,
    shared: bool,
    seen: &[u8],
) -> Call<'a> {
    LEASE
        .on(entity)
        .key()
        .part("lease")
        .part("fence")
        .arg(token)
        .arg(millis(lasts))
        .arg(if shared { "shared" } else { "exclusive" })
        .arg(seen)
        // The token is looked for first.
        .idempotent()
}

pub(crate) fn fill<'a>(entity: &'a Entity, token: &str, entry: &[u8], keep_ms: u64) -> Call<'a> {
    FILL.on(entity)
        .key()
        .part("lease")
        .arg(token)
        .arg(entry)
        .arg(keep_ms)
        .arg(entity.channel("wake"))
        // It recognises its own entry.
        .idempotent()
}

pub(crate) fn release<'a>(entity: &'a Entity, token: &str, rest: Duration) -> Call<'a> {
    RELEASE
        .on(entity)
        .part("lease")
        .arg(token)
        .arg(millis(rest))
        .arg(entity.channel("wake"))
        .idempotent()
}

pub(crate) fn invalidate<'a>(entity: &'a Entity, bus: &str, name: &str) -> Call<'a> {
    INVALIDATE
        .on(entity)
        .key()
        .part("lease")
        .arg(entity.channel("wake"))
        .arg(bus)
        .arg(format!("k{name}"))
        // Removing twice is as good as once.
        .idempotent()
}

/// Listens for the end of another one's load.
pub(crate) struct Ear {
    subscription: Option<Subscription>,
    _place: Option<OwnedSemaphorePermit>,
}

impl<V, C> Inner<V, C> {
    /// Opens an ear, and returns when it hears (or by `until`).
    pub(crate) async fn listen(&self, entity: &Entity, until: Instant) -> Ear {
        let place = timeout_at(until, self.ears.clone().acquire_owned()).await;
        let place = place.ok().and_then(Result::ok);
        Ear::open(&self.store, entity.channel("wake"), place, until).await
    }
}

impl Ear {
    pub(crate) async fn open(
        store: &Store,
        channel: Channel,
        place: Option<OwnedSemaphorePermit>,
        until: Instant,
    ) -> Self {
        let mut ear = Self {
            subscription: store.subscribe([Listen::Sharded(channel)]).await.ok(),
            _place: place,
        };
        ear.wait(until).await;
        ear
    }

    /// Waits until something happened that makes it worth asking again, or until `until`.
    pub(crate) async fn wait(&mut self, until: Instant) {
        match &mut self.subscription {
            Some(subscription) => match timeout_at(until, subscription.next()).await {
                Ok(Some(Event::Lost)) => {
                    // Nothing can be heard until the line is back, or the lease is over.
                    let _ = timeout_at(until, subscription.next()).await;
                }
                Ok(None) => {
                    self.subscription = None;
                    Box::pin(self.wait(until)).await;
                }
                Ok(Some(_)) | Err(_) => {}
            },
            // A store made from the application's own connection cannot subscribe.
            None => {
                tokio::time::sleep_until(until.min(Instant::now() + Duration::from_millis(20)))
                    .await;
            }
        }
    }
}

impl Purpose {
    /// A refresh that somebody else does already is not needed twice.
    pub(crate) fn may_be_left_out(&self) -> bool {
        matches!(self, Self::Refresh { .. })
    }
}
