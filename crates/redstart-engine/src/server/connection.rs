//! A connection of a client: reads, runs what was read, and writes the replies.

mod feed;
mod pause;

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::{GRACE, talk::Stop};
use crate::{
    client::{Inbox, Profile, Pushed},
    config::Config,
    feed::Attachment,
    reply::Reply,
    resp::{self, Commands, Limits, Parser},
    session::{Allowed, Blocked, End, Session, Wire},
};

/// How much is read at once.
const READ: usize = 16 * 1024;
/// No further command is executed while this many bytes of replies wait to be written.
const HIGH_WATER: usize = 1024 * 1024;
/// How many commands are executed under one hold of the lock.
const BATCH: usize = 256;
/// A buffer that grew beyond this is given back when it is empty.
const KEEP: usize = 64 * 1024;
/// How long replies that wait for the disk are kept for a client that sends no more or was killed.
const LAST_REPLIES: Duration = Duration::from_secs(5);

pub(super) struct Connection<S> {
    socket: S,
    session: Session,
    profile: Arc<Profile>,
    inbox: Inbox,
    parser: Parser,
    /// Commands that were parsed, and how many of them were executed.
    commands: Commands,
    /// What is wrong with what follows.
    broken: Option<resp::ProtocolError>,
    allowed: Allowed,
    /// The state was held when the client came: what it is allowed is not known yet.
    unsure: bool,
    /// What `out` depends on in the log.
    position: u64,
    /// What the messages in `out` depend on, which tell of the data: that has to be on the disk.
    told: u64,
    /// A message whose sender still holds the state: what it depends on is not known yet.
    unsettled: Option<Pushed>,
    /// The client has become a replica.
    attachment: Option<Box<Attachment>>,
    out: Vec<u8>,
}

/// Whether a connection continues, and why.
enum Flow {
    Continue,
    Close,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// `allowed` is `None` if the state was held when the client came.
    pub(super) fn new(
        socket: S,
        session: Session,
        profile: Arc<Profile>,
        inbox: Inbox,
        allowed: Option<Allowed>,
    ) -> Connection<S> {
        Connection {
            socket,
            session,
            profile,
            inbox,
            parser: Parser::default(),
            commands: Commands::default(),
            broken: None,
            unsure: allowed.is_none(),
            allowed: allowed.unwrap_or_else(|| Allowed::by(&Config::default())),
            position: 0,
            told: 0,
            unsettled: None,
            attachment: None,
            out: Vec::new(),
        }
    }

