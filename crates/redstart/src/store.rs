//! The one thing a pattern talks to.
//!
//! A [`Store`] is made from a URL and is cheap to clone. The same program runs on each of these:
//!
//! | URL | what it is |
//! |---|---|
//! | `memory://` | the embedded engine, volatile, private to this store and its clones; `memory://name` is shared by name within the process |
//! | `file:///dir?fsync=always` | the embedded engine with an append-only log (`always`, `everysec`, `no`) |
//! | `redis://` `rediss://` `redis+unix://` | one server |
//! | `redis+sentinel://h1,h2,h3/master-name/db` | Sentinel: follows the master through a failover |
//! | `redis+cluster://h1:p,h2:p` | Cluster |
//!
//! `valkey` stands for `redis` in each of them. Servers from Redis 7.0 and Valkey 7.2 on are supported.
//!
//! | part of the URL | meaning | default |
//! |---|---|---|
//! | `user:password@` | credentials, percent-encoded | none |
//! | `/3` or `db=3` | the database | 0 |
//! | `timeout=500ms` | the deadline of every call | 1 s |
//! | `connect_timeout=2s` | how long one attempt to connect may take | the deadline |
//! | `pool=4` | multiplexed connections to each server | 1 |
//! | `ca=/path.pem`, `cert=`, `key=` | TLS: the trusted CA, and a client's certificate | the system's CAs |
//! | `sentinel_user=`, `sentinel_password=` | credentials of the sentinels themselves | none |
//! | `cluster_strict=1` | embedded only: refuse what a Cluster would refuse | off |
//!
//! # What a call promises
//!
//! Every call ends within its deadline. Lost connections come back by themselves with the next call.
//! Within the deadline a request is sent again where that is safe: when nothing was sent, when the server
//! said that it did nothing (LOADING, READONLY after a failover, MOVED, ASK, TRYAGAIN, CLUSTERDOWN), or when
//! the command only reads. A write whose reply was lost is **not** sent again: the error is
//! [in doubt](crate::Error::is_in_doubt), unless the script declared itself
//! [idempotent](crate::script::Call::idempotent).
//!
//! A write whose connection died before any of it was sent is known to be not sent, and is sent again.
//!
//! # How requests travel
//!
//! All tasks share one connection to a server (`pool=` gives more). Each writes its request and sends it
//! itself; requests that come together leave in one write, and one task hands all replies out. Large requests
//! wait for each other once 4 MiB wait to be sent. With TLS, and over a client that the application made,
//! requests travel by the connection of the `redis` crate.
//!
//! # Through a failover
//!
//! With Sentinel each sentinel is listened to from the first connection on. When they name a new master,
//! requests, subscriptions and dedicated connections leave the old one at once, also if it is alive and does
//! not know yet that it was replaced. A write that it took before is gone with it: a failover can lose
//! what was not replicated.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use redis::{
    Cmd, FromRedisValue, Pipeline, RedisFuture, Value,
    aio::{ConnectionLike, ConnectionManager},
    cluster_async::ClusterConnection,
};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::{
    error::{Error, Result},
    key::Key,
};

mod capability;
mod clock;
mod cluster;
mod dedicated;
mod dial;
#[cfg(feature = "engine")]
mod embedded;
mod extension;
mod link;
mod reply;
mod retry;
mod route;
mod sentinel;
mod subscription;
mod url;
mod wire;

pub use capability::{Capabilities, Optional, ServerKind};
pub(crate) use clock::Clock;
pub use dedicated::Dedicated;
pub use subscription::{Event, Message, Subscription, Topic};

use cluster::Cluster;
use dial::Dial;
use extension::Extensions;
pub(crate) use link::BoxFuture;
use link::{Link, Request};
use url::{Location, MAX_POOL, Target};

/// A connection to Redis, Valkey or the embedded engine. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// let store = redstart::Store::connect("memory://").await?;
/// store.query::<()>(redis::cmd("SET").arg("greeting").arg("hello")).await?;
/// let greeting: String = store.query(redis::cmd("GET").arg("greeting")).await?;
/// assert_eq!(greeting, "hello");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store(Arc<Shared>);

