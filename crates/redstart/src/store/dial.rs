//! Making connections: to one server, or to the master that the sentinels name.

use std::{future::Future, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Pipeline,
    ProtocolVersion, PushInfo, RedisConnectionInfo, aio::MultiplexedConnection,
};
use tokio::{
    net::{TcpStream, UnixStream},
    sync::mpsc::UnboundedSender,
    time::{Instant, timeout_at},
};

use super::{
    link::{Line, Request},
    retry,
    sentinel::Sentinels,
    url::{Address, Settings},
    wire::{Fault, Socket, Wire},
};
use crate::error::{Error, Result};

/// Knows how to reach a server that accepts writes.
pub(crate) struct Dial {
    route: Route,
    settings: Settings,
}

enum Route {
    /// One known server.
    Server(Address),
    /// A client that the application made; its settings are its own.
    Client(Client),
    /// Whatever the sentinels say.
    Sentinels(Sentinels),
}

impl Dial {
    pub(crate) fn server(address: Address, settings: Settings) -> Self {
        Self {
            route: Route::Server(address),
            settings,
        }
    }

    pub(crate) fn client(client: Client, settings: Settings) -> Self {
        Self {
            route: Route::Client(client),
            settings,
        }
    }

    pub(crate) fn sentinel(sentinels: Vec<Address>, master: String, settings: Settings) -> Self {
        Self {
            route: Route::Sentinels(Sentinels::new(sentinels, master, &settings)),
            settings,
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn db(&self) -> i64 {
        match &self.route {
            Route::Client(client) => client.get_connection_info().redis_settings().db(),
            _ => self.settings.db,
        }
    }

    /// Where this leads, for messages. Never holds a credential.
    pub(crate) fn describe(&self) -> String {
        match &self.route {
            Route::Server(address) => address.to_string(),
            Route::Client(client) => client.get_connection_info().addr().to_string(),
            Route::Sentinels(sentinels) => format!("master {:?} by sentinel", sentinels.master()),
        }
    }

    /// Counts up when the lines that were made before lead to a server that is master no more.
    pub(crate) fn switches(&self) -> u64 {
        match &self.route {
            Route::Sentinels(sentinels) => sentinels.switches(),
            _ => 0,
        }
    }

    /// Ends when the count is another one.
    pub(crate) async fn switched(&self, since: u64) {
        match &self.route {
            Route::Sentinels(sentinels) => sentinels.switched(since).await,
            _ => std::future::pending().await,
        }
    }

    fn patience(&self) -> Duration {
        self.settings
            .connect_timeout
            .unwrap_or(self.settings.deadline)
    }

    /// One attempt to make a line for requests, bounded by the connect time-out.
    pub(crate) async fn line(&self) -> Result<Line> {
        let until = Instant::now() + self.patience();
        let (address, master) = match &self.route {
            Route::Server(address) if !self.settings.tls => (address.clone(), None),
            Route::Sentinels(sentinels) if !self.settings.tls => {
                let address = self.in_time(until, sentinels.ask()).await?;
                (address, Some(sentinels.master()))
            }
            _ => {
                let connection = self.connect(ProtocolVersion::RESP2, None).await?;
                return Ok(Line::Client(connection));
            }
        };
        let attempt = async {
            let wire = self.greet(connect(&address).await?, until).await?;
            if let Some(master) = master {
                let asked = wire.send(Request::One(&redis::cmd("ROLE")), until).await;
                check_role(&asked.map_err(lost)?, &address, master)?;
            }
            Ok(Line::Plain(wire))
        };
        self.in_time(until, attempt).await
    }

    /// Says who we are on a new connection.
    async fn greet(&self, wire: Wire, until: Instant) -> Result<Wire> {
        let settings = &self.settings;
        let mut hello = Pipeline::new();
        if let Some(password) = &settings.password {
            hello.cmd("AUTH").arg(&settings.username).arg(password);
        }
        if settings.db != 0 {
            hello.cmd("SELECT").arg(settings.db);
        }
        // Servers that do not know these refuse them, which does no harm.
        let told = hello.len();
        hello
            .cmd("CLIENT")
            .arg(&["SETINFO", "LIB-NAME", "redstart"]);
        let version = ["SETINFO", "LIB-VER", env!("CARGO_PKG_VERSION")];
        hello.cmd("CLIENT").arg(&version);
        let replies = wire.send(Request::all(&hello), until).await.map_err(lost)?;
        let replies = replies.into_sequence().unwrap_or_default();
        for (cmd, reply) in hello.cmd_iter().zip(replies).take(told) {
            if let redis::Value::ServerError(error) = reply {
                let error = redis::RedisError::from(error);
                if retry::name(cmd) == Some(b"AUTH") && !retry::refused_for_now(&error) {
                    return Err(self.refused_credentials(error));
                }
                return Err(error.into());
            }
        }
        Ok(wire)
    }

    fn refused_credentials(&self, cause: redis::RedisError) -> Error {
        Error::config(format!("{} refused the credentials", self.describe())).with_source(cause)
    }

    /// One attempt to connect by the client, bounded by the connect time-out.
    pub(crate) async fn connect(
        &self,
        protocol: ProtocolVersion,
        pushes: Option<UnboundedSender<PushInfo>>,
    ) -> Result<MultiplexedConnection> {
        let until = Instant::now() + self.patience();
        let attempt = async {
            match &self.route {
                Route::Server(address) => {
                    open(&client(address, &self.settings, protocol)?, pushes).await
                }
                Route::Client(client) => {
                    let info = client.get_connection_info().clone();
                    let redis = info.redis_settings().clone().set_protocol(protocol);
                    open(&Client::open(info.set_redis_settings(redis))?, pushes).await
                }
                Route::Sentinels(sentinels) => {
                    let address = sentinels.ask().await?;
                    let mut connection =
                        open(&client(&address, &self.settings, protocol)?, pushes).await?;
                    let role: redis::Value =
                        redis::cmd("ROLE").query_async(&mut connection).await?;
                    check_role(&role, &address, sentinels.master())?;
                    Ok(connection)
                }
            }
        };
        self.in_time(until, attempt).await
    }

    async fn in_time<T>(
        &self,
        until: Instant,
        attempt: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match timeout_at(until, attempt).await {
            Ok(result) => result.map_err(|error| self.explain(error)),
            Err(_) => Err(Error::timeout(format!(
                "{} did not answer while connecting",
                self.describe()
            ))),
        }
    }

    /// Says in plain words what the client's error means, where that is known.
    fn explain(&self, error: Error) -> Error {
        let Some(cause) = error.redis() else {
            return error;
        };
        let text = cause.to_string();
        let place = self.describe();
        let code = cause.code().unwrap_or_default();
        if matches!(code, "NOAUTH" | "WRONGPASS")
            || cause.kind() == redis::ErrorKind::AuthenticationFailed
        {
            self.refused_credentials(cause.clone())
        } else if text.contains("certificate") || text.contains("UnknownIssuer") {
            Error::config(format!(
                "{place} shows a certificate that is not trusted here"
            ))
            .with_source(cause.clone())
        } else if text.contains("lookup")
            || text.contains("resolve")
            || text.contains("No address found")
        {
            Error::unavailable(format!("the host of {place} is not known"))
                .with_source(cause.clone())
        } else if text.contains("received corrupt message") || text.contains("InvalidContentType") {
            Error::config(format!("{place} does not speak TLS")).with_source(cause.clone())
        } else if cause.is_connection_refusal() {
            Error::unavailable(format!("nothing listens at {place}")).with_source(cause.clone())
        } else {
            error
        }
    }
}

/// A sentinel that was cut off may still name the old master.
fn check_role(role: &redis::Value, address: &Address, master: &str) -> Result<()> {
    match first_text(role) {
        Some("master") => Ok(()),
        _ => Err(Error::unavailable(format!(
            "the sentinels name {address} as master {master:?}, but it is none yet"
        ))),
    }
}

fn lost(fault: Fault) -> Error {
    match fault {
        Fault::NotSent(error) | Fault::Lost(error) | Fault::Answer(error) => error.into(),
        Fault::TimedOut => Error::timeout("no answer while connecting"),
    }
}

/// A plain connection.
async fn connect(address: &Address) -> Result<Wire> {
    let io = redis::RedisError::from;
    match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(io)?;
            Ok(Wire::new(Socket::Unix(stream)))
        }
        Address::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port))
                .await
                .map_err(io)?;
            stream.set_nodelay(true).map_err(io)?;
            Ok(Wire::new(Socket::Tcp(stream)))
        }
    }
}

