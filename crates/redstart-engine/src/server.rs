//! The engine on sockets: every client of Redis can use it.
//!
//! One task per connection. It reads what there is, executes all complete commands under one hold of
//! the engine's lock, waits until the log has kept what their replies depend on, and writes them at
//! once. While the client does not take its replies, nothing more is read from it, so what waits for
//! it is bounded; messages that pile up meanwhile end the connection at
//! [`ServerConfig::output_limit`].
//!
//! # Slow scripts
//!
//! A script holds the engine's lock while it runs. When it runs for more than a few milliseconds, it
//! hands the tasks of its runtime's worker to another thread, so that connections are accepted,
//! read and closed meanwhile. Their commands wait until the script ends or counts as slow
//! (`busy-reply-threshold`); from then on they are answered with BUSY, and SCRIPT KILL works. Only
//! the multi-thread runtime can do that: on a current-thread runtime the server starts a runtime with
//! one worker of its own for the connections. A message that a script sent, and that has to wait for the disk
//! (`appendfsync always`), reaches its receivers when the script is over; they are answered meanwhile.
//!
//! # Messages and a full disk
//!
//! With `appendfsync always`, what a client is sent stays in order: a message of PUBLISH, of a key that changed or of an
//! invalid cached key waits until what it tells of is on the disk, and the replies behind it wait with it, also those
//! to PING and to reads of old data. While the disk is full that takes until there is room. Clients that have no such
//! message under way are answered.

mod feed;
mod pause;
#[cfg(feature = "tls")]
pub(crate) mod tls;

#[cfg(feature = "tls")]
pub use tls::{ClientCertificates, Tls};

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    runtime::RuntimeFlavor,
};
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFuture},
    task::TaskTracker,
};

use crate::{
    Engine,
    client::{Inbox, Profile, Pushed},
    config::Config,
    feed::Attachment,
    rdb,
    reply::Reply,
    resp::{self, Commands, Limits, Parser},
    session::{Allowed, Announced, Blocked, End, Session, TOO_MANY_CLIENTS, Wire},
};

/// How much is read at once.
const READ: usize = 16 * 1024;
/// No further command is executed while this many bytes of replies wait to be written.
const HIGH_WATER: usize = 1024 * 1024;
/// How many commands are executed under one hold of the lock.
const BATCH: usize = 256;
/// A buffer that grew beyond this is given back when it is empty.
const KEEP: usize = 64 * 1024;
/// How long a stopping server waits for its connections.
const GRACE: Duration = Duration::from_secs(5);
/// How long replies that wait for the disk are kept for a client that sends no more or was killed.
const LAST_REPLIES: Duration = Duration::from_secs(5);

/// How long a client may take for a TLS handshake.
#[cfg(feature = "tls")]
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Where a [`Server`] listens, and what it allows.
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerConfig {
    listen: Vec<Address>,
    unix: Option<PathBuf>,
    output_limit: Option<usize>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

/// A TCP address to listen on.
#[derive(Clone, Copy, Debug)]
struct Address {
    addr: SocketAddr,
    /// It may not exist on this machine.
    optional: bool,
}

impl ServerConfig {
    /// Listens nowhere yet.
    pub fn new() -> ServerConfig {
        ServerConfig {
            listen: Vec::new(),
            unix: None,
            output_limit: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Listens on a TCP address, also. Port 0 takes a free one.
    pub fn listen(mut self, addr: SocketAddr) -> ServerConfig {
        self.listen.push(Address {
            addr,
            optional: false,
        });
        self
    }

    /// As [`ServerConfig::listen`], unless the machine has no such address.
    pub fn listen_if_possible(mut self, addr: SocketAddr) -> ServerConfig {
        self.listen.push(Address {
            addr,
            optional: true,
        });
        self
    }

    /// Encrypts every TCP connection.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> ServerConfig {
        self.tls = Some(tls);
        self
    }

    /// Listens on a unix socket. A file that an earlier server left there is replaced.
    pub fn unix(mut self, path: impl Into<PathBuf>) -> ServerConfig {
        self.unix = Some(path.into());
        self
    }

    /// How many bytes of messages may wait for a slow client before it is disconnected (default:
    /// 32 MiB, or what `client-output-buffer-limit pubsub` says).
    pub fn output_limit(mut self, bytes: usize) -> ServerConfig {
        self.output_limit = Some(bytes);
        self
    }
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig::new()
    }
}

/// Why a [`Server`] cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Anybody could reach the data.
    #[error(
        "{0} is not a loopback address and no password is set: listen on 127.0.0.1, set a password, or \
         turn protected-mode off"
    )]
    Unprotected(SocketAddr),
    /// The certificate, its key or the authority of the clients cannot be used.
    #[error("cannot use TLS: {0}")]
    Tls(String),
    /// No address was given.
    #[error("no address to listen on")]
    Nowhere,
    /// The address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(String, #[source] io::Error),
}

