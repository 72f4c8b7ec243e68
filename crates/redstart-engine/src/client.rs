//! What the engine knows of one client between its commands.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{
    acl::Account,
    engine::State,
    feed::{self, Attachment, Hopeful},
    pubsub,
    registry::Spec,
    reply::{Protocol, Reply},
    tracking::{self, Tracking},
    types::blob::Blob,
};

/// A client's state; lives in its session and is lent to each command.
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) db: usize,
    pub(crate) protocol: Protocol,
    /// Whose rights the client has.
    pub(crate) account: Arc<Account>,
    /// It has shown whose they are, or needs not.
    pub(crate) authenticated: bool,
    /// Since MULTI.
    pub(crate) multi: Option<Box<Multi>>,
    /// Since WATCH.
    pub(crate) watch: Option<Box<Watch>>,
    /// Since SUBSCRIBE and its like.
    pub(crate) subscriptions: Option<Box<Subscriptions>>,
    /// Since CLIENT TRACKING ON.
    pub(crate) tracking: Option<Box<Tracking>>,
    /// What CLIENT LIST shows; only for clients that others may ask about.
    pub(crate) profile: Option<Arc<Profile>>,
    /// How many commands it has run.
    pub(crate) commands: u64,
    /// The last command that ran, while the profile does not show what it did.
    unshown: Option<Option<&'static Spec>>,
    /// The profile, while the list of clients does not have it: a script held the engine's state when the
    /// client came.
    pub(crate) unannounced: Option<Arc<Profile>>,
    /// It speaks over a socket, from a task of the listener.
    pub(crate) networked: bool,
    /// Which replies the client wants to see.
    pub(crate) answers: Answers,
    /// QUIT was called, or the client killed itself.
    pub(crate) closing: bool,
    /// MONITOR was called.
    pub(crate) monitors: bool,
    /// CLIENT NO-TOUCH: reading a key does not count as its use.
    pub(crate) no_touch: bool,
    /// What a client said that is about to become a replica.
    pub(crate) hopeful: Option<Box<Hopeful>>,
    /// It has become one, and its connection is to feed it.
    pub(crate) attachment: Option<Box<Attachment>>,
    outbox: Option<Outbox>,
}

/// A transaction that is being queued.
#[derive(Default)]
pub(crate) struct Multi {
    pub(crate) queue: Vec<(&'static Spec, Vec<Bytes>)>,
    /// About how much memory they take up.
    pub(crate) bytes: usize,
    /// A command was refused while queueing: EXEC aborts.
    pub(crate) broken: bool,
}

/// The keys a client watches.
pub(crate) struct Watch {
    pub(crate) keys: Vec<(usize, Blob)>,
    pub(crate) touched: Arc<AtomicBool>,
}

/// What a client listens to.
#[derive(Default)]
pub(crate) struct Subscriptions {
    pub(crate) channels: BTreeSet<Blob>,
    pub(crate) patterns: BTreeSet<Blob>,
    pub(crate) shards: BTreeSet<Blob>,
}

/// CLIENT REPLY. Only a listener acts on it: a call in process always has its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Answers {
    #[default]
    On,
    Off,
    /// The next command gets no reply.
    SkipNext,
    /// The running command gets no reply.
    Skip,
}

/// Where a client's out-of-band replies go. Clones share the queue.
#[derive(Clone)]
pub(crate) struct Outbox {
    sender: UnboundedSender<Pushed>,
    shared: Arc<OutboxShared>,
}

struct OutboxShared {
    /// Until the session's owner asks for it.
    receiver: Mutex<Option<UnboundedReceiver<Pushed>>>,
    /// About how many bytes wait to be received.
    waiting: Arc<AtomicUsize>,
    /// More than that is too slow a reader; 0 is no limit.
    limit: AtomicUsize,
    /// Told when the limit is passed.
    owner: Mutex<Option<Arc<Profile>>>,
}

/// One out-of-band reply on its way.
pub(crate) struct Pushed {
    pub(crate) reply: Reply,
    /// Belongs behind the reply of the command that caused it, if the client itself sent that.
    pub(crate) late: bool,
    /// It tells nothing of the data, and may be seen before that is on the disk.
    pub(crate) free: bool,
    size: usize,
}

/// The receiving end of an [`Outbox`].
pub(crate) struct Inbox {
    receiver: UnboundedReceiver<Pushed>,
    waiting: Arc<AtomicUsize>,
}

