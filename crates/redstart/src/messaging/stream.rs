//! A stream of events for several groups of consumers.

use std::{fmt, marker::PhantomData, time::Duration};

use redis::Value;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    codec::{Codec, Json},
    duration::{LONGEST, millis},
    error::{Error, Result},
    key::{Entity, Layout},
    observe,
    script::Script,
    store::{Dedicated, Store},
};

pub(super) static TRIM: Script = Script::new(
    "stream.trim",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("stream/trim.lua")
    ),
);
pub(super) static CLAIM: Script = Script::new("stream.claim", include_str!("stream/claim.lua"));
pub(super) static BURY: Script = Script::new("stream.bury", include_str!("stream/bury.lua"));

const MAX_COUNT: usize = 4000;

/// A stream of events of type `T` that several groups of consumers read, each at its own pace. Cheap to clone.
///
/// # Promises
///
/// - Every group gets every event at least once, in order of their ids. Within a group each event goes to one consumer,
///   and is delivered again by [`claim`](ConsumerGroup::claim) if it is not acknowledged.
/// - [`trim`](Self::trim) removes only what every group has acknowledged. A stream is never cut by length: that would
///   lose events that a slow group has not read.
/// - An event that was delivered too often, or that cannot be decoded, becomes a dead letter of that group; the group
///   continues.
/// - Events that are still there can be [read again](Self::read) from any id, and a group can be
///   [rewound](ConsumerGroup::rewind).
///
/// # Limits
///
/// A consumer that was cut off may acknowledge an event that another has claimed meanwhile. Where that matters, use the
/// [`Queue`](super::Queue), which fences.
///
/// A group that the server lost in a crash or a failover is none that [`trim`](Self::trim) waits for, until somebody
/// [makes it again](Self::group): after such a loss, trim when all groups have been made.
///
/// [`claim`](ConsumerGroup::claim) looks through what is delivered and not acknowledged, about 0.2 µs of the server's time
/// for each entry: a group that lets a hundred thousand of them pile up holds the server up for 20 ms at each claim.
///
/// # Keys
///
/// The streams `<namespace>:stream:{<name>}` and `…:dead`.
///
/// # Round trips
///
/// One each; [`trim`](Self::trim) one or two, and one more for each 10,000 events.
///
/// # While the store is down
///
/// Calls fail.
///
/// # Metrics
///
/// Operations `stream.append`, `stream.read`, `stream.newest`, `stream.ack`, `stream.claim`, `stream.trim`; event `stream.dead`.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use std::time::Duration;
/// # use redstart::{Store, messaging::{EventStream, StartAt}};
/// let store = Store::connect("memory://").await?;
/// let orders = EventStream::<u32>::new(&store, "shop", "orders")?;
/// let mut billing = orders.group("billing", StartAt::Beginning).await?;
/// orders.append(&5001).await?;
///
/// let events = billing.read("billing-1", 10, Duration::from_secs(1)).await?;
/// assert_eq!(events[0].event, 5001);
/// assert_eq!(orders.trim(Duration::ZERO).await?, 0);   // not acknowledged: it stays
/// billing.ack(&[&events[0].id]).await?;
/// # Ok(()) }
/// ```
pub struct EventStream<T> {
    store: Store,
    entity: Entity,
    of: PhantomData<fn(T) -> T>,
}

/// Settings of an [`EventStream`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct EventStreamBuilder<T> {
    store: Store,
    namespace: String,
    name: String,
    layout: Option<Layout>,
    of: PhantomData<fn(T) -> T>,
}

impl<T: Serialize + DeserializeOwned> EventStreamBuilder<T> {
    /// Uses a stream that exists already under the application's own key. Its entries must have the event, as JSON, in
    /// their first field.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// The stream. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name.
    pub fn build(self) -> Result<EventStream<T>> {
        Ok(EventStream {
            entity: super::entity("stream", &self.namespace, &self.name, self.layout)?,
            store: self.store,
            of: PhantomData,
        })
    }
}

/// Where a new group begins to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// With the oldest event that is still there.
    Beginning,
    /// With the next event that is appended.
    Now,
}

/// An event with its id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamEntry<T> {
    /// The id, in order of time.
    pub id: String,
    /// The event.
    pub event: T,
}

