//! One connection that all tasks share.
//!
//! A caller writes its request into a common buffer and sends that buffer, unless another caller is sending already
//! (and takes this request along) or is about to. One task receives: it hands the replies out in order, lets the
//! callers that it woke write their next requests, and sends those together. So a caller alone waits for nobody, and
//! under load, when most of a client's time goes into system calls and wake-ups, both are shared.
//!
//! Deadlines need no timer each: the task keeps one, for the earliest of them. The task lives in the runtime that
//! connected. A caller in another runtime has a timer of its own, since the first one may not be running.

use std::{collections::VecDeque, io, sync::Arc, task::Waker};

use parking_lot::{Mutex, MutexGuard};
use redis::{ErrorKind, RedisError, RedisResult, ServerError, Value};
use tokio::{
    runtime::{self, Handle},
    sync::{Notify, oneshot},
    time::{Instant, timeout_at},
};

use super::{
    input::{self, ROOM},
    stream::Stream,
};
use crate::{
    error::Error,
    store::{
        pool::Waiting,
        request::{Body, BoxFuture, Failure, Request, elsewhere_or_later},
    },
};

mod task;

use task::Task;

/// This many requests, or a quarter of all that are under way, are sent even if more are about to come: the
/// server can begin with them.
const ENOUGH: usize = 16;
/// With more than this many requests under way, a caller does not send by itself: those that are about to run may ask
/// too, and the task sends for all.
const ALONE: usize = 8;
/// A caller that sends takes along what is asked meanwhile, so many times. Then the task goes on: the caller has work of its
/// own.
const ROUNDS: usize = 8;
/// What is sent or received at a time, in bytes, before the others get their turn.
const TURN: usize = 1024 * 1024;
/// Back-pressure threshold for queued bytes.
const MAX_WAITING: usize = 4 * 1024 * 1024;

/// What a request gets.
type Outcome = Result<Value, Failure>;

/// The connection's handle. Dropped, the connection is closed once nobody waits for a reply.
pub(crate) struct Wire {
    shared: Arc<Shared>,
    /// Where the task lives.
    runtime: runtime::Id,
}

struct Shared {
    stream: Stream,
    queue: Mutex<Queue>,
    /// Told when there is room for requests again.
    room: Notify,
}

struct Queue {
    /// What was asked and not yet taken to be sent, and the number of requests in it.
    bytes: Vec<u8>,
    asked: usize,
    /// All requests without a reply, in order.
    waiters: VecDeque<Waiter>,
    /// A caller or the task is sending. No other one does until it is done.
    sending: bool,
    /// What the system did not take at once, and how far it did. The task sends it on.
    rest: Option<(Vec<u8>, usize)>,
    /// An empty buffer, to allocate none.
    spare: Vec<u8>,
    /// Bytes ever asked, and of those, bytes ever taken to be sent.
    total: u64,
    taken: u64,
    /// The task will look here as soon as those it woke have run.
    awaited: bool,
    /// The task was woken to send, and lets others run first.
    gathers: bool,
    task: Option<Waker>,
    /// When the task looks at deadlines next.
    alarm: Option<Instant>,
    state: State,
}

enum State {
    Open,
    /// The handle is gone, or a request was not answered in time: what is under way is the last.
    Left,
    /// Sending failed.
    Broken(RedisError),
    /// The task has ended.
    Ended,
}

struct Waiter {
    /// `None` once the deadline has passed; the reply is still awaited, to keep the order.
    reply: Option<oneshot::Sender<Outcome>>,
    deadline: Instant,
    /// When the connection counts as dead without a reply: later, if the caller is in a hurry.
    patience: Instant,
    expects: Expects,
    /// Where the request starts among all bytes ever asked.
    start: u64,
}

impl Waiter {
    fn is_waited_for(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| !reply.is_closed())
    }

    fn answer(&mut self, outcome: Outcome) {
        if let Some(reply) = self.reply.take() {
            // The caller may have gone.
            let _ = reply.send(outcome);
        }
    }
}

enum Expects {
    One,
    Many(Box<Many>),
}

/// The replies of a pipeline.
struct Many {
    /// How many replies are still to come, the wanted ones included.
    left: usize,
    transaction: bool,
    skip: usize,
    count: usize,
    replies: Vec<Value>,
    /// Why a transaction does nothing.
    refusal: Option<ServerError>,
}

impl Wire {
    /// Takes the stream over. The task that receives is spawned in the current runtime.
    pub(crate) fn new(stream: Stream) -> Self {
        let (wire, task) = Self::with_task(stream);
        crate::task::spawn(task);
        wire
    }

