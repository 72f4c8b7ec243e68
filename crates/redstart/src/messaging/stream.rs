//! A stream of events that several groups of consumers read, each at its own pace.
//!
//! # What it promises
//!
//! - Every group gets every event at least once, in order of their ids; within a group each event goes to one
//!   consumer, and comes again by [`claim`](Group::claim) if it is not acknowledged.
//! - [`trim`](EventStream::trim) removes only what every group has acknowledged. A stream is never cut by length:
//!   that would lose what a slow group has not read.
//! - An event that was delivered too often, or that cannot be read, becomes a dead letter of that group; the
//!   group goes on.
//! - Events that are still there can be [read again](EventStream::read) from any id, and a group can be
//!   [rewound](Group::rewind).
//!
//! A consumer that was cut off may acknowledge an event that another has claimed meanwhile; where that matters,
//! use the [job queue](super::queue), which fences.
//!
//! **Keys**: `<namespace>:stream:{<name>}` and `…:dead`, streams. **Round trips**: one each. **While the store is
//! down** calls fail. **Names**: operations `stream.append`, `stream.read`, `stream.ack`, `stream.claim`,
//! `stream.trim`; event `stream.dead`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! # use std::time::Duration;
//! # use redstart::{Store, messaging::stream::{EventStream, Start}};
//! let store = Store::connect("memory://").await?;
//! let orders = EventStream::<u32>::new(&store, "shop", "orders")?;
//! let mut billing = orders.group("billing", Start::Beginning).await?;
//! orders.append(&5001).await?;
//!
//! let events = billing.read("billing-1", 10, Duration::from_secs(1)).await?;
//! assert_eq!(events[0].event, 5001);
//! assert_eq!(orders.trim(Duration::ZERO).await?, 0);   // not acknowledged: it stays
//! billing.ack(&[&events[0].id]).await?;
//! # Ok(()) }
//! ```

use std::{fmt, marker::PhantomData, time::Duration};

use redis::Value;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
    key::{Entity, Keys, Layout},
    observe,
    script::Script,
    store::{Dedicated, Store},
};

static TRIM: Script = Script::new("stream.trim", include_str!("stream/trim.lua"));
static CLAIM: Script = Script::new("stream.claim", include_str!("stream/claim.lua"));
static BURY: Script = Script::new("stream.bury", include_str!("stream/bury.lua"));

const MAX_COUNT: usize = 4000;

/// A stream of events of type `T`. Cheap to clone. See the [module](self).
pub struct EventStream<T> {
    store: Store,
    entity: Entity,
    of: PhantomData<fn(T) -> T>,
}

/// Where a new group begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the oldest event that is still there.
    Beginning,
    /// With the next event that is appended.
    Now,
}

/// An event with its id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry<T> {
    /// The id, in order of time.
    pub id: String,
    /// The event.
    pub event: T,
}

