//! Typed messages to current listeners.

use std::{collections::VecDeque, fmt, marker::PhantomData, sync::Arc};

use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::Notify, task::JoinHandle};

use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
    key::{Channel, Keys},
    observe,
    store::{Event, Listen, Message, Store, Subscription},
};

const BUFFER: usize = 1024;

/// Typed messages to current listeners, under one name. Cheap to clone.
///
/// # Promises
///
/// A message reaches the listeners connected when it is published, at most once, in order for each publisher.
///
/// # Limits
///
/// Messages are not kept: a listener that was not there, or whose connection was down, has missed them. So has one that
/// reads so slowly that its [buffer](TopicBuilder::buffer) is full. A [`TopicListener`] reports when that may have
/// happened ([`Heard::Gap`]), so that it can fetch the current state. A message whose publication failed in doubt may
/// still arrive, also after later ones. What must arrive belongs in a
/// [`Queue`](super::Queue) or an [`EventStream`](super::EventStream).
///
/// # Keys
///
/// No keys; the sharded channel `<namespace>:topic:{<name>}:live`. On a Cluster its messages stay on one node.
/// [`Topics`] is for many topics at once by glob pattern, on classic channels, which a Cluster sends to all its nodes.
///
/// # Round trips
///
/// One to publish.
///
/// # While the store is down
///
/// Publishing fails. Listeners get a gap when the connection is re-established.
///
/// # Metrics
///
/// Operations `topic.publish`, `topic.listen`; events `topic.gap`, `topic.malformed`.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use redstart::{Store, messaging::{Heard, Topic}};
/// let store = Store::connect("memory://").await?;
/// let goals = Topic::<u32>::new(&store, "news", "goals")?;
/// let mut listener = goals.listen().await?;
/// goals.publish(&3).await?;
/// assert!(matches!(listener.next().await, Some(Heard::Message { message: 3, .. })));
/// # Ok(()) }
/// ```
pub struct Topic<T> {
    store: Store,
    namespace: Arc<str>,
    name: Arc<str>,
    channel: Channel,
    buffer: usize,
    of: PhantomData<fn(T) -> T>,
}

/// Many topics, listened to by pattern. Cheap to clone.
///
/// As [`Topic`], on the classic channels `<namespace>:topics.<name>:{<topic>}`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use redstart::{Store, messaging::{Heard, Topics}};
/// # let store = Store::connect("memory://").await?;
/// let all = Topics::<String>::new(&store, "news", "headlines")?;
/// let mut listener = all.listen("sport.*").await?;
/// all.publish("weather.rain", &"tomorrow".into()).await?;
/// all.publish("sport.tennis", &"set point".into()).await?;
/// let Some(Heard::Message { topic, message }) = listener.next().await else { panic!() };
/// assert_eq!((topic.as_str(), message.as_str()), ("sport.tennis", "set point"));
/// # Ok(()) }
/// ```
pub struct Topics<T> {
    store: Store,
    keys: Keys,
    buffer: usize,
    of: PhantomData<fn(T) -> T>,
}

/// Settings of a [`Topic`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct TopicBuilder<T> {
    store: Store,
    namespace: String,
    name: String,
    buffer: usize,
    of: PhantomData<fn(T) -> T>,
}

/// Settings of [`Topics`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct TopicsBuilder<T> {
    store: Store,
    namespace: String,
    name: String,
    buffer: usize,
    of: PhantomData<fn(T) -> T>,
}

fn check_buffer(messages: usize) -> Result<()> {
    match messages {
        0 => Err(Error::config(
            "a listener's buffer must have room for at least 1 message",
        )),
        _ => Ok(()),
    }
}

impl<T: Serialize + DeserializeOwned> TopicBuilder<T> {
    /// How many unread messages a listener keeps; those beyond it are dropped and reported as a gap (default 1024).
    pub fn buffer(mut self, messages: usize) -> Self {
        self.buffer = messages;
        self
    }