    pub(super) async fn run(mut self, stop: Stop) {
        // Registered once per connection: a request is too short to register again for each.
        let mut stopped = std::pin::pin!(stop.cancelled());
        let mut enlisted = None;
        loop {
            if self.profile.is_killed() {
                self.deliver_rest(&stop.token).await;
                break;
            }
            self.settle_message();
            let flow = self.work(&stop.token).await;
            if matches!(self.flush(&stop.token).await, Flow::Close) || matches!(flow, Flow::Close) {
                break;
            }
            if let Some(attachment) = self.attachment.take() {
                self.feed(*attachment, &stop.token).await;
                break;
            }
            if !self.commands.is_empty() || self.parser_has_more() {
                // A client that has sent a lot, and may want no replies, lets others run between batches.
                tokio::task::yield_now().await;
                continue;
            }
            if stop.is_told() {
                break;
            }
            let mut poll_stop = |cx: &mut Context<'_>| {
                let known = |waker: &Waker| waker.will_wake(cx.waker());
                if !enlisted.as_ref().is_some_and(known) {
                    enlisted = Some(cx.waker().clone());
                    // Ready or not, the flag says so.
                    let _ = stopped.as_mut().poll(cx);
                }
                stop.is_told()
            };
            if matches!(self.wait(&mut poll_stop).await, Flow::Close) {
                break;
            }
        }
        let _ = self.socket.shutdown().await;
    }

    fn parser_has_more(&mut self) -> bool {
        self.parse();
        !self.commands.is_empty() || self.broken.is_some()
    }

    /// Parses as many commands as go into a batch.
    fn parse(&mut self) {
        if self.unsure
            && let Some(allowed) = self.session.allowed()
        {
            (self.allowed, self.unsure) = (allowed, false);
        }
        let limits = Limits {
            bulk: self.allowed.bulk,
            authenticated: self.session.is_authenticated(),
        };
        // What a guest may send depends on what the first command does.
        let max = if limits.authenticated { BATCH } else { 1 };
        if self.broken.is_none()
            && let Err(error) = self.parser.fill(&mut self.commands, max, limits)
        {
            self.broken = Some(error);
        }
    }

    /// Executes what was received, until it would have to wait for the client to read.
    async fn work(&mut self, stop: &CancellationToken) -> Flow {
        if self.commands.is_empty() {
            self.parse();
        }
        // What came before a mistake is still answered.
        if self.commands.is_empty()
            && let Some(error) = &self.broken
        {
            let text = format!("-ERR Protocol error: {}\r\n", error.0);
            self.out.extend_from_slice(text.as_bytes());
            return Flow::Close;
        }
        let mut told = false;
        let wire = Wire {
            unsettled: &mut self.unsettled,
            inbox: &mut self.inbox,
            out: &mut self.out,
            enough: HIGH_WATER,
            allowed: &mut self.allowed,
            told: &mut told,
        };
        let ran = self.session.run_on_wire(&self.commands, wire);
        self.position = self.position.max(ran.position);
        if told {
            self.told = self.told.max(ran.last);
        }
        self.commands.ran(ran.count);
        match ran.end {
            End::Done => Flow::Continue,
            End::Closing => Flow::Close,
            End::Attached(attachment) => {
                self.attachment = Some(attachment);
                Flow::Continue
            }
            End::Blocked(blocked) => self.wait_blocked(blocked, stop).await,
            End::Held => {
                tokio::select! {
                    () = self.session.wait_for_lock() => Flow::Continue,
                    () = self.profile.end.notified() => Flow::Close,
                    () = stop.cancelled() => Flow::Close,
                }
            }
            End::Paused => self.wait_paused(stop).await,
        }
    }

    /// Waits for the reply of a blocking command, while messages go on and the client may leave.
    async fn wait_blocked(&mut self, mut blocked: Blocked, stop: &CancellationToken) -> Flow {
        loop {
            self.settle_message();
            if matches!(self.flush(stop).await, Flow::Close) {
                return Flow::Close;
            }
            self.hold();
            self.make_space();
            let limit = self.allowed.buffer;
            let is_unsettled = self.unsettled.is_some();
            tokio::select! {
                biased;
                reply = &mut blocked => {
                    self.session.answer(&reply, &mut self.out);
                    return if self.profile.is_killed() { Flow::Close } else { Flow::Continue };
                }
                () = self.profile.end.notified() => return Flow::Close,
                () = stop.cancelled() => return Flow::Close,
                Some(pushed) = self.inbox.recv(), if !is_unsettled => self.unsettled = Some(pushed),
                () = self.session.wait_for_lock(), if is_unsettled => {}
                // Only to notice that the client is gone; its next commands wait.
                read = self.socket.read_buf(self.parser.buffer()) => {
                    self.session.was_read(read.as_ref().map_or(0, |count| *count));
                    if !matches!(read, Ok(count) if count > 0) || self.parser.len() > limit {
                        return Flow::Close;
                    }
                }
            }
        }
    }

    /// Writes a message that was received, unless its sender may still hold the state. It comes later then, and what the client
    /// sends meanwhile is answered: that a script is busy, for example.
    fn settle_message(&mut self) {
        let Some(pushed) = self.unsettled.take() else {
            return;
        };
        match pushed.free {
            true => {}
            false => match self.session.told_position() {
                Some(position) => self.told = self.told.max(position),
                None => {
                    self.unsettled = Some(pushed);
                    return;
                }
            },
        }
        self.session.answer(&pushed.reply, &mut self.out);
    }

    /// Tells how much is kept for this client; it counts as used memory.
    fn hold(&mut self) {
        let bytes = self.parser.len() + self.commands.bytes() + self.out.len();
        self.profile.held.store(bytes, Ordering::Relaxed);
    }

    fn make_space(&mut self) {
        make_space(&mut self.parser);
    }

    /// Waits for the client to send something, or for something to tell it.
    async fn wait(&mut self, poll_stop: &mut impl FnMut(&mut Context<'_>) -> bool) -> Flow {
        if self.parser.len() == 0 && self.parser.buffer().capacity() > KEEP {
            *self.parser.buffer() = bytes::BytesMut::new();
        }
        self.hold();
        self.make_space();
        let limit = self.allowed.buffer;
        let idle = self.session.idle_limit(self.allowed);
        let mut idle = std::pin::pin!(idle.map(tokio::time::sleep));
        let mut again = std::pin::pin!(
            self.unsettled
                .is_some()
                .then(|| self.session.wait_for_lock())
        );
        std::future::poll_fn(|cx| {
            let read = std::pin::pin!(self.socket.read_buf(self.parser.buffer())).poll(cx);
            if let Poll::Ready(read) = read {
                let count = read.unwrap_or(0);
                self.session.was_read(count);
                return Poll::Ready(match count > 0 && self.parser.len() <= limit {
                    true => Flow::Continue,
                    false => Flow::Close,
                });
            }
            match again.as_mut().as_pin_mut().map(|again| again.poll(cx)) {
                Some(Poll::Ready(())) => return Poll::Ready(Flow::Continue),
                Some(Poll::Pending) => {}
                None => {
                    if let Poll::Ready(Some(pushed)) = self.inbox.poll_recv(cx) {
                        self.unsettled = Some(pushed);
                        return Poll::Ready(Flow::Continue);
                    }
                }
            }
            if self.profile.end.poll(cx).is_ready() {
                return Poll::Ready(Flow::Close);
            }
            if poll_stop(cx) {
                return Poll::Ready(Flow::Continue);
            }
            match idle.as_mut().as_pin_mut().map(|idle| idle.poll(cx)) {
                Some(Poll::Ready(())) => Poll::Ready(Flow::Close),
                Some(Poll::Pending) | None => Poll::Pending,
            }
        })
        .await
    }

    /// What the connection goes on with while it waits for the log.
    fn beside(&mut self) -> (&Session, Beside<'_, S>) {
        let beside = Beside {
            held: self.commands.bytes() + self.out.len(),
            limit: self.allowed.buffer,
            session: &self.session,
            profile: &self.profile,
            socket: &mut self.socket,
            parser: &mut self.parser,
        };
        (&self.session, beside)
    }

    /// Waits until the log is on the disk up to a position, if that is what is promised. It may take as long as the disk is
    /// full.
    async fn wait_for_disk(&mut self, position: u64, stop: &CancellationToken) -> Flow {
        let (session, beside) = self.beside();
        match beside.wait_for(session.synced(position), stop).await {
            Some(()) => Flow::Continue,
            None => Flow::Close,
        }
    }

    /// Waits until the log has kept what the replies depend on; `None` if nobody waits for them any more.
    async fn wait_until_kept(
        &mut self,
        position: u64,
        stop: &CancellationToken,
    ) -> Option<Result<(), Reply>> {
        if position == 0 {
            return Some(Ok(()));
        }
        let (session, beside) = self.beside();
        beside.wait_for(session.kept(position), stop).await
    }

    /// Writes all that waits to be written, once the log has kept what it depends on.
    async fn flush(&mut self, stop: &CancellationToken) -> Flow {
        let mut flow = Flow::Continue;
        let told = std::mem::take(&mut self.told);
        if told > 0 && matches!(self.wait_for_disk(told, stop).await, Flow::Close) {
            return Flow::Close;
        }
        let position = std::mem::take(&mut self.position);
        let Some(kept) = self.wait_until_kept(position, stop).await else {
            return Flow::Close;
        };
        if let Err(error) = kept {
            // None of what was said is certain: say that, and nothing more.
            self.out.clear();
            self.session.answer(&error, &mut self.out);
            flow = Flow::Close;
        }
        if self.out.is_empty() {
            return flow;
        }
        if self.out.len() > KEEP {
            self.hold();
        }
        // Nearly always there is room for all of it, and nothing to wait for.
        let mut done = 0;
        let mut poll_write = |cx: &mut Context<'_>| {
            while done < self.out.len() {
                let socket = std::pin::Pin::new(&mut self.socket);
                match std::task::ready!(socket.poll_write(cx, &self.out[done..])) {
                    Ok(count) if count > 0 => {
                        self.session.was_written(count);
                        done += count;
                    }
                    _ => return Poll::Ready(Flow::Close),
                }
            }
            // TLS takes in what the kernel has no room for, and sends it when it is asked to.
            let flushed = std::task::ready!(std::pin::Pin::new(&mut self.socket).poll_flush(cx));
            Poll::Ready(match flushed {
                Ok(()) => Flow::Continue,
                Err(_) => Flow::Close,
            })
        };
        let first = std::future::poll_fn(|cx| Poll::Ready(poll_write(cx))).await;
        let written = match first {
            Poll::Ready(written) => written,
            Poll::Pending => {
                tokio::select! {
                    biased;
                    written = std::future::poll_fn(poll_write) => written,
                    () = self.profile.end.notified() => Flow::Close,
                    () = give_up(stop) => Flow::Close,
                }
            }
        };
        if matches!(written, Flow::Close) {
            return Flow::Close;
        }
        self.out.clear();
        if self.out.capacity() > KEEP {
            self.out = Vec::new();
        }
        flow
    }
}

