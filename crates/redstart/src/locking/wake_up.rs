//! How waiters learn that a lock was released.
//!
//! Each waiter has a subscription of its own. All of them share the store's connection to the node of the lock. A message
//! wakes all waiters of the process, also one that is meant for a single waiter; the others go back to sleep. A waiter
//! whose subscription is refused polls, after a tenth of a second at first and every second in the end.

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

/// Why a waiter asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WokenBy {
    Message,
    /// Messages arrive from now on, and may have been missed before.
    Gap,
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

    /// Whether messages arrive, as far as this listener has read. If not, the next signal says that they do.
    pub(crate) fn stands(&self) -> bool {
        self.stands
    }

    /// Waits for a message to all waiters or to the one with this token, or for a gap in which one may have been missed.
    ///
    /// Cancel safe.
    pub(crate) async fn woken(&mut self, token: &str) -> WokenBy {
        loop {
            match self.next().await {
                // Empty for all waiters, or the token of one waiter.
                Some(message) if !message.is_empty() && message != token.as_bytes() => {}
                Some(_) => return WokenBy::Message,
                None => return WokenBy::Gap,
            }
        }
    }

    /// Waits for any message, or for a gap in which one may have been missed.
    ///
    /// Cancel safe.
    pub(crate) async fn any(&mut self) {
        self.next().await;
    }

    /// The next message, or `None` after a gap. Does not return while no message can arrive.
    async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.subscription.next().await {
                Some(Event::Message(message)) => return Some(message.payload),
                // What is missed from now on is looked for once messages arrive again.
                Some(Event::Lost) => self.stands = false,
                Some(_) => {
                    self.stands = true;
                    return None;
                }
                // The subscription ended: only time-outs are left.
                None => {
                    self.stands = false;
                    std::future::pending().await
                }
            }
        }
    }
}