    /// The topic. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name, or an empty buffer.
    pub fn build(self) -> Result<Topic<T>> {
        check_buffer(self.buffer)?;
        let entity = super::entity("topic", &self.namespace, &self.name, None)?;
        Ok(Topic {
            store: self.store,
            namespace: entity.namespace().clone(),
            name: self.name.into(),
            channel: entity.channel("live"),
            buffer: self.buffer,
            of: PhantomData,
        })
    }
}

impl<T: Serialize + DeserializeOwned> TopicsBuilder<T> {
    /// How many unread messages a listener keeps; those beyond it are dropped and reported as a gap (default 1024).
    pub fn buffer(mut self, messages: usize) -> Self {
        self.buffer = messages;
        self
    }

    /// The topics. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name, or an empty buffer.
    pub fn build(self) -> Result<Topics<T>> {
        check_buffer(self.buffer)?;
        Ok(Topics {
            keys: Keys::named(&self.namespace, "topics", &self.name)?,
            store: self.store,
            buffer: self.buffer,
            of: PhantomData,
        })
    }
}

impl<T: Serialize + DeserializeOwned> Topic<T> {
    /// A topic with default settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Starts a topic's settings, from the defaults.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> TopicBuilder<T> {
        TopicBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            buffer: BUFFER,
            of: PhantomData,
        }
    }

    /// Publishes a message; how many clients of the server listened (on a Cluster: of that node).
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if it cannot be encoded; otherwise those of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, the message may or may not have been published.
    pub async fn publish(&self, message: &T) -> Result<u64> {
        observe::operation("topic.publish", &self.namespace, async {
            let mut publish = redis::cmd("SPUBLISH");
            publish.arg(&self.channel).arg(Json::encode(message)?);
            self.store.query(&publish).await
        })
        .await
    }

    /// Listens from now on: messages published after this returns are heard.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a store that cannot subscribe; [`is_timeout`](Error::is_timeout) if the
    /// subscription is not established in time.
    pub async fn listen(&self) -> Result<TopicListener<T>> {
        let source = Listen::Sharded(self.channel.clone());
        let named = Named::One(self.name.clone());
        let open = TopicListener::open(&self.store, source, named, self.buffer);
        observe::operation("topic.listen", &self.namespace, open).await
    }
}