    fn with_task(stream: Stream) -> (Self, Task) {
        let shared = Arc::new(Shared {
            stream,
            queue: Mutex::new(Queue {
                bytes: Vec::new(),
                asked: 0,
                waiters: VecDeque::new(),
                sending: false,
                rest: None,
                spare: Vec::new(),
                total: 0,
                taken: 0,
                awaited: false,
                gathers: false,
                task: None,
                alarm: None,
                state: State::Open,
            }),
            room: Notify::new(),
        });
        let task = Task::new(shared.clone());
        let wire = Self {
            shared,
            runtime: Handle::current().id(),
        };
        (wire, task)
    }

    /// Sends and waits for the reply, until the deadline. A reply that is an error is a value here.
    ///
    /// Dropped before it is done, the request may or may not be sent; never half of it.
    pub(crate) async fn send(&self, request: Request<'_>) -> Outcome {
        if request.body.replies() == 0 {
            // Nothing is asked, so nothing will be answered: a place in the line would take another's reply.
            return Ok(Value::Array(Vec::new()));
        }
        let receiver = match self.ask(request) {
            Some(receiver) => receiver,
            None => self.ask_in_turn(request).await?,
        };
        let outcome = if self.is_elsewhere() {
            match timeout_at(request.deadline, receiver).await {
                Ok(outcome) => outcome,
                Err(_) => return Err(Failure::TimedOut),
            }
        } else {
            receiver.await
        };
        outcome.unwrap_or_else(|_| Err(Failure::Lost(closed())))
    }

    /// Whether the caller is in another runtime than the task, which may not be running.
    fn is_elsewhere(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() != self.runtime)
    }

    /// Whether a reply should have come long ago. The connection's own task looks at that too, unless its runtime stands
    /// still.
    pub(crate) fn is_overdue(&self) -> bool {
        let queue = self.shared.queue.lock();
        let oldest = queue.waiters.front();
        oldest.is_some_and(|waiter| waiter.patience <= Instant::now())
    }

    /// Sends the request; its reply comes through what is returned. `None` if too much waits to be sent.
    fn ask(&self, request: Request<'_>) -> Option<oneshot::Receiver<Outcome>> {
        let deadline = request.deadline;
        let (reply, receiver) = oneshot::channel();
        let mut guard = self.shared.queue.lock();
        let queue = &mut *guard;
        if !matches!(queue.state, State::Open) {
            let _ = reply.send(Err(not_sent(closed())));
            return Some(receiver);
        }
        let before = queue.bytes.len();
        if before > MAX_WAITING {
            return None;
        }
        let is_busy = queue.waiters.len() > ALONE;
        let expects = write(request.body, &mut queue.bytes);
        queue.waiters.push_back(Waiter {
            reply: Some(reply),
            deadline,
            patience: request.store_deadline(),
            expects,
            start: queue.total,
        });
        queue.asked += 1;
        queue.total += (queue.bytes.len() - before) as u64;
        let mut waker = None;
        if queue.alarm.is_none_or(|alarm| deadline < alarm) {
            queue.alarm = Some(deadline);
            waker = queue.task.take();
        }
        let enough = queue.is_enough();
        let waits = queue.sending
            || (queue.awaited && !enough)
            || (is_busy && !enough && queue.gather(&mut waker));
        if waits {
            drop(guard);
        } else {
            self.shared.transmit(guard);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(receiver)
    }

    /// Waits for room first; boxed, since that is rare.
    fn ask_in_turn<'a>(
        &'a self,
        request: Request<'a>,
    ) -> BoxFuture<'a, Result<oneshot::Receiver<Outcome>, Failure>> {
        Box::pin(async move {
            let _waiting = Waiting::begin();
            loop {
                let room = self.shared.room.notified();
                if let Some(receiver) = self.ask(request) {
                    return Ok(receiver);
                }
                if timeout_at(request.deadline, room).await.is_err() {
                    return Err(Failure::NotSent(Error::timeout(
                        "the connection accepted no more requests in time",
                    )));
                }
            }
        })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let waker = {
            let mut queue = self.shared.queue.lock();
            if matches!(queue.state, State::Open) {
                queue.state = State::Left;
            }
            queue.task.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

fn write(body: Body<'_>, out: &mut Vec<u8>) -> Expects {
    let left = body.replies();
    match body {
        Body::One(cmd) => {
            cmd.write_packed_command(out);
            Expects::One
        }
        Body::Many {
            pipeline,
            offset,
            count,
        } => {
            let transaction = pipeline.is_transaction();
            if transaction {
                out.extend_from_slice(b"*1\r\n$5\r\nMULTI\r\n");
            }
            for cmd in pipeline.cmd_iter() {
                cmd.write_packed_command(out);
            }
            if transaction {
                out.extend_from_slice(b"*1\r\n$4\r\nEXEC\r\n");
            }
            Expects::Many(Box::new(Many {
                left,
                transaction,
                skip: offset,
                count,
                replies: Vec::with_capacity(count),
                refusal: None,
            }))
        }
    }
}

impl Many {
    /// Takes the next reply; returns the whole after the last.
    fn take(&mut self, value: Value) -> Option<Value> {
        self.left -= 1;
        if self.skip > 0 {
            self.skip -= 1;
            if let Value::ServerError(error) = value {
                // One refused command undoes the transaction. A refusal that says where or when to ask again
                // counts more than the first.
                let tells = elsewhere_or_later(&error.clone().into());
                if self.refusal.is_none() || tells {
                    self.refusal = Some(error);
                }
            }
        } else if self.replies.len() < self.count {
            self.replies.push(value);
        }
        if self.left > 0 {
            return None;
        }
        Some(match self.refusal.take() {
            Some(refusal) => Value::ServerError(refusal),
            None => match &mut self.replies[..] {
                // EXEC was refused, so nothing was carried out.
                [refused @ Value::ServerError(_)] if self.transaction => {
                    std::mem::replace(refused, Value::Nil)
                }
                _ => Value::Array(std::mem::take(&mut self.replies)),
            },
        })
    }
}

impl Shared {
    /// Sends what was asked, and what is asked meanwhile. Nobody else may be sending.
    fn transmit<'a>(&'a self, mut guard: MutexGuard<'a, Queue>) {
        let mut rounds = 0;
        loop {
            let queue = &mut *guard;
            let spare = std::mem::take(&mut queue.spare);
            let bytes = std::mem::replace(&mut queue.bytes, spare);
            queue.asked = 0;
            queue.taken = queue.total;
            queue.sending = true;
            drop(guard);
            if bytes.len() > MAX_WAITING {
                self.room.notify_waiters();
            }
            let written = self.write_out(&bytes, 0, TURN);
            guard = self.queue.lock();
            let queue = &mut *guard;
            match written {
                Written::All => {
                    queue.done(bytes);
                    let worth_it = !queue.awaited || queue.is_enough();
                    if queue.bytes.is_empty() || !worth_it {
                        return;
                    }
                    rounds += 1;
                    if rounds < ROUNDS {
                        continue;
                    }
                    queue.awaited = true;
                }
                Written::Partly(sent) => queue.rest = Some((bytes, sent)),
                Written::Failed(error, sent) => {
                    queue.rest = Some((bytes, sent));
                    queue.fail(error);
                }
            }
            // The task goes on from here.
            let waker = queue.task.take();
            drop(guard);
            if let Some(waker) = waker {
                waker.wake();
            }
            return;
        }
    }

    /// Hands bytes to the system until it takes no more, up to so many of them.
    fn write_out(&self, bytes: &[u8], mut sent: usize, most: usize) -> Written {
        let until = bytes.len().min(sent + most);
        while sent < until {
            match self.stream.try_write(&bytes[sent..until]) {
                Ok(0) => return Written::Failed(closed(), sent),
                Ok(more) => sent += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Written::Partly(sent);
                }
                Err(error) => return Written::Failed(error.into(), sent),
            }
        }
        if sent < bytes.len() {
            return Written::Partly(sent);
        }
        match self.stream.try_flush() {
            Ok(()) => Written::All,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Written::Partly(sent),
            Err(error) => Written::Failed(error.into(), sent),
        }
    }
}

