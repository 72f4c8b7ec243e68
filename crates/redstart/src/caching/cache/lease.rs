//! Leases: which process loads a key, which ones wait, and how those are woken.

use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};
use tokio::time::{Instant, timeout_at};

use super::{Inner, entry::Stamp};
use crate::{
    duration::millis,
    error::Result,
    key::{Channel, Entity},
    script::{Call, Script},
    store::{Event, Listen, Store, Subscription},
};

pub(crate) static LEASE: Script = Script::new("cache.lease", include_str!("lease.lua"));
pub(crate) static FILL: Script = Script::new("cache.fill", include_str!("fill.lua"));
pub(crate) static RELEASE: Script = Script::new("cache.release", include_str!("release.lua"));
pub(crate) static INVALIDATE: Script =
    Script::new("cache.invalidate", include_str!("invalidate.lua"));

/// How long a source whose load failed is left alone where a stale value can be served.
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
    Rest(Duration),
    Fenced,
}

impl FromRedisValue for Grant {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut items = value.into_sequence().unwrap_or_default().into_iter();
        let mut next = || items.next().unwrap_or(Value::Nil);
        let time = |value| {
            let left: i64 = redis::from_redis_value(value)?;
            Ok::<_, ParsingError>(u64::try_from(left).ok().map(Duration::from_millis))
        };
        let word: String = redis::from_redis_value(next())?;
        Ok(match word.as_str() {
            "value" => Self::Value {
                bytes: redis::from_redis_value(next())?,
                left: time(next())?,
            },
            "lease" => Self::Lease {
                token: redis::from_redis_value(next())?,
            },
            "wait" => Self::Wait(time(next())?.unwrap_or_default()),
            "rest" => Self::Rest(time(next())?.unwrap_or_default()),
            _ => Self::Fenced,
        })
    }
}

/// A part that no version of a program has.
pub(crate) const NO_VERSION: &str = "0000000000000000";

/// Whether a part of a key is that of an entry beside one of another version: its fingerprint.
pub(crate) fn is_version(part: &str) -> bool {
    part.len() == NO_VERSION.len() && part.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Removes an entry, the one of this version beside it, and the lease.
pub(crate) fn invalidation<'a>(
    entity: &'a Entity,
    name: &str,
    beside: &str,
    bus: &str,
) -> Call<'a> {
    INVALIDATE
        .on(entity)
        .key()
        .part("lease")
        .part(beside)
        .part("fence")
        .arg(entity.channel("wake"))
        .arg(bus)
        .arg(format!("k{name}"))
        // Removing twice is the same as once.
        .idempotent()
}

impl<V, C> Inner<V, C> {
    pub(crate) fn ask<'a>(
        &self,
        entity: &'a Entity,
        token: &str,
        lasts: Duration,
        shared: bool,
        seen: Option<Stamp>,
    ) -> Call<'a> {
        let seen = seen.unwrap_or_default();
        LEASE
            .on(entity)
            .key()
            .part("lease")
            .part("fence")
            .part(&self.beside)
            .arg(token)
            .arg(millis(lasts))
            .arg(if shared { "shared" } else { "exclusive" })
            .arg(&seen[..])
            .arg(&self.fingerprint.to_le_bytes()[..])
            // The token is looked for first.
            .idempotent()
    }

    pub(crate) fn fill<'a>(
        &self,
        entity: &'a Entity,
        token: &str,
        entry: &[u8],
        keep: Duration,
    ) -> Call<'a> {
        FILL.on(entity)
            .key()
            .part("lease")
            .part(&self.beside)
            .arg(token)
            .arg(entry)
            .arg(millis(keep))
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

    pub(crate) fn invalidation<'a>(&self, entity: &'a Entity, name: &str) -> Call<'a> {
        invalidation(entity, name, &self.beside, &self.bus)
    }

    /// Opens a listener, and returns when it listens (or at `until`).
    pub(crate) async fn listen(&self, entity: &Entity, until: Instant) -> WakeListener {
        WakeListener::open(&self.store, entity.channel("wake"), until).await
    }
}

/// Listens for the end of another process's load.
pub(crate) struct WakeListener {
    subscription: Option<Subscription>,
    /// Messages arrive.
    stands: bool,
}

/// How often it is worth asking again while no message can arrive.
const DEAF: Duration = Duration::from_millis(100);

impl WakeListener {
    pub(crate) async fn open(store: &Store, channel: Channel, until: Instant) -> Self {
        let mut listener = Self {
            subscription: store.subscribe([Listen::Sharded(channel)]).await.ok(),
            stands: false,
        };
        listener.wait(until).await;
        listener
    }

    /// Waits until it is worth asking again, or until `until`.
    pub(crate) async fn wait(&mut self, until: Instant) {
        match &mut self.subscription {
            Some(subscription) => loop {
                // A server may refuse the subscription for good.
                let until = match self.stands {
                    true => until,
                    false => until.min(Instant::now() + DEAF),
                };
                match timeout_at(until, subscription.next()).await {
                    // Nothing is heard until the line is re-established.
                    Ok(Some(Event::Lost)) => self.stands = false,
                    Ok(Some(Event::Subscribed | Event::Resubscribed)) => {
                        self.stands = true;
                        return;
                    }
                    Ok(None) => {
                        self.subscription = None;
                        return Box::pin(self.wait(until)).await;
                    }
                    Ok(Some(_)) | Err(_) => return,
                }
            },
            // A store made from the application's own connection cannot subscribe.
            None => {
                tokio::time::sleep_until(until.min(Instant::now() + Duration::from_millis(20)))
                    .await;
            }
        }
    }
}
