//! Subscriptions that say what they missed.
//!
//! Pub/sub delivers at most once: what is published while the line is down is gone. A program that keeps state that
//! messages feed must hear of the gap, so a [`Subscription`] yields not only messages but also what happened
//! to itself: [`Event::Lost`] as soon as the loss is noticed, [`Event::Resubscribed`] when it listens again.
//!
//! All subscriptions of a store share one connection to each node:
//!
//! ```text
//! Subscription ── Mailbox          what one subscriber has not read yet; bounded
//!                    ▲
//!                   Hub            who listens to what, and on which line; one for each runtime
//!                    ▲
//!                SharedLine        one connection: subscribes for all, hears, is re-established
//! ```
//!
//! A line lives in the runtime of its subscribers, so that it runs whenever they do. It is given up if its server says
//! nothing for the store's deadline (at least a second) while an answer is awaited; a server that is busy with messages is
//! given a minute. A connection counts as good once it has served for a second; until then the pauses between attempts
//! grow.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::Stream;
use tokio::runtime::Handle;

use crate::{
    error::{Error, Result},
    key::Channel,
};

mod hub;
mod line;
mod mailbox;
mod topic;
mod tracking;

pub(super) use hub::Hubs;

use hub::Hub;
use mailbox::{Mail, Mailbox};
use topic::Wanted;

/// What to listen to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listen {
    /// A sharded channel (`SSUBSCRIBE`): on a Cluster its messages stay on the node that owns the slot.
    Sharded(Channel),
    /// A channel of the classic kind (`SUBSCRIBE`), which a Cluster floods to all its nodes.
    Channel(String),
    /// Classic channels by glob pattern (`PSUBSCRIBE`).
    Pattern(String),
    /// Changes of all keys with these prefixes (`CLIENT TRACKING … BCAST`), from every node.
    Changes(Vec<String>),
}

/// A message, or what happened to the subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The subscription is active for the first time: what is published from now on arrives.
    Subscribed,
    /// A message.
    Message(Message),
    /// These keys changed (for [`Listen::Changes`]).
    Changed(Vec<Vec<u8>>),
    /// All keys may have changed: the database was flushed.
    Flushed,
    /// Messages may be missed from before now until `Resubscribed`: the connection was lost, the slot moved, or the
    /// reader was so slow that its buffer was full.
    Lost,
    /// The subscription is active again.
    Resubscribed,
}

/// A published message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The channel it was published to.
    pub channel: String,
    /// The pattern it matched, for [`Listen::Pattern`].
    pub pattern: Option<String>,
    /// What was published.
    pub payload: Vec<u8>,
}

/// A stream of [`Event`]s. Dropping it ends the subscription.
///
/// All subscriptions of a store share one connection to each node. Up to 8192 events and 4 MiB wait for a slow reader;
/// what comes after that is dropped and reported as a gap: [`Event::Lost`], then [`Event::Resubscribed`].
///
/// It ends, so that [`Subscription::next`] gives `None`, only if it is read without a runtime after its own has
/// ended.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, key::Keys, store::{Event, Listen}};
/// let store = Store::connect("memory://").await?;
/// let news = Keys::new("app", "news")?.entity("sport")?.channel("live");
///
/// let mut listener = store.subscribe([Listen::Sharded(news.clone())]).await?;
/// assert_eq!(listener.next().await, Some(Event::Subscribed));
///
/// store.query::<()>(redis::cmd("SPUBLISH").arg(&news).arg("goal")).await?;
/// let Some(Event::Message(message)) = listener.next().await else { panic!() };
/// assert_eq!(message.payload, b"goal");
/// # Ok(()) }
/// ```
pub struct Subscription {
    hubs: Arc<Hubs>,
    hub: Arc<Hub>,
    mailbox: Arc<Mailbox>,
    wanted: Arc<Wanted>,
    id: u64,
}

impl Subscription {
    /// Waits for the next event.
    ///
    /// # Cancel safety
    ///
    /// No event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Waits for [`Event::Subscribed`]. Another event may come before it, if a part of the subscription is active
    /// already; it goes to `early`.
    ///
    /// # Errors
    ///
    /// A time-out, with the reason if a server gave one.
    #[cfg_attr(not(feature = "messaging"), allow(dead_code))]
    pub(crate) async fn established(
        &mut self,
        within: Duration,
        late: &'static str,
        mut early: impl FnMut(Event),
    ) -> Result<()> {
        let waiting = async {
            loop {
                match self.next().await {
                    Some(Event::Subscribed) => return Ok(()),
                    Some(event) => early(event),
                    None => return Err(Error::config("this store cannot subscribe")),
                }
            }
        };
        match tokio::time::timeout(within, waiting).await {
            Ok(established) => established,
            Err(_) => {
                let error = Error::timeout(late);
                Err(match self.hub.why(&self.wanted) {
                    Some(why) => error.with_source(Error::shared(&why)),
                    None => error,
                })
            }
        }
    }

    #[cfg(test)]
    fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    pub(super) fn open(hubs: &Arc<Hubs>, runtime: &Handle, topics: Vec<Listen>) -> Result<Self> {
        if topics.is_empty() {
            return Err(Error::config(
                "a subscription needs at least one channel, pattern or prefix",
            ));
        }
        hubs.can_subscribe()?;
        let wanted = Arc::new(Wanted::new(topics));
        let mailbox = Arc::new(Mailbox::default());
        let hub = hubs.hub(runtime);
        let id = hub.attach(runtime, &wanted, &mailbox);
        Ok(Self {
            hubs: hubs.clone(),
            hub,
            mailbox,
            wanted,
            id,
        })
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        // Again once, in the runtime of the reader.
        for _ in 0..2 {
            match self.mailbox.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Mail::Event(event)) => return Poll::Ready(Some(event)),
                Poll::Ready(Mail::Orphaned) => {
                    let Ok(runtime) = Handle::try_current() else {
                        return Poll::Ready(None);
                    };
                    self.hub = self.hubs.hub(&runtime);
                    self.id = self.hub.attach(&runtime, &self.wanted, &self.mailbox);
                }
            }
        }
        Poll::Ready(None)
    }
}

impl Stream for Subscription {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.poll_event(cx)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.detach(self.id);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("wanted", &self.wanted)
            .finish_non_exhaustive()
    }
}
