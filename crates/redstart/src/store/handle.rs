//! The store as a pattern sees it: what every call goes through.

mod connection_like;
mod from;
mod scan;

pub use scan::Sample;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use redis::{Cmd, FromRedisValue, Pipeline, Value};
use tokio::{runtime::Handle, time::Instant};
use tokio_util::task::TaskTracker;

use crate::{
    error::{Error, Result},
    key::Key,
};

use super::{
    Capabilities, Clock, Dedicated, Listen, ServerKind, StoreBuilder, Subscription,
    backend::Backend,
    command::{self, Connection},
    extension::Extensions,
    location,
    request::{Body, Request, array, compose, convert, count_doubt},
    subscription::Hubs,
};

/// A connection to Redis, Valkey or the embedded engine. See the [module](crate::store).
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
pub struct Store {
    pub(super) shared: Arc<Shared>,
    /// Of the calls by this handle.
    deadline: Duration,
    /// Calls by this handle only read, and replicas may answer them.
    stale: bool,
}

pub(super) struct Shared {
    backend: Arc<Backend>,
    pub(super) hubs: Arc<Hubs>,
    /// Where the store was made.
    runtime: Option<Handle>,
    deferred: TaskTracker,
    capabilities: ArcSwapOption<(u64, Arc<Capabilities>)>,
    clock: Clock,
    extensions: Extensions,
    /// The store's own, whatever its handles have.
    deadline: Duration,
}

