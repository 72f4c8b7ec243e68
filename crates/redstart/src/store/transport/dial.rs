//! Making connections: to one server, or to the master that the sentinels name.

use std::{future::Future, time::Duration};

use redis::{Client, Pipeline, ProtocolVersion, PushInfo, aio::MultiplexedConnection};
use tokio::{
    sync::mpsc::UnboundedSender,
    time::{Instant, timeout_at},
};

use super::{
    client::{client, open},
    line::Line,
    sentinel::Sentinels,
    stream::Stream,
    wire::Wire,
};
use crate::{
    error::{Error, Result},
    store::{
        command,
        location::{Address, Settings},
        request::{Body, Failure, Request, refused_for_now},
    },
};

/// Knows how to reach a server that accepts writes.
pub(crate) struct Dial {
    target: Target,
    settings: Settings,
}

enum Target {
    /// One known server.
    Server(Address),
    /// A client that the application made; its settings are its own.
    Client(Client),
    /// The master that the sentinels name.
    Sentinels(Sentinels),
}

impl Dial {
    pub(crate) fn server(address: Address, settings: Settings) -> Self {
        Self {
            target: Target::Server(address),
            settings,
        }
    }

    pub(crate) fn client(client: Client, settings: Settings) -> Self {
        Self {
            target: Target::Client(client),
            settings,
        }
    }

    pub(crate) fn sentinel(sentinels: Vec<Address>, master: String, settings: Settings) -> Self {
        Self {
            target: Target::Sentinels(Sentinels::new(sentinels, master, &settings)),
            settings,
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn db(&self) -> i64 {
        match &self.target {
            Target::Client(client) => client.get_connection_info().redis_settings().db(),
            _ => self.settings.db,
        }
    }

    /// Where this leads, for messages. Never holds a credential.
    pub(crate) fn place(&self) -> String {
        match &self.target {
            Target::Server(address) => address.to_string(),
            Target::Client(client) => client.get_connection_info().addr().to_string(),
            Target::Sentinels(sentinels) => format!("master {:?} by sentinel", sentinels.master()),
        }
    }

    /// The address, if it is fixed.
    pub(crate) fn address(&self) -> Option<&Address> {
        match &self.target {
            Target::Server(address) => Some(address),
            _ => None,
        }
    }

    /// Counts up when the lines that were made before lead to a server that is no longer the master.
    pub(crate) fn switches(&self) -> u64 {
        match &self.target {
            Target::Sentinels(sentinels) => sentinels.switches(),
            _ => 0,
        }
    }

    /// Ends when the count is another one.
    pub(crate) async fn switched(&self, since: u64) {
        match &self.target {
            Target::Sentinels(sentinels) => sentinels.switched(since).await,
            _ => std::future::pending().await,
        }
    }

    /// How long one attempt may take.
    pub(crate) fn patience(&self) -> Duration {
        self.settings.patience()
    }

    /// One attempt to make a line for requests, bounded by the connect time-out.
    pub(crate) async fn line(&self) -> Result<Line> {
        let until = Instant::now() + self.patience();
        let (address, master) = match &self.target {
            Target::Server(address) => (address.clone(), None),
            Target::Sentinels(sentinels) => {
                let address = self.in_time(until, sentinels.ask()).await?;
                (address, Some(sentinels.master()))
            }
            Target::Client(_) => {
                let connection = self.connect(ProtocolVersion::RESP2, None).await?;
                return Ok(Line::Client(connection));
            }
        };
        let attempt = async {
            let stream = Stream::connect(&address, &self.settings).await?;
            let wire = self.greet(Wire::new(stream), until).await?;
            if let Some(master) = master {
                let asked = wire.send(Request::one(&redis::cmd("ROLE"), until)).await;
                check_role(&asked.map_err(failed)?, &address, master)?;
            }
            Ok(Line::Wire(wire))
        };
        self.in_time(until, attempt).await
    }

    /// Says who we are on a new connection, and waits for the answer, so that a server that accepts connections and
    /// does not answer is not taken for one that serves.
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
        let request = Request::new(Body::all(&hello), until);
        let replies = wire.send(request).await.map_err(failed)?;
        let replies = replies.into_sequence().unwrap_or_default();
        for (cmd, reply) in hello.cmd_iter().zip(replies).take(told) {
            if let redis::Value::ServerError(error) = reply {
                let error = redis::RedisError::from(error);
                if command::name(cmd) == Some(b"AUTH") && !refused_for_now(&error) {
                    return Err(self.refused_credentials(error));
                }
                return Err(error.into());
            }
        }
        Ok(wire)
    }

    fn refused_credentials(&self, cause: redis::RedisError) -> Error {
        Error::config(format!("{} refused the credentials", self.place())).with_source(cause)
    }

    /// One attempt to connect by the client, bounded by the connect time-out.
    pub(crate) async fn connect(
        &self,
        protocol: ProtocolVersion,
        pushes: Option<UnboundedSender<PushInfo>>,
    ) -> Result<MultiplexedConnection> {
        let until = Instant::now() + self.patience();
        let attempt = async {
            match &self.target {
                Target::Server(address) => {
                    open(&client(address, &self.settings, protocol)?, pushes).await
                }
                Target::Client(client) => {
                    let info = client.get_connection_info().clone();
                    let redis = info.redis_settings().clone().set_protocol(protocol);
                    open(&Client::open(info.set_redis_settings(redis))?, pushes).await
                }
                Target::Sentinels(sentinels) => {
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
                self.place()
            ))),
        }
    }

    /// Says in plain words what the client's error means, where that is known.
    fn explain(&self, error: Error) -> Error {
        let Some(cause) = error.redis() else {
            return error;
        };
        let text = cause.to_string();
        let place = self.place();
        let code = cause.code().unwrap_or_default();
        if matches!(code, "NOAUTH" | "WRONGPASS")
            || cause.kind() == redis::ErrorKind::AuthenticationFailed
        {
            self.refused_credentials(cause.clone())
        } else if text.contains("certificate") || text.contains("UnknownIssuer") {
            Error::config(format!("the certificate of {place} is not trusted"))
                .with_source(cause.clone())
        } else if text.contains("lookup")
            || text.contains("resolve")
            || text.contains("No address found")
        {
            Error::unavailable(format!("the host of {place} cannot be resolved"))
                .with_source(cause.clone())
        } else if text.contains("received corrupt message") || text.contains("InvalidContentType") {
            Error::config(format!("{place} does not speak TLS")).with_source(cause.clone())
        } else if cause.is_connection_refusal() {
            Error::unavailable(format!("nothing is listening at {place}"))
                .with_source(cause.clone())
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
            "the sentinels name {address} as master {master:?}, but it is not a master yet"
        ))),
    }
}

/// Why a new connection is of no use.
fn failed(failure: Failure) -> Error {
    failure.into_error(|| "the server".to_owned(), true)
}

fn first_text(value: &redis::Value) -> Option<&str> {
    match value.as_sequence()?.first()? {
        redis::Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        redis::Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
