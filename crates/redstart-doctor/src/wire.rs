//! A connection that can only read: commands that write are refused before they are sent.
//!
//! It is a wire of its own for three reasons. Replies and MONITOR lines are cut at a limit while they are read, so
//! that a value of 512 MB costs no memory here. Every command is counted and timed, so that the report can say what
//! the examination cost. And each node of a Cluster can be asked on its own.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

use redis::{FromRedisValue, Value};
use redstart::Store;
use tokio::{
    io::{
        AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
        BufReader,
    },
    net::{TcpSocket, TcpStream, UnixStream},
    time::timeout,
};

use crate::{
    cost::Cost,
    progress::Progress,
    target::{Access, Address},
    throttle::{PIECE, Throttle},
    tls,
};

/// What of one bulk string is kept; the rest is read and dropped.
pub(crate) const KEPT: usize = 4096;
/// INFO and CLIENT LIST are longer.
const KEPT_TEXT: usize = 4 << 20;
/// What of one array is kept; further elements are read and dropped.
const ELEMENTS: usize = 100_000;

/// What a socket keeps of what was not read, in bytes, while MONITOR is read in turns: so little that the lines stay on the server's
/// side and are sent together.
const NARROW: u32 = 4 << 10;
/// And where lines come too late: enough for a long and busy line.
const WIDE: usize = 4 << 20;

pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Sync + Unpin {
    /// Takes more at once from now on.
    fn widen(&self) {}
}

impl Duplex for UnixStream {}

impl Duplex for TcpStream {
    fn widen(&self) {
        // The system has a limit of its own; whatever it gives is more than before.
        let _ = socket2::SockRef::from(self).set_recv_buffer_size(WIDE);
    }
}

impl Duplex for tokio_rustls::client::TlsStream<TcpStream> {
    fn widen(&self) {
        self.get_ref().0.widen();
    }
}

#[cfg(test)]
impl Duplex for tokio::io::DuplexStream {}

/// A connection whose socket keeps little.
async fn narrow(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the host has no address");
    for address in tokio::net::lookup_host((host, port)).await? {
        let socket = match address.is_ipv4() {
            true => TcpSocket::new_v4()?,
            false => TcpSocket::new_v6()?,
        };
        // Before it is connected: what was once offered to the server cannot be taken back.
        socket.set_recv_buffer_size(NARROW)?;
        match socket.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Why a command has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// The server said no: the command is renamed, unknown or forbidden.
    Refused(String),
    /// No answer in time; the connection is closed.
    TimedOut,
    /// The connection is gone.
    Lost(String),
    /// It was not asked: the examination was ended, or this part of it has had its time.
    Ended,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Lost(why) => write!(f, "connection lost: {why}"),
            Self::Ended => f.write_str("not asked any more: it was ended, or its time was over"),
        }
    }
}

impl Trouble {
    /// Whether it says only that the key has gone or has another type by now.
    pub(crate) fn is_about_the_key(&self) -> bool {
        let Self::Refused(why) = self else {
            return false;
        };
        why.starts_with("WRONGTYPE") || why.starts_with("NOGROUP") || why.contains("no such key")
    }

