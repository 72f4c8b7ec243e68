//! One plain connection that all tasks share.
//!
//! Whoever makes a request writes it into a common buffer and sends that buffer, unless somebody is sending
//! already (and takes this request along) or is about to. One task receives: it hands the replies out in
//! order, lets those whom it woke ask again, and sends what they asked together. So a caller alone waits for
//! nobody, and under load, when most of a client's time goes into system calls and wake-ups, both are shared.
//! Deadlines need no timer each: the task keeps one, for the earliest of them.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::{Mutex, MutexGuard};
use redis::{ErrorKind, RedisError, RedisResult, ServerError, Value};
use tokio::{
    net::{TcpStream, UnixStream},
    sync::{Notify, oneshot},
    time::{Instant, Sleep, timeout_at},
};

use super::{
    link::{BoxFuture, Request},
    reply::Reader,
    retry,
};

/// Room for what is received. It grows for a longer reply and shrinks again after it.
const ROOM: usize = 64 * 1024;
/// So many requests, or a quarter of all that are under way, are sent even if more are about to come: the
/// server can begin with them.
const ENOUGH: usize = 16;
/// From so many bytes on that wait to be sent, requests wait before they are written.
const MAX_WAITING: usize = 4 * 1024 * 1024;

/// Why there is no reply.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Nothing of it left this process.
    NotSent(RedisError),
    /// It was sent, at least in part, and the connection is gone.
    Lost(RedisError),
    /// Its deadline passed.
    TimedOut,
    /// The server refused it.
    Answer(RedisError),
}

/// What a request gets.
type Outcome = Result<Value, Fault>;

/// What connects the two ends.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(room),
            Self::Unix(stream) => stream.try_read(room),
        }
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
        }
    }
}

/// The connection's handle. Dropped, the connection is closed once nobody waits for a reply.
pub(crate) struct Wire {
    shared: Arc<Shared>,
}

struct Shared {
    socket: Socket,
    queue: Mutex<Queue>,
    /// Told when there is room for requests again.
    room: Notify,
}

struct Queue {
    /// What was asked and not yet taken to be sent, and how many requests that are.
    bytes: Vec<u8>,
    asked: usize,
    /// All who wait, in order.
    waiters: VecDeque<Waiter>,
    /// Somebody is sending. Nobody else does until it is done.
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
    task: Option<Waker>,
    /// When the task looks at deadlines next.
    alarm: Option<Instant>,
    state: State,
}

enum State {
    Open,
    /// The handle is gone.
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
            // Whoever asked may have gone.
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
    skip: usize,
    count: usize,
    replies: Vec<Value>,
    /// Why a transaction does nothing.
    refusal: Option<ServerError>,
}