/// An event that a group gave up on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dead {
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
    /// The stream of this name.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a namespace or a name that cannot be used.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::on(store, Keys::new(namespace, "stream")?, name)
    }

    /// A stream under a key that exists already. Its entries must have the event, as JSON, in their first field.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn with_layout(store: &Store, namespace: &str, name: &str, layout: Layout) -> Result<Self> {
        Self::on(store, Keys::new(namespace, "stream")?.layout(layout), name)
    }

    fn on(store: &Store, keys: Keys, name: &str) -> Result<Self> {
        Ok(Self {
            store: store.clone(),
            entity: keys.entity(name)?,
            of: PhantomData,
        })
    }

    /// Appends an event; its id.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if it cannot be encoded; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the event may or may not have been appended.
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

    /// Up to `count` events after an id, or from the beginning, whatever any group has read. What cannot be read
    /// is left out.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for something that is no id; otherwise those of the store.
    pub async fn read(&self, after: Option<&str>, count: usize) -> Result<Vec<Entry<T>>> {
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

    /// A group of consumers, made if it is not there yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty name; otherwise those of the store.
    pub async fn group(&self, name: &str, start: Start) -> Result<Group<T>> {
        if name.is_empty() || name.len() > 255 {
            return Err(Error::config("a group's name has 1 to 255 bytes"));
        }
        let mut create = redis::cmd("XGROUP");
        create
            .arg("CREATE")
            .arg(self.entity.key())
            .arg(name)
            .arg(match start {
                Start::Beginning => "0",
                Start::Now => "$",
            })
            .arg("MKSTREAM");
        match self.store.query::<()>(&create).await {
            Err(error) if error.server_code() != Some("BUSYGROUP") => return Err(error),
            _ => {}
        }
        Ok(Group {
            own: self.store.dedicated(self.entity.key()),
            stream: self.clone(),
            name: name.to_owned(),
        })
    }

    /// Removes events that every group has acknowledged and that are older than `keep`; how many.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn trim(&self, keep: Duration) -> Result<u64> {
        let call = TRIM
            .on(&self.entity)
            .key()
            .arg(keep.as_millis() as u64)
            .idempotent()
            .run(&self.store);
        observe::operation("stream.trim", self.entity.namespace(), call).await
    }

    /// How many events are there.
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
    /// [`is_config`](Error::is_config) for something that is no letter; otherwise those of the store.
    pub async fn dead_letters(&self, after: Option<&str>) -> Result<Vec<Dead>> {
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
                Dead {
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
        _ => Err(Error::config("this is no event's id")),
    }
}

/// The event is in the first field; `Err` has the id of what cannot be read.
fn decode<T: DeserializeOwned>(
    (id, fields): (String, Option<Vec<Vec<u8>>>),
) -> Result<Entry<T>, String> {
    match fields.as_deref() {
        Some([_, event, ..]) => match Json::decode(event) {
            Ok(event) => Ok(Entry { id, event }),
            Err(_) => Err(id),
        },
        _ => Err(id),
    }
}

/// A group of consumers; made by [`EventStream::group`]. It has a connection of its own to wait on.
pub struct Group<T> {
    stream: EventStream<T>,
    name: String,
    own: Dedicated,
}

impl<T: Serialize + DeserializeOwned> Group<T> {
    /// Up to `count` events that nobody of the group got yet, waiting for the first up to `wait`.
    ///
    /// An event that cannot be read becomes a dead letter of the group and is left out.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty consumer or no count; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// Events that were delivered and not received come again by [`claim`](Self::claim).
    pub async fn read(
        &mut self,
        consumer: &str,
        count: usize,
        wait: Duration,
    ) -> Result<Vec<Entry<T>>> {
        check_read(consumer, count)?;
        let entity = &self.stream.entity;
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP")
            .arg(&self.name)
            .arg(consumer)
            .arg("COUNT")
            .arg(count);
        // 0 would wait for ever.
        read.arg("BLOCK").arg((wait.as_millis() as u64).max(1));
        read.arg("STREAMS").arg(entity.key()).arg(">");
        let work = self
            .own
            .query::<Option<Vec<(String, RawEntries)>>>(&read, wait);
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
            self.bury(&id, "cannot be read").await?;
        }
        Ok(events)
    }

    /// Acknowledges events; how many of them were waited for.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for something that is no id; otherwise those of the store.
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
    ) -> Result<Vec<Entry<T>>> {
        check_read(consumer, count)?;
        let entity = &self.stream.entity;
        let call = CLAIM
            .on(entity)
            .key()
            .part("dead")
            .arg(&self.name)
            .arg(consumer)
            .arg(idle.as_millis() as u64)
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
                Err(id) => self.bury(&id, "cannot be read").await.map(drop)?,
            }
        }
        Ok(events)
    }

    /// Makes an event a dead letter of this group; `false` if the group does not wait for it.
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

    /// Has the group read again all events after an id, or from the beginning. What waits for an
    /// acknowledgement goes on waiting for it.
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
        return Err(Error::config("a consumer's name has 1 to 255 bytes"));
    }
    if !(1..=MAX_COUNT).contains(&count) {
        return Err(Error::config(format!(
            "read 1 to {MAX_COUNT} events at a time"
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

impl<T> fmt::Debug for Group<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("stream", &self.stream)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
