//! A command that waits for its reply.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Sleep;

use super::lock::{Ended, PATIENCE};
use crate::{aof::Place, blocking, dispatch, engine::Inner, reply::Reply};

/// A command that waits: a future of its reply.
///
/// # Cancel safety
///
/// Dropping it unblocks the client. What had been taken for it is put back.
#[must_use = "a command that waits is given up when this is dropped"]
pub struct Blocked {
    inner: Arc<Inner>,
    number: u64,
    /// Until the deadline or the next look; needs a runtime only once the future is polled.
    sleep: Option<Pin<Box<Sleep>>>,
    /// Where it waits for the log to have what it is answered.
    place: Place,
    finished: bool,
}

/// What a look at a waiting command found.
enum Look {
    Reply(Reply),
    /// It waits until this time (unix microseconds), or without limit.
    Waits(Option<i64>),
    /// It was served, but the log has not kept that yet; it wakes the task.
    Unkept,
    /// The state is held for long.
    Held,
}

impl Blocked {
    pub(super) fn new(inner: Arc<Inner>, number: u64) -> Blocked {
        Blocked {
            inner,
            number,
            sleep: None,
            place: Place::default(),
            finished: false,
        }
    }

    /// The reply if there is one by now. Not to be called again after that.
    pub fn try_take(&mut self) -> Option<Reply> {
        let mut state = self.inner.lock();
        dispatch::tick(&mut state, self.inner.clock.now_micros());
        if !blocking::is_served(&state, self.number) {
            return None;
        }
        let position = blocking::position(&state, self.number);
        drop(state);
        let kept = self.inner.commit(position);
        Some(self.take(kept))
    }

    /// Takes the reply of a command that was served.
    fn take(&mut self, kept: Result<(), Reply>) -> Reply {
        if let Err(failed) = kept {
            // What was taken for the client is put back when this is dropped.
            return failed;
        }
        self.finished = true;
        blocking::take(&mut self.inner.lock(), self.number)
    }

    fn look(&mut self, cx: &mut Context<'_>) -> Look {
        let Some(mut state) = self.inner.try_lock() else {
            return Look::Held;
        };
        let now = self.inner.clock.now_micros();
        dispatch::tick(&mut state, now);
        blocking::look_again(&mut state, self.number, now);
        if !blocking::is_served(&state, self.number) {
            blocking::wake_by(&mut state, self.number, cx.waker());
            if let Some(position) = state.blocking.synced(self.number)
                && let Some(log) = self.inner.log.get()
            {
                log.wake_when_synced(position, &mut self.place, cx.waker());
            }
            return Look::Waits(state.blocking.next_look(self.number, now));
        }
        let position = blocking::position(&state, self.number);
        // It may write to the disk: nobody else waits for that.
        drop(state);
        match self.inner.poll_kept(position, &mut self.place, cx) {
            Poll::Pending => Look::Unkept,
            Poll::Ready(Err(failed)) => Look::Reply(failed),
            Poll::Ready(Ok(())) => {
                let Some(mut state) = self.inner.try_lock() else {
                    return Look::Held;
                };
                self.finished = true;
                Look::Reply(blocking::take(&mut state, self.number))
            }
        }
    }
}

impl Future for Blocked {
    type Output = Reply;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply> {
        let this = self.get_mut();
        loop {
            let deadline = match this.look(cx) {
                Look::Reply(reply) => return Poll::Ready(reply),
                Look::Unkept => return Poll::Pending,
                Look::Waits(deadline) => deadline,
                Look::Held if !this.inner.can_sleep() => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                // Look again soon, whatever the deadline.
                Look::Held => {
                    this.sleep = Some(Box::pin(tokio::time::sleep(PATIENCE)));
                    Some(0)
                }
            };
            if !this.inner.clock.is_live() {
                return Poll::Pending;
            }
            if this.sleep.is_none() {
                let Some(deadline) = deadline else {
                    return Poll::Pending;
                };
                let left = (deadline - this.inner.clock.now_micros()).max(0) as u64;
                let sleep = tokio::time::sleep(Duration::from_micros(left));
                this.sleep = Some(Box::pin(sleep));
            }
            if let Some(sleep) = &mut this.sleep
                && sleep.as_mut().poll(cx).is_pending()
            {
                return Poll::Pending;
            }
            // Over, or a little early by rounding: look again.
            this.sleep = None;
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if !self.finished {
            self.inner.end(Ended::Wait(self.number));
        }
    }
}

impl std::fmt::Debug for Blocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocked").finish_non_exhaustive()
    }
}
