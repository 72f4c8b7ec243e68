//! Typed messages to whoever listens now.
//!
//! # What it promises, and what it loses
//!
//! A message reaches those who listen when it is published, at most once, in order for each publisher. It is
//! not kept: who was not there, or whose line was down, has missed it. A [`Listener`] says when that may have
//! happened ([`Heard::Gap`]), so that it can fetch the state anew. What must arrive belongs into a
//! [`queue`](super::queue) or a [`stream`](super::stream).
//!
//! [`Topic`] is one topic by name, on a sharded channel: on a Cluster its messages stay on one node.
//! [`Topics`] is for many at once by glob pattern, on classic channels, which a Cluster floods to all its nodes.
//!
//! **Channels**: `<namespace>:topic:{<name>}:live` (sharded) and `<namespace>:topics:{<name>}` (classic).
//! **Round trips**: one to publish. **While the store is down** publishing fails; listeners hear a gap and go on
//! by themselves. **Names**: operations `topic.publish`, `topic.listen`; events `topic.gap`, `topic.malformed`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! # use redstart::{Store, messaging::topic::{Heard, Topic, Topics}};
//! let store = Store::connect("memory://").await?;
//! let goals = Topic::<u32>::new(&store, "news", "goals")?;
//! let mut listener = goals.listen().await?;
//! goals.publish(&3).await?;
//! assert!(matches!(listener.next().await, Some(Heard::Message { message: 3, .. })));
//!
//! let all = Topics::<String>::new(&store, "news")?;
//! let mut listener = all.listen("sport.*").await?;
//! all.publish("weather.rain", &"tomorrow".into()).await?;
//! all.publish("sport.tennis", &"set point".into()).await?;
//! let Some(Heard::Message { topic, message }) = listener.next().await else { panic!() };
//! assert_eq!((topic.as_str(), message.as_str()), ("sport.tennis", "set point"));
//! # Ok(()) }
//! ```

use std::{fmt, marker::PhantomData, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
    key::{Channel, Keys},
    observe,
    store::{Event, Listen, Store, Subscription},
};

/// One topic by name. Cheap to clone. See the [module](self).
pub struct Topic<T> {
    store: Store,
    namespace: Arc<str>,
    name: Arc<str>,
    channel: Channel,
    of: PhantomData<fn(T) -> T>,
}

/// Many topics, to be listened to by pattern. Cheap to clone. See the [module](self).
pub struct Topics<T> {
    store: Store,
    keys: Keys,
    of: PhantomData<fn(T) -> T>,
}

/// What a listener heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard<T> {
    /// A message.
    Message {
        /// The topic it was published to.
        topic: String,
        /// The message.
        message: T,
    },
    /// Messages may have been missed before this point.
    Gap,
    /// Something that is no `T` was published.
    Malformed {
        /// The topic it was published to.
        topic: String,
    },
}

impl<T: Serialize + DeserializeOwned> Topic<T> {
    /// The topic of this name.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a namespace or a name that cannot be used.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        let entity = Keys::new(namespace, "topic")?.entity(name)?;
        Ok(Self {
            store: store.clone(),
            namespace: entity.namespace().clone(),
            name: name.into(),
            channel: entity.channel("live"),
            of: PhantomData,
        })
    }

    /// Publishes a message; how many listened on the server (on a Cluster: on that node).
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if it cannot be encoded; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the message may or may not have been published.
    pub async fn publish(&self, message: &T) -> Result<u64> {
        observe::operation("topic.publish", &self.namespace, async {
            let mut publish = redis::cmd("SPUBLISH");
            publish.arg(&self.channel).arg(Json::encode(message)?);
            self.store.query(&publish).await
        })
        .await
    }

    /// Listens from now on: when this returns, what is published is heard.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a store that cannot subscribe; [`is_timeout`](Error::is_timeout) if
    /// the subscription does not come to stand.
    pub async fn listen(&self) -> Result<Listener<T>> {
        let name = self.name.clone();
        observe::operation(
            "topic.listen",
            &self.namespace,
            Listener::open(
                &self.store,
                Listen::Sharded(self.channel.clone()),
                Named::One(name),
            ),
        )
        .await
    }
}

