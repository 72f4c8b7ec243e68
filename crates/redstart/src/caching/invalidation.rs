//! The first level over many instances: who tells a process that a value of its own is out of date.
//!
//! Two feeds carry the news. Both are followed through reconnects and failovers; when the line is lost the
//! first level is emptied and takes nothing in until it listens again, so no reader sees a value that was
//! invalidated while the line was down.
//!
//! | feed | how | when |
//! |---|---|---|
//! | [`L1::tracking`] | the server itself pushes every changed key (`CLIENT TRACKING … BCAST`, RESP3), from every node of a Cluster; it also hears of expiry, eviction and FLUSHALL | the choice on a server |
//! | [`L1::pubsub`] | scripts that invalidate publish the key on a classic channel, in the same step; the server's tracking, of a prefix without keys, adds FLUSHALL | also for keys with a layout of their own; fewer messages, since fills are not told; on a Cluster a message that the nodes lose among themselves is not noticed |
//!
//! # What is promised
//!
//! In the process that invalidates, nothing older is read once `invalidate` has returned. In another process
//! the message takes its time on the wire; after it has come, nothing older is read. A line that died
//! silently is noticed by a ping within the store's deadline (at most 5 s) and is bounded by
//! [`max_age`](L1::max_age) in any case. [`get_remote`](super::Cache::get_remote) asks the store itself.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use super::{
    cache::{Inner, stats::Count},
    tags::TagBook,
};
use crate::{
    error::{Error, Result},
    key::Keys,
    store::{Event, Listen},
};

/// The first level: how many values a process keeps, and who tells it of changes.
///
/// ```
/// use std::time::Duration;
/// use redstart::caching::L1;
///
/// let by_the_server = L1::tracking(10_000);
/// let by_messages = L1::pubsub(10_000).max_age(Duration::from_secs(10));
/// # let _ = (by_the_server, by_messages);
/// ```
#[derive(Clone, Debug)]
pub struct L1 {
    kind: Kind,
    pub(crate) capacity: u64,
    pub(crate) max_age: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Off,
    Tracking,
    PubSub,
}

impl L1 {
    /// No first level.
    pub fn off() -> Self {
        Self::new(Kind::Off, 0)
    }

    /// Up to `capacity` values, told by the server's own tracking.
    pub fn tracking(capacity: u64) -> Self {
        Self::new(Kind::Tracking, capacity)
    }

    /// Up to `capacity` values, told by messages.
    pub fn pubsub(capacity: u64) -> Self {
        Self::new(Kind::PubSub, capacity)
    }

    fn new(kind: Kind, capacity: u64) -> Self {
        Self {
            kind,
            capacity,
            max_age: Duration::from_secs(60),
        }
    }

    /// How long a value stays without being read from the store again (default one minute), whatever its TTL.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }
}

/// Where the news come from.
pub(crate) struct Feed {
    topics: Vec<Listen>,
}

/// The classic channel on which scripts say what they invalidated. They do so whatever the first level of
/// their own process is, since another process may have one that listens.
pub(crate) fn bus(keys: &Keys) -> Result<String> {
    let channel = bus_keys(keys)?.entity("all")?.channel("changes");
    Ok(channel.as_str().to_owned())
}

fn bus_keys(keys: &Keys) -> Result<Keys> {
    Keys::new(keys.namespace(), "cache-bus")
}

impl Feed {
    pub(crate) fn new(l1: &L1, keys: &Keys, tags: &TagBook) -> Result<Option<Self>> {
        if l1.kind == Kind::Off {
            return Ok(None);
        }
        if l1.capacity == 0 || l1.max_age.is_zero() {
            return Err(Error::config(
                "a first level has a capacity and a maximal age above 0",
            ));
        }
        Ok(Some(match l1.kind {
            Kind::Tracking => {
                let (Some(values), Some(tags)) = (keys.prefix(), tags.prefix()) else {
                    return Err(Error::config(
                        "tracking needs keys with a common prefix: with a layout of your own use L1::pubsub",
                    ));
                };
                Self {
                    topics: vec![Listen::Changes(vec![values, tags])],
                }
            }
            _ => {
                let mut topics = vec![Listen::Channel(bus(keys)?)];
                // No key has this prefix: all that is ever heard is that every key is gone, which no script
                // publishes.
                topics.extend(
                    bus_keys(keys)?
                        .prefix()
                        .map(|none| Listen::Changes(vec![none])),
                );
                Self { topics }
            }
        }))
    }

    /// Begins to listen. The task ends with the cache.
    pub(crate) fn start<V, C>(self, inner: &Arc<Inner<V, C>>) -> Result<()>
    where
        V: Send + Sync + 'static,
        C: Send + Sync + 'static,
    {
        let runtime = inner
            .store
            .runtime()
            .ok_or_else(|| Error::config("a first level needs a tokio runtime to listen"))?;
        let (weak, store) = (Arc::downgrade(inner), inner.store.clone());
        let task = runtime.spawn(async move {
            match store.subscribe(self.topics).await {
                Ok(mut news) => {
                    while let Some(event) = news.next().await {
                        let Some(inner) = Weak::upgrade(&weak) else {
                            return;
                        };
                        inner.heard(event);
                    }
                }
                Err(error) => tracing::warn!(%error, "a cache has no first level"),
            }
            if let Some(level) = weak.upgrade().as_ref().and_then(|inner| inner.l1.as_ref()) {
                level.down();
            }
        });
        *inner.feed.lock() = Some(task.abort_handle());
        Ok(())
    }
}

impl<V, C> Inner<V, C>
where
    V: Send + Sync + 'static,
{
    fn heard(&self, event: Event) {
        let Some(level) = &self.l1 else { return };
        match event {
            Event::Subscribed | Event::Resubscribed => level.up(),
            Event::Lost => {
                self.stats.add(Count::Flush);
                level.down();
            }
            Event::Flushed => {
                self.stats.add(Count::Flush);
                level.flush();
            }
            Event::Changed(keys) => {
                for key in keys {
                    // Leases and fences change too; only values and tag shards matter here.
                    if let Some(name) = self.keys.name_of(&key) {
                        level.changed(&name);
                    } else if let Some(shard) = self.tags.shard_by_key(&key) {
                        level.shard_changed(shard);
                    }
                }
            }
            Event::Message(message) => match message.payload.split_first() {
                Some((b'k', name)) => level.changed(&String::from_utf8_lossy(name)),
                Some((b't', tag)) => level.tag_changed(&String::from_utf8_lossy(tag)),
                _ => {}
            },
        }
    }
}