    /// Whether the next command may still be answered.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

pub(crate) type Answer<T = Value> = Result<T, Trouble>;

/// A command as its words.
pub(crate) type Words = Vec<Vec<u8>>;

/// Makes a command.
macro_rules! words {
    ($($word:expr),* $(,)?) => { vec![$(AsRef::<[u8]>::as_ref(&$word).to_vec()),*] };
}
pub(crate) use words;

/// The commands that the doctor may send, with the subcommands of those that could also write.
const ALLOWED: &[(&str, &[&str])] = &[
    ("ACL", &["WHOAMI", "GETUSER", "LIST"]),
    ("ASKING", &[]),
    ("AUTH", &[]),
    ("CLIENT", &["LIST", "SETNAME", "NO-TOUCH", "NO-EVICT", "ID"]),
    ("CLUSTER", &["SLOTS", "INFO", "NODES", "MYID"]),
    ("CONFIG", &["GET"]),
    ("DBSIZE", &[]),
    ("EXISTS", &[]),
    ("GETRANGE", &[]),
    ("HGET", &[]),
    ("HKEYS", &[]),
    ("HLEN", &[]),
    ("HMGET", &[]),
    ("HRANDFIELD", &[]),
    ("HSCAN", &[]),
    ("HSTRLEN", &[]),
    ("INFO", &[]),
    ("LATENCY", &["LATEST"]),
    ("LLEN", &[]),
    ("LRANGE", &[]),
    ("MEMORY", &["USAGE"]),
    ("MONITOR", &[]),
    ("OBJECT", &["IDLETIME", "ENCODING", "FREQ"]),
    ("PING", &[]),
    ("PTTL", &[]),
    (
        "PUBSUB",
        &[
            "CHANNELS",
            "NUMSUB",
            "NUMPAT",
            "SHARDCHANNELS",
            "SHARDNUMSUB",
        ],
    ),
    ("READONLY", &[]),
    ("SCAN", &[]),
    ("SCARD", &[]),
    ("SCRIPT", &["EXISTS"]),
    ("SELECT", &[]),
    ("SENTINEL", &["GET-MASTER-ADDR-BY-NAME", "REPLICAS"]),
    ("SISMEMBER", &[]),
    ("SLOWLOG", &["GET", "LEN"]),
    ("SRANDMEMBER", &[]),
    ("SSCAN", &[]),
    ("STRLEN", &[]),
    ("TIME", &[]),
    ("TYPE", &[]),
    ("XINFO", &["STREAM", "GROUPS", "CONSUMERS"]),
    ("XLEN", &[]),
    ("XPENDING", &[]),
    ("XRANGE", &[]),
    ("ZCARD", &[]),
    ("ZCOUNT", &[]),
    ("ZRANGE", &[]),
    ("ZSCAN", &[]),
    ("ZSCORE", &[]),
];

/// Whether the command only reads.
pub(crate) fn is_allowed(words: &Words) -> bool {
    let word = |i: usize| {
        words
            .get(i)
            .map(|w| String::from_utf8_lossy(w).to_ascii_uppercase())
    };
    let (name, second) = (word(0).unwrap_or_default(), word(1).unwrap_or_default());
    ALLOWED
        .iter()
        .find(|(allowed, _)| *allowed == name)
        .is_some_and(|(_, subcommands)| {
            subcommands.is_empty() || subcommands.contains(&second.as_str())
        })
}

enum Line {
    Socket(BufReader<Box<dyn Duplex>>),
    Store(Store),
}

/// One connection to one node.
pub(crate) struct Wire {
    line: Line,
    patience: Duration,
    pub(crate) cost: Cost,
    broken: bool,
    pub(crate) throttle: Throttle,
    /// Who may end the examination, and the end of the part that is under way.
    pub(crate) progress: Progress,
    pub(crate) until: Option<Instant>,
    /// Commands that may not be used here, and what the server said.
    pub(crate) refused: BTreeMap<String, String>,
}

impl Wire {
    /// Connects and logs in.
    pub(crate) async fn connect(
        address: &Address,
        access: &Access,
        patience: Duration,
    ) -> Answer<Self> {
        Self::open(address, access, patience, false).await
    }

    /// The same for MONITOR: lines that are not read yet stay with the server.
    pub(crate) async fn connect_for_monitor(
        address: &Address,
        access: &Access,
        patience: Duration,
    ) -> Answer<Self> {
        Self::open(address, access, patience, true).await
    }