fn first_text(value: &redis::Value) -> Option<&str> {
    match value.as_sequence()?.first()? {
        redis::Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        redis::Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

pub(super) async fn open(
    client: &Client,
    pushes: Option<UnboundedSender<PushInfo>>,
) -> Result<MultiplexedConnection> {
    // Deadlines are kept one level up, over reconnects too; the client's own would only double the timers.
    let mut config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(None);
    if let Some(pushes) = pushes {
        config = config.set_push_sender(pushes);
    }
    Ok(client
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}

pub(super) fn client(
    address: &Address,
    settings: &Settings,
    protocol: ProtocolVersion,
) -> Result<Client> {
    let mut redis = RedisConnectionInfo::default()
        .set_db(settings.db)
        .set_protocol(protocol)
        .set_lib_name("redstart", env!("CARGO_PKG_VERSION"));
    if let Some(username) = &settings.username {
        redis = redis.set_username(username);
    }
    if let Some(password) = &settings.password {
        redis = redis.set_password(password);
    }
    let addr = match address {
        Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
        Address::Tcp { host, port } if settings.tls => ConnectionAddr::TcpTls {
            host: host.clone(),
            port: *port,
            insecure: false,
            tls_params: None,
        },
        Address::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
    };
    let info: ConnectionInfo = addr.into_connection_info()?.set_redis_settings(redis);
    if settings.tls {
        tls_client(info, settings)
    } else {
        Ok(Client::open(info)?)
    }
}

#[cfg(feature = "tls")]
fn tls_client(info: ConnectionInfo, settings: &Settings) -> Result<Client> {
    // Another crate of the application may have chosen a provider already; then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = |path: &std::path::PathBuf, what: &str| {
        std::fs::read(path).map_err(|error| {
            Error::config(format!("{what} {} cannot be read", path.display())).with_source(error)
        })
    };
    let root_cert = settings
        .ca
        .as_ref()
        .map(|path| read(path, "the CA file"))
        .transpose()?;
    let client_tls = match (&settings.client_cert, &settings.client_key) {
        (Some(cert), Some(key)) => Some(redis::ClientTlsConfig {
            client_cert: read(cert, "the certificate")?,
            client_key: read(key, "the key file")?,
        }),
        (None, None) => None,
        _ => return Err(Error::config("cert and key go together")),
    };
    Client::build_with_tls(
        info,
        redis::TlsCertificates {
            client_tls,
            root_cert,
        },
    )
    .map_err(|error| Error::config("the TLS settings cannot be used").with_source(error))
}

#[cfg(not(feature = "tls"))]
fn tls_client(_: ConnectionInfo, _: &Settings) -> Result<Client> {
    Err(Error::config("TLS needs the cargo feature `tls`"))
}