/// A listener for RESP2 and RESP3 on an engine.
///
/// ```
/// use redstart_engine::{Engine, server::{Server, ServerConfig}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = ServerConfig::new().listen("127.0.0.1:0".parse()?);
/// let server = Server::bind(Engine::new(), config).await?;
/// println!("listening on {}", server.local_addr().expect("a TCP address"));
/// server.run(async { /* until asked to stop */ }).await;
/// # Ok(())
/// # }
/// ```
pub struct Server {
    engine: Engine,
    tcp: Vec<TcpListener>,
    unix: Option<(UnixListener, PathBuf)>,
    config: ServerConfig,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Binds and runs a server until `shutdown` is ready.
///
/// # Errors
///
/// As [`Server::bind`].
pub async fn serve(
    config: ServerConfig,
    engine: Engine,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    Server::bind(engine, config).await?.run(shutdown).await;
    Ok(())
}

impl Server {
    /// Starts to listen. Connections wait until [`Server::run`].
    ///
    /// # Errors
    ///
    /// If the address cannot be listened on, or if it is not a loopback address, the default user has
    /// no password and `protected-mode` is on.
    pub async fn bind(engine: Engine, config: ServerConfig) -> Result<Server, ServerError> {
        if config.listen.is_empty() && config.unix.is_none() {
            return Err(ServerError::Nowhere);
        }
        let mut tcp = Vec::new();
        for Address { addr, optional } in &config.listen {
            if !addr.ip().is_loopback() && engine.is_protected() {
                return Err(ServerError::Unprotected(*addr));
            }
            let failed = |error| ServerError::Listen(addr.to_string(), error);
            match TcpListener::bind(addr).await {
                Ok(listener) => tcp.push(listener),
                Err(error) if *optional && is_absent(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let mut unix = None;
        if let Some(path) = &config.unix {
            let failed = |error| ServerError::Listen(path.display().to_string(), error);
            remove_stale(path).await.map_err(failed)?;
            let listener = UnixListener::bind(path).map_err(failed)?;
            restrict(&engine, path).map_err(failed)?;
            unix = Some((listener, path.clone()));
        }
        tell(&engine, &config, &tcp);
        Ok(Server {
            engine,
            tcp,
            unix,
            config,
        })
    }

    /// The TCP address, with the port that was taken.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.tcp.first().and_then(|tcp| tcp.local_addr().ok())
    }

    /// Serves clients until `shutdown` is ready. Then commands that were received are executed,
    /// their replies sent, and the connections closed.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let network = Network::current();
        let tasks = TaskTracker::new();
        let stop = Stop::default();
        let ticker = tasks.spawn(tick(self.engine.clone(), stop.clone()));
        tokio::pin!(shutdown);
        let asked = {
            let mut state = self.engine.inner.lock();
            state.listeners += 1;
            state.shutdown.clone()
        };
        let mut ended = false;
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                () = asked.notified() => {
                    ended = true;
                    break;
                }
                accepted = accept_tcp(&self.tcp) => match accepted {
                    Ok((socket, addr)) => {
                        let _ = socket.set_nodelay(true);
                        let laddr = socket.local_addr().map_or(String::new(), |a| a.to_string());
                        let denied = is_denied(addr, self.engine.is_protected());
                        let who = Who { addr: addr.to_string(), laddr, unix: false, denied };
                        let talk = self.talk(who, stop.clone());
                        network.spawn(&tasks, socket, talk);
                    }
                    Err(error) => pause_after(error).await,
                },
                accepted = accept_unix(self.unix.as_ref()) => match accepted {
                    Ok((socket, path)) => {
                        let name = format!("{}:0", path.display());
                        let who = Who { addr: name.clone(), laddr: name, unix: true, denied: false };
                        let talk = self.talk(who, stop.clone());
                        network.spawn_unix(&tasks, socket, talk);
                    }
                    Err(error) => pause_after(error).await,
                },
            }
        }
        let others = {
            let mut state = self.engine.inner.lock();
            state.listeners -= 1;
            state.listeners
        };
        if ended && others > 0 {
            // SHUTDOWN is for all of them.
            asked.notify_one();
        }
        stop.tell();
        tasks.close();
        if tokio::time::timeout(GRACE, tasks.wait()).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
        ticker.abort();
        if others == 0 {
            let mut state = self.engine.inner.lock();
            // What is still there runs nothing more: all that was acknowledged is in the file.
            state.clients.values().for_each(|profile| profile.kill());
            rdb::save_at_end(&mut state, self.engine.now_micros());
        }
        network.end();
        if let Some((_, path)) = &self.unix {
            let _ = std::fs::remove_file(path);
        }
    }

