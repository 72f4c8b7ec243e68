//! How waiters learn that a lock was released.
//!
//! Each waiter has a subscription of its own. All of them share the store's connection to the node of the lock.

use futures_util::FutureExt as _;

use crate::{
    error::Result,
    key::Channel,
    store::{Event, Listen, Store, Subscription},
};

/// One waiter's subscription to the releases of a lock.
pub(crate) struct Listener {
    subscription: Subscription,
    stands: bool,
}

impl Listener {
    /// Starts to listen.
    pub(crate) async fn open(store: &Store, channel: &Channel) -> Result<Self> {
        let mut subscription = store.subscribe([Listen::Sharded(channel.clone())]).await?;
        // If others listen already, the subscription is active at once.
        let stands = subscription.next().now_or_never().is_some();
        Ok(Self {
            subscription,
            stands,
        })
    }

    /// Whether messages arrived from the start. If not, the first signal says that they do.
    pub(crate) fn stands(&self) -> bool {
        self.stands
    }

    /// Waits for a message to all waiters or to the one with this token, or for a gap in which one may have been missed.
    ///
    /// Cancel safe.
    pub(crate) async fn woken(&mut self, token: &str) {
        loop {
            match self.subscription.next().await {
                // Empty for all waiters, or the token of one waiter.
                Some(Event::Message(message))
                    if !message.payload.is_empty() && message.payload != token.as_bytes() => {}
                // What is missed from now on is looked for once messages arrive again.
                Some(Event::Lost) => {}
                Some(_) => return,
                // The subscription ended: only timeouts are left.
                None => std::future::pending().await,
            }
        }
    }

    /// Waits for any message, or for a gap in which one may have been missed.
    ///
    /// Cancel safe.
    pub(crate) async fn any(&mut self) {
        loop {
            match self.subscription.next().await {
                Some(Event::Lost) => {}
                Some(_) => return,
                None => std::future::pending().await,
            }
        }
    }
}
