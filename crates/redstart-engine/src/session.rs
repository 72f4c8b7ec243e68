//! A client of the engine, in process.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::MutexGuard;
use tokio::time::Sleep;

use crate::{
    blocking,
    client::{Answers, Client, Inbox, Row},
    config::Config,
    dispatch::{self, Done},
    engine::{Inner, State},
    error::Stop,
    notify::class,
    reply::{Protocol, Reply},
    resp, script,
};

/// A client: its database, its transaction, its subscriptions. Made by [`crate::Engine::session`].
pub struct Session {
    inner: Arc<Inner>,
    client: Client,
}

/// What became of a command that was executed without waiting.
#[derive(Debug)]
pub enum Outcome {
    /// The answer.
    Reply(Reply),
    /// Nothing is there yet: await the answer.
    Blocked(Blocked),
}

impl Outcome {
    /// The answer if there is one.
    pub fn into_reply(self) -> Option<Reply> {
        match self {
            Outcome::Reply(reply) => Some(reply),
            Outcome::Blocked(_) => None,
        }
    }
}

impl Inner {
    /// The engine's state; `None` if a script holds it for longer than scripts should.
    #[inline]
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Some(state) => Some(state),
            None => self.lock_slowly(),
        }
    }

    fn lock_slowly(&self) -> Option<MutexGuard<'_, State>> {
        loop {
            if let Some(state) = self.state.try_lock_for(Duration::from_millis(20)) {
                return Some(state);
            }
            if self.watchdog.is_busy() {
                return None;
            }
        }
    }

    /// Does what is due by now; needed where no commands come.
    pub(crate) fn tick(&self) {
        let now = self.clock.now_micros();
        // Whoever holds the lock does it, too.
        if let Some(mut state) = self.state.try_lock() {
            dispatch::tick(&mut state, now);
            dispatch::finish(&mut state, now);
        }
    }

    /// Whether somebody is to be told of keys that expire while no command comes.
    fn tells_of_expiry(&self) -> bool {
        let told = |state: &State| state.config.notify & class::EXPIRED != 0;
        self.clock.is_live() && self.state.try_lock().is_none_or(|state| told(&state))
    }

    /// Answers a command while a script holds the state.
    fn while_busy(&self, args: &[Bytes]) -> Reply {
        let is = |at: usize, word: &[u8]| {
            args.get(at)
                .is_some_and(|arg| arg.eq_ignore_ascii_case(word))
        };
        if args.len() == 2 && is(0, b"script") && is(1, b"kill") {
            return match self.watchdog.kill() {
                Ok(reply) => reply,
                Err(Stop::Error(text)) => Reply::Error(text.into_owned()),
                Err(Stop::Block(wait)) => wait.on_timeout,
            };
        }
        Reply::Error(script::BUSY.into())
    }
}

/// What the configuration allows a client.
#[derive(Clone, Copy)]
pub(crate) struct Allowed {
    /// The longest argument in bytes.
    pub(crate) bulk: usize,
    /// How many bytes may wait to be executed.
    pub(crate) buffer: usize,
    /// How many seconds it may be silent; 0 is for ever.
    idle: u64,
}

impl Allowed {
    fn by(config: &Config) -> Allowed {
        Allowed {
            bulk: config.proto_max_bulk_len,
            buffer: config.query_buffer_limit,
            idle: config.timeout,
        }
    }
}

/// How long a listener's task may stand still for the lock when it need not.
const PATIENCE: Duration = Duration::from_millis(5);

/// What became of a connection's wish to be a client.
pub(crate) enum Announced {
    Welcome(Arc<Row>),
    /// There are too many.
    Refused,
    /// The state is held: ask again.
    Later,
}

/// How far [`Session::execute_into`] came.
pub(crate) enum Progress {
    /// All commands are executed, or enough is written.
    Done,
    /// The last executed command waits.
    Blocked(Blocked),
    /// The next command has to wait until the end of a CLIENT PAUSE.
    Paused,
    /// The client wants to go.
    Closing,
}

impl Session {
    pub(crate) fn new(inner: Arc<Inner>, client: Client) -> Session {
        Session { inner, client }
    }

    /// The client's number, as CLIENT ID says.
    pub fn id(&self) -> u64 {
        self.client.id
    }

    /// The protocol that shapes the replies.
    pub fn protocol(&self) -> Protocol {
        self.client.protocol
    }

