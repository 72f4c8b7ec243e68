//! The task of a connection: it receives, hands the replies out, and keeps the deadlines.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use redis::{RedisError, RedisResult, Value};
use tokio::time::{Instant, Sleep};

use super::{Shared, State, TURN, Waiter, Written, closed, not_sent};
use crate::store::{request::Failure, transport::input::Input};

/// Receives and hands out.
pub(super) struct Task {
    shared: Arc<Shared>,
    input: Input,
    /// Empty between polls.
    replies: Vec<(Waiter, Value)>,
    alarm: Pin<Box<Sleep>>,
    alarm_at: Option<Instant>,
}

impl Task {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            input: Input::new(),
            replies: Vec::new(),
            alarm: Box::pin(tokio::time::sleep_until(Instant::now())),
            alarm_at: None,
        }
    }
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let task = &mut *self;
        let turn = match task.receive(cx) {
            Ok(woken) => task.look(cx, woken),
            Err(error) => Err(error),
        };
        match turn {
            Ok(()) => Poll::Pending,
            Err(error) => {
                task.end(&error);
                Poll::Ready(())
            }
        }
    }
}

impl Task {
    /// Reads what is there and hands it out; returns how many replies that were. While a long reply keeps coming, what
    /// waits to be sent gets its turn too.
    fn receive(&mut self, cx: &mut Context<'_>) -> RedisResult<usize> {
        let (mut woken, mut received) = (0, 0);
        while received < TURN {
            match self.shared.stream.poll_read_ready(cx) {
                Poll::Pending => return Ok(woken),
                Poll::Ready(ready) => ready?,
            }
            let more = self.input.receive(&self.shared.stream)?;
            if more > 0 {
                received += more;
                woken += self.hand_out()?;
            }
        }
        cx.waker().wake_by_ref();
        Ok(woken)
    }

    /// Passes complete replies to their waiters.
    fn hand_out(&mut self) -> RedisResult<usize> {
        if !self.input.is_worth_reading() {
            return Ok(0);
        }
        let taken = self.take_replies();
        let woken = self.replies.len();
        // Also if what came behind them is no reply.
        for (mut waiter, value) in self.replies.drain(..) {
            waiter.answer(Ok(value));
        }
        taken.map(|()| woken)
    }

    fn take_replies(&mut self) -> RedisResult<()> {
        let mut queue = self.shared.queue.lock();
        while let Some(value) = self.input.next()? {
            self.replies.extend(queue.answered(value)?);
        }
        Ok(())
    }

    /// Sends what waits to be sent, and answers those whose deadline has passed.
    fn look(&mut self, cx: &mut Context<'_>, woken: usize) -> RedisResult<()> {
        let shared = self.shared.clone();
        {
            let mut queue = shared.queue.lock();
            if let State::Broken(error) = &queue.state {
                return Err(error.clone());
            }
            let left = matches!(queue.state, State::Left);
            if left && !queue.waiters.iter().any(Waiter::is_waited_for) {
                return Err(closed());
            }
            queue.task = Some(cx.waker().clone());
        }
        self.send_rest(cx)?;
        let mut guard = shared.queue.lock();
        let queue = &mut *guard;
        let gathers = std::mem::take(&mut queue.gathers);
        let others_first = woken > 1 || gathers;
        let promised = std::mem::replace(&mut queue.awaited, others_first);
        let due = !gathers && (promised || woken <= 1);
        if due && !queue.sending && !queue.bytes.is_empty() {
            shared.transmit(guard);
        } else {
            drop(guard);
        }
        if others_first {
            // They run before this task does again.
            cx.waker().wake_by_ref();
        }
        // Also while replies flow: there may be no poll without any for long.
        self.watch(cx);
        Ok(())
    }

    /// Sends on what the system did not take at once. The queue is not locked meanwhile: callers that ask are not held
    /// up by a long request.
    fn send_rest(&self, cx: &mut Context<'_>) -> RedisResult<()> {
        let mut turn = 0;
        loop {
            // Nobody else sends or takes it while there is one.
            let Some((bytes, sent)) = self.shared.queue.lock().rest.take() else {
                return Ok(());
            };
            let (written, pending) = match self.shared.stream.poll_write_ready(cx) {
                Poll::Pending => (Written::Partly(sent), true),
                Poll::Ready(Err(error)) => (Written::Failed(error.into(), sent), false),
                Poll::Ready(Ok(())) => (self.shared.write_out(&bytes, sent, TURN - turn), false),
            };
            let mut queue = self.shared.queue.lock();
            match written {
                Written::All => queue.done(bytes),
                Written::Partly(so_far) => {
                    queue.rest = Some((bytes, so_far));
                    turn += so_far - sent;
                }
                Written::Failed(error, sent) => {
                    queue.rest = Some((bytes, sent));
                    return Err(error);
                }
            }
            if pending {
                return Ok(());
            }
            if turn >= TURN {
                cx.waker().wake_by_ref();
                return Ok(());
            }
        }
    }

    /// Answers those whose deadline has passed.
    ///
    /// A connection on which one has passed may be dead, and its caller may have gone before and tell nobody. So it
    /// takes no more requests; the replies that still come are handed out. The deadline of a caller in a hurry says nothing
    /// of the connection: for that, the store's own deadline counts.
    fn watch(&mut self, cx: &mut Context<'_>) {
        loop {
            let alarm = self.shared.queue.lock().alarm;
            let Some(at) = alarm else {
                return;
            };
            if self.alarm_at != alarm {
                self.alarm.as_mut().reset(at);
                self.alarm_at = alarm;
            }
            // By the clock too: a task that has used up its budget is told that the alarm is pending.
            if Instant::now() < at && self.alarm.as_mut().poll(cx).is_pending() {
                return;
            }
            let now = Instant::now();
            let mut queue = self.shared.queue.lock();
            let mut next: Option<Instant> = None;
            let mut late = false;
            let mut wake = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
            let open = matches!(queue.state, State::Open);
            for waiter in &mut queue.waiters {
                if waiter.reply.is_some() {
                    match waiter.deadline <= now {
                        true => waiter.answer(Err(Failure::TimedOut)),
                        false => wake(waiter.deadline),
                    }
                }
                match waiter.patience <= now {
                    true => late = true,
                    false if open && waiter.reply.is_none() => wake(waiter.patience),
                    false => {}
                }
            }
            queue.alarm = next;
            if late && crate::mend::is_missing("late replies keep their place") {
                queue.waiters.retain(|waiter| waiter.reply.is_some());
            }
            if late && matches!(queue.state, State::Open) {
                queue.state = State::Left;
                // If nobody waits any more, it ends.
                cx.waker().wake_by_ref();
            }
        }
    }

    /// Tells all callers that there will be no reply.
    fn end(&mut self, error: &RedisError) {
        let (waiters, sent) = {
            let mut queue = self.shared.queue.lock();
            queue.state = State::Ended;
            queue.bytes = Vec::new();
            let unsent = queue
                .rest
                .take()
                .map_or(0, |(bytes, sent)| bytes.len() - sent);
            (
                std::mem::take(&mut queue.waiters),
                queue.taken - unsent as u64,
            )
        };
        self.shared.room.notify_waiters();
        for mut waiter in waiters {
            let sent_once =
                waiter.start < sent && !crate::mend::is_missing("what was sent counts as sent");
            waiter.answer(Err(if sent_once {
                Failure::Lost(error.clone())
            } else {
                not_sent(error.clone())
            }));
        }
    }
}

impl Drop for Task {
    /// The runtime may end before the connection does.
    fn drop(&mut self) {
        self.end(&closed());
    }
}