struct Shared {
    backend: Backend,
    deadline: Duration,
    /// Where the store was made; dropped guards and subscriptions run there.
    runtime: Option<Handle>,
    deferred: TaskTracker,
    capabilities: ArcSwapOption<(u64, Arc<Capabilities>)>,
    clock: Clock,
    extensions: Extensions,
}

pub(crate) enum Backend {
    #[cfg(feature = "engine")]
    Embedded(embedded::Embedded),
    Server(Server),
    Cluster(Box<Cluster>),
    /// Connections that the application already had.
    Manager(ConnectionManager),
    ForeignCluster(ClusterConnection),
}

/// One server, or the master behind the sentinels, by one or more connections.
pub(crate) struct Server {
    links: Vec<Link>,
    turn: AtomicUsize,
}

impl Server {
    fn new(dial: Dial) -> Self {
        let dial = Arc::new(dial);
        let links = (0..dial.settings().pool.max(1))
            .map(|_| Link::new(dial.clone()))
            .collect();
        Self {
            links,
            turn: AtomicUsize::new(0),
        }
    }

    fn link(&self) -> &Link {
        if self.links.len() == 1 {
            return &self.links[0];
        }
        &self.links[self.turn.fetch_add(1, Ordering::Relaxed) % self.links.len()]
    }
}

/// Settings that a URL has too, for programs that keep them elsewhere. What is set here wins.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    url: String,
    deadline: Option<Duration>,
    connect_timeout: Option<Duration>,
    pool: Option<usize>,
    credentials: Option<(Option<String>, String)>,
    wait_for_server: bool,
}

impl Builder {
    /// The deadline of every call.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How long one attempt to connect may take.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// How many multiplexed connections to keep to each server.
    pub fn pool(mut self, connections: usize) -> Self {
        self.pool = Some(connections);
        self
    }

    /// The user (if any) and the password, so that they need not stand in a URL.
    pub fn credentials(mut self, user: Option<&str>, password: &str) -> Self {
        self.credentials = Some((user.map(str::to_owned), password.to_owned()));
        self
    }

    /// Connect when the first call is made, so that a program can start before its server does.
    pub fn lazy(mut self) -> Self {
        self.wait_for_server = false;
        self
    }

    /// Makes the store.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a wrong URL or setting, wrong credentials, an untrusted
    /// certificate, or a URL of the wrong kind (a cluster's for a single server or the reverse);
    /// [`is_unavailable`](Error::is_unavailable) or [`is_timeout`](Error::is_timeout) if the server cannot be
    /// reached, unless [`lazy`](Self::lazy) was asked for.
    pub async fn connect(self) -> Result<Store> {
        let Location {
            target,
            mut settings,
        } = Location::parse(&self.url)?;
        if let Some(deadline) = self.deadline {
            if deadline.is_zero() {
                return Err(Error::config("a deadline of zero would fail every call"));
            }
            settings.deadline = deadline;
        }
        if self.connect_timeout.is_some() {
            settings.connect_timeout = self.connect_timeout;
        }
        if let Some(pool) = self.pool {
            if !(1..=MAX_POOL).contains(&pool) {
                return Err(Error::config(format!(
                    "pool is a number from 1 to {MAX_POOL}"
                )));
            }
            settings.pool = pool;
        }
        if let Some((user, password)) = self.credentials {
            settings.username = user;
            settings.password = Some(password);
        }
        let deadline = settings.deadline;
        let backend = match target {
            #[cfg(feature = "engine")]
            Target::Memory { .. } | Target::File { .. } => {
                Backend::Embedded(embedded::Embedded::open(&target, settings.db)?)
            }
            #[cfg(not(feature = "engine"))]
            Target::Memory { .. } | Target::File { .. } => {
                return Err(Error::config(
                    "memory:// and file:// need the cargo feature `engine`",
                ));
            }
            Target::Single(address) => {
                Backend::Server(Server::new(Dial::server(address, settings)))
            }
            Target::Sentinel { sentinels, master } => {
                Backend::Server(Server::new(Dial::sentinel(sentinels, master, settings)))
            }
            // The slot table is needed before anything can be sent, so a cluster is never lazy.
            Target::Cluster { seeds } => {
                Backend::Cluster(Box::new(Cluster::connect(seeds, settings).await?))
            }
        };
        let store = Store::new(backend, deadline);
        if self.wait_for_server {
            store.ensure().await?;
        }
        Ok(store)
    }
}