/// An event that a group gave up on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadEvent {
    /// The letter's own id.
    pub letter: String,
    /// The event's id in the stream.
    pub id: String,
    /// The group that gave up on it.
    pub group: String,
    /// Why.
    pub reason: String,
    /// The event as it was stored.
    pub event: Vec<u8>,
}

type RawEntries = Vec<(String, Option<Vec<Vec<u8>>>)>;

impl<T: Serialize + DeserializeOwned> EventStream<T> {
    /// A stream with default settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Starts a stream's settings, from the defaults.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> EventStreamBuilder<T> {
        EventStreamBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            layout: None,
            of: PhantomData,
        }
    }

    /// Appends an event; its id.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if it cannot be encoded; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, the event may or may not have been appended.
    pub async fn append(&self, event: &T) -> Result<String> {
        observe::operation("stream.append", self.entity.namespace(), async {
            let mut add = redis::cmd("XADD");
            add.arg(self.entity.key())
                .arg("*")
                .arg("event")
                .arg(Json::encode(event)?);
            self.store.query(&add).await
        })
        .await
    }

    /// Up to `count` events after an id, or from the beginning, independent of groups. Events that cannot be decoded
    /// are left out.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid id; otherwise those of the store.
    pub async fn read(&self, after: Option<&str>, count: usize) -> Result<Vec<StreamEntry<T>>> {
        observe::operation("stream.read", self.entity.namespace(), async {
            let from = match after {
                None => "-".to_owned(),
                Some(id) => format!("({}", check_id(id)?),
            };
            let mut range = redis::cmd("XRANGE");
            range
                .arg(self.entity.key())
                .arg(from)
                .arg("+")
                .arg("COUNT")
                .arg(count.clamp(1, MAX_COUNT));
            let raw: RawEntries = self.store.query(&range).await?;
            Ok(raw.into_iter().filter_map(|raw| decode(raw).ok()).collect())
        })
        .await
    }

    /// The newest events, up to `count`, the newest first. Events that cannot be decoded are left out.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::EventStream};
    /// # let orders = EventStream::<u64>::new(&Store::connect("memory://").await?, "shop", "orders")?;
    /// for order in 1..=3 {
    ///     orders.append(&order).await?;
    /// }
    /// let newest: Vec<u64> = orders.newest(2).await?.into_iter().map(|entry| entry.event).collect();
    /// assert_eq!(newest, [3, 2]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn newest(&self, count: usize) -> Result<Vec<StreamEntry<T>>> {
        observe::operation("stream.newest", self.entity.namespace(), async {
            let mut range = redis::cmd("XREVRANGE");
            range
                .arg(self.entity.key())
                .arg("+")
                .arg("-")
                .arg("COUNT")
                .arg(count.clamp(1, MAX_COUNT));
            let raw: RawEntries = self.store.query(&range).await?;
            Ok(raw.into_iter().filter_map(|raw| decode(raw).ok()).collect())
        })
        .await
    }

    /// A group of consumers, created if it does not exist.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty name; otherwise those of the store.
    pub async fn group(&self, name: &str, start: StartAt) -> Result<ConsumerGroup<T>> {
        if name.is_empty() || name.len() > 255 {
            return Err(Error::config("a group's name must have 1 to 255 bytes"));
        }
        let mut create = redis::cmd("XGROUP");
        create
            .arg("CREATE")
            .arg(self.entity.key())
            .arg(name)
            .arg(match start {
                StartAt::Beginning => "0",
                StartAt::Now => "$",
            })
            .arg("MKSTREAM");
        match self.store.query::<()>(&create).await {
            Err(error) if error.server_code() != Some("BUSYGROUP") => return Err(error),
            _ => {}
        }
        Ok(ConsumerGroup {
            own: self.store.dedicated(self.entity.key()),
            stream: self.clone(),
            name: name.to_owned(),
        })
    }

    /// Removes events that every group has acknowledged and that are older than `keep`; how many. It takes a round trip for
    /// each 10,000 of them, so that none holds up the server.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn trim(&self, keep: Duration) -> Result<u64> {
        observe::operation("stream.trim", self.entity.namespace(), async {
            let mut total = 0;
            loop {
                let (removed, more): (u64, bool) = TRIM
                    .on(&self.entity)
                    .key()
                    .arg(millis(keep))
                    .idempotent()
                    .run(&self.store)
                    .await?;
                total += removed;
                if !more {
                    return Ok(total);
                }
            }
        })
        .await
    }

    /// How many events the stream has.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn len(&self) -> Result<u64> {
        let length = redis::cmd("XLEN").arg(self.entity.key()).to_owned();
        self.store.query(&length).await
    }

    /// Up to 1000 dead letters of all groups, after the given letter.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid id; otherwise those of the store.
    pub async fn dead_letters(&self, after: Option<&str>) -> Result<Vec<DeadEvent>> {
        let from = match after {
            None => "-".to_owned(),
            Some(letter) => format!("({}", check_id(letter)?),
        };
        let mut range = redis::cmd("XRANGE");
        range
            .arg(self.entity.part("dead"))
            .arg(from)
            .arg("+")
            .arg("COUNT")
            .arg(1000);
        let raw: Vec<(String, Vec<Vec<u8>>)> = self.store.query(&range).await?;
        let text = |bytes: Option<Vec<u8>>| {
            String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
        };
        Ok(raw
            .into_iter()
            .map(|(letter, fields)| {
                let mut values = fields.into_iter().skip(1).step_by(2);
                DeadEvent {
                    letter,
                    event: values.next().unwrap_or_default(),
                    id: text(values.next()),
                    group: text(values.next()),
                    reason: text(values.next()),
                }
            })
            .collect())
    }
}

