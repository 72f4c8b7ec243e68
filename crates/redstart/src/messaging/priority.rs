//! A priority queue.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::Value;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{Settled, block_seconds, deadline, wake::Wake};
use crate::{
    codec::{Codec, Json},
    duration::micros,
    error::{Error, Result},
    key::{Entity, Layout},
    observe,
    script::Script,
    store::{Dedicated, Store},
};

pub(super) static PUSH: Script = Script::new(
    "priority.push",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("priority/push.lua")
    ),
);
pub(super) static POP: Script = Script::new(
    "priority.pop",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("priority/put_back.lua"),
        include_str!("priority/pop.lua")
    ),
);
pub(super) static RESERVE: Script = Script::new(
    "priority.reserve",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("priority/put_back.lua"),
        include_str!("priority/reserve.lua")
    ),
);
pub(super) static SETTLE: Script =
    Script::new("priority.settle", include_str!("priority/settle.lua"));

/// In front of an item: 16 digits of time, 16 of id, 11 characters of priority, 8 digits of reservations.
const HEAD: usize = 51;
/// The longest wait between two looks, in case a message gets lost unnoticed; short where the clock can be moved.
const REST: Duration = Duration::from_secs(5);
const EMBEDDED_REST: Duration = Duration::from_millis(50);
/// Connections that are kept for `pop`.
const KEPT_CONNECTIONS: usize = 16;

/// A priority queue of `T`: the lowest number first, the oldest first among equals. Cheap to clone.
///
/// Items are taken in one of two ways. [`pop`](Self::pop) removes the item at once, so it is lost if the process that
/// popped it dies. [`PriorityConsumer::reserve`] lends it: an item that is not finished within the lease goes back to
/// its place, for consumers and for `pop`.
///
/// # Promises
///
/// A reserved item is with one consumer until its lease ends. A reservation that has ended can neither finish nor give
/// back the item, even if another consumer has reserved it since.
///
/// # Limits
///
/// Priorities do not age: a steady stream of low numbers starves the rest. There are no retries with a wait and no dead
/// letters: the [`Queue`](super::Queue) has those. After a crash or a failover that lost the last writes, a reservation
/// from before may settle the one that followed. A suspended machine stops its monotonic clock too: a consumer whose machine
/// was suspended between a reply and the reading of it gets an item whose lease has ended, which another consumer may have or
/// have finished; it learns of that when it [settles](Reservation::done) the item.
///
/// # Keys
///
/// The sorted sets `<namespace>:priority:{<name>}` and `…:reserved`.
///
/// # Round trips
///
/// One each, O(log n). Waiting is by message (`…:wake`) or by `BZPOPMIN`; who waits looks again when a reservation ends,
/// and every five seconds.
///
/// # While the store is down
///
/// Calls fail.
///
/// # Metrics
///
/// Operations `priority.push`, `priority.pop`, `priority.reserve`, `priority.settle`; event `priority.lost`.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use std::time::Duration;
/// # use redstart::{Store, messaging::{PriorityQueue, Settled}};
/// let store = Store::connect("memory://").await?;
/// let queue = PriorityQueue::<String>::new(&store, "shop", "calls")?;
/// queue.push(&"newsletter".into(), 9).await?;
/// queue.push(&"fire".into(), 0).await?;
/// assert_eq!(queue.pop(Duration::from_secs(1)).await?.as_deref(), Some("fire"));
///
/// let mut consumer = queue.consumer(Duration::from_secs(30)).await?;
/// let call = consumer.reserve(Duration::from_secs(1)).await?.unwrap();
/// assert_eq!(call.item(), "newsletter");
/// assert_eq!(call.done().await?, Settled::Done);
/// # Ok(()) }
/// ```
pub struct PriorityQueue<T> {
    store: Store,
    entity: Entity,
    /// Connections that are free for the next `pop`.
    connections: Arc<Mutex<Vec<Dedicated>>>,
    of: PhantomData<fn(T) -> T>,
}

/// Settings of a [`PriorityQueue`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct PriorityQueueBuilder<T> {
    store: Store,
    namespace: String,
    name: String,
    layout: Option<Layout>,
    of: PhantomData<fn(T) -> T>,
}