impl Store {
    /// Connects to the store at a URL.
    ///
    /// # Errors
    ///
    /// See [`Builder::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// Starts from a URL and lets settings be changed before connecting.
    pub fn builder(url: &str) -> Builder {
        Builder {
            url: url.to_owned(),
            deadline: None,
            connect_timeout: None,
            pool: None,
            credentials: None,
            wait_for_server: true,
        }
    }

    fn new(backend: Backend, deadline: Duration) -> Self {
        let clock = match &backend {
            #[cfg(feature = "engine")]
            Backend::Embedded(embedded) => embedded.clock(),
            _ => Clock::default(),
        };
        Self(Arc::new(Shared {
            backend,
            deadline,
            runtime: Handle::try_current().ok(),
            deferred: TaskTracker::new(),
            capabilities: ArcSwapOption::empty(),
            clock,
            extensions: Extensions::default(),
        }))
    }

    /// Connects if that has not happened, and checks that the server is of the kind that the URL says.
    async fn ensure(&self) -> Result<()> {
        match &self.0.backend {
            Backend::Server(server) => {
                let link = server.link();
                tokio::time::timeout(
                    self.0
                        .deadline
                        .max(link.dial().settings().connect_timeout.unwrap_or_default()),
                    link.ensure(),
                )
                .await
                .map_err(|_| {
                    Error::timeout(format!(
                        "{} did not answer while connecting",
                        link.dial().describe()
                    ))
                })??;
                if self.capabilities().await?.cluster {
                    return Err(Error::config(format!(
                        "{} is a node of a cluster: use redis+cluster:// for it",
                        link.dial().describe()
                    )));
                }
                Ok(())
            }
            Backend::Cluster(cluster) => cluster.ensure().await,
            _ => Ok(()),
        }
    }

    /// Sends a command and reads its reply.
    ///
    /// # Errors
    ///
    /// [`is_timeout`](Error::is_timeout) after the deadline, [`is_unavailable`](Error::is_unavailable) when
    /// the server cannot be reached or cannot serve, [`is_codec`](Error::is_codec) if the reply is not a `T`,
    /// and otherwise the server's own error with its [code](Error::server_code).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the command may or may not have been carried out.
    pub async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T> {
        Ok(redis::from_redis_value(
            self.request(Request::One(cmd), false).await?,
        )?)
    }

    /// Sends a pipeline in one write (on a Cluster: one to each node, at the same time) and reads its replies.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query); also if any command of the pipeline failed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, any of the commands may have been carried out.
    pub async fn pipeline<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T> {
        Ok(pipeline.query_async(&mut self.clone()).await?)
    }