/// How far the system took what was to be sent.
enum Written {
    All,
    Partly(usize),
    Failed(RedisError, usize),
}

impl Queue {
    /// Takes the next reply; returns who gets an answer by it.
    fn answered(&mut self, value: Value) -> RedisResult<Option<(Waiter, Value)>> {
        let Some(waiter) = self.waiters.front_mut() else {
            return Err(RedisError::from((
                ErrorKind::Parse,
                "the server sent a reply without a request",
            )));
        };
        let value = match &mut waiter.expects {
            Expects::One => value,
            Expects::Many(many) => match many.take(value) {
                Some(value) => value,
                None => return Ok(None),
            },
        };
        Ok(self.waiters.pop_front().map(|waiter| (waiter, value)))
    }

    /// Has the task send a little later; `false` if it cannot be woken, since it runs.
    fn gather(&mut self, waker: &mut Option<Waker>) -> bool {
        if waker.is_none() {
            *waker = self.task.take();
        }
        if waker.is_some() {
            (self.awaited, self.gathers) = (true, true);
        }
        waker.is_some()
    }

    fn is_enough(&self) -> bool {
        self.asked >= ENOUGH.max(self.waiters.len() / 4)
    }

    /// Everything that was taken has been sent.
    fn done(&mut self, mut bytes: Vec<u8>) {
        self.sending = false;
        if bytes.capacity() <= ROOM {
            bytes.clear();
            self.spare = bytes;
        }
    }

    fn fail(&mut self, error: RedisError) {
        if matches!(self.state, State::Open | State::Left) {
            self.state = State::Broken(error);
        }
    }
}

fn not_sent(error: RedisError) -> Failure {
    Failure::NotSent(Error::unavailable("the connection was lost").with_source(error))
}

fn closed() -> RedisError {
    input::closed().into()
}

#[cfg(test)]
mod tests;