    async fn open(
        address: &Address,
        access: &Access,
        patience: Duration,
        is_narrow: bool,
    ) -> Answer<Self> {
        let lost = |error: io::Error| Trouble::Lost(error.to_string());
        let dial = async {
            let stream: Box<dyn Duplex> = match address {
                Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
                Address::Tcp(host, port) => {
                    let tcp = match is_narrow {
                        true => narrow(host, *port).await?,
                        false => TcpStream::connect((host.as_str(), *port)).await?,
                    };
                    tcp.set_nodelay(true)?;
                    match access.tls {
                        true => Box::new(tls::connect(tcp, host, access).await?),
                        false => Box::new(tcp),
                    }
                }
            };
            Ok(stream)
        };
        let stream = timeout(patience, dial)
            .await
            .map_err(|_| Trouble::TimedOut)?
            .map_err(lost)?;
        let mut wire = Self {
            line: Line::Socket(BufReader::with_capacity(64 << 10, stream)),
            patience,
            cost: Cost::default(),
            broken: false,
            throttle: Throttle::default(),
            progress: Progress::default(),
            until: None,
            refused: BTreeMap::new(),
        };
        if let Some(password) = &access.password {
            let user = access.user.as_deref();
            let login = match user {
                Some(user) => words!["AUTH", user, password],
                None => words!["AUTH", password],
            };
            wire.call(login).await.map_err(refused_login)?;
        }
        if access.db != 0 {
            wire.call(words!["SELECT", access.db.to_string()]).await?;
        }
        // So that the operator can see who this is; a server that has no such command loses nothing.
        for polite in [
            words!["CLIENT", "SETNAME", "redstart-doctor"],
            words!["CLIENT", "NO-TOUCH", "ON"],
        ] {
            match wire.call(polite).await {
                Ok(_) | Err(Trouble::Refused(_)) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        // A server that wants a password says so to the first command that needs one.
        match wire.call(words!["PING"]).await {
            Err(Trouble::Refused(why)) if why.starts_with("NOAUTH") => {
                return Err(Trouble::Refused(why));
            }
            Err(Trouble::Refused(_)) | Ok(_) => {}
            Err(trouble) => return Err(trouble),
        }
        Ok(wire)
    }

    /// The embedded engine.
    pub(crate) fn embedded(store: Store) -> Self {
        Self {
            line: Line::Store(store),
            patience: Duration::from_secs(10),
            cost: Cost::default(),
            broken: false,
            throttle: Throttle::default(),
            progress: Progress::default(),
            until: None,
            refused: BTreeMap::new(),
        }
    }

    /// Whether no further command is sent: the examination was ended, or the part that is under way has had its time.
    pub(crate) fn is_ended(&self) -> bool {
        self.progress.is_stopped() || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Whether the connection can still be used.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// One command, one reply.
    pub(crate) async fn call(&mut self, words: Words) -> Answer {
        let mut answers = self.batch(vec![words]).await?;
        answers.pop().unwrap_or(Err(Trouble::TimedOut))
    }

    /// One command, its reply as a `T`.
    pub(crate) async fn get<T: FromRedisValue>(&mut self, words: Words) -> Answer<T> {
        let value = self.call(words).await?;
        redis::from_redis_value(value).map_err(|error| Trouble::Refused(error.to_string()))
    }

    /// Several small commands; each has its own answer. A few of them leave together, after a rest.
    pub(crate) async fn batch(&mut self, commands: Vec<Words>) -> Answer<Vec<Answer>> {
        let mut answers = Vec::with_capacity(commands.len());
        for piece in commands.chunks(PIECE) {
            answers.extend(self.piece(piece).await?);
        }
        Ok(answers)
    }

    /// Returns when the next command may leave. Whoever measures how long a command takes waits for that first.
    pub(crate) async fn rested(&self) {
        if matches!(self.line, Line::Socket(_)) && !self.broken && !self.is_ended() {
            self.throttle.rested().await;
        }
    }

    async fn piece(&mut self, commands: &[Words]) -> Answer<Vec<Answer>> {
        self.rested().await;
        if self.broken {
            return Err(Trouble::Lost("it was closed before".to_owned()));
        }
        if self.is_ended() {
            return Err(Trouble::Ended);
        }
        if let Some(words) = commands.iter().find(|words| !is_allowed(words)) {
            let name = words
                .first()
                .map(|w| String::from_utf8_lossy(w).into_owned());
            return Err(Trouble::Refused(format!(
                "{} is not sent: the doctor only reads",
                name.unwrap_or_default()
            )));
        }
        let begun = Instant::now();
        let patience = self.patience;
        let result = match timeout(patience, self.exchange(commands)).await {
            Ok(result) => result,
            Err(_) => Err(Trouble::TimedOut),
        };
        if let Ok(answers) = &result {
            for (words, answer) in commands.iter().zip(answers) {
                self.note_refusal(words, answer);
            }
        }
        self.broken |= matches!(&result, Err(trouble) if !trouble.is_refusal());
        let name = commands.first().and_then(|words| words.first());
        let took = begun.elapsed();
        self.throttle.note(commands, took);
        self.cost.note(
            name.map_or("", |name| std::str::from_utf8(name).unwrap_or("")),
            commands.len() as u64,
            took,
        );
        result
    }

    /// Keeps what the user may not use. The caller may do without an answer, and the report has to say so.
    fn note_refusal(&mut self, words: &Words, answer: &Answer) {
        let Err(Trouble::Refused(why)) = answer else {
            return;
        };
        if matches!(self.line, Line::Store(_)) || !why.starts_with("NOPERM") {
            return;
        }
        let text = |word: &Vec<u8>| String::from_utf8_lossy(word).to_ascii_uppercase();
        let name = words.first().map(text).unwrap_or_default();
        let has_subcommands = ALLOWED
            .iter()
            .any(|(allowed, subcommands)| *allowed == name && !subcommands.is_empty());
        let name = match words.get(1).filter(|_| has_subcommands) {
            Some(second) => format!("{name} {}", text(second)),
            None => name,
        };
        self.refused.entry(name).or_insert_with(|| why.clone());
    }

    async fn exchange(&mut self, commands: &[Words]) -> Answer<Vec<Answer>> {
        let stream = match &mut self.line {
            Line::Socket(stream) => stream,
            Line::Store(store) => return Ok(on_store(store, commands).await),
        };
        let mut packed = Vec::new();
        for words in commands {
            packed.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in words {
                packed.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                packed.extend_from_slice(word);
                packed.extend_from_slice(b"\r\n");
            }
        }
        self.cost.bytes_sent += packed.len() as u64;
        stream.write_all(&packed).await.map_err(lost)?;
        stream.flush().await.map_err(lost)?;
        let mut answers = Vec::with_capacity(commands.len());
        for words in commands {
            let text = matches!(
                words[0].to_ascii_uppercase().as_slice(),
                b"INFO" | b"CLIENT" | b"CONFIG" | b"CLUSTER" | b"ACL"
            );
            let keep = if text { KEPT_TEXT } else { KEPT };
            answers.push(reply(stream, keep, &mut self.cost.bytes_read).await?);
        }
        Ok(answers)
    }

    /// Turns the connection into a stream of MONITOR lines.
    pub(crate) async fn monitor(mut self) -> Answer<Monitor> {
        self.call(words!["MONITOR"]).await?;
        match self.line {
            Line::Socket(stream) => Ok(Monitor {
                stream,
                partial: Vec::new(),
                bytes: 0,
                setup: self.cost,
            }),
            Line::Store(_) => Err(Trouble::Refused(
                "the embedded engine has no MONITOR".to_owned(),
            )),
        }
    }
}

async fn on_store(store: &Store, commands: &[Words]) -> Vec<Answer> {
    let mut answers = Vec::with_capacity(commands.len());
    for words in commands {
        let mut cmd = redis::Cmd::new();
        for word in words {
            cmd.arg(word);
        }
        answers.push(
            store
                .query::<Value>(&cmd)
                .await
                .map_err(|error| Trouble::Refused(without_words(&error.to_string()).to_owned())),
        );
    }
    answers
}

/// What a server says of a command that it does not know, without the words of the command: keys, or a password.
fn without_words(text: &str) -> &str {
    text.split(", with args beginning with")
        .next()
        .unwrap_or(text)
}

/// Whatever a server says of a login may repeat the password. The first word is the code of the error.
fn refused_login(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Refused(why) => {
            let code = why.split(' ').next().unwrap_or_default();
            Trouble::Refused(format!("{code} to the login"))
        }
        trouble => trouble,
    }
}

/// Every command that the server carries out.
pub(crate) struct Monitor {
    stream: BufReader<Box<dyn Duplex>>,
    /// What came of the next line.
    partial: Vec<u8>,
    /// Everything read so far, of lines that have not ended too.
    pub(crate) bytes: u64,
    /// What the connection cost before.
    pub(crate) setup: Cost,
}

impl Monitor {
    /// Lines that come out of a pipe.
    #[cfg(test)]
    pub(crate) fn over(stream: Box<dyn Duplex>) -> Self {
        Self {
            stream: BufReader::with_capacity(64 << 10, stream),
            partial: Vec::new(),
            bytes: 0,
            setup: Cost::default(),
        }
    }

    /// Takes more at once from now on.
    pub(crate) fn widen(&self) {
        self.stream.get_ref().widen();
    }

    /// The next line without its `+`, cut at the limit of [`KEPT`]; `false` at the end of the stream.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, what came of the line is kept for the next call.
    pub(crate) async fn line(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        let ended = line(&mut self.stream, KEPT, &mut self.partial, &mut self.bytes).await?;
        *into = std::mem::take(&mut self.partial);
        if into.first() == Some(&b'+') {
            into.remove(0);
        }
        Ok(ended)
    }
}

fn lost(error: io::Error) -> Trouble {
    Trouble::Lost(error.to_string())
}

/// Reads to the end of a line, keeps its beginning and counts its bytes. `false` at the end of the stream.
async fn line(
    stream: &mut BufReader<Box<dyn Duplex>>,
    keep: usize,
    into: &mut Vec<u8>,
    bytes: &mut u64,
) -> io::Result<bool> {
    loop {
        let available = stream.fill_buf().await?;
        if available.is_empty() {
            return Ok(false);
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let upto = end.map_or(available.len(), |end| end);
        let room = keep.saturating_sub(into.len()).min(upto);
        into.extend_from_slice(&available[..room]);
        let used = end.map_or(available.len(), |end| end + 1);
        stream.consume(used);
        *bytes += used as u64;
        if end.is_some() {
            if into.last() == Some(&b'\r') {
                into.pop();
            }
            return Ok(true);
        }
    }
}

/// One reply of RESP2. Arrays nest at most a few levels in what is asked here.
async fn reply(
    stream: &mut BufReader<Box<dyn Duplex>>,
    keep: usize,
    bytes: &mut u64,
) -> Answer<Answer> {
    Box::pin(nested(stream, keep, bytes, 0)).await
}

async fn nested(
    stream: &mut BufReader<Box<dyn Duplex>>,
    keep: usize,
    bytes: &mut u64,
    depth: usize,
) -> Answer<Answer> {
    let broken = || Trouble::Lost("it does not speak the protocol".to_owned());
    let mut head = Vec::new();
    if !line(stream, KEPT, &mut head, bytes).await.map_err(lost)? {
        return Err(Trouble::Lost("closed by the server".to_owned()));
    }
    let (kind, rest) = head.split_first().ok_or_else(broken)?;
    let number = || {
        std::str::from_utf8(rest)
            .ok()
            .and_then(|text| text.parse::<i64>().ok())
    };
    Ok(match kind {
        b'+' => Ok(Value::SimpleString(
            String::from_utf8_lossy(rest).into_owned(),
        )),
        b'-' => {
            let text = String::from_utf8_lossy(rest);
            let text = without_words(&text);
            Err(Trouble::Refused(crate::text::printable(text.as_bytes())))
        }
        b':' => Ok(Value::Int(number().ok_or_else(broken)?)),
        b'$' => match number().ok_or_else(broken)? {
            -1 => Ok(Value::Nil),
            length => {
                let length = usize::try_from(length).map_err(|_| broken())?;
                let mut kept = vec![0; length.min(keep)];
                stream.read_exact(&mut kept).await.map_err(lost)?;
                let mut left = length - kept.len() + 2;
                while left > 0 {
                    let available = stream.fill_buf().await.map_err(lost)?.len().min(left);
                    if available == 0 {
                        return Err(Trouble::Lost("closed by the server".to_owned()));
                    }
                    stream.consume(available);
                    left -= available;
                }
                *bytes += length as u64 + 2;
                Ok(Value::BulkString(kept))
            }
        },
        b'*' => match number().ok_or_else(broken)? {
            -1 => Ok(Value::Nil),
            length => {
                let length = usize::try_from(length).map_err(|_| broken())?;
                if depth > 8 {
                    return Err(broken());
                }
                let mut items = Vec::with_capacity(length.min(1024));
                for _ in 0..length {
                    let item = Box::pin(nested(stream, keep, bytes, depth + 1)).await?;
                    if items.len() < ELEMENTS {
                        items.push(item.unwrap_or(Value::Nil));
                    }
                }
                Ok(Value::Array(items))
            }
        },
        _ => return Err(broken()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_writes_can_be_sent() {
        for words in [
            words!["SET", "k", "v"],
            words!["CONFIG", "SET", "maxmemory", "0"],
            words!["config", "resetstat"],
            words!["CLIENT", "KILL", "x"],
            words!["EVAL", "return 1", "0"],
            words!["SLOWLOG", "RESET"],
            words!["LATENCY", "RESET"],
            words!["KEYS", "*"],
            words!["FLUSHALL"],
            words!["XINFO"],
            words!["XREADGROUP"],
            words!["SCRIPT", "FLUSH"],
        ] {
            assert!(!is_allowed(&words), "{words:?}");
        }
        assert!(is_allowed(&words!["scan", "0"]));
        assert!(is_allowed(&words!["Config", "get", "*"]));
    }

    /// The end of a pipe that this text comes out of.
    async fn coming(text: String) -> BufReader<Box<dyn Duplex>> {
        let (here, mut there) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move { there.write_all(text.as_bytes()).await });
        let stream: Box<dyn Duplex> = Box::new(here);
        BufReader::new(stream)
    }

    #[tokio::test]
    async fn an_array_that_is_too_long_is_cut_and_the_next_reply_is_read() {
        let count = ELEMENTS + 50_000;
        let text = format!("*{count}\r\n{}+NEXT\r\n", ":7\r\n".repeat(count));
        let length = text.len() as u64;
        let mut stream = coming(text).await;
        let mut bytes = 0;
        let long = reply(&mut stream, KEPT, &mut bytes).await;
        assert!(
            matches!(long, Ok(Ok(Value::Array(items))) if items.len() == ELEMENTS),
            "an array of {ELEMENTS}"
        );
        let next = reply(&mut stream, KEPT, &mut bytes).await;
        assert!(matches!(next, Ok(Ok(Value::SimpleString(text))) if text == "NEXT"));
        assert_eq!(bytes, length);
    }
}