    pub(crate) fn request_one<'a>(
        &'a self,
        cmd: &'a Cmd,
        idempotent: bool,
    ) -> impl Future<Output = Result<Value>> + Send + 'a {
        self.request(Request::One(cmd), idempotent)
    }

    /// The replies of a pipeline; a command that failed has `Value::ServerError` in its place.
    pub(crate) async fn request_many(
        &self,
        pipeline: &Pipeline,
        idempotent: bool,
    ) -> Result<Vec<Value>> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        match self.request(Request::all(pipeline), idempotent).await? {
            Value::Array(replies) => Ok(replies),
            _ => Err(Error::codec("a pipeline was not answered by an array")),
        }
    }

    async fn request(&self, request: Request<'_>, idempotent: bool) -> Result<Value> {
        let within = self.0.deadline;
        match &self.0.backend {
            #[cfg(feature = "engine")]
            Backend::Embedded(embedded) => embedded.request(request, within).await,
            Backend::Server(server) => server.link().request(request, idempotent, within).await,
            Backend::Cluster(cluster) => cluster.request(request, idempotent, within).await,
            Backend::Manager(manager) => {
                let work: BoxFuture<'_, _> = Box::pin(foreign(manager.clone(), request, within));
                work.await
            }
            Backend::ForeignCluster(cluster) => {
                let work: BoxFuture<'_, _> = Box::pin(foreign(cluster.clone(), request, within));
                work.await
            }
        }
    }

    /// A connection for commands that block, leading to the owner of `key`.
    ///
    /// A blocking command on the shared connection would stall everybody on it.
    pub fn dedicated(&self, key: &Key) -> Dedicated {
        Dedicated::new(self.clone(), key)
    }

    /// Listens to channels or to changes of keys, through reconnects, failovers and moved slots.
    ///
    /// Returns at once; [`Event::Subscribed`] is the first event when the subscription stands.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if there is no topic, or the store was made from a connection that
    /// cannot subscribe.
    pub async fn subscribe(&self, topics: impl IntoIterator<Item = Topic>) -> Result<Subscription> {
        Subscription::open(self, topics.into_iter().collect()).await
    }

    /// What the server is and can do. Asked once, and again after the connection was made anew.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query).
    pub async fn capabilities(&self) -> Result<Arc<Capabilities>> {
        let generation = self.generation();
        if let Some(known) = &*self.0.capabilities.load()
            && known.0 == generation
        {
            return Ok(known.1.clone());
        }
        let read = Arc::new(Capabilities::read(self).await?);
        self.0
            .capabilities
            .store(Some(Arc::new((self.generation(), read.clone()))));
        Ok(read)
    }

    fn generation(&self) -> u64 {
        match &self.0.backend {
            Backend::Server(server) => server.links.iter().map(Link::generation).sum(),
            Backend::Cluster(cluster) => cluster.generation(),
            _ => 0,
        }
    }

    /// The server's time since the Unix epoch.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query).
    pub async fn time(&self) -> Result<Duration> {
        let (seconds, micros): (u64, u32) = self.query(&redis::cmd("TIME")).await?;
        Ok(Duration::new(seconds, micros.saturating_mul(1000)))
    }

    /// Asks the server whether it serves, and how long that took.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query).
    pub async fn health(&self) -> Result<Health> {
        let started = tokio::time::Instant::now();
        match &self.0.backend {
            // A cluster is healthy when each part of it is.
            Backend::Cluster(cluster) => {
                let cmd = redis::cmd("PING");
                for node in cluster.masters() {
                    node.link()
                        .request(Request::One(&cmd), true, self.0.deadline)
                        .await?;
                }
            }
            _ => {
                let _: Value = self.query(&redis::cmd("PING")).await?;
            }
        }
        let round_trip = started.elapsed();
        let capabilities = self.capabilities().await?;
        Ok(Health {
            round_trip,
            server: capabilities.server,
            version: capabilities.version,
        })
    }

    /// All keys that match a glob pattern, found by SCAN without blocking the server, on every node.
    ///
    /// A key that exists all the time is found; one that comes or goes meanwhile may or may not be.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query).
    pub async fn scan(&self, pattern: &str) -> Result<Vec<String>> {
        let mut found = std::collections::BTreeSet::new();
        let page = |cursor: u64| {
            let mut cmd = redis::cmd("SCAN");
            cmd.arg(cursor)
                .arg("MATCH")
                .arg(pattern)
                .arg("COUNT")
                .arg(500);
            cmd
        };
        match &self.0.backend {
            Backend::Cluster(cluster) => {
                for node in cluster.masters() {
                    let mut cursor = 0;
                    loop {
                        let reply = node
                            .link()
                            .request(Request::One(&page(cursor)), true, self.0.deadline)
                            .await?;
                        let (next, keys): (u64, Vec<String>) = redis::from_redis_value(reply)?;
                        found.extend(keys);
                        cursor = next;
                        if cursor == 0 {
                            break;
                        }
                    }
                }
            }
            _ => {
                let mut cursor = 0;
                loop {
                    let (next, keys): (u64, Vec<String>) = self.query(&page(cursor)).await?;
                    found.extend(keys);
                    cursor = next;
                    if cursor == 0 {
                        break;
                    }
                }
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Moves the clock of the embedded engine forward: TTLs, limiters, leases and blocked commands see the
    /// time pass at once.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) on a real server, whose clock is its own.
    pub fn advance(&self, by: Duration) -> Result<()> {
        match &self.0.backend {
            #[cfg(feature = "engine")]
            Backend::Embedded(embedded) => {
                embedded.advance(by);
                Ok(())
            }
            _ => {
                let _ = by;
                Err(Error::config(
                    "only the embedded engine's clock can be moved",
                ))
            }
        }
    }

    /// The deadline of every call.
    pub fn deadline(&self) -> Duration {
        self.0.deadline
    }

    /// Whether this is the embedded engine.
    pub fn is_embedded(&self) -> bool {
        match &self.0.backend {
            #[cfg(feature = "engine")]
            Backend::Embedded(_) => true,
            _ => false,
        }
    }

    /// The clock for what a client keeps on its own: leases, cached copies, windows. It moves with
    /// [`advance`](Self::advance).
    pub(crate) fn clock(&self) -> Clock {
        self.0.clock.clone()
    }

    /// The one `T` of this store and its clones, such as the task that renews the leases of a family. It is made
    /// when it is first asked for, and again if the one there is not `usable` any more.
    pub(crate) fn extension<T: Send + Sync + 'static>(
        &self,
        usable: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Arc<T> {
        self.0.extensions.get(usable, make)
    }

    /// Whether both are clones of one store.
    #[cfg(feature = "locking")]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether this is a Cluster.
    pub fn is_cluster(&self) -> bool {
        matches!(
            &self.0.backend,
            Backend::Cluster(_) | Backend::ForeignCluster(_)
        )
    }

    /// Hands work to the runtime on behalf of something that is being dropped, such as the release of a
    /// lock. [`settle`](Self::settle) waits for it.
    pub(crate) fn defer(&self, work: impl Future<Output = ()> + Send + 'static) {
        match self.runtime() {
            Some(runtime) => drop(self.0.deferred.spawn_on(work, &runtime)),
            // Leases end by themselves; this only takes longer.
            None => tracing::warn!("a guard was dropped outside a runtime and could not clean up"),
        }
    }

    /// Waits until everything that dropped guards left to do is done. Call it before the program ends.
    ///
    /// # Cancel safety
    ///
    /// The work goes on when the future is dropped.
    pub async fn settle(&self) {
        // The tracker counts only while it is closed, and new work may come in meanwhile.
        self.0.deferred.close();
        self.0.deferred.wait().await;
        self.0.deferred.reopen();
    }

    /// Where background work runs: the runtime of the caller, which is alive, or else the one where the store was
    /// made, which may have ended.
    pub(crate) fn runtime(&self) -> Option<Handle> {
        Handle::try_current()
            .ok()
            .or_else(|| self.0.runtime.clone())
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.0.backend
    }

    fn can_subscribe(&self) -> Result<()> {
        match &self.0.backend {
            Backend::Manager(_) | Backend::ForeignCluster(_) => Err(no_way_to_dial()),
            _ => Ok(()),
        }
    }

    fn dial_for(&self, slot: u16) -> Result<Arc<Dial>> {
        match &self.0.backend {
            Backend::Cluster(cluster) => cluster
                .owner(slot)
                .map(|node| node.dial().clone())
                .ok_or_else(|| Error::unavailable("no node of the cluster owns this slot")),
            _ => self.dial_any(),
        }
    }

    fn dial_any(&self) -> Result<Arc<Dial>> {
        match &self.0.backend {
            Backend::Server(server) => Ok(server.links[0].dial().clone()),
            Backend::Cluster(cluster) => cluster
                .masters()
                .into_iter()
                .next()
                .map(|node| node.dial().clone())
                .ok_or_else(|| Error::unavailable("no node of the cluster is known")),
            _ => Err(no_way_to_dial()),
        }
    }
}

fn no_way_to_dial() -> Error {
    Error::config(
        "this store was made from a connection, which cannot make others: make it from a URL or a \
         redis::Client for blocking commands and subscriptions",
    )
}

/// The application's own connection: its retries are its own, the deadline is ours.
async fn foreign(
    mut connection: impl ConnectionLike,
    request: Request<'_>,
    within: Duration,
) -> Result<Value> {
    let reads = request.only_reads();
    let work = async {
        match request {
            Request::One(cmd) => match connection.req_packed_command(cmd).await {
                Ok(Value::ServerError(error)) => Err(error.into()),
                result => result,
            },
            Request::Many {
                pipeline,
                offset,
                count,
            } => connection
                .req_packed_commands(pipeline, offset, count)
                .await
                .map(Value::Array),
        }
    };
    match tokio::time::timeout(within, work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            let lost = error.code().is_none() && error.is_io_error();
            Err(Error::from(error).doubt(lost && !reads))
        }
        Err(_) => Err(Error::timeout("the store did not answer in time").doubt(!reads)),
    }
}

/// What [`Store::health`] found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// How long the answer took.
    pub round_trip: Duration,
    /// The server's kind.
    pub server: ServerKind,
    /// Its version.
    pub version: (u32, u32, u32),
}

