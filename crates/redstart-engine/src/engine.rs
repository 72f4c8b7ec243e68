//! The engine: all databases behind one lock, and the sessions that work on them.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    acl::Acl,
    answer::Output,
    aof::{self, LogSlot},
    blocking::{self, Blocking},
    client::{Client, Profile},
    clock::Clock,
    commands::cluster,
    compat::Compat,
    config::{Config, MemoryPolicy, Settings},
    dispatch,
    effect::Effects,
    error::{EngineError, LOG_FAILED, NOT_KEPT},
    eviction,
    feed::Feed,
    handover,
    keyspace::Db,
    pubsub::PubSub,
    random::Random,
    rdb::{self, Saves},
    replica::{self, Replica},
    reply::{Protocol, Reply},
    script::{Limits, Scripts, Watchdog},
    session::{Ended, Session},
    stats::{Stats, Traffic, latency::Latency, slowlog::SlowLog},
    tracking,
    types::blob::Blob,
};

/// How soon the append-only log is on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// Before a write is acknowledged.
    Always,
    /// Within about a second.
    #[default]
    EverySec,
    /// When the operating system decides.
    No,
}

/// An in-process server. Clones share everything.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) state: Mutex<State>,
    pub(crate) clock: Clock,
    pub(crate) compat: Compat,
    next_session: AtomicU64,
    pub(crate) databases: usize,
    /// The users; looked at also while a script holds the state.
    pub(crate) acl: Arc<Acl>,
    /// Clients and waits that ended while a script held the state.
    pub(crate) ended: Mutex<Vec<Ended>>,
    /// There are some.
    pub(crate) some_ended: AtomicBool,
    pub(crate) pause_ended: Arc<Notify>,
    paused: Arc<AtomicBool>,
    /// The append-only log, if the data is kept.
    pub(crate) log: LogSlot,
    /// What the listener moved.
    pub(crate) traffic: Traffic,
    /// Seen without the lock: a script that runs for too long holds it.
    pub(crate) watchdog: Arc<Watchdog>,
    /// How often the data turned out not to be the followed server's; see [`Engine::divergences`].
    pub(crate) divergences: AtomicU64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(log) = self.log.get() {
            log.close();
            log.wait_for_backups();
        }
    }
}

impl Inner {
    /// Blocks until replies that depend on this position of the log may leave. Called without the
    /// lock, so that many callers share one sync.
    #[inline]
    pub(crate) fn commit(&self, position: u64) -> Result<(), Reply> {
        if position == 0 {
            return Ok(());
        }
        match self.log.get() {
            Some(log) => log.commit(position).map_err(log_failed),
            None => Ok(()),
        }
    }

    /// As [`Inner::commit`], without blocking the thread for a sync.
    pub(crate) fn poll_kept(
        &self,
        position: u64,
        place: &mut aof::Place,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Reply>> {
        if position == 0 {
            return Poll::Ready(Ok(()));
        }
        match self.log.get() {
            Some(log) => {
                let poll = log.poll_commit(position, place, cx.waker());
                poll.map_err(log_failed)
            }
            None => Poll::Ready(Ok(())),
        }
    }

    /// What a message or a replica is told may be lost with the power only if it is not on the disk, which is so where
    /// nothing is told before that.
    fn synced_log(&self) -> Option<Arc<aof::Log>> {
        self.log.get().filter(|log| log.always())
    }

    /// Up to where the log has to be on the disk before a client may see the messages that wait for it; `None` while the
    /// state is held for long. The unit that sent them has ended when the state is free.
    pub(crate) fn told_position(&self) -> Option<u64> {
        match self.synced_log() {
            Some(_) => Some(self.try_lock()?.effects.last_position()),
            None => Some(0),
        }
    }

    /// Up to where the log has to be on the disk before replicas may have what is in their stream.
    pub(crate) fn fed_position(&self) -> u64 {
        self.synced_log().map_or(0, |log| log.end())
    }

    /// Ready once this much is on the disk, if that is what is promised.
    pub(crate) fn poll_synced(
        &self,
        position: u64,
        place: &mut aof::Place,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        match self.synced_log().filter(|_| position > 0) {
            Some(log) => log.poll_synced(position, place, cx.waker()),
            None => Poll::Ready(()),
        }
    }

    /// Whether [`Inner::poll_synced`] would be ready.
    pub(crate) fn is_synced(&self, position: u64) -> bool {
        let log = self.synced_log().filter(|_| position > 0);
        log.is_none_or(|log| log.is_synced(position))
    }

    /// Whether CLIENT PAUSE was called and may still hold.
    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }
}