impl<T: Serialize + DeserializeOwned> PriorityQueueBuilder<T> {
    /// Uses the application's own keys instead of the [usual ones](crate::key).
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// The queue. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name.
    pub fn build(self) -> Result<PriorityQueue<T>> {
        Ok(PriorityQueue {
            entity: super::entity("priority", &self.namespace, &self.name, self.layout)?,
            store: self.store,
            connections: Arc::default(),
            of: PhantomData,
        })
    }
}

impl<T: Serialize + DeserializeOwned> PriorityQueue<T> {
    /// A queue with default settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Starts a queue's settings, from the defaults.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> PriorityQueueBuilder<T> {
        PriorityQueueBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            layout: None,
            of: PhantomData,
        }
    }

    /// Adds an item; how many wait now.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if it cannot be encoded; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, the item may or may not have been added.
    pub async fn push(&self, item: &T, priority: i32) -> Result<u64> {
        observe::operation("priority.push", self.entity.namespace(), async {
            PUSH.on(&self.entity)
                .key()
                .arg(self.entity.channel("wake"))
                .arg(priority)
                .arg(format!("{:016x}", crate::chance::random::<u64>()))
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
    /// It waits on a connection of its own, which is kept for later calls.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the item is not a `T` (it is gone then); otherwise those of the store. If the
    /// error is [in doubt](Error::is_in_doubt), an item may be lost.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: an item may be lost with the future. [`PriorityConsumer::reserve`] is.
    pub async fn pop(&self, wait: Duration) -> Result<Option<T>> {
        observe::operation("priority.pop", self.entity.namespace(), async {
            let until = deadline(wait);
            loop {
                let call = POP.on(&self.entity).key().part("reserved");
                let left = match First::read(call.run(&self.store).await?)? {
                    First::Item(record) => return decode(&record).map(Some),
                    First::None { ends } => ends,
                };
                let now = Instant::now();
                if now >= until {
                    return Ok(None);
                }
                let pause = self.pause(left).min(until - now);
                if let Some(record) = self.block(pause).await? {
                    return decode(&record).map(Some);
                }
            }
        })
        .await
    }

    /// Removes the first item when there is one, on a connection of its own.
    async fn block(&self, wait: Duration) -> Result<Option<Vec<u8>>> {
        let mut pop = redis::cmd("BZPOPMIN");
        pop.arg(self.entity.key()).arg(block_seconds(wait));
        let kept = self.connections.lock().pop();
        let mut connection = kept.unwrap_or_else(|| self.store.dedicated(self.entity.key()));
        let popped: Result<Option<(String, Vec<u8>, f64)>> = connection.query(&pop, wait).await;
        {
            let mut kept = self.connections.lock();
            if kept.len() < KEPT_CONNECTIONS {
                kept.push(connection);
            }
        }
        Ok(popped?.map(|(_, record, _)| record))
    }

    /// How long to wait for an item before the next look, if a reservation ends after `ends`.
    fn pause(&self, ends: Option<Duration>) -> Duration {
        let rest = match self.store.is_embedded() {
            true => EMBEDDED_REST,
            false => REST,
        };
        ends.unwrap_or(rest).min(rest).max(Duration::from_millis(1))
    }

    /// Makes a consumer whose reservations last for `lease`. Its wake-up channel opens first, within five times the store's
    /// deadline.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a lease under a millisecond or a store that cannot subscribe;
    /// otherwise those of the store.
    pub async fn consumer(&self, lease: Duration) -> Result<PriorityConsumer<T>> {
        if lease < Duration::from_millis(1) {
            return Err(Error::config("a lease must be at least 1 ms"));
        }
        // Subscribed before the first look, so that no item is pushed unheard in between.
        let wake = Wake::open(&self.store, [self.entity.channel("wake")], |_| true).await?;
        Ok(PriorityConsumer {
            queue: self.clone(),
            lease,
            wake,
        })
    }
}

/// What a look at the queue finds.
enum First {
    Item(Vec<u8>),
    /// There is none, but maybe when a reservation ends.
    None {
        ends: Option<Duration>,
    },
}

impl First {
    fn read(reply: Vec<Value>) -> Result<Self> {
        match <[Value; 1]>::try_from(reply) {
            Ok([Value::BulkString(record)]) => Ok(Self::Item(record)),
            Err(reply) => match reply.as_slice() {
                [_, Value::Int(left)] => Ok(Self::None {
                    ends: u64::try_from(*left).ok().map(Duration::from_micros),
                }),
                _ => Err(Error::codec("unexpected shape of the reply")),
            },
            Ok(_) => Err(Error::codec("unexpected shape of the reply")),
        }
    }
}

fn decode<T: DeserializeOwned>(record: &[u8]) -> Result<T> {
    let payload = record
        .get(HEAD..)
        .ok_or_else(|| Error::codec("an item of the queue is too short"))?;
    Json::decode(payload)
}

/// Reserves items; made by [`PriorityQueue::consumer`].
pub struct PriorityConsumer<T> {
    queue: PriorityQueue<T>,
    lease: Duration,
    wake: Wake,
}

impl<T: Serialize + DeserializeOwned> PriorityConsumer<T> {
    /// Reserves the first item, waiting for one up to `wait`. An item whose lease has ended before its reply is read is not
    /// handed out, with an allowance of lease / 100 for clocks that run at different rates.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if the item is not a `T`: it is removed, so that it does not come again and
    /// again; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, an item may stay reserved until its lease ends.
    pub async fn reserve(&mut self, wait: Duration) -> Result<Option<Reservation<T>>> {
        let until = deadline(wait);
        let clock = self.queue.store.clock();
        // This clock may be slower than the server's.
        let lasts = self.lease - self.lease / 100;
        loop {
            let entity = &self.queue.entity;
            // The lease begins later than this, so it ends later too.
            let asked = clock.now();
            let call = RESERVE
                .on(entity)
                .key()
                .part("reserved")
                .arg(micros(self.lease))
                .run::<Vec<Value>>(&self.queue.store);
            let reply = observe::operation("priority.reserve", entity.namespace(), call).await?;
            let left = match First::read(reply)? {
                // The process stood still: the item is back in its place, or another consumer has it.
                First::Item(_) if clock.now().saturating_duration_since(asked) >= lasts => {
                    observe::event("priority.lost");
                    Some(Duration::ZERO)
                }
                First::Item(record) => {
                    return match decode(&record) {
                        Ok(item) => Ok(Some(Reservation {
                            queue: self.queue.clone(),
                            record,
                            item,
                        })),
                        Err(error) => {
                            let _ = self.queue.settle(&record, false).await?;
                            Err(error)
                        }
                    };
                }
                First::None { ends } => ends,
            };
            let now = Instant::now();
            if now >= until {
                return Ok(None);
            }
            let pause = self.queue.pause(left);
            let _ = tokio::time::timeout_at(until.min(now + pause), self.wake.called()).await;
        }
    }
}

impl<T> PriorityQueue<T> {
    async fn settle(&self, record: &[u8], back: bool) -> Result<Settled> {
        let call = SETTLE
            .on(&self.entity)
            .key()
            .part("reserved")
            .arg(self.entity.channel("wake"))
            .arg(record)
            .arg(u8::from(back))
            .run::<u8>(&self.store);
        match observe::operation("priority.settle", self.entity.namespace(), call).await? {
            1 => Ok(Settled::Done),
            _ => {
                observe::event("priority.lost");
                Ok(Settled::Lost)
            }
        }
    }
}

/// An item that is lent. It goes back to its place when the lease ends.
#[must_use = "a reservation ends by `done` or `give_back`, or with its lease"]
pub struct Reservation<T> {
    queue: PriorityQueue<T>,
    /// Names this reservation: it has a count that differs from that of any other reservation of the item.
    record: Vec<u8>,
    item: T,
}

impl<T> Reservation<T> {
    /// The item.
    pub fn item(&self) -> &T {
        &self.item
    }

    /// Removes the item for good; [`Settled::Lost`] if the lease had ended.
    ///
    /// # Errors
    ///
    /// Those of the store: then the item may come again.
    pub async fn done(self) -> Result<Settled> {
        self.queue.settle(&self.record, false).await
    }

    /// Puts the item back to its place; [`Settled::Lost`] if the lease had ended, which did the same.
    ///
    /// # Errors
    ///
    /// Those of the store: then the item comes back when the lease ends.
    pub async fn give_back(self) -> Result<Settled> {
        self.queue.settle(&self.record, true).await
    }
}

impl<T> Clone for PriorityQueue<T> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            entity: self.entity.clone(),
            connections: self.connections.clone(),
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

impl<T> fmt::Debug for PriorityConsumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PriorityConsumer")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for Reservation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reservation").field(&self.item).finish()
    }
}
