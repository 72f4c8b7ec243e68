//! A priority queue: the lowest number first, the oldest first among equals.
//!
//! Two ways to take: [`pop`](PriorityQueue::pop) removes at once (an item is lost with whoever popped it), and
//! [`reserve`](Consumer::reserve) lends: an item that is not finished within the lease goes back to its place.
//!
//! **Not**: ageing (a steady stream of low numbers starves the rest), retries, dead letters: the
//! [job queue](super::queue) has those. **Keys**: `<namespace>:priority:{<name>}` and `…:reserved`, sorted sets.
//! **Round trips**: one each, O(log n); waiting is by message (`…:wake`) or `BZPOPMIN`, not by polling.
//! **While the store is down** calls fail. **Names**: operations `priority.push`, `priority.pop`,
//! `priority.reserve`, `priority.settle`; event `priority.lost`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! # use std::time::Duration;
//! # use redstart::{Store, messaging::priority::PriorityQueue};
//! let store = Store::connect("memory://").await?;
//! let queue = PriorityQueue::<String>::new(&store, "shop", "calls")?;
//! queue.push(&"newsletter".into(), 9).await?;
//! queue.push(&"fire".into(), 0).await?;
//! assert_eq!(queue.pop(Duration::from_secs(1)).await?.as_deref(), Some("fire"));
//!
//! let mut consumer = queue.consumer(Duration::from_secs(30)).await?;
//! let call = consumer.reserve(Duration::from_secs(1)).await?.unwrap();
//! assert_eq!(call.item(), "newsletter");
//! assert!(call.done().await?);
//! # Ok(()) }
//! ```

use std::{fmt, marker::PhantomData, time::Duration};

use redis::Value;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::Script,
    store::{Listen, Store, Subscription},
};

static PUSH: Script = Script::new("priority.push", include_str!("priority/push.lua"));
static RESERVE: Script = Script::new("priority.reserve", include_str!("priority/reserve.lua"));
static SETTLE: Script = Script::new("priority.settle", include_str!("priority/settle.lua"));

/// In front of an item: 16 digits of time, 16 digits of id, 11 characters of priority.
const HEAD: usize = 43;
/// The longest rest between two looks, should a message get lost unnoticed; short where the clock can be moved.
const REST: Duration = Duration::from_secs(5);
const EMBEDDED_REST: Duration = Duration::from_millis(50);

/// A priority queue of `T`. Cheap to clone. See the [module](self).
pub struct PriorityQueue<T> {
    store: Store,
    entity: Entity,
    of: PhantomData<fn(T) -> T>,
}

impl<T> Clone for PriorityQueue<T> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            entity: self.entity.clone(),
            of: PhantomData,
        }
    }
}

impl<T> fmt::Debug for PriorityQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PriorityQueue")
            .field(self.entity.key())
            .finish()
    }
}

impl<T: Serialize + DeserializeOwned> PriorityQueue<T> {
    /// The queue of this name.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a namespace or a name that cannot be used.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Ok(Self {
            store: store.clone(),
            entity: Keys::new(namespace, "priority")?.entity(name)?,
            of: PhantomData,
        })
    }

    /// Adds an item; how many wait now.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if it cannot be encoded; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the item may or may not have been added.
    pub async fn push(&self, item: &T, priority: i32) -> Result<u64> {
        observe::operation("priority.push", self.entity.namespace(), async {
            PUSH.on(&self.entity)
                .key()
                .arg(self.entity.channel("wake"))
                .arg(priority)
                .arg(format!("{:016x}", rand::random::<u64>()))
                .arg(Json::encode(item)?)
                .run(&self.store)
                .await
        })
        .await
    }

    /// How many items wait, reserved ones not counted.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn waiting(&self) -> Result<u64> {
        let count = redis::cmd("ZCARD").arg(self.entity.key()).to_owned();
        self.store.query(&count).await
    }

    /// Removes the first item, waiting for one up to `wait`.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if it is no `T` (it is gone then); otherwise those of the store. If it is
    /// [in doubt](Error::is_in_doubt), an item may be lost.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: an item may be lost with the future. [`Consumer::reserve`] is.
    pub async fn pop(&self, wait: Duration) -> Result<Option<T>> {
        observe::operation("priority.pop", self.entity.namespace(), async {
            let mut pop = redis::cmd("BZPOPMIN");
            pop.arg(self.entity.key())
                .arg(wait.as_secs_f64().max(0.001));
            let mut own = self.store.dedicated(self.entity.key());
            let popped: Option<(String, Vec<u8>, f64)> = own.query(&pop, wait).await?;
            popped.map(|(_, record, _)| decode(&record)).transpose()
        })
        .await
    }

    /// Makes a consumer whose reservations last for `lease`.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a lease under a millisecond or a store that cannot subscribe;
    /// otherwise those of the store.
    pub async fn consumer(&self, lease: Duration) -> Result<Consumer<T>> {
        if lease < Duration::from_millis(1) {
            return Err(Error::config("a lease is at least 1 ms"));
        }
        let channel = Listen::Sharded(self.entity.channel("wake"));
        let mut subscription = self.store.subscribe([channel]).await?;
        // It must stand before the first look, so that nothing is pushed unheard in between.
        if tokio::time::timeout(self.store.deadline() * 5, subscription.next())
            .await
            .is_err()
        {
            return Err(Error::timeout("the wake-up channel did not open in time"));
        }
        Ok(Consumer {
            queue: self.clone(),
            lease,
            subscription,
        })
    }
}