    fn talk(&self, who: Who, stop: Stop) -> Talk {
        Talk {
            session: self.engine.session(),
            who,
            #[cfg(feature = "tls")]
            tls: self.config.tls.clone(),
            stop,
        }
    }
}

/// Where connections are served.
enum Network {
    /// On the runtime that the server runs on.
    Here,
    /// On one of the server's own.
    Own(tokio::runtime::Runtime),
}

impl Network {
    fn current() -> Network {
        if tokio::runtime::Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
            return Network::Here;
        }
        let own = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("redstart-network")
            .enable_all()
            .build();
        match own {
            Ok(own) => Network::Own(own),
            Err(error) => {
                tracing::warn!(%error, "slow scripts will hold up all connections");
                Network::Here
            }
        }
    }

    fn spawn(&self, tasks: &TaskTracker, socket: TcpStream, talk: Talk) {
        match self {
            Network::Here => drop(tasks.spawn(talk.over_tcp(socket))),
            Network::Own(runtime) => {
                let moved = async move {
                    // A socket belongs to the runtime that it was made on.
                    match socket.into_std().and_then(TcpStream::from_std) {
                        Ok(socket) => talk.over_tcp(socket).await,
                        Err(error) => tracing::warn!(%error, "a connection was lost"),
                    }
                };
                tasks.spawn_on(moved, runtime.handle());
            }
        }
    }

    fn spawn_unix(&self, tasks: &TaskTracker, socket: UnixStream, talk: Talk) {
        match self {
            Network::Here => drop(tasks.spawn(talk.with(socket))),
            Network::Own(runtime) => {
                let moved = async move {
                    match socket.into_std().and_then(UnixStream::from_std) {
                        Ok(socket) => talk.with(socket).await,
                        Err(error) => tracing::warn!(%error, "a connection was lost"),
                    }
                };
                tasks.spawn_on(moved, runtime.handle());
            }
        }
    }

    /// A runtime cannot be dropped where nothing may block.
    fn end(self) {
        if let Network::Own(runtime) = self {
            runtime.shutdown_background();
        }
    }
}

/// A connection that is about to begin.
struct Talk {
    session: Session,
    who: Who,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    stop: Stop,
}

/// Tells connections that the server stops.
#[derive(Clone, Default)]
struct Stop {
    token: CancellationToken,
    /// Looked at with each request: the token has a lock that all connections share.
    told: Arc<AtomicBool>,
}

impl Stop {
    fn tell(&self) {
        self.told.store(true, Ordering::Release);
        self.token.cancel();
    }

    #[inline]
    fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.token.cancelled()
    }
}

