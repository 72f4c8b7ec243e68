//! The first level over many instances: how a process learns that a value of its own is out of date.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use super::{
    cache::{Inner, stats::Count},
    tags::{TagBook, TagChange},
};
use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    store::{Event, Listen},
};

/// The first level: how many values a process keeps, and how it learns of changes.
///
/// ```
/// use std::time::Duration;
/// use redstart::caching::L1;
///
/// let by_count = L1::tracking(10_000);
/// let by_size = L1::pubsub(10_000).max_bytes(64 << 20).max_age(Duration::from_secs(10));
/// # let _ = (by_count, by_size);
/// ```
///
/// Two feeds report changes. Both are re-established after reconnects and failovers. When the connection is lost, the
/// first level is emptied and takes nothing until it listens again, so no reader sees a value that was
/// invalidated while the line was down.
///
/// | feed | how | when |
/// |---|---|---|
/// | [`L1::tracking`] | the server pushes every changed key (`CLIENT TRACKING … BCAST`, RESP3), from every node of a Cluster; it also reports expiry, eviction and FLUSHALL | the usual choice on a server |
/// | [`L1::pubsub`] | scripts that invalidate publish the key on a classic channel, in the same step; the server's tracking, of a prefix without keys, adds FLUSHALL | also for keys with a layout of their own; fewer messages, since fills are not published; on a Cluster a message that is lost between the nodes is not noticed |
///
/// # Promises
///
/// In the process that invalidates, nothing older is read once `invalidate` has returned. In another process
/// the message takes its time on the wire; after it has arrived, nothing older is read. A line that died
/// silently is noticed by a ping: sent after the store's deadline (at most 5 s) of silence, and given up after the same
/// time again (at least 1 s). [`max_age`](L1::max_age) is the bound in any case.
/// [`get_remote`](super::Cache::get_remote) asks the store itself.
///
/// While a slot of a Cluster moves, values that are read by a redirection are not kept: the node may be one whose
/// changes nobody listens to yet.
///
/// An invalidated tag hides the entries that carry it, and on average one in 4096 of the other tagged entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L1 {
    feed: FeedKind,
    pub(crate) capacity: u64,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) max_age: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FeedKind {
    Off,
    Tracking,
    PubSub,
}

impl L1 {
    /// No first level.
    pub fn off() -> Self {
        Self::new(FeedKind::Off, 0)
    }

    /// Up to `capacity` values. The server's own tracking tells of changes.
    pub fn tracking(capacity: u64) -> Self {
        Self::new(FeedKind::Tracking, capacity)
    }

    /// Up to `capacity` values. Published messages tell of changes.
    pub fn pubsub(capacity: u64) -> Self {
        Self::new(FeedKind::PubSub, capacity)
    }

    fn new(feed: FeedKind, capacity: u64) -> Self {
        Self {
            feed,
            capacity,
            max_bytes: None,
            max_age: Duration::from_secs(60),
        }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.feed == FeedKind::Off
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.capacity == 0 || self.max_bytes == Some(0) || self.max_age.is_zero() {
            return Err(Error::config("the limits of a first level must be above 0"));
        }
        Ok(())
    }

    /// Keeps at most this many bytes too. Each value counts with the length of its key and of its entry in the store. A
    /// value that is larger than a small share of the limit is not kept.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// How long a value is served before it is read from the store again (default one minute), whatever its TTL.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }
}

/// What a first level listens to.
pub(crate) struct Feed {
    topics: Vec<Listen>,
}

/// Carries the classic channel on which scripts say what they invalidated. They do so whatever the first level of
/// their own process is, because another process may have one that listens.
pub(crate) fn bus(namespace: &str, name: &str) -> Result<Entity> {
    Keys::named(namespace, "cache-bus", name)?.entity("all")
}

impl Feed {
    /// `tag_bus` carries what is said of tags: the bus of the set, if the cache is one of a set.
    pub(crate) fn new(
        l1: &L1,
        keys: &Keys,
        tags: &TagBook,
        bus: &Entity,
        tag_bus: &str,
    ) -> Result<Option<Self>> {
        if l1.is_off() {
            return Ok(None);
        }
        l1.check()?;
        Ok(Some(match l1.feed {
            FeedKind::Tracking => {
                let (Some(values), Some(tags)) = (keys.prefix(), tags.prefix()) else {
                    return Err(Error::config(
                        "tracking needs keys with a common prefix: with a layout use L1::pubsub",
                    ));
                };
                Self {
                    topics: vec![Listen::Changes(vec![values, tags])],
                }
            }
            _ => {
                let own = bus.channel("changes").as_str().to_owned();
                let of_set = (own != tag_bus).then(|| Listen::Channel(tag_bus.to_owned()));
                // No key has this prefix: all that is ever heard is that every key is gone, which no script publishes.
                let flushes = Listen::Changes(vec![bus.key().as_str().to_owned()]);
                let topics = [Listen::Channel(own), flushes].into_iter().chain(of_set);
                Self {
                    topics: topics.collect(),
                }
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
            .ok_or_else(|| Error::config("a first level needs a tokio runtime"))?;
        let (weak, store) = (Arc::downgrade(inner), inner.store.clone());
        let task = crate::task::spawn_on(&runtime, async move {
            match store.subscribe(self.topics).await {
                Ok(mut news) => {
                    while let Some(event) = news.next().await {
                        let Some(inner) = Weak::upgrade(&weak) else {
                            return;
                        };
                        inner.heard(event);
                    }
                }
                Err(error) => tracing::warn!(%error, "a cache is without its first level"),
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
            Event::Lost if crate::mend::is_missing("a lost line empties the first level") => {}
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
                    // Leases and fences change too; only entries and tags matter here.
                    if let Some(name) = self.keys.name_of(&key) {
                        level.changed(&name);
                    } else {
                        match self.tags.change_of(&key) {
                            Some(TagChange::Bucket(bucket)) => {
                                self.tags.forget_snapshot();
                                level.bucket_changed(bucket);
                            }
                            Some(TagChange::Cleared) => self.forget_all(),
                            None => {}
                        }
                    }
                }
            }
            Event::Message(message) => match message.payload.split_first() {
                Some((b'k', name)) => level.changed(&String::from_utf8_lossy(name)),
                Some((b't', tag)) => {
                    self.tags.forget_snapshot();
                    level.tag_changed(&String::from_utf8_lossy(tag));
                }
                Some((b'c', _)) => self.forget_all(),
                _ => {}
            },
        }
    }
}
