//! Making connections: to one server, or to the master that the sentinels name.

use std::{future::Future, time::Duration};

use redis::{Cmd, ConnectionAddr, ConnectionInfo, Pipeline, RedisError, Value};
use tokio::time::{Instant, timeout_at};

use super::{
    duplex::Duplex,
    moved::{Moved, address_of, redirection},
    sentinel::Sentinels,
    stream::Stream,
    wire::Wire,
};
use crate::{
    error::{Error, Result},
    store::{
        command,
        credentials::Rotations,
        location::{Address, Settings},
        request::{Body, Failure, Request, refused_for_now},
    },
};

/// Knows how to reach a server that accepts writes.
pub(crate) struct Dial {
    target: Target,
    /// Where the data of the known server went.
    moved: Moved,
    settings: Settings,
}

enum Target {
    /// One known server.
    Server(Address),
    /// What a client of the application does and we cannot.
    Unreachable(&'static str),
    /// The master that the sentinels name.
    Sentinels(Box<Sentinels>),
}

impl Dial {
    pub(crate) fn server(address: Address, settings: Settings) -> Self {
        Self {
            target: Target::Server(address),
            moved: Moved::new(),
            settings,
        }
    }

    /// The server of a client that the application made, with its credentials and its database.
    pub(crate) fn client(info: &ConnectionInfo, mut settings: Settings) -> Self {
        let redis = info.redis_settings();
        settings.db = redis.db();
        settings.username = redis.username().map(str::to_owned);
        settings.password = redis.password().map(str::to_owned);
        let target = match info.addr() {
            ConnectionAddr::Unix(path) => Target::Server(Address::Unix(path.clone())),
            ConnectionAddr::Tcp(host, port) => Target::Server(Address::Tcp {
                host: host.clone(),
                port: *port,
            }),
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            } => {
                settings.tls = true;
                Target::Server(Address::Tcp {
                    host: host.clone(),
                    port: *port,
                })
            }
            _ => Target::Unreachable(
                "the TLS parameters of a redis::Client cannot be read: make the store from a URL with ca=, \
                 cert= and key=",
            ),
        };
        Self {
            target,
            moved: Moved::new(),
            settings,
        }
    }