impl Wire {
    /// Takes the connection over.
    pub(crate) fn new(socket: Socket) -> Self {
        let shared = Arc::new(Shared {
            socket,
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
                task: None,
                alarm: None,
                state: State::Open,
            }),
            room: Notify::new(),
        });
        tokio::spawn(Task {
            shared: shared.clone(),
            reader: Reader::default(),
            input: vec![0; ROOM],
            begin: 0,
            end: 0,
            wanted: 1,
            replies: Vec::new(),
            alarm: Box::pin(tokio::time::sleep_until(Instant::now())),
            alarm_at: None,
        });
        Self { shared }
    }

    /// Sends and waits for the reply, until the deadline. A reply that is an error is a value here.
    ///
    /// Dropped before it is done, the request may or may not be sent; never half of it.
    pub(crate) async fn send(&self, request: Request<'_>, deadline: Instant) -> Outcome {
        if matches!(request, Request::Many { count: 0, .. }) {
            // Nothing is asked, so nothing will be answered: a place in the line would take another's reply.
            return Ok(Value::Array(Vec::new()));
        }
        let receiver = match self.ask(request, deadline) {
            Some(receiver) => receiver,
            None => self.ask_in_turn(request, deadline).await?,
        };
        match receiver.await {
            Ok(outcome) => outcome,
            Err(_) => Err(Fault::Lost(closed())),
        }
    }

    /// Sends the request; its reply comes through what is returned. `None` if too much waits to be sent.
    fn ask(&self, request: Request<'_>, deadline: Instant) -> Option<oneshot::Receiver<Outcome>> {
        let (reply, receiver) = oneshot::channel();
        let mut guard = self.shared.queue.lock();
        let queue = &mut *guard;
        if !matches!(queue.state, State::Open) {
            let _ = reply.send(Err(Fault::NotSent(closed())));
            return Some(receiver);
        }
        let before = queue.bytes.len();
        if before > MAX_WAITING {
            return None;
        }
        let expects = write(request, &mut queue.bytes);
        queue.waiters.push_back(Waiter {
            reply: Some(reply),
            deadline,
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
        if queue.sending || (queue.awaited && !queue.is_enough()) {
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
        deadline: Instant,
    ) -> BoxFuture<'a, Result<oneshot::Receiver<Outcome>, Fault>> {
        Box::pin(async move {
            loop {
                let room = self.shared.room.notified();
                if let Some(receiver) = self.ask(request, deadline) {
                    return Ok(receiver);
                }
                if timeout_at(deadline, room).await.is_err() {
                    return Err(Fault::NotSent(closed()));
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

fn write(request: Request<'_>, out: &mut Vec<u8>) -> Expects {
    match request {
        Request::One(cmd) => {
            cmd.write_packed_command(out);
            Expects::One
        }
        Request::Many {
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
        if self.skip > 0 {
            self.skip -= 1;
            if let Value::ServerError(error) = value {
                // One refused command undoes the transaction. A refusal that says where or when to ask again
                // counts more than the first.
                let tells = retry::elsewhere_or_later(&error.clone().into());
                if self.refusal.is_none() || tells {
                    self.refusal = Some(error);
                }
            }
            return None;
        }
        self.replies.push(value);
        if self.replies.len() < self.count {
            return None;
        }
        Some(match self.refusal.take() {
            Some(refusal) => Value::ServerError(refusal),
            None => Value::Array(std::mem::take(&mut self.replies)),
        })
    }
}

impl Shared {
    /// Sends what was asked, and what is asked meanwhile. Nobody else may be sending.
    fn transmit<'a>(&'a self, mut guard: MutexGuard<'a, Queue>) {
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
            let (sent, failure) = self.write_out(&bytes, 0);
            guard = self.queue.lock();
            let queue = &mut *guard;
            if let Some(error) = failure {
                queue.fail(error);
            } else if sent < bytes.len() {
                queue.rest = Some((bytes, sent));
            } else {
                queue.done(bytes);
                let worth_it = !queue.awaited || queue.is_enough();
                if worth_it && !queue.bytes.is_empty() {
                    continue;
                }
                return;
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

    /// Hands bytes to the system until it takes no more; returns how far that went.
    fn write_out(&self, bytes: &[u8], mut sent: usize) -> (usize, Option<RedisError>) {
        while sent < bytes.len() {
            match self.socket.try_write(&bytes[sent..]) {
                Ok(0) => return (sent, Some(closed())),
                Ok(more) => sent += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return (sent, Some(error.into())),
            }
        }
        (sent, None)
    }
}

impl Queue {
    /// Takes the next reply; returns who gets an answer by it.
    fn answered(&mut self, value: Value) -> RedisResult<Option<(Waiter, Value)>> {
        let Some(waiter) = self.waiters.front_mut() else {
            return Err(RedisError::from((
                ErrorKind::Parse,
                "the server answered what nobody asked",
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

/// Receives and hands out.
struct Task {
    shared: Arc<Shared>,
    reader: Reader,
    /// What was received and not yet read is `input[begin..end]`.
    input: Vec<u8>,
    begin: usize,
    end: usize,
    /// With fewer bytes there is nothing to read.
    wanted: usize,
    /// Empty between polls.
    replies: Vec<(Waiter, Value)>,
    alarm: Pin<Box<Sleep>>,
    alarm_at: Option<Instant>,
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
    /// Reads all that is there and hands it out; returns how many replies that were.
    fn receive(&mut self, cx: &mut Context<'_>) -> RedisResult<usize> {
        let mut woken = 0;
        loop {
            match self.shared.socket.poll_read_ready(cx) {
                Poll::Pending => return Ok(woken),
                Poll::Ready(ready) => ready?,
            }
            self.make_room();
            match self.shared.socket.try_read(&mut self.input[self.end..]) {
                Ok(0) => return Err(closed()),
                Ok(received) => self.end += received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            }
            woken += self.hand_out()?;
        }
    }

    /// Sees to it that there is room behind what was received.
    fn make_room(&mut self) {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
            if self.input.len() > ROOM {
                self.input.truncate(ROOM);
                self.input.shrink_to_fit();
            }
        } else if self.end == self.input.len() {
            self.input.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            if self.end > self.input.len() / 2 {
                // By what has come, not by what was announced.
                self.input.resize(2 * self.input.len(), 0);
            }
        }
    }

    /// Gives the replies that are complete to those who wait for them.
    fn hand_out(&mut self) -> RedisResult<usize> {
        if self.end - self.begin < self.wanted {
            return Ok(0);
        }
        {
            let mut queue = self.shared.queue.lock();
            let input = &self.input[..self.end];
            while input.len() - self.begin >= self.wanted {
                let value = match self.reader.next(input, &mut self.begin)? {
                    Ok(value) => value,
                    Err(missing) => {
                        self.wanted = missing;
                        break;
                    }
                };
                self.wanted = 1;
                self.replies.extend(queue.answered(value)?);
            }
        }
        let woken = self.replies.len();
        for (mut waiter, value) in self.replies.drain(..) {
            waiter.answer(Ok(value));
        }
        Ok(woken)
    }

    /// Sends what waits to be sent, and answers those whose deadline has passed.
    fn look(&mut self, cx: &mut Context<'_>, woken: usize) -> RedisResult<()> {
        let shared = self.shared.clone();
        let mut guard = shared.queue.lock();
        let queue = &mut *guard;
        if let State::Broken(error) = &queue.state {
            return Err(error.clone());
        }
        if matches!(queue.state, State::Left) && !queue.waiters.iter().any(Waiter::is_waited_for) {
            return Err(closed());
        }
        queue.task = Some(cx.waker().clone());
        while let Some((bytes, sent)) = queue.rest.take() {
            match shared.socket.poll_write_ready(cx) {
                Poll::Pending => {
                    queue.rest = Some((bytes, sent));
                    break;
                }
                Poll::Ready(ready) => ready?,
            }
            let (sent, failure) = shared.write_out(&bytes, sent);
            match failure {
                Some(error) => {
                    queue.rest = Some((bytes, sent));
                    return Err(error);
                }
                None if sent < bytes.len() => queue.rest = Some((bytes, sent)),
                None => queue.done(bytes),
            }
        }
        let promised = std::mem::replace(&mut queue.awaited, woken > 1);
        if (promised || woken <= 1) && !queue.sending && !queue.bytes.is_empty() {
            shared.transmit(guard);
        } else {
            drop(guard);
        }
        if woken > 1 {
            // They run before this task does again.
            cx.waker().wake_by_ref();
        } else {
            self.watch(cx);
        }
        Ok(())
    }

    /// Answers those whose deadline has passed.
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
            if self.alarm.as_mut().poll(cx).is_pending() {
                return;
            }
            let now = Instant::now();
            let mut queue = self.shared.queue.lock();
            let mut next: Option<Instant> = None;
            for waiter in &mut queue.waiters {
                if waiter.reply.is_some() {
                    if waiter.deadline <= now {
                        waiter.answer(Err(Fault::TimedOut));
                    } else {
                        next = Some(next.map_or(waiter.deadline, |next| next.min(waiter.deadline)));
                    }
                }
            }
            queue.alarm = next;
        }
    }

    /// Tells everybody that there will be no reply.
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
            waiter.answer(Err(match waiter.start < sent {
                true => Fault::Lost(error.clone()),
                false => Fault::NotSent(error.clone()),
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

fn closed() -> RedisError {
    io::Error::new(io::ErrorKind::BrokenPipe, "the connection is closed").into()
}

#[cfg(test)]
mod tests;
