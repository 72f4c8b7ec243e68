//! What a session is sent out of band.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Sleep;

use super::lock::PATIENCE;
use crate::{
    aof::Place,
    client::{Inbox, Pushed},
    engine::Inner,
    reply::Reply,
};

/// The out-of-band replies of one session.
///
/// With [`crate::Fsync::Always`], what tells of the data arrives when that is on the disk, as replies do.
pub struct PushReceiver {
    inbox: Inbox,
    inner: Weak<Inner>,
    /// What was received and may not be seen yet.
    held: Option<Reply>,
    /// How many of the next messages were sent before `position` was looked up, the one that is held included.
    covered: usize,
    /// Up to where the log has to be on the disk for them; `None` if the state was held for long.
    position: Option<u64>,
    /// Where it waits for that.
    place: Place,
    /// Until the next look: at the state that was held, or for keys that expired.
    sleep: Option<Pin<Box<Sleep>>>,
}

/// How often keys that expired are looked for while nothing else happens.
const SWEEP: Duration = Duration::from_millis(100);

impl PushReceiver {
    pub(super) fn new(inbox: Inbox, inner: &Arc<Inner>) -> PushReceiver {
        PushReceiver {
            inbox,
            inner: Arc::downgrade(inner),
            held: None,
            covered: 0,
            position: None,
            place: Place::default(),
            sleep: None,
        }
    }

    /// The next push; `None` when the session is gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<Reply> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The next push if there is one that may be seen.
    pub fn try_recv(&mut self) -> Option<Reply> {
        if self.held.is_none() {
            let pushed = self.inbox.try_recv()?;
            if let Some(reply) = self.hold(pushed) {
                return Some(reply);
            }
        }
        let inner = self.inner.upgrade();
        let may_be_seen = inner.is_none_or(|inner| {
            let position = self.look_up(&inner);
            position.is_some_and(|position| inner.is_synced(position))
        });
        may_be_seen.then(|| self.release()).flatten()
    }

    /// As [`PushReceiver::recv`], to be called from a `poll` function.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Reply>> {
        loop {
            if self.held.is_some() {
                std::task::ready!(self.poll_held(cx));
                return Poll::Ready(self.release());
            }
            if let Poll::Ready(pushed) = self.inbox.poll_recv(cx) {
                let Some(pushed) = pushed else {
                    return Poll::Ready(None);
                };
                match self.hold(pushed) {
                    Some(reply) => return Poll::Ready(Some(reply)),
                    None => continue,
                }
            }
            // No command may ever come that would notice that a key has expired.
            let Some(inner) = self.inner.upgrade().filter(|inner| inner.tells_of_expiry()) else {
                return Poll::Pending;
            };
            std::task::ready!(self.poll_sleep(SWEEP, cx));
            inner.tick();
        }
    }

    /// Keeps a message back, unless it may be seen at any time.
    fn hold(&mut self, pushed: Pushed) -> Option<Reply> {
        if pushed.free {
            self.covered = self.covered.saturating_sub(1);
            return Some(pushed.reply);
        }
        self.held = Some(pushed.reply);
        None
    }

    fn release(&mut self) -> Option<Reply> {
        self.covered = self.covered.saturating_sub(1);
        self.held.take()
    }

    /// The position that the held message waits for.
    fn look_up(&mut self, inner: &Inner) -> Option<u64> {
        if self.covered == 0 || self.position.is_none() {
            // What is in the inbox by now was sent by units that have ended when the state is looked at.
            let covered = 1 + self.inbox.len();
            self.position = inner.told_position();
            self.covered = covered;
        }
        self.position
    }

    /// Ready once the held message may be seen.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(inner) = self.inner.upgrade() else {
                return Poll::Ready(());
            };
            match self.look_up(&inner) {
                Some(position) => return inner.poll_synced(position, &mut self.place, cx),
                None if inner.can_sleep() => std::task::ready!(self.poll_sleep(PATIENCE, cx)),
                None => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }

    fn poll_sleep(&mut self, time: Duration, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        std::task::ready!(sleep.as_mut().poll(cx));
        self.sleep = None;
        Poll::Ready(())
    }
}

impl std::fmt::Debug for PushReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PushReceiver").finish_non_exhaustive()
    }
}