    pub(crate) fn sentinel(sentinels: Vec<Address>, master: String, settings: Settings) -> Self {
        Self {
            target: Target::Sentinels(Box::new(Sentinels::new(sentinels, master, &settings))),
            moved: Moved::new(),
            settings,
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn db(&self) -> i64 {
        self.settings.db
    }

    /// Where this leads, for messages. Never holds a credential.
    pub(crate) fn place(&self) -> String {
        match &self.target {
            Target::Server(address) => match self.moved.place() {
                Some(place) => place.to_string(),
                None => address.to_string(),
            },
            Target::Unreachable(_) => "a client of the application".to_owned(),
            Target::Sentinels(sentinels) => format!("master {:?} by sentinel", sentinels.master()),
        }
    }

    /// The node in metrics: its address, or the name of the master behind sentinels.
    pub(crate) fn node(&self) -> String {
        match &self.target {
            Target::Sentinels(sentinels) => sentinels.master().to_owned(),
            _ => self.place(),
        }
    }

    /// The address, if it is fixed.
    pub(crate) fn address(&self) -> Option<&Address> {
        match &self.target {
            Target::Server(address) => Some(address),
            _ => None,
        }
    }

    /// Where the known server is now.
    #[cfg(feature = "engine")]
    pub(crate) fn current_address(&self) -> Option<Address> {
        match &self.target {
            Target::Server(address) => Some(self.moved.place().unwrap_or_else(|| address.clone())),
            _ => None,
        }
    }

    /// The replicas of the master that the sentinels watch; none without sentinels.
    pub(crate) async fn replicas(&self) -> Result<Vec<Address>> {
        match &self.target {
            Target::Sentinels(sentinels) => sentinels.replicas().await,
            _ => Ok(Vec::new()),
        }
    }

    /// The servers that this leads to now: the known one, or the master that the sentinels name and its replicas. None of
    /// them is connected to.
    pub(crate) async fn servers(&self) -> Result<Vec<Address>> {
        let until = Instant::now() + self.patience();
        let asked = async {
            let (address, _) = self.whom().await?;
            let mut servers = vec![address];
            servers.extend(self.replicas().await?);
            Ok(servers)
        };
        self.in_time(until, asked).await
    }

    /// Whether the sentinels name the server.
    pub(crate) fn has_sentinels(&self) -> bool {
        matches!(self.target, Target::Sentinels(_))
    }

    /// Counts up when the lines that were made before lead to a server that is no longer the master.
    pub(crate) fn switches(&self) -> u64 {
        match &self.target {
            Target::Sentinels(sentinels) => sentinels.switches(),
            _ => self.moved.count(),
        }
    }

    /// Ends when the count is another one.
    pub(crate) async fn switched(&self, since: u64) {
        match &self.target {
            Target::Sentinels(sentinels) => sentinels.switched(since).await,
            _ => self.moved.changed(since).await,
        }
    }

    /// The known server answered with this error. If it says where its data went, connections are made there from now on.
    pub(crate) fn note_refusal(&self, error: &RedisError) {
        if let Target::Server(address) = &self.target
            && let Some(place) = redirection(error)
        {
            self.moved.set(address, place);
        }
    }

    /// Changes when open connections have to present new credentials, from now on.
    pub(crate) fn rotations(&self) -> Option<Rotations> {
        self.settings.rotations()
    }

    /// The command that presents the credentials of now.
    pub(crate) async fn auth(&self) -> Result<Option<Cmd>> {
        let until = Instant::now() + self.patience();
        let asked = self.in_time(until, self.settings.credentials()).await?;
        Ok(asked.map(|credentials| credentials.auth()))
    }

    /// How long one attempt may take.
    pub(crate) fn patience(&self) -> Duration {
        self.settings.patience()
    }

    /// One attempt to make a wire for requests, bounded by the connect time-out.
    pub(crate) async fn wire(&self) -> Result<Wire> {
        let made = self.new_wire().await;
        self.moved.note(made.is_ok());
        made
    }

    async fn new_wire(&self) -> Result<Wire> {
        let until = Instant::now() + self.patience();
        let attempt = async {
            let (address, master) = self.whom().await?;
            let wire = Wire::new(Stream::connect(&address, &self.settings).await?);
            let (hello, told) = greeting(&self.settings, Protocol::Resp2).await?;
            let request = Request::new(Body::all(&hello), until);
            // A server that accepts connections and does not answer is not taken for one that serves.
            let replies = wire.send(request).await.map_err(failed)?;
            let replies = replies.into_sequence().unwrap_or_default();
            self.check_greeting(&hello, replies, told)?;
            if let Some(master) = master {
                let asked = wire.send(Request::one(&redis::cmd("ROLE"), until)).await;
                check_role(&asked.map_err(failed)?, &address, master)?;
            }
            Ok(wire)
        };
        self.in_time(until, attempt).await
    }

    /// One attempt to make a connection on which the server may speak first, bounded by the connect time-out.
    pub(crate) async fn duplex(&self) -> Result<Duplex> {
        let made = self.new_duplex().await;
        self.moved.note(made.is_ok());
        made
    }

    async fn new_duplex(&self) -> Result<Duplex> {
        let until = Instant::now() + self.patience();
        let attempt = async {
            let (address, master) = self.whom().await?;
            let mut duplex = Duplex::new(Stream::connect(&address, &self.settings).await?);
            let (mut hello, told) = greeting(&self.settings, Protocol::Resp3).await?;
            if master.is_some() {
                hello.cmd("ROLE");
            }
            let mut replies = duplex.ask(&hello).await?;
            let role = master.and_then(|_| replies.pop());
            self.check_greeting(&hello, replies, told)?;
            if let Some(master) = master {
                check_role(&role.unwrap_or(Value::Nil), &address, master)?;
            }
            Ok(duplex)
        };
        self.in_time(until, attempt).await
    }

    /// The server to connect to, and the name of the master that it has to be.
    async fn whom(&self) -> Result<(Address, Option<&str>)> {
        match &self.target {
            Target::Server(address) => {
                if self.moved.is_lost() {
                    self.ask_again(address).await;
                }
                let place = self.moved.place().unwrap_or_else(|| address.clone());
                Ok((place, None))
            }
            Target::Sentinels(sentinels) => Ok((sentinels.ask().await?, Some(sentinels.master()))),
            Target::Unreachable(why) => Err(Error::config(*why)),
        }
    }

    /// The server that the data moved to cannot be reached: asks the one of the URL, which an operator may have told to
    /// serve the data again, or whose data may have moved elsewhere since. Only its own word counts: one that was
    /// started anew without its data knows nothing of a move.
    async fn ask_again(&self, address: &Address) {
        let until = Instant::now() + self.patience() / 3;
        let asked = async {
            let wire = Wire::new(Stream::connect(address, &self.settings).await?);
            let (mut hello, _) = greeting(&self.settings, Protocol::Resp2).await?;
            hello.cmd("REDSTART").arg("HANDOVER").arg("WHERE");
            let replies = wire.send(Request::new(Body::all(&hello), until)).await;
            let replies = replies.map_err(failed)?.into_sequence().unwrap_or_default();
            let places: (Option<String>, Option<String>) =
                redis::from_redis_value(replies.into_iter().next_back().unwrap_or(Value::Nil))?;
            Ok::<_, Error>(places)
        };
        match timeout_at(until, asked).await {
            Ok(Ok((Some(place), _))) => {
                if let Some(place) = address_of(&place) {
                    self.moved.set(address, place);
                }
            }
            Ok(Ok((None, Some(place)))) => {
                if let Some(place) = address_of(&place) {
                    self.moved.give_back(address, &place);
                }
            }
            Ok(Ok((None, None)) | Err(_)) | Err(_) => {}
        }
    }

    fn check_greeting(&self, hello: &Pipeline, replies: Vec<Value>, told: usize) -> Result<()> {
        match refused(hello, replies, told) {
            None => Ok(()),
            Some((b"AUTH", error)) if !refused_for_now(&error) => {
                Err(self.refused_credentials(error))
            }
            Some((_, error)) => {
                self.note_refusal(&error);
                Err(error.into())
            }
        }
    }

    fn refused_credentials(&self, cause: RedisError) -> Error {
        Error::config(format!("{} refused the credentials", self.place())).with_source(cause)
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

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Resp2,
    /// The server may speak first.
    Resp3,
}

/// Says who we are on a new connection; of these commands, so many must not be refused.
pub(super) async fn greeting(settings: &Settings, protocol: Protocol) -> Result<(Pipeline, usize)> {
    let mut hello = Pipeline::new();
    if let Some(credentials) = settings.credentials().await? {
        hello.add_command(credentials.auth());
    }
    if protocol == Protocol::Resp3 {
        hello.cmd("HELLO").arg(3);
    }
    if settings.db != 0 {
        hello.cmd("SELECT").arg(settings.db);
    }
    if settings.read_only {
        hello.cmd("READONLY");
    }
    // Servers that do not know these refuse them, which does no harm.
    let told = hello.len();
    hello
        .cmd("CLIENT")
        .arg(&["SETINFO", "LIB-NAME", "redstart"]);
    let version = ["SETINFO", "LIB-VER", env!("CARGO_PKG_VERSION")];
    hello.cmd("CLIENT").arg(&version);
    if let Some(name) = &settings.client_name {
        hello.cmd("CLIENT").arg("SETNAME").arg(name);
    }
    Ok((hello, told))
}

/// The first of the first `told` commands that was refused.
pub(super) fn refused(
    hello: &Pipeline,
    replies: Vec<Value>,
    told: usize,
) -> Option<(&[u8], RedisError)> {
    let pairs = hello.cmd_iter().zip(replies).take(told);
    pairs
        .filter_map(|(cmd, reply)| match reply {
            Value::ServerError(error) => Some((
                command::name(cmd).unwrap_or_default(),
                RedisError::from(error),
            )),
            _ => None,
        })
        .next()
}

/// A sentinel that was cut off may still name the old master.
fn check_role(role: &Value, address: &Address, master: &str) -> Result<()> {
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

fn first_text(value: &Value) -> Option<&str> {
    match value.as_sequence()?.first()? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
