//! A client of the engine, in process.
//!
//! Every way to run commands comes down to `Session::run`: take the lock, run commands in order,
//! note what their replies depend on, release the lock. The caller then waits until that much is
//! kept by the log, blocking ([`Session::execute`], [`Session::execute_batch`]) or not
//! ([`Session::call`], [`Session::pipeline`], the listener).

mod ahead;
mod now;

pub use ahead::LogPosition;

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Weak, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::MutexGuard;
use tokio::time::Sleep;

use crate::{
    acl,
    aof::Place,
    blocking,
    client::{Answers, Client, Inbox, Profile, Pushed, Watch},
    commands::transaction,
    compat::Compat,
    config::Config,
    context::{Ctx, Origin},
    dispatch::{self, Done},
    engine::{Inner, State},
    error::{CommandResult, Stop},
    feed::{
        self, Attachment,
        stream::{Confirmed, Stream},
    },
    notify::class,
    registry,
    reply::{Protocol, Reply},
    resp::{self, Commands},
    stats::commandlog,
    types::dict::WARMED,
};

/// What [`Session::execute`] and [`Session::execute_batch`] answer to what would change data while a hand-over
/// to another server holds writes back; nothing was done then. The others wait.
pub const HELD_BACK: &str = "TRYAGAIN writes are held back while the data moves";

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

/// How long a task may stand still for the lock. Commands hold it for microseconds; only a slow
/// script or a huge command holds it for longer.
const PATIENCE: Duration = Duration::from_millis(5);

/// What ended while a script held the engine's state, and is settled when the state is free.
pub(crate) enum Ended {
    /// A wait, by its number.
    Wait(u64),
    /// The watching of a client, by its number.
    Watch(u64, Box<Watch>),
    Client(Box<Client>),
}

impl Ended {
    fn settle(self, state: &mut State, now_micros: i64) {
        match self {
            Ended::Wait(number) => blocking::cancel(state, number, now_micros),
            Ended::Watch(client, watch) => transaction::end_watch(state, client, *watch),
            Ended::Client(mut client) => client.disconnect(state),
        }
    }
}