impl Talk {
    /// The life of a TCP connection.
    async fn over_tcp(self, socket: TcpStream) {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let shaken = tokio::select! {
                shaken = tokio::time::timeout(HANDSHAKE, tls.acceptor().accept(socket)) => shaken,
                () = self.stop.cancelled() => return,
            };
            return match shaken {
                Ok(Ok(socket)) => self.with(socket).await,
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            };
        }
        self.with(socket).await;
    }

    /// The life of a connection.
    async fn with<S: AsyncRead + AsyncWrite + Unpin>(mut self, mut socket: S) {
        let Who {
            addr,
            laddr,
            unix,
            denied,
        } = &self.who;
        if *denied {
            let _ = socket.write_all(DENIED.as_bytes()).await;
            let _ = socket.shutdown().await;
            return;
        }
        let (profile, announced) = self.session.announce(addr, laddr, *unix);
        let allowed = match announced {
            Announced::Welcome(allowed) => Some(allowed),
            Announced::Later => None,
            Announced::Refused => return refuse(&mut socket).await,
        };
        let inbox = self.session.take_inbox();
        let connection = Connection {
            socket,
            session: self.session,
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
        };
        connection.run(self.stop).await;
    }
}

struct Who {
    addr: String,
    laddr: String,
    unix: bool,
    /// It comes from another machine, and protected mode is on.
    denied: bool,
}

/// Protected mode: without a password only this machine may connect.
fn is_denied(peer: SocketAddr, protected: bool) -> bool {
    protected && !peer.ip().to_canonical().is_loopback()
}

const DENIED: &str = "-DENIED Redis is running in protected mode because protected mode is enabled \
     and no password is set for the default user. In this mode connections are only accepted from \
     the loopback interface. Set a password for the default user, or turn protected mode off from \
     this machine: CONFIG SET protected-mode no. Do that only if the server cannot be reached from \
     the internet.\r\n";

/// Does what is due while no command comes: keys expire and their events are published.
async fn tick(engine: Engine, stop: Stop) {
    let mut every = tokio::time::interval(Duration::from_millis(100));
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = every.tick() => engine.tick(),
        }
    }
}

async fn accept_tcp(listeners: &[TcpListener]) -> io::Result<(TcpStream, SocketAddr)> {
    std::future::poll_fn(|cx| {
        for listener in listeners {
            if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    })
    .await
}

/// Whether the machine has no such address or no such family of addresses.
fn is_absent(error: &io::Error) -> bool {
    // EAFNOSUPPORT has no kind of its own.
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(97)
}

/// Gives a socket's file the permissions that `unixsocketperm` says.
fn restrict(engine: &Engine, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let state = engine.inner.lock();
    let digits = state.config.remembered.get("unixsocketperm");
    let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    match digits.and_then(|digits| u32::from_str_radix(digits, 8).ok()) {
        None | Some(0) => Ok(()),
        Some(mode) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)),
    }
}

/// Tells the engine where it is reached: CONFIG GET and INFO say so.
fn tell(engine: &Engine, config: &ServerConfig, tcp: &[TcpListener]) {
    let mut state = engine.inner.lock();
    let addrs: Vec<SocketAddr> = tcp.iter().filter_map(|tcp| tcp.local_addr().ok()).collect();
    let settings = &mut state.config;
    if let Some(first) = addrs.first() {
        settings.port = first.port();
        let ips: Vec<String> = addrs.iter().map(|addr| addr.ip().to_string()).collect();
        settings.remembered.insert("bind", ips.join(" ").into());
    }
    if let Some(path) = &config.unix {
        let path = path.display().to_string();
        settings.remembered.insert("unixsocket", path.into());
    }
    if let Some(limit) = config.output_limit {
        settings.output_limits[2].hard = limit as u64;
    }
}

async fn accept_unix(
    listener: Option<&(UnixListener, PathBuf)>,
) -> io::Result<(UnixStream, &Path)> {
    match listener {
        Some((listener, path)) => Ok((listener.accept().await?.0, path.as_path())),
        None => std::future::pending().await,
    }
}

/// Most likely out of file descriptors: trying again at once would fail again.
async fn pause_after(error: io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Removes a socket's file if nobody listens on it.
async fn remove_stale(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => {
            if UnixStream::connect(path).await.is_ok() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::fs::remove_file(path)
        }
        _ => Ok(()),
    }
}

async fn refuse<S: AsyncWrite + Unpin>(socket: &mut S) {
    let text = format!("-{TOO_MANY_CLIENTS}\r\n");
    let _ = socket.write_all(text.as_bytes()).await;
    let _ = socket.shutdown().await;
}