impl<T: Serialize + DeserializeOwned> Topics<T> {
    /// Topics with default settings.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid namespace or name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Starts the topics' settings, from the defaults.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> TopicsBuilder<T> {
        TopicsBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            buffer: BUFFER,
            of: PhantomData,
        }
    }

    /// Publishes a message to a topic; how many clients of the node that took it listened.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an invalid topic; otherwise as for [`Topic::publish`].
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
    pub async fn listen(&self, pattern: &str) -> Result<TopicListener<T>> {
        observe::operation("topic.listen", self.keys.namespace(), async {
            let glob = self.keys.entity(pattern)?.key().as_str().to_owned();
            let named = Named::After(self.keys.prefix().unwrap_or_default() + "{");
            TopicListener::open(&self.store, Listen::Pattern(glob), named, self.buffer).await
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
    /// The message that was published is not a `T`.
    Malformed {
        /// The topic it was published to.
        topic: String,
    },
}

/// Receives messages; made by [`Topic::listen`] and [`Topics::listen`]. Dropping it ends the subscription.
pub struct TopicListener<T> {
    unread: Arc<Unread>,
    reader: JoinHandle<()>,
    named: Named,
    of: PhantomData<fn() -> T>,
}

/// What was received and not read yet, up to a limit.
struct Unread {
    limit: usize,
    state: Mutex<UnreadState>,
    changed: Notify,
}

#[derive(Default)]
struct UnreadState {
    /// `None` is a gap.
    messages: VecDeque<Option<Message>>,
    /// Messages were dropped after the last one in the buffer.
    dropped: bool,
    ended: bool,
}

impl Unread {
    fn push(&self, message: Option<Message>) {
        let mut state = self.state.lock();
        if state.messages.len() < self.limit {
            if std::mem::take(&mut state.dropped) {
                state.messages.push_back(None);
            }
            state.messages.push_back(message);
        } else {
            state.dropped = true;
        }
        self.changed.notify_one();
    }

    async fn next(&self) -> Option<Option<Message>> {
        loop {
            {
                let mut state = self.state.lock();
                if let Some(message) = state.messages.pop_front() {
                    return Some(message);
                }
                if std::mem::take(&mut state.dropped) {
                    return Some(None);
                }
                if state.ended {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }

    fn hear(&self, event: Event) {
        match event {
            Event::Message(message) => {
                if crate::mend::is_missing("a gap has a reason") {
                    self.push(None);
                }
                self.push(Some(message));
            }
            // Reported when messages arrive again: state that is fetched then is complete.
            Event::Resubscribed if !crate::mend::is_missing("gaps are reported") => {
                self.push(None);
            }
            _ => {}
        }
    }

    async fn fill(&self, mut subscription: Subscription) {
        while let Some(event) = subscription.next().await {
            self.hear(event);
        }
        self.state.lock().ended = true;
        self.changed.notify_one();
    }
}

impl<T: DeserializeOwned> TopicListener<T> {
    async fn open(store: &Store, source: Listen, named: Named, limit: usize) -> Result<Self> {
        let mut subscription = store.subscribe([source]).await?;
        let unread = Arc::new(Unread {
            limit,
            state: Mutex::default(),
            changed: Notify::new(),
        });
        subscription
            .established(
                store.deadline() * 5,
                "the subscription was not established in time",
                |event| unread.hear(event),
            )
            .await?;
        let reader = crate::task::spawn({
            let unread = unread.clone();
            async move { unread.fill(subscription).await }
        });
        Ok(Self {
            unread,
            reader,
            named,
            of: PhantomData,
        })
    }

    /// Waits for the next message or gap; `None` only when the store is gone.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Heard<T>> {
        let Some(message) = self.unread.next().await? else {
            observe::event("topic.gap");
            return Some(Heard::Gap);
        };
        let topic = self.named.read(&message.channel);
        Some(match Json::decode(&message.payload) {
            Ok(message) => Heard::Message { topic, message },
            Err(_) => {
                observe::event("topic.malformed");
                Heard::Malformed { topic }
            }
        })
    }
}

impl<T> Drop for TopicListener<T> {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl<T> Clone for Topic<T> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            channel: self.channel.clone(),
            buffer: self.buffer,
            of: PhantomData,
        }
    }
}

impl<T> Clone for Topics<T> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            keys: self.keys.clone(),
            buffer: self.buffer,
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
        f.debug_tuple("Topics").field(&self.keys).finish()
    }
}

impl<T> fmt::Debug for TopicListener<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopicListener").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(n: u8) -> Option<Message> {
        Some(Message {
            channel: "c".to_owned(),
            pattern: None,
            payload: vec![n],
        })
    }

    #[tokio::test]
    async fn messages_beyond_the_limit_are_one_gap_at_their_place() {
        let unread = Unread {
            limit: 2,
            state: Mutex::default(),
            changed: Notify::new(),
        };
        for n in 0..5 {
            unread.push(message(n));
        }
        assert_eq!(unread.next().await, Some(message(0)));
        unread.push(message(5));
        assert_eq!(unread.next().await, Some(message(1)));
        assert_eq!(unread.next().await, Some(None), "2, 3 and 4 were dropped");
        assert_eq!(unread.next().await, Some(message(5)));
        for n in 6..9 {
            unread.push(message(n));
        }
        for n in 6..8 {
            assert_eq!(unread.next().await, Some(message(n)));
        }
        assert_eq!(unread.next().await, Some(None), "8 was dropped");
    }
}