/// Any command of redis-rs runs on a store beside the patterns.
impl ConnectionLike for Store {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            self.request(Request::One(cmd), false)
                .await
                .map_err(Error::into_redis)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            match self
                .request(
                    Request::Many {
                        pipeline,
                        offset,
                        count,
                    },
                    false,
                )
                .await
            {
                Ok(Value::Array(values)) => Ok(values),
                Ok(value) => Ok(vec![value]),
                Err(error) => Err(error.into_redis()),
            }
        })
    }

    fn get_db(&self) -> i64 {
        match &self.0.backend {
            #[cfg(feature = "engine")]
            Backend::Embedded(embedded) => embedded.db(),
            Backend::Server(server) => server.links[0].dial().db(),
            Backend::Cluster(cluster) => cluster.settings().db,
            Backend::Manager(manager) => manager.get_db(),
            Backend::ForeignCluster(cluster) => cluster.get_db(),
        }
    }
}

/// A store on a client that the application already has: all of a store's abilities, its own connections.
impl From<redis::Client> for Store {
    fn from(client: redis::Client) -> Self {
        let settings = url::Settings::default();
        let deadline = settings.deadline;
        Self::new(
            Backend::Server(Server::new(Dial::client(client, settings))),
            deadline,
        )
    }
}

/// A store that shares the application's connection. It cannot block or subscribe.
impl From<ConnectionManager> for Store {
    fn from(manager: ConnectionManager) -> Self {
        Self::new(Backend::Manager(manager), url::Settings::default().deadline)
    }
}

/// A store that shares the application's cluster connection. It cannot block or subscribe, and redis-rs
/// repeats requests as that connection was configured to, even writes whose reply was lost.
impl From<ClusterConnection> for Store {
    fn from(cluster: ClusterConnection) -> Self {
        Self::new(
            Backend::ForeignCluster(cluster),
            url::Settings::default().deadline,
        )
    }
}

/// A store on an engine that the application configured itself.
#[cfg(feature = "engine")]
impl TryFrom<redstart_engine::Engine> for Store {
    type Error = Error;

    fn try_from(engine: redstart_engine::Engine) -> Result<Self> {
        let embedded = embedded::Embedded::on(engine, 0)?;
        Ok(Self::new(
            Backend::Embedded(embedded),
            url::Settings::default().deadline,
        ))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.0.backend {
            #[cfg(feature = "engine")]
            Backend::Embedded(_) => "embedded".to_owned(),
            Backend::Server(server) => server.links[0].dial().describe(),
            Backend::Cluster(_) => "cluster".to_owned(),
            Backend::Manager(_) => "connection manager".to_owned(),
            Backend::ForeignCluster(_) => "cluster connection".to_owned(),
        };
        f.debug_tuple("Store").field(&place).finish()
    }
}
