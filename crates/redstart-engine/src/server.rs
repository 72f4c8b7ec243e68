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

mod config;
mod connection;
mod network;
mod talk;
#[cfg(feature = "tls")]
pub(crate) mod tls;

pub use config::ServerConfig;
#[cfg(feature = "tls")]
pub use tls::{ClientCertificates, Tls};

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    task::Poll,
    time::Duration,
};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::task::TaskTracker;

use crate::{Engine, rdb};
use config::Address;
use network::Network;
use talk::{Stop, Talk, Who, is_denied};

/// How long a stopping server waits for its connections.
const GRACE: Duration = Duration::from_secs(5);

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
