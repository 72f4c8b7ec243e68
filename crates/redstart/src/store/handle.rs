//! The store as a pattern sees it: what every call goes through.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use redis::{Cmd, FromRedisValue, Pipeline, RedisFuture, Value, aio::ConnectionLike};
use tokio::{runtime::Handle, time::Instant};
use tokio_util::task::TaskTracker;

use crate::{
    error::{Error, Result},
    key::Key,
};

use super::{
    Capabilities, Clock, Dedicated, Listen, ServerKind, StoreBuilder, Subscription,
    backend::{self, Backend, Server},
    command::{self, Connection},
    extension::Extensions,
    location::{self, Settings},
    pool::Node,
    request::{Body, Request, array, compose, convert, count_doubt},
    subscription::Hubs,
    transport::Dial,
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

    /// All keys that match a glob pattern, found by SCAN without blocking the server, on every node.
    ///
    /// A key that exists all the time is found, unless its slot moves more than once meanwhile; one that comes or goes may or may
    /// not be. If slots of a Cluster move, all nodes are read twice.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query); [`is_config`](Error::is_config) for a store made from a `ClusterConnection` of redis-rs, which cannot
    /// ask each node.
    pub async fn scan(&self, pattern: &str) -> Result<Vec<String>> {
        let nodes = self.scanned_nodes().await?;
        let before = self.all_slots(&nodes).await;
        let mut found = self.scan_bytes(pattern, usize::MAX, None).await?.keys;
        let nodes = self.scanned_nodes().await?;
        let after = self.all_slots(&nodes).await;
        if before != after || after.1.iter().flatten().any(|own| is_moving(own)) {
            // A key may have moved to a node that was read before it came. There it is found now.
            found.extend(self.scan_bytes(pattern, usize::MAX, None).await?.keys);
            found.sort_unstable();
            found.dedup();
        }
        let text = |key| String::from_utf8(key).map_err(|_| Error::codec("a key is not UTF-8"));
        found.into_iter().map(text).collect()
    }

    /// Some keys that match a glob pattern: SCAN on every node, until a node has given `at_most` keys or all it has.
    ///
    /// The server returns keys in the order of their hashes, which has nothing to do with their names or ages, so a part
    /// of them is a fair sample. A pattern that matches little on a large server still costs at most `at_most` / 100
    /// pages on each node.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// let store = redstart::Store::connect("memory://").await?;
    /// store.query::<()>(redis::cmd("SET").arg("greeting").arg("hello")).await?;
    /// assert_eq!(store.sample("*", 100).await?, [b"greeting"]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query); [`is_config`](Error::is_config) for a store made from a `ClusterConnection` of redis-rs, which cannot
    /// ask each node.
    pub async fn sample(&self, pattern: &str, at_most: usize) -> Result<Vec<Vec<u8>>> {
        Ok(self.scan_bytes(pattern, at_most, None).await?.keys)
    }

    /// As [`sample`](Self::sample), for keys that may be rare: it goes on for as long as `time` allows, however few of the keys match, and says whether it has
    /// seen all of them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use std::time::Duration;
    /// # let store = redstart::Store::connect("memory://").await?;
    /// store.query::<()>(redis::cmd("SET").arg("greeting").arg("hello")).await?;
    /// let sample = store.sample_for("greet*", 100, Duration::from_secs(1)).await?;
    /// assert_eq!((sample.keys, sample.complete), (vec![b"greeting".to_vec()], true));
    /// # assert!(store.sample_for("greet*", 100, Duration::MAX).await?.complete);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query); [`is_config`](Error::is_config) for a store made from a `ClusterConnection` of redis-rs, which cannot
    /// ask each node.
    pub async fn sample_for(
        &self,
        pattern: &str,
        at_most: usize,
        time: Duration,
    ) -> Result<Sample> {
        let ends = Instant::now() + time.min(crate::duration::LONGEST);
        self.scan_bytes(pattern, at_most, Some(ends)).await
    }

    /// Without a time the pages are bounded by the keys that are wanted.
    async fn scan_bytes(
        &self,
        pattern: &str,
        at_most: usize,
        ends: Option<Instant>,
    ) -> Result<Sample> {
        let mut found = std::collections::BTreeSet::new();
        let mut complete = true;
        // Large pages where few keys of a page match.
        let count = if ends.is_some() && pattern != "*" {
            1000
        } else {
            at_most.clamp(10, 500)
        };
        let page = |cursor: u64| {
            let mut cmd = redis::cmd("SCAN");
            cmd.arg(cursor)
                .arg("MATCH")
                .arg(pattern)
                .arg("COUNT")
                .arg(count);
            cmd
        };
        let nodes = self.scanned_nodes().await?;
        let before = match ends {
            Some(_) => self.processes(&nodes).await,
            None => None,
        };
        for node in &nodes {
            let (mut cursor, mut here, mut pages) = (0, 0_usize, 0_usize);
            loop {
                let reply = self.ask_node(node.as_ref(), &page(cursor)).await?;
                let (next, keys): (u64, Vec<Vec<u8>>) = redis::from_redis_value(reply)?;
                let left = at_most.saturating_sub(here);
                here = here.saturating_add(keys.len());
                pages += 1;
                found.extend(keys.into_iter().take(left));
                cursor = next;
                if cursor == 0 {
                    complete &= here <= at_most;
                    break;
                }
                let is_over = match ends {
                    Some(ends) => Instant::now() >= ends,
                    None => pages > at_most / 100,
                };
                if here >= at_most || is_over {
                    complete = false;
                    break;
                }
            }
        }
        if complete && ends.is_some() {
            // A cursor means nothing to another process, and keys that move to a node that was read before are missed.
            let nodes = self.scanned_nodes().await?;
            complete = before.is_some() && self.processes(&nodes).await == before;
        }
        Ok(Sample {
            keys: found.into_iter().collect(),
            complete,
        })
    }

    /// The masters that there are now; `None` is the one server.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a Cluster whose nodes this store cannot ask one by one.
    pub(super) async fn scanned_nodes(&self) -> Result<Vec<Option<Arc<Node>>>> {
        match &*self.shared.backend {
            Backend::Cluster(cluster) => {
                let masters = cluster.current_masters(self.ends()).await;
                Ok(masters.into_iter().map(Some).collect())
            }
            other if other.is_cluster() => Err(Error::config(
                "a store made from a ClusterConnection cannot ask every node of the Cluster: make it from a \
                 redis+cluster:// URL",
            )),
            _ => Ok(vec![None]),
        }
    }

    /// As [`scanned_nodes`](Self::scanned_nodes), with the number of the slot table that names them.
    pub(super) async fn numbered_nodes(&self) -> Result<(Vec<Option<Arc<Node>>>, u64)> {
        match &*self.shared.backend {
            Backend::Cluster(cluster) => {
                let (masters, version) = cluster.numbered_masters(self.ends()).await;
                Ok((masters.into_iter().map(Some).collect(), version))
            }
            _ => Ok((self.scanned_nodes().await?, 0)),
        }
    }

    pub(super) async fn ask_node(&self, node: Option<&Arc<Node>>, cmd: &Cmd) -> Result<Value> {
        let request = Request::one(cmd, self.ends()).hurry(self.hurry());
        request.body.check(Connection::Shared)?;
        match (&*self.shared.backend, node) {
            (Backend::Cluster(cluster), Some(node)) => cluster.ask(node, request).await,
            _ => self.request(request).await,
        }
    }

    /// Another number after slots have moved; always the same without a Cluster.
    pub(super) fn slots_version(&self) -> u64 {
        match &*self.shared.backend {
            Backend::Cluster(cluster) => cluster.version(),
            _ => 0,
        }
    }

    /// Which processes have which slots, by their own word; `None` if a server does not say who it is, or while a slot moves: its
    /// keys are at two nodes, and go from one to the other.
    async fn processes(&self, nodes: &[Option<Arc<Node>>]) -> Option<(u64, Vec<(String, String)>)> {
        let version = self.slots_version();
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let mut processes = Vec::with_capacity(nodes.len());
        for node in nodes {
            let reply = self.ask_node(node.as_ref(), &info).await.ok()?;
            let text: String = redis::from_redis_value(reply).ok()?;
            let mut lines = text.lines();
            let id = lines.find_map(|line| line.strip_prefix("run_id:"))?;
            let slots = self.own_slots(node.as_ref()).await;
            let slots = slots.filter(|own| !is_moving(own))?;
            processes.push((id.to_owned(), slots));
        }
        Some((version, processes))
    }

    /// The slots of a node by its own word, as CLUSTER NODES shows them; `None` if it does not say. Both ends of a move know of
    /// its end at once, and the node that gives the slot table may hear of it later. Without a Cluster there are none.
    pub(super) async fn own_slots(&self, node: Option<&Arc<Node>>) -> Option<String> {
        if node.is_none() {
            return Some(String::new());
        }
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("NODES");
        let reply = self.ask_node(node, &cmd).await.ok()?;
        let text: String = redis::from_redis_value(reply).ok()?;
        // Id, address, flags, master, two times, epoch, state of the link, slots.
        let mut rows = text.lines().map(|line| line.splitn(9, ' '));
        let mut own = rows.find(|row| {
            let flags = row.clone().nth(2);
            flags.is_some_and(|flags| flags.split(',').any(|flag| flag == "myself"))
        })?;
        Some(own.nth(8).unwrap_or_default().to_owned())
    }

    /// Which slots the nodes have, by the table and by their own word.
    async fn all_slots(&self, nodes: &[Option<Arc<Node>>]) -> (u64, Vec<Option<String>>) {
        let own = nodes.iter().map(|node| self.own_slots(node.as_ref()));
        let own = futures_util::future::join_all(own).await;
        (self.slots_version(), own)
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

/// What [`Store::sample_for`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// The keys, in no order that means anything.
    pub keys: Vec<Vec<u8>>,
    /// Whether these are all keys that match: every node was asked to its end, no other server took its place meanwhile, and no
    /// slot moved or was being moved. `false` also if a server does not answer `INFO` or `CLUSTER NODES`, which tell that.
    pub complete: bool,
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
/// A node shows the moves of its own slots among them: `[slot->-node]` or `[slot-<-node]`.
fn is_moving(own_slots: &str) -> bool {
    own_slots.contains('[')
}

impl ConnectionLike for Store {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let request = Request::one(cmd, self.ends());
            self.request(request).await.map_err(Error::into_redis)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let body = Body::Many {
                pipeline,
                offset,
                count,
            };
            let reply = self.request(Request::new(body, self.ends())).await;
            reply.and_then(array).map_err(Error::into_redis)
        })
    }

    fn get_db(&self) -> i64 {
        self.shared.backend.db()
    }
}