    /// Chooses the protocol, as HELLO would.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.client.set_protocol(protocol);
    }

    /// The number of the selected database.
    pub fn db(&self) -> usize {
        self.client.db
    }

    /// Selects a database, as SELECT would.
    ///
    /// # Errors
    ///
    /// Redis's error reply if there is no such database.
    pub fn select(&mut self, db: usize) -> Result<(), Reply> {
        let count = self.inner.state.lock().dbs.len();
        if db >= count {
            return Err(Reply::Error("ERR DB index is out of range".into()));
        }
        self.client.db = db;
        Ok(())
    }

    /// Executes a command without waiting.
    pub fn execute(&mut self, args: &[Bytes]) -> Outcome {
        let Some(mut state) = self.inner.lock() else {
            return Outcome::Reply(self.inner.while_busy(args));
        };
        let now = self.inner.clock.now_micros();
        let before = self.inner.recorded();
        match dispatch::run(&mut state, &mut self.client, args, now) {
            Done::Reply(reply) => {
                let after = self.inner.recorded();
                drop(state);
                Outcome::Reply(self.inner.commit(before, after).err().unwrap_or(reply))
            }
            Done::Wait(wait) => {
                let number = blocking::add(&mut state, &self.client, *wait);
                drop(state);
                Outcome::Blocked(Blocked {
                    inner: self.inner.clone(),
                    number,
                    sleep: None,
                    finished: false,
                })
            }
        }
    }

    /// Executes a command, and waits if it blocks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future unblocks the client. What had been taken for it is put back.
    pub async fn call(&mut self, args: Vec<Bytes>) -> Reply {
        if self.inner.is_paused() {
            self.wait_while_paused(&args).await;
        }
        match self.execute(&args) {
            Outcome::Reply(reply) => reply,
            Outcome::Blocked(blocked) => blocked.await,
        }
    }

    /// Makes this client visible to others, as one from a socket.
    pub(crate) fn announce(&mut self, addr: &str, laddr: &str, unix: bool) -> Announced {
        let now = self.inner.clock.now_micros();
        let Some(mut state) = self.inner.state.try_lock_for(PATIENCE) else {
            return Announced::Later;
        };
        state.stats.connections += 1;
        if state.clients.len() >= state.config.maxclients {
            return Announced::Refused;
        }
        let (addr, laddr) = (addr.to_owned(), laddr.to_owned());
        Announced::Welcome(self.client.register(&mut state, now, addr, laddr, unix))
    }

    /// Whether the engine's state is held by a command that takes long.
    pub(crate) fn is_held_up(&self) -> bool {
        self.inner.state.try_lock_for(PATIENCE).is_none()
    }

    pub(crate) fn limit_outbox(&mut self, bytes: usize) {
        self.client.limit_outbox(bytes);
    }

    pub(crate) fn take_inbox(&mut self) -> Inbox {
        self.client.take_inbox()
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.client.authenticated
    }

    /// What the configuration allows a client at present.
    pub(crate) fn allowed(&self) -> Allowed {
        Allowed::by(&self.inner.state.lock().config)
    }

    /// After how long a silent connection is closed; subscribers may be silent.
    pub(crate) fn idle_limit(&self, allowed: Allowed) -> Option<Duration> {
        let limited = allowed.idle > 0 && !self.client.is_subscribed();
        limited.then(|| Duration::from_secs(allowed.idle))
    }

    /// Writes what the client is to see.
    pub(crate) fn answer(&self, reply: &Reply, out: &mut Vec<u8>) {
        let wanted = self.client.answers == Answers::On || matches!(reply, Reply::Push(_));
        if wanted {
            resp::encode(reply, self.client.protocol, out);
        }
    }

    /// Executes commands under one hold of the lock, and writes their replies and what is pushed
    /// meanwhile. Stops at a command that waits, and when `enough` bytes are written. How many
    /// commands were executed, the one that waits included.
    pub(crate) fn execute_into(
        &mut self,
        commands: &[Vec<Bytes>],
        inbox: &mut Inbox,
        enough: usize,
        out: &mut Vec<u8>,
        allowed: &mut Allowed,
    ) -> (usize, Progress) {
        if commands.is_empty() && inbox.is_empty() {
            return (0, Progress::Done);
        }
        let inner = self.inner.clone();
        let Some(mut state) = inner.lock() else {
            for args in commands {
                self.answer(&inner.while_busy(args), out);
            }
            return (commands.len(), Progress::Done);
        };
        *allowed = Allowed::by(&state.config);
        let now = inner.clock.now_micros();
        let before = inner.recorded();
        let written = out.len();
        // What others have sent so far comes before what these commands answer.
        while out.len() < enough
            && let Some(pushed) = inbox.try_recv()
        {
            self.answer(&pushed.reply, out);
        }
        let mut late = Vec::new();
        let mut progress = Progress::Done;
        let mut count = 0;
        for args in commands {
            if out.len() >= enough {
                break;
            }
            if inner.is_paused()
                && dispatch::paused(&mut state, &self.client, args, now / 1000).is_some()
            {
                progress = Progress::Paused;
                break;
            }
            count += 1;
            let done = dispatch::run(&mut state, &mut self.client, args, now);
            while let Some(pushed) = inbox.try_recv() {
                if pushed.late {
                    late.push(pushed);
                } else {
                    self.answer(&pushed.reply, out);
                }
            }
            match done {
                Done::Reply(reply) => self.answer(&reply, out),
                Done::Wait(wait) => {
                    progress = Progress::Blocked(Blocked {
                        number: blocking::add(&mut state, &self.client, *wait),
                        inner: inner.clone(),
                        sleep: None,
                        finished: false,
                    });
                    break;
                }
            }
            for pushed in late.drain(..) {
                self.answer(&pushed.reply, out);
            }
            if self.client.closing {
                progress = Progress::Closing;
                break;
            }
        }
        let after = inner.recorded();
        drop(state);
        if let Err(error) = inner.commit(before, after) {
            // None of what was said above is certain: say that, and nothing more.
            out.truncate(written);
            self.answer(&error, out);
            progress = Progress::Closing;
        }
        (count, progress)
    }

    /// Waits for the end of a CLIENT PAUSE that concerns this command.
    pub(crate) async fn wait_while_paused(&self, args: &[Bytes]) {
        loop {
            let ended = self.inner.pause_ended.notified();
            let now = self.inner.clock.now_micros();
            let until =
                dispatch::paused(&mut self.inner.state.lock(), &self.client, args, now / 1000);
            let Some(until) = until else { return };
            let left = Duration::from_micros((until * 1000 - now).max(0) as u64);
            tokio::select! {
                () = ended => {}
                () = tokio::time::sleep(left), if self.inner.clock.is_live() => {}
            }
        }
    }

    /// Executes commands under one hold of the lock. Nothing waits: a command that would block
    /// answers as after its timeout. [`Session::pipeline`] waits.
    pub fn execute_batch(&mut self, commands: &[Vec<Bytes>]) -> Vec<Reply> {
        let mut replies = Vec::with_capacity(commands.len());
        let Some(mut state) = self.inner.lock() else {
            replies.extend(commands.iter().map(|args| self.inner.while_busy(args)));
            return replies;
        };
        let now = self.inner.clock.now_micros();
        let before = self.inner.recorded();
        for args in commands {
            replies.push(
                match dispatch::run(&mut state, &mut self.client, args, now) {
                    Done::Reply(reply) => reply,
                    Done::Wait(wait) => dispatch::shape(wait.on_timeout, self.client.protocol),
                },
            );
        }
        let after = self.inner.recorded();
        drop(state);
        if let Err(error) = self.inner.commit(before, after) {
            replies.fill(error);
        }
        replies
    }

    /// Executes commands in order, waiting where one blocks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the commands before the one that blocks executed, and the others
    /// not. What had been taken for the blocked one is put back.
    pub async fn pipeline(&mut self, commands: &[Vec<Bytes>]) -> Vec<Reply> {
        let mut replies = Vec::with_capacity(commands.len());
        while replies.len() < commands.len() {
            if self.inner.is_paused() {
                self.wait_while_paused(&commands[replies.len()]).await;
            }
            let blocked = self.run_until_blocked(&commands[replies.len()..], &mut replies);
            if let Some(blocked) = blocked {
                replies.push(blocked.await);
            }
        }
        replies
    }

    fn run_until_blocked(
        &mut self,
        commands: &[Vec<Bytes>],
        replies: &mut Vec<Reply>,
    ) -> Option<Blocked> {
        let Some(mut state) = self.inner.lock() else {
            replies.extend(commands.iter().map(|args| self.inner.while_busy(args)));
            return None;
        };
        let now = self.inner.clock.now_micros();
        let (before, first) = (self.inner.recorded(), replies.len());
        let mut blocked = None;
        for args in commands {
            match dispatch::run(&mut state, &mut self.client, args, now) {
                Done::Reply(reply) => replies.push(reply),
                Done::Wait(wait) => {
                    blocked = Some(Blocked {
                        number: blocking::add(&mut state, &self.client, *wait),
                        inner: self.inner.clone(),
                        sleep: None,
                        finished: false,
                    });
                    break;
                }
            }
        }
        let after = self.inner.recorded();
        drop(state);
        if let Err(error) = self.inner.commit(before, after) {
            replies[first..].fill(error);
        }
        blocked
    }

    /// Where this client's messages and invalidations arrive, as [`Reply::Push`] in either protocol.
    /// The first receiver gets them all.
    ///
    /// SUBSCRIBE and its like confirm once a channel: the last confirmation is the command's
    /// reply, the others arrive here.
    pub fn pushes(&mut self) -> PushReceiver {
        PushReceiver {
            inbox: self.client.take_inbox(),
            inner: Arc::downgrade(&self.inner),
            sleep: None,
        }
    }

    /// Whether QUIT was called.
    pub fn is_closing(&self) -> bool {
        self.client.closing
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.client.is_registered() {
            self.client.disconnect(&mut self.inner.state.lock());
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.client.id)
            .finish_non_exhaustive()
    }
}