impl Inner {
    /// The engine's state, however long that takes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        self.settle_ended(&mut state);
        state
    }

    /// The engine's state, unless it is held for longer than commands hold it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        let state = match self.state.try_lock() {
            Some(state) => Some(state),
            // A script that is known to be slow will not be done in a moment.
            None if self.watchdog.is_busy() => None,
            None if self.watchdog.is_long() && self.clock.is_live() => None,
            None => self.state.try_lock_for(PATIENCE),
        };
        let mut state = state?;
        self.settle_ended(&mut state);
        Some(state)
    }

    #[inline]
    fn settle_ended(&self, state: &mut State) {
        if self.some_ended.load(Ordering::Relaxed) {
            self.some_ended.store(false, Ordering::Relaxed);
            let ended = std::mem::take(&mut *self.ended.lock());
            let now = self.clock.now_micros();
            for one in ended {
                one.settle(state, now);
            }
        }
    }

    /// Settles the end of a client or a wait now, or when the state is free.
    fn end(&self, ended: Ended) {
        match self.try_lock() {
            Some(mut state) => ended.settle(&mut state, self.clock.now_micros()),
            None => {
                self.ended.lock().push(ended);
                self.some_ended.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Does what is due by now; needed where no commands come.
    pub(crate) fn tick(&self) {
        let now = self.clock.now_micros();
        // A caller that holds the lock does the same.
        if let Some(mut state) = self.state.try_lock() {
            self.settle_ended(&mut state);
            dispatch::tick(&mut state, now);
            dispatch::finish(&mut state, now);
        }
    }

    /// Whether anyone subscribed to the expiry of keys, which happens also while no command comes.
    fn tells_of_expiry(&self) -> bool {
        let told = |state: &State| state.config.notify & class::EXPIRED != 0;
        self.clock.is_live() && self.state.try_lock().is_none_or(|state| told(&state))
    }

    /// Answers a command while a slow script holds the state.
    fn while_busy(&self, client: &mut Client, args: &[Bytes]) -> Reply {
        let spec = match registry::resolve(args, self.compat) {
            Ok(spec) => spec,
            Err(stop) => return refusal(client, stop),
        };
        if !spec.is(registry::flag::NO_AUTH) {
            if !client.authenticated && self.acl.is_guarded() {
                return refusal(client, acl::NOAUTH.into());
            }
            if !client.account.is_unlimited()
                && let Err(stop) = self.check_without_state(client, spec, args)
            {
                return refusal(client, stop);
            }
        }
        match spec.full_name {
            "script|kill" => answered(client, self.watchdog.kill_script()),
            "function|kill" => answered(client, self.watchdog.kill_function()),
            "function|stats" => answered(client, self.watchdog.stats()),
            "exec" => {
                client.multi = None;
                self.unwatch_later(client);
                let busy = self.watchdog.busy_text();
                Reply::Error(format!(
                    "EXECABORT Transaction discarded because of: {busy}"
                ))
            }
            "auth" | "hello" | "quit" | "multi" => self.run_without_state(client, args),
            "discard" if client.multi.is_some() => {
                client.multi = None;
                self.unwatch_later(client);
                Reply::OK
            }
            "discard" => self.run_without_state(client, args),
            "unwatch" if client.multi.is_none() => {
                self.unwatch_later(client);
                Reply::OK
            }
            "reset" if !client.is_subscribed() && client.tracking.is_none() => {
                self.unwatch_later(client);
                self.run_without_state(client, args)
            }
            _ => refusal(client, self.watchdog.busy_text().into()),
        }
    }

    /// Runs a command that looks at nothing but the client and the password.
    fn run_without_state(&self, client: &mut Client, args: &[Bytes]) -> Reply {
        let mut state = State::hollow();
        state.acl = self.acl.clone();
        state.config.compat = self.compat;
        let profile = client.profile.clone();
        let now = self.clock.now_micros();
        let done = dispatch::run(&mut state, client, args, now);
        if profile.is_none() {
            client.profile = None;
        }
        match done {
            Done::Reply(reply) => reply,
            // Nothing is lent to a state that is not the engine's.
            Done::Written => Reply::Nil,
            Done::Wait(wait) => wait.on_timeout,
        }
    }

    /// Whether the client's user may run this.
    fn check_without_state(
        &self,
        client: &mut Client,
        spec: &registry::Spec,
        args: &[Bytes],
    ) -> Result<(), Stop> {
        let mut state = State::hollow();
        state.acl = self.acl.clone();
        let profile = client.profile.clone();
        let now = self.clock.now_micros();
        let mut cx = Ctx::new(&mut state, client, now, Origin::Client);
        let checked = acl::check(&mut cx, spec, args);
        client.profile = profile;
        checked
    }

    /// Ends all watching of a client while the state is held.
    fn unwatch_later(&self, client: &mut Client) {
        if let Some(watch) = client.watch.take() {
            self.end(Ended::Watch(client.id, watch));
        }
    }
}

/// The reply to a command that was carried out without the state.
fn answered(client: &mut Client, result: CommandResult) -> Reply {
    match result {
        Ok(reply) => dispatch::shape(reply, client.protocol),
        Err(stop) => refusal(client, stop),
    }
}

/// An error reply to a command that was not run; a transaction is broken by it.
fn refusal(client: &mut Client, stop: Stop) -> Reply {
    if let Some(multi) = &mut client.multi {
        multi.broken = true;
    }
    match stop {
        Stop::Error(text) => Reply::Error(text.into_owned()),
        Stop::Block(wait) => wait.on_timeout,
    }
}

/// What the configuration allows a client.
#[derive(Clone, Copy)]
pub(crate) struct Allowed {
    /// The longest argument in bytes.
    pub(crate) bulk: usize,
    /// How many bytes may wait to be executed.
    pub(crate) buffer: usize,
    /// How many seconds it may be silent; 0 is no limit.
    idle: u64,
}

impl Allowed {
    pub(crate) fn by(config: &Config) -> Allowed {
        Allowed {
            bulk: config.proto_max_bulk_len,
            buffer: config.query_buffer_limit,
            idle: config.timeout,
        }
    }
}

/// What became of a connection's wish to be a client.
pub(crate) enum Announced {
    Welcome(Allowed),
    /// There are too many.
    Refused,
    /// The state is held: it will be announced by the first batch that finds it free.
    Later,
}

/// Where the replies of a batch go.
trait Replies {
    /// Called once, with the lock held, before the first command.
    fn begin(&mut self, _: &Client, _: &Config) {}
    /// The batch ends: there is no room for more replies.
    fn is_full(&self) -> bool {
        false
    }
    /// The batch ends with a command that ends the client.
    fn ends_with_client(&self) -> bool {
        false
    }
    fn take(&mut self, client: &Client, reply: Reply);
    /// As [`Replies::take`] while the state is held: messages stay where they are, since it is not known what they depend on.
    fn take_alone(&mut self, client: &Client, reply: Reply) {
        self.take(client, reply);
    }
    /// Where a command may write its reply itself.
    fn output(&mut self) -> Option<&mut Vec<u8>> {
        None
    }
    /// A command did so.
    fn wrote(&mut self, _: &Client) {}
    /// How many bytes there are, if they go to a client of a listener.
    fn bytes(&self) -> Option<usize> {
        None
    }
}

impl Replies for Vec<Reply> {
    fn take(&mut self, _: &Client, reply: Reply) {
        self.push(reply);
    }
}

/// Room for one reply.
#[derive(Default)]
struct One(Option<Reply>);

impl Replies for One {
    fn take(&mut self, _: &Client, reply: Reply) {
        self.0 = Some(reply);
    }
}

/// Replies as bytes for a socket, with what is pushed meanwhile where Redis puts it.
pub(crate) struct Wire<'a> {
    /// A message that comes before those in the inbox.
    pub(crate) unsettled: &'a mut Option<Pushed>,
    pub(crate) inbox: &'a mut Inbox,
    pub(crate) out: &'a mut Vec<u8>,
    /// How many bytes are enough.
    pub(crate) enough: usize,
    pub(crate) allowed: &'a mut Allowed,
    /// Set if something of others was written that tells of the data.
    pub(crate) told: &'a mut bool,
}

impl Replies for Wire<'_> {
    fn begin(&mut self, client: &Client, config: &Config) {
        *self.allowed = Allowed::by(config);
        // What others have sent so far comes before what these commands answer.
        while self.out.len() < self.enough
            && let Some(pushed) = self.unsettled.take().or_else(|| self.inbox.try_recv())
        {
            *self.told |= !pushed.free;
            answer(client, &pushed.reply, self.out);
        }
    }

    fn is_full(&self) -> bool {
        self.out.len() >= self.enough
    }

    fn ends_with_client(&self) -> bool {
        true
    }

    fn take(&mut self, client: &Client, reply: Reply) {
        let mut late: Vec<Pushed> = Vec::new();
        while let Some(pushed) = self.inbox.try_recv() {
            *self.told |= !pushed.free;
            if pushed.late {
                late.push(pushed);
            } else {
                answer(client, &pushed.reply, self.out);
            }
        }
        answer(client, &reply, self.out);
        for pushed in late {
            answer(client, &pushed.reply, self.out);
        }
    }

    fn take_alone(&mut self, client: &Client, reply: Reply) {
        answer(client, &reply, self.out);
    }

    #[inline]
    fn output(&mut self) -> Option<&mut Vec<u8>> {
        Some(self.out)
    }

    #[inline]
    fn bytes(&self) -> Option<usize> {
        Some(self.out.len())
    }

    /// The client gets no messages that it causes itself; all others may as well come behind.
    fn wrote(&mut self, client: &Client) {
        while let Some(pushed) = self.inbox.try_recv() {
            *self.told |= !pushed.free;
            answer(client, &pushed.reply, self.out);
        }
    }
}