/// What of a connection goes on while it waits for the log: the client may leave, and its next commands wait.
struct Beside<'c, S> {
    session: &'c Session,
    profile: &'c Profile,
    socket: &'c mut S,
    parser: &'c mut Parser,
    /// More than this is not kept of what the client sends.
    limit: usize,
    /// What is kept for it besides that.
    held: usize,
}

impl<S: AsyncRead + Unpin> Beside<'_, S> {
    /// Waits for the log; `None` if nobody waits for the replies any more. That a client has closed its connection cannot be told
    /// from that it only sends no more: it may have its replies for a while yet. So may one that is killed.
    async fn wait_for<T>(
        self,
        log: impl Future<Output = T>,
        stop: &CancellationToken,
    ) -> Option<T> {
        let (mut log, mut over) = (std::pin::pin!(log), std::pin::pin!(give_up(stop)));
        let mut last = std::pin::pin!(None::<tokio::time::Sleep>);
        let mut ended = false;
        loop {
            let goes = last.is_some();
            make_space(self.parser);
            tokio::select! {
                biased;
                done = &mut log => return Some(done),
                () = &mut over => return None,
                Some(()) = poll_option(last.as_mut()) => return None,
                // What it was told before it was killed may say why.
                () = self.profile.end.notified(), if !goes => {
                    last.set(Some(tokio::time::sleep(LAST_REPLIES)));
                }
                read = self.socket.read_buf(self.parser.buffer()), if !ended => match read {
                    Ok(0) => {
                        ended = true;
                        if !goes {
                            last.set(Some(tokio::time::sleep(LAST_REPLIES)));
                        }
                    }
                    Ok(count) if self.parser.len() <= self.limit => {
                        self.session.was_read(count);
                        let held = self.parser.len() + self.held;
                        self.profile.held.store(held, Ordering::Relaxed);
                    }
                    _ => return None,
                },
            }
        }
    }
}

fn make_space(parser: &mut Parser) {
    let wanted = parser.wanted().clamp(READ, HIGH_WATER);
    parser.buffer().reserve(wanted);
}

/// Waits for what there is.
async fn poll_option<F: Future>(mut future: std::pin::Pin<&mut Option<F>>) -> Option<F::Output> {
    std::future::poll_fn(|cx| match future.as_mut().as_pin_mut() {
        Some(future) => future.poll(cx).map(Some),
        None => Poll::Pending,
    })
    .await
}

/// A client that does not read cannot delay the shutdown for long.
async fn give_up(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(GRACE / 2).await;
}