fn check_id(id: &str) -> Result<&str> {
    let number = |part: &str| {
        !part.is_empty() && part.len() <= 20 && part.bytes().all(|b| b.is_ascii_digit())
    };
    match id.split_once('-') {
        Some((time, sequence)) if number(time) && number(sequence) => Ok(id),
        _ => Err(Error::config("invalid event id")),
    }
}

/// The event is in the first field; `Err` has the id of an event that cannot be decoded.
fn decode<T: DeserializeOwned>(
    (id, fields): (String, Option<Vec<Vec<u8>>>),
) -> Result<StreamEntry<T>, String> {
    match fields.as_deref() {
        Some([_, event, ..]) => match Json::decode(event) {
            Ok(event) => Ok(StreamEntry { id, event }),
            Err(_) => Err(id),
        },
        _ => Err(id),
    }
}

/// A group of consumers; made by [`EventStream::group`]. It waits on a connection of its own.
pub struct ConsumerGroup<T> {
    stream: EventStream<T>,
    name: String,
    own: Dedicated,
}

impl<T: Serialize + DeserializeOwned> ConsumerGroup<T> {
    /// Up to `count` events that no consumer of the group got yet, waiting for the first up to `wait`.
    ///
    /// An event that cannot be decoded becomes a dead letter of the group and is left out.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty consumer or no count; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// Events that were delivered but not received are delivered again by [`claim`](Self::claim).
    pub async fn read(
        &mut self,
        consumer: &str,
        count: usize,
        wait: Duration,
    ) -> Result<Vec<StreamEntry<T>>> {
        check_read(consumer, count)?;
        let entity = &self.stream.entity;
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP")
            .arg(&self.name)
            .arg(consumer)
            .arg("COUNT")
            .arg(count);
        // 0 would wait for ever.
        read.arg("BLOCK").arg(millis(wait).max(1));
        let new = match crate::mend::is_missing("a read continues") {
            true => "0",
            false => ">",
        };
        read.arg("STREAMS").arg(entity.key()).arg(new);
        let work = self
            .own
            .query::<Option<Vec<(String, RawEntries)>>>(&read, wait.min(LONGEST));
        let reply = observe::operation("stream.read", entity.namespace(), work).await?;
        let raw = reply.into_iter().flatten().flat_map(|(_, entries)| entries);
        let (mut events, mut bad) = (Vec::new(), Vec::new());
        for raw in raw {
            match decode(raw) {
                Ok(entry) => events.push(entry),
                Err(id) => bad.push(id),
            }
        }
        for id in bad {
            self.bury(&id, "cannot be decoded").await?;
        }
        Ok(events)
    }