impl StoreBuilder {
    /// Makes the store.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a wrong URL or setting, wrong credentials, an untrusted
    /// certificate, or a URL of the wrong kind (a cluster's for a single server or the reverse);
    /// [`is_unavailable`](Error::is_unavailable) or [`is_timeout`](Error::is_timeout) if the server cannot be
    /// reached, unless [`lazy`](Self::lazy) was set.
    pub async fn connect(self) -> Result<Store> {
        let (backend, deadline, wait_for_server) = self.open().await?;
        let store = Store::new(backend, deadline);
        if wait_for_server {
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
    /// See [`StoreBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// Starts from a URL and lets settings be changed before connecting.
    pub fn builder(url: &str) -> StoreBuilder {
        StoreBuilder::new(url)
    }

    fn new(backend: Backend, deadline: Duration) -> Self {
        let clock = match &backend {
            #[cfg(feature = "engine")]
            Backend::Embedded(embedded) => embedded.clock(),
            _ => Clock::default(),
        };
        let backend = Arc::new(backend);
        let shared = Arc::new(Shared {
            hubs: Arc::new(Hubs::new(backend.clone(), deadline)),
            backend,
            runtime: Handle::try_current().ok(),
            deferred: TaskTracker::new(),
            capabilities: ArcSwapOption::empty(),
            clock,
            extensions: Extensions::default(),
            deadline,
        });
        Self {
            shared,
            deadline,
            stale: false,
        }
    }

    /// Connects if that has not happened, and checks that the server is of the kind that the URL says.
    async fn ensure(&self) -> Result<()> {
        match &*self.shared.backend {
            Backend::Server(server) => {
                let dial = server.node().dial();
                let within = self.deadline.max(dial.patience());
                server.node().link().ensure(Instant::now() + within).await?;
                if self.capabilities().await?.cluster {
                    return Err(Error::config(format!(
                        "{} is a cluster node: use redis+cluster:// for it",
                        dial.place()
                    )));
                }
                Ok(())
            }
            Backend::Cluster(cluster) => cluster.ensure(self.ends()).await,
            _ => Ok(()),
        }
    }

    /// When a call that begins now has to end.
    pub(crate) fn ends(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// How much shorter the deadline of this handle is than the store's own.
    fn hurry(&self) -> Duration {
        self.shared.deadline.saturating_sub(self.deadline)
    }

    /// Sends a command and reads its reply.
    ///
    /// # Errors
    ///
    /// [`is_timeout`](Error::is_timeout) after the deadline, [`is_unavailable`](Error::is_unavailable) when
    /// the server cannot be reached or cannot serve, [`is_codec`](Error::is_codec) if the reply is not a `T`
    /// (and [in doubt](Error::is_in_doubt) if the command may have written: it was carried out), and otherwise the server's own
    /// error with its [code](Error::server_code).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the command may or may not have been carried out.
    pub async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T> {
        let request = Request::one(cmd, self.ends());
        convert(self.request(request).await?, command::only_reads(cmd))
    }

    /// As [`query`](Self::query), for a command that only reads and whose answer may be stale: a replica may give it, if the
    /// store has [replica reads](crate::store#replica-reads), or the copy of a [mirror](crate::store#a-mirror-in-the-process).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// let store = redstart::Store::builder("memory://").replica_reads().connect().await?;
    /// let members: u64 = store.query_stale(redis::cmd("SCARD").arg("club")).await?;
    /// assert_eq!(members, 0);
    /// assert!(store.query_stale::<()>(redis::cmd("DEL").arg("club")).await.is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query); [`is_config`](Error::is_config) for a command that is not known to only read, and for
    /// SCAN, HSCAN, SSCAN and ZSCAN, whose cursors mean something only to the server that gave them.
    pub async fn query_stale<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T> {
        if !command::only_reads(cmd) {
            return Err(Error::config(
                "only a command that changes nothing can be answered by a replica",
            ));
        }
        if command::has_cursor(cmd) {
            return Err(Error::config(
                "a cursor means something only to the server that gave it, so a replica cannot go on: use query or scan",
            ));
        }
        self.stale_reads().query(cmd).await
    }

    /// What the copy of a [mirror](crate::store#a-mirror-in-the-process) is like: how old, and whether it answers. `None` for a
    /// store that has none.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use redstart_engine::{Engine, server::{Server, ServerConfig}};
    /// # let listen = ServerConfig::new().listen("127.0.0.1:0".parse()?);
    /// # let server = Server::bind(Engine::new(), listen).await?;
    /// # let address = server.local_addr().expect("a TCP address");
    /// # tokio::spawn(server.run(std::future::pending()));
    /// use std::time::Duration;
    ///
    /// let store = redstart::Store::connect(&format!("mirror+redis://{address}?max_age=30s")).await?;
    /// store.query::<()>(redis::cmd("SADD").arg("club").arg("ann")).await?;
    /// // The server answers until the copy is complete.
    /// while !store.mirror().is_some_and(|mirror| mirror.answers) {
    ///     tokio::time::sleep(Duration::from_millis(10)).await;
    /// }
    /// let members: u64 = store.query_stale(redis::cmd("SCARD").arg("club")).await?;
    /// assert!(members <= 1 && store.mirror().is_some_and(|mirror| mirror.age.is_some()));
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "engine")]
    pub fn mirror(&self) -> Option<super::MirrorStatus> {
        match &*self.shared.backend {
            Backend::Server(server) => server.mirror(),
            _ => None,
        }
    }

    /// Sends a pipeline in one write (on a Cluster: one to each node, at the same time) and reads its replies.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query); also if any command of the pipeline failed. If another one wrote, it is
    /// [in doubt](Error::is_in_doubt).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, any of the commands may have been carried out.
    pub async fn pipeline<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T> {
        let request = Request::new(Body::all(pipeline), self.ends());
        compose(pipeline, self.request(request).await?).await
    }

    /// The reply to a command whose slot is known.
    pub(crate) fn request_one<'a>(
        &'a self,
        cmd: &'a Cmd,
        slot: u16,
        idempotent: bool,
    ) -> impl Future<Output = Result<Value>> + Send + 'a {
        self.request_one_until(cmd, slot, idempotent, self.ends())
    }

    /// As [`request_one`](Self::request_one), with the deadline of a call that began earlier.
    pub(crate) fn request_one_until<'a>(
        &'a self,
        cmd: &'a Cmd,
        slot: u16,
        idempotent: bool,
        deadline: Instant,
    ) -> impl Future<Output = Result<Value>> + Send + 'a {
        let request = Request::one(cmd, deadline);
        self.request(request.slot(Some(slot)).idempotent(idempotent))
    }

    /// The replies of a pipeline; a command that failed has `Value::ServerError` in its place.
    pub(crate) async fn request_many_until(
        &self,
        pipeline: &Pipeline,
        idempotent: bool,
        deadline: Instant,
    ) -> Result<Vec<Value>> {
        let request = Request::new(Body::all(pipeline), deadline);
        self.request(request.idempotent(idempotent))
            .await
            .and_then(array)
    }

    async fn request(&self, mut request: Request<'_>) -> Result<Value> {
        request.stale |= self.stale;
        request = request.hurry(self.hurry());
        request.body.check(Connection::Shared)?;
        if request.body.replies() == 0 {
            return Ok(Value::Array(Vec::new()));
        }
        let reply = self.shared.backend.request(request).await;
        reply.inspect_err(count_doubt)
    }

    /// A connection for commands that block or watch keys, leading to the owner of `key`.
    ///
    /// A blocking command on the shared connection would stall everybody on it.
    pub fn dedicated(&self, key: &Key) -> Dedicated {
        Dedicated::new(self.shared.backend.clone(), self.deadline, key)
    }

    /// Listens to channels or to changes of keys, through reconnects, failovers and moved slots.
    ///
    /// Returns at once; [`Event::Subscribed`](crate::store::Event::Subscribed) is the first event once the subscription is active.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if nothing is to be listened to, or the store was made from a connection that
    /// cannot subscribe.
    pub async fn subscribe(&self, to: impl IntoIterator<Item = Listen>) -> Result<Subscription> {
        let runtime = self
            .runtime()
            .ok_or_else(|| Error::config("a subscription needs a tokio runtime"))?;
        Subscription::open(&self.shared.hubs, &runtime, to.into_iter().collect())
    }

    /// What the server is and can do. Asked once, and again after the store reconnected. Of a
    /// Cluster, it is what all its masters can do.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query).
    pub async fn capabilities(&self) -> Result<Arc<Capabilities>> {
        let generation = self.shared.backend.generation();
        if let Some(known) = &*self.shared.capabilities.load()
            && known.0 == generation
        {
            return Ok(known.1.clone());
        }
        let read = Capabilities::read(&self.shared.backend, self.ends(), self.hurry());
        let read = Arc::new(read.await?);
        // Reading may have connected first.
        let generation = self.shared.backend.generation();
        self.shared
            .capabilities
            .store(Some(Arc::new((generation, read.clone()))));
        Ok(read)
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
        let started = Instant::now();
        let ping = redis::cmd("PING");
        match &*self.shared.backend {
            // A cluster is healthy when each part of it is.
            Backend::Cluster(cluster) => {
                for node in cluster.masters() {
                    let request = Request::one(&ping, self.ends()).hurry(self.hurry());
                    cluster.ask(&node, request).await?;
                }
            }
            _ => {
                let _: Value = self.query(&ping).await?;
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

    /// Another number after slots have moved; always the same without a Cluster.
    pub(super) fn slots_version(&self) -> u64 {
        match &*self.shared.backend {
            Backend::Cluster(cluster) => cluster.version(),
            _ => 0,
        }
    }

    /// What goes wrong on purpose, and the engine, if there is one.
    #[cfg(feature = "testing")]
    pub(crate) fn mishaps(
        &self,
    ) -> Option<(Arc<crate::testing::Mishaps>, redstart_engine::Engine)> {
        match &*self.shared.backend {
            Backend::Embedded(embedded) => Some(embedded.mishaps()),
            _ => None,
        }
    }

    /// Moves the clock of the embedded engine forward: TTLs, limiters, blocked commands, and what patterns of this
    /// process keep about them, such as leases and cached copies, see the time pass at once.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) on a real server, whose clock is its own.
    pub fn advance(&self, by: Duration) -> Result<()> {
        match &*self.shared.backend {
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

    /// A handle of this store whose calls have another deadline, from a millisecond to an hour. What is made with it
    /// keeps that deadline: a pattern, a dedicated connection, or a single call. A handle in a hurry does not decide for the
    /// others that the server is [down](crate::store#while-the-store-is-down).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use std::time::Duration;
    /// # let store = redstart::Store::connect("memory://").await?;
    /// let hasty = store.within(Duration::from_millis(50));
    /// hasty.query::<()>(redis::cmd("SET").arg("greeting").arg("hello")).await?;
    /// assert_eq!(hasty.deadline(), Duration::from_millis(50));
    /// # Ok(()) }
    /// ```
    #[must_use = "the store itself keeps its deadline"]
    pub fn within(&self, deadline: Duration) -> Self {
        Self {
            shared: self.shared.clone(),
            deadline: deadline.clamp(Duration::from_millis(1), location::MAX_TIME),
            stale: self.stale,
        }
    }

    /// A handle for calls that only read and whose answers may be stale: replicas may answer them, if
    /// [that is wanted](StoreBuilder::replica_reads), or the copy of a mirror.
    pub(crate) fn stale_reads(&self) -> Self {
        Self {
            stale: true,
            ..self.clone()
        }
    }

    /// The deadline of every call by this handle.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Whether this is the embedded engine.
    pub fn is_embedded(&self) -> bool {
        self.shared.backend.is_embedded()
    }

    /// The clock for what a client keeps on its own: leases, cached copies, windows. It moves with
    /// [`advance`](Self::advance).
    pub(crate) fn clock(&self) -> Clock {
        self.shared.clock.clone()
    }

    /// The one `T` of this store and its clones, such as the task that renews the leases of a family. It is made
    /// when it is first asked for, and again if the one there is not `usable` any more.
    pub(crate) fn extension<T: Send + Sync + 'static>(
        &self,
        usable: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Arc<T> {
        self.shared.extensions.get(usable, make)
    }

    /// How many subscriptions of this store listen to a sharded channel.
    #[cfg(feature = "locking")]
    pub(crate) fn listeners(&self, channel: &crate::key::Channel) -> usize {
        self.shared.hubs.listeners(channel.as_str().as_bytes())
    }

    /// Whether both are clones of one store.
    #[cfg(any(feature = "locking", feature = "messaging"))]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Changes when a request for this slot, or for any slot, followed a redirection. What such a request read comes
    /// from a node whose changes may not be listened to yet.
    #[cfg(feature = "caching")]
    pub(crate) fn redirections(&self, slot: Option<u16>) -> u32 {
        match &*self.shared.backend {
            Backend::Cluster(cluster) => cluster.redirections(slot),
            _ => 0,
        }
    }

    /// A number for the server that owns a slot; the same for all slots where there is one server.
    #[cfg(feature = "caching")]
    pub(crate) fn node_of(&self, slot: u16) -> u64 {
        let Backend::Cluster(cluster) = &*self.shared.backend else {
            return 0;
        };
        // A node that stays in the cluster stays where it is in memory.
        cluster
            .owner(slot)
            .map_or(0, |node| Arc::as_ptr(&node).addr() as u64)
    }

    /// Whether this is a Cluster.
    pub fn is_cluster(&self) -> bool {
        self.shared.backend.is_cluster()
    }

    /// The addresses of the servers that this store leads to now, as `host:port` or the path of a socket: of Sentinel the
    /// master that most sentinels name and its replicas, of a Cluster all nodes that have slots. Empty on the embedded engine.
    /// No server is connected to that was not asked already, so that a [lazy](StoreBuilder::lazy) store can be looked at before
    /// anything is sent.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// let store = redstart::Store::builder("redis://127.0.0.1:7000/2").lazy().connect().await?;
    /// assert_eq!(store.addresses().await?, ["127.0.0.1:7000"]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a connection that the application made, which does not tell;
    /// [`is_unavailable`](Error::is_unavailable) or [`is_timeout`](Error::is_timeout) if no sentinel answers.
    pub async fn addresses(&self) -> Result<Vec<String>> {
        let servers = self.shared.backend.servers().await?;
        Ok(servers.iter().map(ToString::to_string).collect())
    }

    /// Hands work to the runtime on behalf of something that is being dropped, such as the release of a
    /// lock. [`settle`](Self::settle) waits for it.
    pub(crate) fn defer(&self, work: impl Future<Output = ()> + Send + 'static) {
        match self.runtime() {
            Some(runtime) => drop(
                self.shared
                    .deferred
                    .spawn_on(crate::task::owned(work), &runtime),
            ),
            // Leases expire; this only takes longer.
            None => tracing::warn!("a guard was dropped outside a runtime and could not clean up"),
        }
    }

    /// Waits until everything that dropped guards left to do is done. Call it before the program ends.
    ///
    /// # Cancel safety
    ///
    /// The work continues if the future is dropped.
    pub async fn settle(&self) {
        // The tracker counts only while it is closed, and new work may come in meanwhile.
        self.shared.deferred.close();
        self.shared.deferred.wait().await;
        self.shared.deferred.reopen();
    }

    /// Where background work runs: the runtime of the caller, which is alive, or else the one where the store was
    /// made, which may have ended.
    pub(crate) fn runtime(&self) -> Option<Handle> {
        Handle::try_current()
            .ok()
            .or_else(|| self.shared.runtime.clone())
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

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store")
            .field(&self.shared.backend.place())
            .finish()
    }
}