fn run_id() -> String {
    let mut random = Random::new();
    (0..5)
        .map(|_| format!("{:08x}", random.next() as u32))
        .collect()
}

/// Unlike one that is refused, the command has been carried out in memory: clients must not take it for undone.
fn log_failed(error: std::io::Error) -> Reply {
    Reply::Error(format!("{LOG_FAILED}: {error}{NOT_KEPT}"))
}

/// Fields of a hash with their values and deadlines.
type HiddenFields = Vec<(Blob, Blob, i64)>;

/// All that the lock protects.
pub(crate) struct State {
    pub(crate) dbs: Vec<Db>,
    pub(crate) config: Config,
    pub(crate) blocking: Blocking,
    /// Keys that clients block on and that may be ready, in order.
    pub(crate) ready: Vec<(usize, Bytes)>,
    pub(crate) pubsub: PubSub,
    /// Who caches what on its side.
    pub(crate) tracking: tracking::Table,
    /// The clients that others can see, by id.
    pub(crate) clients: BTreeMap<u64, Arc<Profile>>,
    /// The clients that called MONITOR, by id.
    pub(crate) monitors: BTreeMap<u64, Arc<Profile>>,
    pub(crate) slowlog: SlowLog,
    /// Requests and replies of many bytes, as Valkey keeps them.
    pub(crate) large_requests: SlowLog,
    pub(crate) large_replies: SlowLog,
    pub(crate) latency: Latency,
    /// Forty hexadecimal digits, another in every engine.
    pub(crate) run_id: String,
    /// Since CLIENT PAUSE.
    pub(crate) pause: Option<Pause>,
    /// Told when a pause ends before its time.
    pub(crate) pause_ended: Arc<Notify>,
    /// Set while there is a pause or a hand-over holds writes back: looked at without the lock.
    pub(crate) paused: Arc<AtomicBool>,
    /// The name of this node in a cluster.
    pub(crate) node: cluster::Node,
    /// The users, which have a lock of their own.
    pub(crate) acl: Arc<Acl>,
    /// When the engine was made, in unix microseconds.
    pub(crate) started: i64,
    pub(crate) effects: Effects,
    /// The server that is followed, if one is: clients can only read then.
    pub(crate) replica: Option<Replica>,
    /// Fields that the running command of a client must not see: database, key, and what to put back.
    pub(crate) hidden: Vec<(usize, Bytes, HiddenFields)>,
    /// The servers that follow this one.
    pub(crate) feed: Feed,
    /// Where the data has moved to, and what moves it.
    pub(crate) moves: handover::Moves,
    /// The engine whose state this is.
    pub(crate) this: Weak<Inner>,
    /// What SAVE and BGSAVE wrote.
    pub(crate) saves: Saves,
    /// The engine that this is the state of.
    pub(crate) inner: Weak<Inner>,
    pub(crate) stats: Stats,
    /// Where the running command may write its reply.
    pub(crate) output: Output,
    pub(crate) random: Random,
    pub(crate) scripts: Scripts,
    /// The log is being read: nothing expires meanwhile.
    pub(crate) loading: bool,
    /// There was no room for more data when the running command began.
    pub(crate) out_of_memory: bool,
    /// Changes since the start.
    pub(crate) dirty: u64,
    /// When expired keys were last searched for, in unix microseconds.
    pub(crate) last_sweep: i64,
    /// Tells the listener to end.
    pub(crate) shutdown: Arc<Notify>,
    /// Whether SHUTDOWN wants a file of all data, once the connections have ended.
    pub(crate) saves_at_end: Option<bool>,
    /// How many listeners run.
    pub(crate) listeners: usize,
    /// Bytes of messages that wait for clients, as of the last count.
    pub(crate) buffered: u64,
    /// Keys that may be evicted next.
    pub(crate) pool: eviction::Pool,
    /// More keys have to go than one command evicts.
    pub(crate) evicting: bool,
    /// The most that was used since memory was last given back, in bytes.
    pub(crate) high_water: u64,
    /// Keys expire also when nobody asks for them; only DEBUG turns it off.
    pub(crate) active_expire: bool,
}

/// CLIENT PAUSE: commands wait until then.
pub(crate) struct Pause {
    /// Unix milliseconds.
    pub(crate) until: i64,
    /// Commands that change nothing go on.
    pub(crate) writes_only: bool,
}