impl Outbox {
    fn new() -> Outbox {
        let (sender, receiver) = unbounded_channel();
        let shared = OutboxShared {
            receiver: Mutex::new(Some(receiver)),
            waiting: Arc::default(),
            limit: AtomicUsize::new(0),
            owner: Mutex::new(None),
        };
        Outbox {
            sender,
            shared: Arc::new(shared),
        }
    }

    /// Queues a reply for the client, to be seen before the reply of the running command.
    pub(crate) fn push(&self, reply: Reply) {
        self.queue(reply, false, false);
    }

    /// As [`Outbox::push`], for what tells nothing of the data.
    pub(crate) fn push_free(&self, reply: Reply) {
        self.queue(reply, false, true);
    }

    /// Queues a reply that follows the reply of the running command.
    pub(crate) fn push_late(&self, reply: Reply) {
        self.queue(reply, true, false);
    }

    fn queue(&self, reply: Reply, late: bool, free: bool) {
        let size = reply.size();
        let waiting = self.shared.waiting.fetch_add(size, Ordering::Relaxed) + size;
        let limit = self.shared.limit.load(Ordering::Relaxed);
        if limit != 0 && waiting > limit {
            if let Some(profile) = &*self.shared.owner.lock() {
                profile.kill();
            }
            return;
        }
        // Nobody receives any more: the session is on its way out.
        let _ = self.sender.send(Pushed {
            reply,
            late,
            free,
            size,
        });
    }

    /// More bytes than this may not wait; 0 is no limit.
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.shared.limit.store(bytes, Ordering::Relaxed);
    }

    /// About how many bytes wait.
    pub(crate) fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    fn take_inbox(&self) -> Inbox {
        let receiver = match self.shared.receiver.lock().take() {
            Some(receiver) => receiver,
            // Asked for a second time: the first receiver stays the one that gets the pushes.
            None => unbounded_channel().1,
        };
        Inbox {
            receiver,
            waiting: self.shared.waiting.clone(),
        }
    }
}

impl Inbox {
    fn took(&self, pushed: Pushed) -> Pushed {
        self.waiting.fetch_sub(pushed.size, Ordering::Relaxed);
        pushed
    }

    #[inline]
    pub(crate) fn try_recv(&mut self) -> Option<Pushed> {
        // Asked after each command, mostly without success; what is sent is counted first.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let pushed = self.receiver.try_recv().ok()?;
        Some(self.took(pushed))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.receiver.len()
    }

    pub(crate) fn poll_recv(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Pushed>> {
        self.receiver
            .poll_recv(cx)
            .map(|pushed| pushed.map(|pushed| self.took(pushed)))
    }

    pub(crate) async fn recv(&mut self) -> Option<Pushed> {
        let pushed = self.receiver.recv().await?;
        Some(self.took(pushed))
    }
}

/// What other clients can see of a client.
pub(crate) struct Profile {
    pub(crate) id: u64,
    /// `ip:port`, a socket's path, or nothing for a client in this process.
    pub(crate) addr: String,
    pub(crate) laddr: String,
    pub(crate) unix: bool,
    /// Unix microseconds.
    pub(crate) created: i64,
    pub(crate) outbox: Outbox,
    pub(crate) resp3: AtomicBool,
    /// Told when the client is killed.
    pub(crate) end: EndSignal,
    /// Bytes that were received and not executed, and replies that were not sent.
    pub(crate) held: AtomicUsize,
    /// Bytes of commands that wait for EXEC.
    pub(crate) queued: AtomicUsize,
    /// Bytes that came from it and went to it over its connection.
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) activity: Mutex<Activity>,
}

/// Tells the task of a connection that its client is killed. The task waits between any two requests, so
/// this must cost little: it only leaves its waker.
#[derive(Default)]
pub(crate) struct EndSignal {
    told: AtomicBool,
    /// The one task that waits.
    task: Mutex<Option<Waker>>,
}

impl EndSignal {
    fn tell(&self) {
        self.told.store(true, Ordering::Relaxed);
        // The lock orders this behind the look of a task that has just left its waker.
        if let Some(task) = self.task.lock().take() {
            task.wake();
        }
    }

    /// Waits for it; whatever comes later is ready at once.
    pub(crate) async fn notified(&self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
    }