/// A store on the server of a client that the application already has, with the client's credentials and database:
/// all of a store's abilities, its own connections. A client with TLS parameters of its own keeps them to itself; calls of
/// such a store are a [configuration error](Error::is_config), and a URL with `ca=`, `cert=` and `key=` is the way.
impl From<redis::Client> for Store {
    fn from(client: redis::Client) -> Self {
        let settings = Settings::default();
        let deadline = settings.deadline;
        Self::new(
            Backend::Server(Server::new(Dial::client(
                client.get_connection_info(),
                settings,
            ))),
            deadline,
        )
    }
}

/// A store that shares the application's connection. It cannot block or subscribe.
#[cfg(feature = "from-manager")]
impl From<redis::aio::ConnectionManager> for Store {
    fn from(manager: redis::aio::ConnectionManager) -> Self {
        Self::new(
            Backend::Foreign(backend::Foreign::Manager(manager)),
            Settings::default().deadline,
        )
    }
}

/// A store that shares the application's cluster connection. It cannot block or subscribe, and redis-rs
/// repeats requests as that connection was configured to, even writes whose reply was lost.
#[cfg(feature = "from-cluster")]
impl From<redis::cluster_async::ClusterConnection> for Store {
    fn from(cluster: redis::cluster_async::ClusterConnection) -> Self {
        Self::new(
            Backend::Foreign(backend::Foreign::Cluster(cluster)),
            Settings::default().deadline,
        )
    }
}

/// A store on an engine that the application configured itself.
#[cfg(feature = "engine")]
impl TryFrom<redstart_engine::Engine> for Store {
    type Error = Error;

    fn try_from(engine: redstart_engine::Engine) -> Result<Self> {
        let embedded = backend::Embedded::on(engine, 0)?;
        Ok(Self::new(
            Backend::Embedded(embedded),
            Settings::default().deadline,
        ))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store")
            .field(&self.shared.backend.place())
            .finish()
    }
}