impl State {
    /// A stand-in without databases, for the place that the true state is lent from.
    pub(crate) fn hollow() -> State {
        State {
            dbs: Vec::new(),
            config: Config::default(),
            blocking: Blocking::default(),
            ready: Vec::new(),
            pubsub: PubSub::default(),
            tracking: tracking::Table::default(),
            clients: BTreeMap::new(),
            monitors: BTreeMap::new(),
            slowlog: SlowLog::default(),
            large_requests: SlowLog::default(),
            large_replies: SlowLog::default(),
            latency: Latency::default(),
            run_id: String::new(),
            pause: None,
            pause_ended: Arc::default(),
            paused: Arc::default(),
            node: cluster::Node::default(),
            acl: Acl::of_nobody(),
            started: 0,
            effects: Effects::default(),
            saves: Saves::default(),
            replica: None,
            hidden: Vec::new(),
            feed: Feed::default(),
            moves: handover::Moves::default(),
            this: Weak::new(),
            inner: Weak::new(),
            stats: Stats::default(),
            output: Output::default(),
            random: Random::new(),
            scripts: Scripts::default(),
            loading: false,
            out_of_memory: false,
            dirty: 0,
            last_sweep: 0,
            shutdown: Arc::default(),
            saves_at_end: None,
            listeners: 0,
            buffered: 0,
            pool: eviction::Pool::default(),
            evicting: false,
            high_water: 0,
            active_expire: true,
        }
    }
}

impl Engine {
    /// A volatile engine with 16 databases.
    pub fn new() -> Engine {
        let builder = Engine::builder();
        Engine::from_parts(builder.config, builder.clock, builder.limits)
    }

    /// An engine with other settings.
    pub fn builder() -> EngineBuilder {
        EngineBuilder {
            config: Config::default(),
            clock: Clock::live(),
            limits: Limits::default(),
        }
    }

    fn from_parts(config: Config, clock: Clock, limits: Limits) -> Engine {
        let acl = Arc::new(Acl::default());
        acl.follow_config(&config);
        acl.set_default_password(config.password.as_deref());
        let pause_ended = Arc::new(Notify::new());
        let paused = Arc::new(AtomicBool::new(false));
        let watchdog = Arc::new(Watchdog::default());
        let databases = config.databases;
        let compat = config.compat;
        let feed = Feed::new(&config);
        let state = State {
            dbs: (0..databases).map(|_| Db::default()).collect(),
            config,
            blocking: Blocking::default(),
            ready: Vec::new(),
            pubsub: PubSub::default(),
            tracking: tracking::Table::default(),
            clients: BTreeMap::new(),
            monitors: BTreeMap::new(),
            slowlog: SlowLog::default(),
            large_requests: SlowLog::default(),
            large_replies: SlowLog::default(),
            latency: Latency::default(),
            run_id: run_id(),
            pause: None,
            pause_ended: pause_ended.clone(),
            paused: paused.clone(),
            node: cluster::Node::new(),
            acl: acl.clone(),
            started: clock.now_micros(),
            effects: Effects::default(),
            saves: Saves::new(clock.now_micros()),
            replica: None,
            hidden: Vec::new(),
            feed,
            moves: handover::Moves::default(),
            this: Weak::new(),
            inner: Weak::new(),
            stats: Stats::default(),
            output: Output::default(),
            random: Random::new(),
            scripts: Scripts::new(limits, watchdog.clone(), compat),
            loading: false,
            out_of_memory: false,
            dirty: 0,
            last_sweep: clock.now_micros(),
            shutdown: Arc::default(),
            saves_at_end: None,
            listeners: 0,
            buffered: 0,
            pool: eviction::Pool::default(),
            evicting: false,
            high_water: 0,
            active_expire: true,
        };
        let inner = Inner {
            state: Mutex::new(state),
            clock,
            compat,
            next_session: AtomicU64::new(1),
            databases,
            acl,
            ended: Mutex::default(),
            some_ended: AtomicBool::new(false),
            pause_ended,
            paused,
            log: LogSlot::default(),
            traffic: Traffic::default(),
            watchdog,
            divergences: AtomicU64::new(0),
        };
        let inner = Arc::new(inner);
        inner.state.lock().inner = Arc::downgrade(&inner);
        inner.state.lock().this = Arc::downgrade(&inner);
        Engine { inner }
    }