struct Connection<S> {
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
    async fn run(mut self, stop: Stop) {
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
        let wanted = self.parser.wanted().clamp(READ, HIGH_WATER);
        self.parser.buffer().reserve(wanted);
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

    /// Waits until the log is on the disk up to a position, if that is what is promised. It may take as long as the disk is
    /// full: meanwhile the client may leave.
    async fn wait_for_disk(&mut self, position: u64, stop: &CancellationToken) -> Flow {
        self.make_space();
        let limit = self.allowed.buffer;
        let (session, socket, parser) = (&self.session, &mut self.socket, &mut self.parser);
        let synced = session.synced(position);
        let (mut synced, mut over) = (std::pin::pin!(synced), std::pin::pin!(give_up(stop)));
        let mut last = std::pin::pin!(None::<tokio::time::Sleep>);
        loop {
            let goes = last.is_some();
            tokio::select! {
                biased;
                () = &mut synced => return Flow::Continue,
                () = &mut over => return Flow::Close,
                Some(()) = poll_option(last.as_mut()) => return Flow::Close,
                // What it was told before it was killed may say why.
                () = self.profile.end.notified(), if !goes => {
                    last.set(Some(tokio::time::sleep(LAST_REPLIES)));
                }
                read = socket.read_buf(parser.buffer()) => {
                    session.was_read(read.as_ref().map_or(0, |count| *count));
                    if !matches!(read, Ok(count) if count > 0) || parser.len() > limit {
                        return Flow::Close;
                    }
                }
            }
        }
    }

    /// Waits until the log has kept what the replies depend on; `None` if nobody waits for them any more. That a client has
    /// closed its connection cannot be told from that it only sends no more: it may have its replies for a while yet. So may
    /// one that is killed.
    async fn wait_until_kept(
        &mut self,
        position: u64,
        stop: &CancellationToken,
    ) -> Option<Result<(), Reply>> {
        if position == 0 {
            return Some(Ok(()));
        }
        self.make_space();
        let limit = self.allowed.buffer;
        let (session, socket, parser) = (&self.session, &mut self.socket, &mut self.parser);
        let (mut kept, mut over) = (
            std::pin::pin!(session.kept(position)),
            std::pin::pin!(give_up(stop)),
        );
        let mut last = std::pin::pin!(None::<tokio::time::Sleep>);
        let mut ended = false;
        loop {
            let goes = last.is_some();
            let has_room = parser.len() < HIGH_WATER;
            tokio::select! {
                biased;
                kept = &mut kept => return Some(kept),
                () = &mut over => return None,
                Some(()) = poll_option(last.as_mut()) => return None,
                () = self.profile.end.notified(), if !goes => {
                    last.set(Some(tokio::time::sleep(LAST_REPLIES)));
                }
                read = socket.read_buf(parser.buffer()), if !ended && has_room => match read {
                    Ok(0) => {
                        ended = true;
                        if !goes {
                            last.set(Some(tokio::time::sleep(LAST_REPLIES)));
                        }
                    }
                    Ok(count) if parser.len() <= limit => session.was_read(count),
                    _ => return None,
                },
            }
        }
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn protected_mode_denies_other_machines_only() {
        let from = |addr: &str, protected| is_denied(addr.parse().unwrap(), protected);
        for addr in [
            "192.168.1.7:5000",
            "8.8.8.8:1",
            "[2001:db8::1]:1",
            "[::ffff:10.0.0.1]:1",
        ] {
            assert!(from(addr, true), "{addr}");
            assert!(!from(addr, false), "{addr}");
        }
        for addr in [
            "127.0.0.1:5000",
            "127.9.9.9:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(!from(addr, true), "{addr}");
        }
    }

    #[test]
    fn protected_mode_ends_with_a_password_or_by_a_setting() {
        let engine = Engine::new();
        let mut session = engine.session();
        let mut call = |line: &str| {
            let args: Vec<Bytes> = line.split(' ').map(|w| Bytes::from(w.to_owned())).collect();
            assert_eq!(
                session.execute(&args).into_reply(),
                Some(crate::Reply::OK),
                "{line}"
            );
        };
        assert!(engine.is_protected());
        call("CONFIG SET protected-mode no");
        assert!(!engine.is_protected());
        call("CONFIG SET protected-mode yes");
        assert!(engine.is_protected());
        call("ACL SETUSER default >secret");
        assert!(!engine.is_protected());
        call("ACL SETUSER default nopass");
        assert!(engine.is_protected());
    }
}