    /// Acknowledges events; how many of them were pending. One that was not has been acknowledged before, or was claimed and
    /// acknowledged by another consumer; or the server lost that it was delivered, in a crash or a failover: then it comes
    /// again.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid id; otherwise those of the store.
    pub async fn ack(&self, ids: &[impl AsRef<str>]) -> Result<u64> {
        let entity = &self.stream.entity;
        observe::operation("stream.ack", entity.namespace(), async {
            for id in ids {
                check_id(id.as_ref())?;
            }
            let mut acknowledged = 0;
            for piece in ids.chunks(MAX_COUNT) {
                let mut ack = redis::cmd("XACK");
                ack.arg(entity.key()).arg(&self.name);
                for id in piece {
                    ack.arg(id.as_ref());
                }
                acknowledged += self.stream.store.query::<u64>(&ack).await?;
            }
            Ok(acknowledged)
        })
        .await
    }

    /// Takes over up to `count` events that other consumers got and have not acknowledged for `idle`. One that
    /// was delivered `max_deliveries` times becomes a dead letter instead.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub async fn claim(
        &self,
        consumer: &str,
        count: usize,
        idle: Duration,
        max_deliveries: u32,
    ) -> Result<Vec<StreamEntry<T>>> {
        check_read(consumer, count)?;
        let entity = &self.stream.entity;
        let call = CLAIM
            .on(entity)
            .key()
            .part("dead")
            .arg(&self.name)
            .arg(consumer)
            .arg(millis(idle))
            .arg(count)
            .arg(max_deliveries.max(1))
            .run::<Vec<Value>>(&self.stream.store);
        let reply = observe::operation("stream.claim", entity.namespace(), call).await?;
        let mut reply = reply.into_iter();
        if let Some(Value::Int(died)) = reply.next()
            && died > 0
        {
            observe::events("stream.dead", died as u64);
        }
        let mut events = Vec::new();
        while let (Some(id), Some(event)) = (reply.next(), reply.next()) {
            let id: String = redis::from_redis_value(id)?;
            let event: Vec<u8> = redis::from_redis_value(event)?;
            match decode((id, Some(vec![Vec::new(), event]))) {
                Ok(entry) => events.push(entry),
                Err(id) => self.bury(&id, "cannot be decoded").await.map(drop)?,
            }
        }
        Ok(events)
    }

    /// Makes an event a dead letter of this group; `false` if it is not pending in the group.
    ///
    /// # Errors
    ///
    /// As for [`ack`](Self::ack).
    pub async fn bury(&self, id: &str, reason: &str) -> Result<bool> {
        let buried: u8 = BURY
            .on(&self.stream.entity)
            .key()
            .part("dead")
            .arg(&self.name)
            .arg(check_id(id)?)
            .arg(reason)
            .run(&self.stream.store)
            .await?;
        if buried == 1 {
            observe::event("stream.dead");
        }
        Ok(buried == 1)
    }

    /// Makes the group read all events after an id, or from the beginning, again. Pending events stay pending.
    ///
    /// # Errors
    ///
    /// As for [`ack`](Self::ack).
    pub async fn rewind(&self, after: Option<&str>) -> Result<()> {
        let id = match after {
            None => "0",
            Some(id) => check_id(id)?,
        };
        let mut set = redis::cmd("XGROUP");
        set.arg("SETID")
            .arg(self.stream.entity.key())
            .arg(&self.name)
            .arg(id);
        self.stream.store.query(&set).await
    }
}

fn check_read(consumer: &str, count: usize) -> Result<()> {
    if consumer.is_empty() || consumer.len() > 255 {
        return Err(Error::config("a consumer's name must have 1 to 255 bytes"));
    }
    if !(1..=MAX_COUNT).contains(&count) {
        return Err(Error::config(format!(
            "count must be from 1 to {MAX_COUNT}"
        )));
    }
    Ok(())
}

impl<T> Clone for EventStream<T> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            entity: self.entity.clone(),
            of: PhantomData,
        }
    }
}

impl<T> fmt::Debug for EventStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventStream")
            .field(self.entity.key())
            .finish()
    }
}

impl<T> fmt::Debug for ConsumerGroup<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerGroup")
            .field("stream", &self.stream)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