    /// A new client that speaks RESP2.
    pub fn session(&self) -> Session {
        let id = self.inner.next_session.fetch_add(1, Ordering::Relaxed);
        let account = self.inner.acl.default_account().clone();
        let client = Client::new(id, account, !self.is_guarded());
        Session::new(self.inner.clone(), client)
    }

    /// A new client that gets its replies in RESP3's shapes.
    pub fn session_resp3(&self) -> Session {
        let mut session = self.session();
        session.set_protocol(Protocol::Resp3);
        session
    }

    /// Moves the clock forward: expires keys and ends waits whose time is up.
    pub fn advance(&self, by: Duration) {
        let mut state = self.inner.lock();
        self.inner.clock.advance(by);
        let now = self.inner.clock.now_micros();
        blocking::time_out(&mut state, now);
        dispatch::sweep_all(&mut state, now);
        state.pause_ended.notify_waiters();
    }

    /// Whether only this machine may connect: protected mode is on and the default user has no password.
    pub(crate) fn is_protected(&self) -> bool {
        self.inner.acl.is_protected()
    }

    /// Copies the append-only log into a folder that is absent or empty: a backup of one moment,
    /// which this engine, Redis and Valkey load. Blocks the thread until it is on the disk; callers of
    /// the engine go on meanwhile, and no second copy of the data is in memory.
    ///
    /// # Errors
    ///
    /// If the engine has no log, or if it cannot be copied; nothing is left then.
    pub fn backup(&self, dir: impl AsRef<std::path::Path>) -> Result<aof::Backup, EngineError> {
        match self.inner.log.get() {
            Some(log) => log.backup(dir.as_ref()),
            None => Err(EngineError::Setting("there is no append-only log to copy")),
        }
    }

    /// Whether sessions have to authenticate.
    pub(crate) fn is_guarded(&self) -> bool {
        self.inner.acl.is_guarded()
    }

    /// Does what is due by now; needed where no commands come.
    pub(crate) fn tick(&self) {
        self.inner.tick();
    }

    /// The clock's unix time in microseconds.
    pub fn now_micros(&self) -> i64 {
        self.inner.clock.now_micros()
    }
}