/// A command that waits: a future of its reply.
///
/// # Cancel safety
///
/// Dropping it unblocks the client. What had been taken for it is put back.
#[must_use]
pub struct Blocked {
    inner: Arc<Inner>,
    number: u64,
    /// Set for the deadline once the future is polled; needs a runtime only then.
    sleep: Option<Pin<Box<Sleep>>>,
    finished: bool,
}

impl Blocked {
    /// The reply if there is one by now. Not to be called again after that.
    pub fn try_take(&mut self) -> Option<Reply> {
        match self.poll_state(None) {
            Poll::Ready(reply) => Some(reply),
            Poll::Pending => None,
        }
    }

    fn poll_state(&mut self, waker: Option<&std::task::Waker>) -> Poll<Reply> {
        let mut state = self.inner.state.lock();
        let now = self.inner.clock.now_micros();
        dispatch::tick(&mut state, now);
        let poll = blocking::poll(&mut state, self.number, waker);
        self.finished = poll.is_ready();
        let recorded = self.inner.recorded();
        drop(state);
        // What was taken for this client was recorded by whoever made it ready.
        match poll {
            Poll::Ready(reply) => {
                Poll::Ready(self.inner.commit(0, recorded).err().unwrap_or(reply))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Future for Blocked {
    type Output = Reply;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply> {
        let this = self.get_mut();
        loop {
            if let Poll::Ready(reply) = this.poll_state(Some(cx.waker())) {
                return Poll::Ready(reply);
            }
            if !this.inner.clock.is_live() {
                return Poll::Pending;
            }
            if this.sleep.is_none() {
                let Some(deadline) = this.inner.state.lock().blocking.deadline(this.number) else {
                    return Poll::Pending;
                };
                let left = (deadline * 1000 - this.inner.clock.now_micros()).max(0) as u64;
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
            let now = self.inner.clock.now_micros();
            blocking::cancel(&mut self.inner.state.lock(), self.number, now);
        }
    }
}

impl std::fmt::Debug for Blocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocked").finish_non_exhaustive()
    }
}

/// The out-of-band replies of one session.
pub struct PushReceiver {
    inbox: Inbox,
    inner: Weak<Inner>,
    /// Until keys that expired are looked for again.
    sleep: Option<Pin<Box<Sleep>>>,
}

/// How often keys that expired are looked for while nothing else happens.
const SWEEP: Duration = Duration::from_millis(100);

impl PushReceiver {
    /// The next push; `None` when the session is gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<Reply> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The next push if there is one.
    pub fn try_recv(&mut self) -> Option<Reply> {
        self.inbox.try_recv().map(|pushed| pushed.reply)
    }

    /// As [`PushReceiver::recv`], to be called from a `poll` function.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Reply>> {
        loop {
            if let Poll::Ready(pushed) = self.inbox.poll_recv(cx) {
                return Poll::Ready(pushed.map(|pushed| pushed.reply));
            }
            // No command may ever come that would notice that a key has expired.
            let Some(inner) = self.inner.upgrade().filter(|inner| inner.tells_of_expiry()) else {
                return Poll::Pending;
            };
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(SWEEP)));
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.sleep = None;
            inner.tick();
        }
    }
}

impl std::fmt::Debug for PushReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PushReceiver").finish_non_exhaustive()
    }
}