impl<T: Serialize + DeserializeOwned> Topics<T> {
    /// The topics of a namespace.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a namespace that cannot be used.
    pub fn new(store: &Store, namespace: &str) -> Result<Self> {
        Ok(Self {
            store: store.clone(),
            keys: Keys::new(namespace, "topics")?,
            of: PhantomData,
        })
    }

    /// Publishes a message to a topic; how many listened on the node that took it.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a name that cannot be used; otherwise as for [`Topic::publish`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Topic::publish`].
    pub async fn publish(&self, topic: &str, message: &T) -> Result<u64> {
        observe::operation("topic.publish", self.keys.namespace(), async {
            let channel = self.keys.entity(topic)?;
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(channel.key()).arg(Json::encode(message)?);
            self.store.query(&publish).await
        })
        .await
    }

    /// Listens to all topics whose name matches a glob pattern (`*`, `?`, `[ab]`).
    ///
    /// # Errors
    ///
    /// As for [`Topic::listen`].
    pub async fn listen(&self, pattern: &str) -> Result<Listener<T>> {
        observe::operation("topic.listen", self.keys.namespace(), async {
            let glob = self.keys.entity(pattern)?.key().as_str().to_owned();
            let prefix = self.keys.prefix().unwrap_or_default() + "{";
            Listener::open(&self.store, Listen::Pattern(glob), Named::After(prefix)).await
        })
        .await
    }
}

/// How a topic's name is read from the channel a message came on.
enum Named {
    One(Arc<str>),
    After(String),
}

impl Named {
    fn read(&self, channel: &str) -> String {
        match self {
            Self::One(name) => name.to_string(),
            Self::After(prefix) => channel
                .strip_prefix(prefix.as_str())
                .and_then(|rest| rest.strip_suffix('}'))
                .unwrap_or(channel)
                .to_owned(),
        }
    }
}

/// Hears messages; made by [`Topic::listen`] and [`Topics::listen`]. Dropping it ends the subscription.
pub struct Listener<T> {
    subscription: Subscription,
    named: Named,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Listener<T> {
    async fn open(store: &Store, place: Listen, named: Named) -> Result<Self> {
        let mut subscription = store.subscribe([place]).await?;
        match tokio::time::timeout(store.deadline() * 5, subscription.next()).await {
            Ok(Some(_)) => Ok(Self {
                subscription,
                named,
                of: PhantomData,
            }),
            Ok(None) => Err(Error::config("this store cannot subscribe")),
            Err(_) => Err(Error::timeout(
                "the subscription did not come to stand in time",
            )),
        }
    }

    /// Waits for the next message or gap; `None` only when the store is gone.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Heard<T>> {
        loop {
            match self.subscription.next().await? {
                Event::Message(message) => {
                    let topic = self.named.read(&message.channel);
                    return Some(match Json::decode(&message.payload) {
                        Ok(message) => Heard::Message { topic, message },
                        Err(_) => {
                            observe::event("topic.malformed");
                            Heard::Malformed { topic }
                        }
                    });
                }
                // Said when it listens again: what is fetched then is not missed anew.
                Event::Resubscribed => {
                    observe::event("topic.gap");
                    return Some(Heard::Gap);
                }
                _ => {}
            }
        }
    }
}

impl<T> Clone for Topic<T> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            channel: self.channel.clone(),
            of: PhantomData,
        }
    }
}

impl<T> Clone for Topics<T> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            keys: self.keys.clone(),
            of: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Topic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Topic").field(&self.channel).finish()
    }
}

impl<T> fmt::Debug for Topics<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Topics")
            .field(self.keys.namespace())
            .finish()
    }
}

impl<T> fmt::Debug for Listener<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}