    /// As [`EndSignal::notified`].
    #[inline]
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut task = self.task.lock();
        if self.told.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        match &*task {
            Some(before) if before.will_wake(cx.waker()) => {}
            _ => *task = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

/// The part of a [`Profile`] that changes with the client's commands.
#[derive(Clone)]
pub(crate) struct Activity {
    pub(crate) account: Arc<Account>,
    pub(crate) name: Bytes,
    pub(crate) db: usize,
    pub(crate) command: &'static str,
    /// Unix microseconds of the last command.
    pub(crate) used: i64,
    pub(crate) channels: usize,
    pub(crate) patterns: usize,
    pub(crate) shards: usize,
    /// How many commands are queued since MULTI; -1 outside.
    pub(crate) multi: i64,
    /// How many keys it watches.
    pub(crate) watched: usize,
    pub(crate) watch_broken: bool,
    /// What CLIENT SETINFO said of the library that it uses.
    pub(crate) lib_name: Bytes,
    pub(crate) lib_ver: Bytes,
    /// It follows redirections, by its word.
    pub(crate) redirects: bool,
    /// How many commands it has run.
    pub(crate) commands: u64,
    pub(crate) no_evict: bool,
    pub(crate) no_touch: bool,
    /// It is a server that follows this one.
    pub(crate) replica: bool,
    pub(crate) tracking: bool,
    pub(crate) bcast: bool,
    /// The client that gets this one's invalidations; 0 for itself, -1 without tracking.
    pub(crate) redirect: i64,
}

impl Profile {
    pub(crate) fn is_killed(&self) -> bool {
        self.end.told.load(Ordering::Relaxed)
    }

    pub(crate) fn kill(&self) {
        self.end.tell();
    }

    pub(crate) fn is_resp3(&self) -> bool {
        self.resp3.load(Ordering::Relaxed)
    }

    /// How many bytes are kept for this client, about.
    pub(crate) fn buffered(&self) -> usize {
        let held = self.held.load(Ordering::Relaxed);
        let queued = self.queued.load(Ordering::Relaxed);
        self.outbox.waiting() + held + queued
    }
}

impl Client {
    pub(crate) fn new(id: u64, account: Arc<Account>, authenticated: bool) -> Client {
        Client {
            id,
            db: 0,
            protocol: Protocol::Resp2,
            account,
            authenticated,
            multi: None,
            watch: None,
            subscriptions: None,
            tracking: None,
            profile: None,
            unshown: None,
            commands: 0,
            unannounced: None,
            networked: false,
            answers: Answers::On,
            closing: false,
            monitors: false,
            no_touch: false,
            hopeful: None,
            attachment: None,
            outbox: None,
        }
    }

    /// A client for what the engine runs on its own or on behalf of a client that waits.
    pub(crate) fn internal(id: u64, db: usize, protocol: Protocol) -> Client {
        Client {
            db,
            protocol,
            ..Client::new(id, Account::of_engine(), true)
        }
    }

    /// Where out-of-band replies for this client go.
    pub(crate) fn outbox(&mut self) -> &Outbox {
        self.outbox.get_or_insert_with(Outbox::new)
    }

    pub(crate) fn take_inbox(&mut self) -> Inbox {
        self.outbox().take_inbox()
    }

    pub(crate) fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
        if let Some(profile) = &self.profile {
            profile
                .resp3
                .store(protocol == Protocol::Resp3, Ordering::Relaxed);
        }
    }

    /// How many channels and patterns the client listens to, sharded ones not counted.
    pub(crate) fn subscribed(&self) -> usize {
        self.subscriptions
            .as_ref()
            .map_or(0, |s| s.channels.len() + s.patterns.len())
    }

    /// Whether the client is in this process, on a unix socket or on a loopback address.
    pub(crate) fn is_local(&self) -> bool {
        let address = |profile: &Arc<Profile>| profile.addr.parse::<std::net::SocketAddr>();
        match &self.profile {
            None => !self.networked,
            Some(profile) if profile.unix || profile.addr.is_empty() => true,
            Some(profile) => address(profile).is_ok_and(|address| address.ip().is_loopback()),
        }
    }

    /// Whether nothing but the replies to its commands is due to the client, and all of them are.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.subscriptions.is_none()
            && self.tracking.is_none()
            && !self.monitors
            && self.answers == Answers::On
    }

    /// Whether another client has ended this one.
    #[inline]
    pub(crate) fn is_killed(&self) -> bool {
        self.profile.as_ref().is_some_and(|own| own.is_killed())
    }