impl Default for Engine {
    fn default() -> Engine {
        Engine::new()
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// Settings of an engine; see [`Engine::builder`].
#[must_use]
pub struct EngineBuilder {
    config: Config,
    clock: Clock,
    limits: Limits,
}

impl EngineBuilder {
    /// How many databases SELECT can choose from (default: 16).
    pub fn databases(mut self, count: usize) -> EngineBuilder {
        self.config.databases = count;
        self
    }

    /// Takes all settings from these, for example of a configuration file. Call it before the
    /// others, which then change single settings.
    pub fn settings(mut self, settings: Settings) -> EngineBuilder {
        let give_back = self.config.give_back;
        self.config = settings.config;
        self.config.give_back = give_back;
        // Until something listens.
        self.config.port = 0;
        self.config.remembered.remove("bind");
        self.config.remembered.remove("unixsocket");
        self
    }

    /// Refuses what would fail on a Cluster: keys of different slots in one command, transaction
    /// or script, and undeclared keys in scripts.
    pub fn cluster_strict(mut self, strict: bool) -> EngineBuilder {
        self.config.cluster_strict = strict;
        self
    }

    /// Has the commands of this server and tells its version (default: Redis 7.0).
    pub fn compat(mut self, compat: Compat) -> EngineBuilder {
        self.config.compat = compat;
        self
    }

    /// A cluster of one node that owns all slots, for the cluster clients of all languages. Keys of
    /// different slots in one command or transaction are refused, and SELECT knows one database.
    pub fn cluster(mut self, cluster: bool) -> EngineBuilder {
        self.config.cluster = cluster;
        self
    }

    /// Requires AUTH from every session.
    pub fn password(mut self, password: Option<String>) -> EngineBuilder {
        self.config.password = password;
        self
    }

    /// Reads the users from a file, one `user name rule …` per line as in Redis. ACL SAVE writes it, ACL
    /// LOAD reads it again.
    pub fn acl_file(mut self, path: impl Into<PathBuf>) -> EngineBuilder {
        self.config.acl_file = Some(path.into());
        self
    }

    /// Adds a user by the rules of ACL SETUSER, such as `on`, `>password`, `~cache:*` and `+@read`.
    /// Those of the user `default` take the place of all that it may do without them.
    ///
    /// ```
    /// # use redstart_engine::Engine;
    /// let rules = ["on", ">secret", "~cache:*", "+@read"];
    /// let engine = Engine::builder().user("reader", rules).build()?;
    /// # Ok::<(), redstart_engine::EngineError>(())
    /// ```
    pub fn user<R: AsRef<[u8]>>(
        mut self,
        name: impl AsRef<[u8]>,
        rules: impl IntoIterator<Item = R>,
    ) -> EngineBuilder {
        let copied = |rule: R| Bytes::copy_from_slice(rule.as_ref());
        let rules = rules.into_iter().map(copied).collect();
        let name = Bytes::copy_from_slice(name.as_ref());
        self.config.users.push((name, rules));
        self
    }

    /// Limits the memory of the data, in bytes; 0 is no limit (the default).
    pub fn maxmemory(mut self, bytes: u64, policy: MemoryPolicy) -> EngineBuilder {
        self.config.maxmemory = bytes;
        self.config.policy = policy;
        self
    }

    /// Calls this after large deletes, and for MEMORY PURGE, on a thread that may block: it is to return
    /// what the allocator keeps to the system, as `redstart_allocator::give_back` does. Without it,
    /// the process keeps free memory for later.
    pub fn give_back(mut self, give_back: fn()) -> EngineBuilder {
        self.config.give_back = Some(give_back);
        self
    }

    /// Keeps the data in a folder as an append-only log.
    pub fn append_only(mut self, dir: impl Into<PathBuf>, fsync: Fsync) -> EngineBuilder {
        self.config.dir = Some(dir.into());
        self.config.fsync = fsync;
        self.config.append_only = true;
        self
    }

    /// How long a script may run before other clients are answered with BUSY and may end it by
    /// SCRIPT KILL (default: 5 s), and after how long it is ended in any case (default: 60 s).
    pub fn script_time(mut self, busy_after: Duration, end_after: Duration) -> EngineBuilder {
        self.config.script_time_limit = busy_after.as_millis().max(1) as u64;
        self.limits.end_after = end_after;
        self
    }

    /// How much memory scripts may use, in bytes; 0 is no limit (default: 1 GiB).
    pub fn script_memory(mut self, bytes: usize) -> EngineBuilder {
        self.limits.memory = bytes;
        self
    }

    /// Uses this clock instead of a live one.
    pub fn clock(mut self, clock: Clock) -> EngineBuilder {
        self.clock = clock;
        self
    }

    /// Makes the engine.
    ///
    /// # Errors
    ///
    /// If a setting is invalid, or the data folder cannot be used.
    pub fn build(mut self) -> Result<Engine, EngineError> {
        if self.config.databases == 0 {
            return Err(EngineError::Setting("there must be at least one database"));
        }
        if self.config.cluster && self.config.remembered.contains_key("replicaof") {
            return Err(EngineError::Setting(
                "replicaof is not allowed in cluster mode",
            ));
        }
        let keeps = self.config.append_only;
        let uses_folder = rdb::uses_folder(&self.config);
        let dir = self.config.dir();
        let acl_file = self.config.acl_file.clone();
        let users = std::mem::take(&mut self.config.users);
        let engine = Engine::from_parts(self.config, self.clock, self.limits);
        let acl = &engine.inner.acl;
        if let Some(path) = &acl_file {
            if !users.is_empty() {
                return Err(EngineError::Setting(
                    "users are given by a file or one by one, not both",
                ));
            }
            acl.use_file(&dir.join(path)).map_err(EngineError::Users)?;
        }
        for (name, rules) in &users {
            let mut rules = rules.clone();
            if name.as_ref() == crate::acl::DEFAULT {
                // It may do everything until its rules are told: these are all that it has then.
                rules.insert(0, Bytes::from_static(b"reset"));
            }
            acl.set_user(name, &rules).map_err(EngineError::Users)?;
        }
        if keeps {
            let log = aof::open(&dir, &engine)?;
            engine.inner.log.set(log);
        } else if uses_folder {
            rdb::load_snapshot(&engine)?;
        }
        if uses_folder {
            engine.inner.lock().moves = handover::Moves::read(&dir)?;
        }
        let now = engine.now_micros();
        replica::follow_configured(&mut engine.inner.lock(), now)?;
        Ok(engine)
    }
}

impl std::fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineBuilder")
            .field("databases", &self.config.databases)
            .finish_non_exhaustive()
    }
}