/// Writes what a client is to see.
fn answer(client: &Client, reply: &Reply, out: &mut Vec<u8>) {
    let wanted = client.answers == Answers::On || matches!(reply, Reply::Push(_));
    if wanted {
        resp::encode(reply, client.protocol, out);
    }
}

/// What a batch does with a command that has to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The batch ends there, and at a command that CLIENT PAUSE holds back.
    Wait,
    /// The batch ends there; CLIENT PAUSE holds nothing back, but a move of the data does.
    Try,
    /// The command answers as after its timeout. Nothing is run if one of all would be held back by a
    /// move of the data.
    TimeOut,
}

/// Why a batch ended.
pub(crate) enum End {
    /// All commands were run, or enough is written.
    Done,
    /// The last command that was run waits.
    Blocked(Blocked),
    /// The next command has to wait until the end of a CLIENT PAUSE.
    Paused,
    /// The state is held by a command that takes long: try again in a moment.
    Held,
    /// The client wants to go, or must.
    Closing,
    /// The client has become a replica.
    Attached(Box<Attachment>),
}

/// What became of a batch of commands.
pub(crate) struct Ran {
    /// How many commands were run, the one that waits included.
    pub(crate) count: usize,
    pub(crate) end: End,
    /// The position of the log that the replies depend on.
    pub(crate) position: u64,
    /// The same for messages of others: where the last unit ended.
    pub(crate) last: u64,
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
        if db >= self.inner.databases {
            return Err(Reply::Error("ERR DB index is out of range".into()));
        }
        self.client.db = db;
        Ok(())
    }

    /// Runs commands in order under one hold of the lock. The replies may leave when the log has
    /// kept everything up to [`Ran::position`].
    fn run<'c>(
        &mut self,
        commands: impl IntoIterator<Item = &'c [Bytes], IntoIter: Clone>,
        mode: Mode,
        replies: &mut impl Replies,
    ) -> Ran {
        let Session { inner, client } = self;
        let mut commands = commands.into_iter();
        let mut ran = Ran {
            count: 0,
            end: End::Done,
            position: 0,
            last: 0,
        };
        let Some(mut state) = inner.try_lock() else {
            if !inner.watchdog.is_busy() {
                ran.end = End::Held;
                return ran;
            }
            for args in commands {
                if replies.is_full() {
                    break;
                }
                ran.count += 1;
                client.begin_command();
                let reply = inner.while_busy(client, args);
                replies.take_alone(client, reply);
                if client.closing && replies.ends_with_client() {
                    ran.end = End::Closing;
                    break;
                }
            }
            client.show(inner.clock.now_micros());
            return ran;
        };
        let now = inner.clock.now_micros();
        if let Some(profile) = client.unannounced.take()
            && !client.enter(&mut state, profile)
        {
            client.closing = true;
            ran.end = End::Closing;
            replies.take(client, Reply::Error(TOO_MANY_CLIENTS.into()));
            return ran;
        }
        // Who killed it may have been told so: nothing of it runs any more.
        if replies.ends_with_client() && client.is_killed() {
            return ran;
        }
        if mode == Mode::TimeOut
            && inner.is_paused()
            && dispatch::holds_back(&mut state, client, commands.clone(), now / 1000)
        {
            ran.end = End::Paused;
            return ran;
        }
        state.effects.begin();
        state.stats.pause();
        replies.begin(client, &state.config);
        let mut unwarmed = 0;
        loop {
            if unwarmed == 0 {
                unwarmed = WARMED;
                // Most commands have their key there; for the others this is in vain, but does no harm.
                let keys = commands.clone().filter_map(|args| args.get(1));
                // One alone has nothing to wait for together with.
                if keys.clone().nth(1).is_some() {
                    state.dbs[client.db].warm(keys.map(AsRef::as_ref));
                }
            }
            unwarmed -= 1;
            if replies.is_full() {
                break;
            }
            let Some(args) = commands.next() else {
                break;
            };
            if inner.is_paused() {
                let until = match mode {
                    Mode::Wait => dispatch::paused(&mut state, client, args, now / 1000),
                    Mode::Try => dispatch::held_back(&mut state, client, args, now / 1000),
                    Mode::TimeOut => None,
                };
                if until.is_some() {
                    ran.end = End::Paused;
                    break;
                }
            }
            ran.count += 1;
            client.begin_command();
            // What a client is told of in between has its place before the reply.
            let lent = client.is_plain();
            if lent && let Some(output) = replies.output() {
                state.output.lend(output);
            }
            let before = match state.config.compat {
                Compat::Valkey9 => replies.bytes(),
                _ => None,
            };
            let done = dispatch::run(&mut state, client, args, now);
            if lent && let Some(output) = replies.output() {
                state.output.take_back(output);
            }
            match done {
                Done::Written => replies.wrote(client),
                Done::Reply(_) if client.attachment.is_some() => {}
                Done::Reply(reply) => replies.take(client, reply),
                Done::Wait(wait) if mode == Mode::TimeOut => {
                    let reply = dispatch::shape(wait.on_timeout, client.protocol);
                    replies.take(client, reply);
                }
                Done::Wait(mut wait) => {
                    // The time of the batch is cut to microseconds, and may be a while ago.
                    let late = (inner.clock.now_micros_up() - now).max(0);
                    wait.deadline = wait.deadline.map(|deadline| deadline.saturating_add(late));
                    ran.end = End::Blocked(Blocked {
                        number: blocking::add(&mut state, client, *wait),
                        inner: inner.clone(),
                        sleep: None,
                        place: Place::default(),
                        finished: false,
                    });
                    break;
                }
            }
            if let (Some(before), Some(after)) = (before, replies.bytes()) {
                let answered = after.saturating_sub(before);
                commandlog::look(&mut state, client, args, now, answered);
            }
            if let Some(attachment) = client.attachment.take() {
                ran.end = End::Attached(attachment);
                break;
            }
            if client.closing && replies.ends_with_client() {
                ran.end = End::Closing;
                break;
            }
        }
        client.show(now);
        ran.position = state.effects.position();
        ran.last = state.effects.last_position();
        ran
    }

    /// As [`Session::run`], waiting for as long as a script or command holds the state, until it
    /// counts as slow.
    fn run_blocking<'c>(
        &mut self,
        commands: impl IntoIterator<Item = &'c [Bytes], IntoIter: Clone> + Clone,
        mode: Mode,
        replies: &mut impl Replies,
    ) -> Ran {
        loop {
            let ran = self.run(commands.clone(), mode, replies);
            if !matches!(ran.end, End::Held) {
                return ran;
            }
        }
    }

    /// Executes a command without waiting for what it may block on. With [`crate::Fsync::Always`] a
    /// write blocks the thread until it is on the disk; [`Session::call`] does not.
    pub fn execute(&mut self, args: &[Bytes]) -> Outcome {
        match self.execute_ahead(args) {
            (Outcome::Reply(reply), position) => {
                let kept = self.inner.commit(position.at());
                Outcome::Reply(kept.err().unwrap_or(reply))
            }
            (blocked, _) => blocked,
        }
    }

    /// Executes commands under one hold of the lock. Nothing waits: a command that would block
    /// answers as after its timeout. [`Session::pipeline`] waits.
    pub fn execute_batch(&mut self, commands: &[Vec<Bytes>]) -> Vec<Reply> {
        let (mut replies, position) = self.execute_batch_ahead(commands);
        if let Err(failed) = self.inner.commit(position.at()) {
            replies.fill(failed);
        }
        replies
    }

    /// Executes a command, and waits if it blocks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future unblocks the client. What had been taken for it is put back. A command
    /// that does not block is executed by the first poll; after that, dropping the future only
    /// gives up waiting for the log.
    pub async fn call(&mut self, args: Vec<Bytes>) -> Reply {
        let (reply, position) = self.call_ahead(args).await;
        let kept = self.inner.kept(position.at()).await;
        kept.err().unwrap_or(reply)
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
            let first = replies.len();
            let rest = commands[first..].iter().map(Vec::as_slice);
            let ran = self.run(rest, Mode::Wait, &mut replies);
            if let Err(failed) = self.inner.kept(ran.position).await {
                replies[first..].fill(failed);
            }
            match ran.end {
                End::Blocked(blocked) => replies.push(blocked.await),
                End::Paused => self.wait_while_paused(&commands[replies.len()]).await,
                End::Held => self.inner.wait_for_lock().await,
                End::Done | End::Closing | End::Attached(_) => {}
            }
        }
        replies
    }

    /// Makes this client visible to others, as one from a socket.
    pub(crate) fn announce(
        &mut self,
        addr: &str,
        laddr: &str,
        unix: bool,
    ) -> (Arc<Profile>, Announced) {
        let now = self.inner.clock.now_micros();
        let profile = self
            .client
            .make_profile(now, addr.to_owned(), laddr.to_owned(), unix);
        self.client.networked = true;
        let announced = match self.inner.try_lock() {
            None => {
                self.client.unannounced = Some(profile.clone());
                Announced::Later
            }
            Some(mut state) => match self.client.enter(&mut state, profile.clone()) {
                true => Announced::Welcome(Allowed::by(&state.config)),
                false => Announced::Refused,
            },
        };
        (profile, announced)
    }

    /// The client is a replica and has all data.
    pub(crate) fn replica_is_online(&self, stream: &Stream) {
        stream.set_online(self.client.id, self.inner.clock.now_micros());
    }

    /// The client is a replica and said that it is alive, or how far it is.
    pub(crate) fn replica_was_heard(&self, stream: &Stream, confirmed: Confirmed) {
        let now = self.inner.clock.now_micros();
        stream.heard(self.client.id, confirmed, now);
        // If the state is held, the next tick does this.
        if confirmed.applied.is_some()
            && let Some(mut state) = self.inner.try_lock()
        {
            feed::wake_waiting(&mut state);
            dispatch::finish(&mut state, now);
        }
    }

    /// Lets commands be counted and timed as those of a listener's client.
    #[cfg(test)]
    pub(crate) fn count_as_networked(&mut self, networked: bool) {
        self.client.networked = networked;
    }

    /// Counts bytes that came over the client's connection.
    pub(crate) fn was_read(&self, bytes: usize) {
        self.inner.traffic.read(bytes);
        if let Some(profile) = &self.client.profile {
            profile.received.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Counts bytes that went over it.
    pub(crate) fn was_written(&self, bytes: usize) {
        self.inner.traffic.wrote(bytes);
        if let Some(profile) = &self.client.profile {
            profile.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn take_inbox(&mut self) -> Inbox {
        self.client.take_inbox()
    }

    /// What the configuration allows the client, unless the state is held.
    pub(crate) fn allowed(&self) -> Option<Allowed> {
        Some(Allowed::by(&self.inner.try_lock()?.config))
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.client.authenticated
    }

    /// After how long a silent connection is closed; subscribers may be silent.
    pub(crate) fn idle_limit(&self, allowed: Allowed) -> Option<Duration> {
        let limited = allowed.idle > 0 && !self.client.is_subscribed();
        limited.then(|| Duration::from_secs(allowed.idle))
    }

    /// Writes what the client is to see.
    pub(crate) fn answer(&self, reply: &Reply, out: &mut Vec<u8>) {
        answer(&self.client, reply, out);
    }

    /// Runs a connection's commands, and writes their replies and what is pushed meanwhile. They
    /// may be sent once [`Session::kept`] says so.
    pub(crate) fn run_on_wire(&mut self, commands: &Commands, mut wire: Wire<'_>) -> Ran {
        if commands.is_empty() && wire.inbox.is_empty() {
            return Ran {
                count: 0,
                end: End::Done,
                position: 0,
                last: 0,
            };
        }
        self.run(commands.rest(), Mode::Wait, &mut wire)
    }

    /// Waits until replies that depend on this position of the log may leave.
    pub(crate) async fn kept(&self, position: u64) -> Result<(), Reply> {
        self.inner.kept(position).await
    }

    /// Up to where the log has to be on the disk before messages of others may be seen; `None` while the state is held for
    /// long.
    pub(crate) fn told_position(&self) -> Option<u64> {
        self.inner.told_position()
    }

    /// Up to where the log has to be on the disk before replicas may have what is in their stream.
    pub(crate) fn fed_position(&self) -> u64 {
        self.inner.fed_position()
    }

    /// Makes the client a replica that had to wait for the disk.
    pub(crate) async fn attach(&self, request: feed::Request) -> Result<feed::Attachment, Reply> {
        let mut request = Some(request);
        loop {
            if let Some(mut state) = self.inner.try_lock()
                && let Some(request) = request.take()
            {
                let now = self.inner.clock.now_micros();
                return feed::attach_now(&mut state, request, now).map_err(|stop| match stop {
                    Stop::Error(text) => Reply::Error(text.into_owned()),
                    Stop::Block(_) => Reply::Nil,
                });
            }
            self.inner.wait_for_lock().await;
        }
    }

    /// Waits until this much is on the disk, if that is what is promised, however often that fails before.
    pub(crate) async fn synced(&self, position: u64) {
        let mut place = Place::default();
        std::future::poll_fn(|cx| self.inner.poll_synced(position, &mut place, cx)).await;
    }

    /// Waits while a hand-over holds writes back: until something that was answered with [`HELD_BACK`] may be
    /// tried again.
    pub async fn until_let_go(&self) {
        // Something that changes data.
        self.wait_while_paused(&[Bytes::from_static(b"FLUSHALL")])
            .await;
    }

    /// Waits for the end of a CLIENT PAUSE that concerns this command.
    pub(crate) async fn wait_while_paused(&self, args: &[Bytes]) {
        loop {
            let ended = self.inner.pause_ended.notified();
            let now = self.inner.clock.now_micros();
            let looked = self
                .inner
                .try_lock()
                .map(|mut state| dispatch::paused(&mut state, &self.client, args, now / 1000));
            let Some(until) = looked else {
                self.inner.wait_for_lock().await;
                continue;
            };
            let Some(until) = until else { return };
            let left = Duration::from_micros((until * 1000 - now).max(0) as u64);
            tokio::select! {
                () = ended => {}
                () = tokio::time::sleep(left), if self.inner.clock.is_live() => {}
            }
        }
    }

    /// Waits a moment while the engine's state is held for long.
    pub(crate) async fn wait_for_lock(&self) {
        self.inner.wait_for_lock().await;
    }

    /// Where this client's messages and invalidations arrive, as [`Reply::Push`] in either protocol.
    /// The first receiver gets them all.
    ///
    /// SUBSCRIBE and its like confirm each channel: the last confirmation is the command's reply,
    /// the others arrive here.
    pub fn pushes(&mut self) -> PushReceiver {
        PushReceiver {
            inbox: self.client.take_inbox(),
            inner: Arc::downgrade(&self.inner),
            held: None,
            covered: 0,
            position: None,
            place: Place::default(),
            sleep: None,
        }
    }

    /// Whether QUIT was called.
    pub fn is_closing(&self) -> bool {
        self.client.closing
    }
}

pub(crate) const TOO_MANY_CLIENTS: &str = "ERR max number of clients reached";

impl Inner {
    /// Waits until replies that depend on this position of the log may leave.
    async fn kept(&self, position: u64) -> Result<(), Reply> {
        if position == 0 {
            return Ok(());
        }
        let mut place = Place::default();
        std::future::poll_fn(|cx| self.poll_kept(position, &mut place, cx)).await
    }

    /// Waits a moment while the state is held for long.
    async fn wait_for_lock(&self) {
        if self.can_sleep() {
            tokio::time::sleep(PATIENCE).await;
        } else {
            // Looking for the lock takes a moment, too.
            let mut looked = false;
            std::future::poll_fn(|cx| match std::mem::replace(&mut looked, true) {
                true => Poll::Ready(()),
                false => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            })
            .await;
        }
    }

    /// Whether this is a runtime whose clock is the engine's.
    fn can_sleep(&self) -> bool {
        self.clock.is_live() && tokio::runtime::Handle::try_current().is_ok()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.client.is_registered() {
            let client =
                std::mem::replace(&mut self.client, Client::internal(0, 0, Protocol::Resp2));
            self.inner.end(Ended::Client(Box::new(client)));
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
        match self.inner.poll_kept(position, &mut self.place, cx) {
            Poll::Pending => Look::Unkept,
            Poll::Ready(Err(failed)) => Look::Reply(failed),
            Poll::Ready(Ok(())) => {
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