fn decode<T: DeserializeOwned>(record: &[u8]) -> Result<T> {
    let payload = record
        .get(HEAD..)
        .ok_or_else(|| Error::codec("an item without its head"))?;
    Json::decode(payload)
}

/// Reserves items; made by [`PriorityQueue::consumer`].
pub struct Consumer<T> {
    queue: PriorityQueue<T>,
    lease: Duration,
    subscription: Subscription,
}

impl<T: Serialize + DeserializeOwned> Consumer<T> {
    /// Reserves the first item, waiting for one up to `wait`.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the item is no `T`: it is removed, so that it does not come again and
    /// again; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, an item may be reserved by nobody until its lease is over.
    pub async fn reserve(&mut self, wait: Duration) -> Result<Option<Reserved<T>>> {
        let until = Instant::now() + wait;
        let rest = if self.queue.store.is_embedded() {
            EMBEDDED_REST
        } else {
            REST
        };
        loop {
            let entity = &self.queue.entity;
            let call = RESERVE
                .on(entity)
                .key()
                .part("reserved")
                .arg(self.lease.as_micros() as u64)
                .run::<Vec<Value>>(&self.queue.store);
            let reply = observe::operation("priority.reserve", entity.namespace(), call).await?;
            let left = match reply.as_slice() {
                [Value::BulkString(record)] => {
                    let reserved = |item| Reserved {
                        queue: self.queue.clone(),
                        record: record.clone(),
                        item,
                    };
                    return match decode(record) {
                        Ok(item) => Ok(Some(reserved(item))),
                        Err(error) => {
                            self.queue.settle(record, false).await?;
                            Err(error)
                        }
                    };
                }
                [_, Value::Int(left)] => u64::try_from(*left).ok().map(Duration::from_micros),
                _ => return Err(Error::codec("the reply has an unexpected shape")),
            };
            let now = Instant::now();
            if now >= until {
                return Ok(None);
            }
            let next =
                until.min(now + left.unwrap_or(rest).min(rest).max(Duration::from_millis(1)));
            let _ = tokio::time::timeout_at(next, self.subscription.next()).await;
        }
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl<T> PriorityQueue<T> {
    async fn settle(&self, record: &[u8], back: bool) -> Result<bool> {
        let call = SETTLE
            .on(&self.entity)
            .key()
            .part("reserved")
            .arg(self.entity.channel("wake"))
            .arg(record)
            .arg(u8::from(back))
            .run::<u8>(&self.store);
        let ended =
            observe::operation("priority.settle", self.entity.namespace(), call).await? == 1;
        if !ended {
            observe::event("priority.lost");
        }
        Ok(ended)
    }
}

/// An item that is lent. It goes back to its place when the lease is over.
#[must_use = "a reservation ends by `done` or `give_back`, or with its lease"]
pub struct Reserved<T> {
    queue: PriorityQueue<T>,
    record: Vec<u8>,
    item: T,
}

impl<T> Reserved<T> {
    /// The item.
    pub fn item(&self) -> &T {
        &self.item
    }

    /// Removes the item for good; `false` if the lease was over and the item went to another.
    ///
    /// # Errors
    ///
    /// Those of the store: then the item may come again.
    pub async fn done(self) -> Result<bool> {
        self.queue.settle(&self.record, false).await
    }

    /// Puts the item back to its place; `false` if that has happened already.
    ///
    /// # Errors
    ///
    /// Those of the store: then the item comes back when the lease is over.
    pub async fn give_back(self) -> Result<bool> {
        self.queue.settle(&self.record, true).await
    }
}

impl<T: fmt::Debug> fmt::Debug for Reserved<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reserved").field(&self.item).finish()
    }
}