    /// Whether the client listens to anything at all.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.subscriptions.is_some()
    }

    /// Makes the client visible to others.
    pub(crate) fn register(&mut self, state: &mut State, now_micros: i64) -> Arc<Profile> {
        if let Some(profile) = &self.profile {
            return profile.clone();
        }
        let profile = self.make_profile(now_micros, String::new(), String::new(), false);
        state.clients.insert(self.id, profile.clone());
        profile
    }

    /// Puts a profile that the list of clients does not have there; false if there are too many.
    pub(crate) fn enter(&mut self, state: &mut State, profile: Arc<Profile>) -> bool {
        state.stats.connections += 1;
        if state.clients.len() >= state.config.maxclients {
            state.stats.rejected += 1;
            return false;
        }
        // Ends the client when too many bytes wait for it.
        let outbox = self.outbox();
        outbox.set_limit(state.config.output_limits[2].hard as usize);
        *outbox.shared.owner.lock() = Some(profile.clone());
        state.clients.insert(profile.id, profile);
        true
    }

    /// The client's profile, which others do not see yet.
    pub(crate) fn make_profile(
        &mut self,
        now_micros: i64,
        addr: String,
        laddr: String,
        unix: bool,
    ) -> Arc<Profile> {
        let profile = Arc::new(Profile {
            id: self.id,
            addr,
            laddr,
            unix,
            created: now_micros,
            outbox: self.outbox().clone(),
            resp3: AtomicBool::new(self.protocol == Protocol::Resp3),
            end: EndSignal::default(),
            held: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            activity: Mutex::new(Activity {
                account: self.account.clone(),
                name: Bytes::new(),
                db: self.db,
                command: "NULL",
                used: now_micros,
                channels: 0,
                patterns: 0,
                shards: 0,
                multi: -1,
                watched: 0,
                watch_broken: false,
                lib_name: Bytes::new(),
                lib_ver: Bytes::new(),
                redirects: false,
                commands: 0,
                no_evict: false,
                no_touch: false,
                replica: false,
                tracking: false,
                bcast: false,
                redirect: -1,
            }),
        });
        self.profile = Some(profile.clone());
        profile
    }

    /// A command ran, or was refused if there is no such command.
    #[inline]
    pub(crate) fn ran(&mut self, spec: Option<&'static Spec>) {
        self.unshown = Some(spec.or(self.unshown.flatten()));
    }

    /// Shows others what commands did since the last time. Nobody looks while a batch of commands runs,
    /// except for commands in it.
    #[inline]
    pub(crate) fn show(&mut self, now_micros: i64) {
        if let Some(spec) = self.unshown.take() {
            self.update_profile(spec.map(|spec| spec.full_name), now_micros);
        }
    }

    /// Brings what others see up to date.
    pub(crate) fn update_profile(&self, command: Option<&'static str>, now_micros: i64) {
        let Some(profile) = &self.profile else { return };
        let mut activity = profile.activity.lock();
        if let Some(command) = command {
            activity.command = command;
        }
        let queued = self.multi.as_ref().map_or(0, |multi| multi.bytes);
        profile.queued.store(queued, Ordering::Relaxed);
        activity.used = now_micros;
        activity.db = self.db;
        if !Arc::ptr_eq(&activity.account, &self.account) {
            activity.account = self.account.clone();
        }
        activity.multi = self.multi.as_ref().map_or(-1, |m| m.queue.len() as i64);
        activity.commands = self.commands;
        activity.watched = self.watch.as_ref().map_or(0, |watch| watch.keys.len());
        activity.watch_broken = self
            .watch
            .as_ref()
            .is_some_and(|w| w.touched.load(Ordering::Relaxed));
        (activity.channels, activity.patterns, activity.shards) =
            self.subscriptions.as_ref().map_or((0, 0, 0), |s| {
                (s.channels.len(), s.patterns.len(), s.shards.len())
            });
        let tracking = self.tracking.as_deref();
        activity.tracking = tracking.is_some();
        activity.bcast = tracking.is_some_and(|t| t.bcast);
        activity.redirect = tracking.map_or(-1, |t| t.redirect as i64);
    }

    /// Whether the engine's state refers to this client, so that it must be told of its end.
    pub(crate) fn is_registered(&self) -> bool {
        self.watch.is_some()
            || self.profile.is_some()
            || self.subscriptions.is_some()
            || self.tracking.is_some()
    }

    /// A command begins, be it run or refused: CLIENT REPLY SKIP concerns one of them.
    #[inline]
    pub(crate) fn begin_command(&mut self) {
        self.answers = match self.answers {
            Answers::SkipNext => Answers::Skip,
            Answers::Skip => Answers::On,
            other => other,
        };
    }

    /// Removes all that refers to this client.
    pub(crate) fn disconnect(&mut self, state: &mut State) {
        crate::commands::transaction::unwatch_all(state, self);
        pubsub::forget(state, self);
        tracking::disable(state, self);
        state.monitors.remove(&self.id);
        feed::forget(state, self.id);
        if let Some(profile) = self.profile.take() {
            state.clients.remove(&profile.id);
        }
    }
}
