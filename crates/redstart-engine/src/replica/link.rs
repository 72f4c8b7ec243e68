//! A connection to a server whose data is copied: the handshake, and how all data comes over it.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    path::PathBuf,
    time::Duration,
};

use bytes::Bytes;

use crate::{
    config::Config,
    rdb::{self, Contents, Expired, Summary},
    resp,
};

/// How long the server may be silent. It sends something every second while it prepares a copy, and
/// every ten otherwise.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(5);
/// No line of the handshake is longer.
const LINE: u64 = 64 * 1024;
/// What stands at both ends of a copy whose length is not known beforehand.
const MARK: usize = 40;

/// A server to copy from or to follow.
#[derive(Clone, PartialEq, Eq)]
pub struct Master {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    tls: Option<MasterTls>,
    /// The settings `masteruser`, `masterauth`, `tls-replication` and those of certificates say how to
    /// connect, each time.
    configured: bool,
}

/// How a connection to a [`Master`] is encrypted. The server has to show a certificate for the name or the
/// address that it is reached under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasterTls {
    pub(super) ca: Option<PathBuf>,
    pub(super) ca_dir: Option<PathBuf>,
    pub(super) client: Option<(PathBuf, PathBuf)>,
}

impl MasterTls {
    /// The authorities of the system are trusted, and no certificate is shown.
    pub fn new() -> MasterTls {
        MasterTls::default()
    }

    /// Trusts the authorities in this file, in PEM form, and no others.
    #[must_use]
    pub fn ca(mut self, file: impl Into<PathBuf>) -> MasterTls {
        self.ca = Some(file.into());
        self
    }

    /// Shows this certificate, with its key, both in PEM form.
    #[must_use]
    pub fn client(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> MasterTls {
        self.client = Some((cert.into(), key.into()));
        self
    }

    /// As the settings say, if they want TLS at all.
    fn configured(setting: impl Fn(&str) -> Option<String>) -> Option<MasterTls> {
        if setting("tls-replication").as_deref() != Some("yes") {
            return None;
        }
        let path = |name: &str| setting(name).map(PathBuf::from);
        let pair = |cert: &str, key: &str| Some((path(cert)?, path(key)?));
        Some(MasterTls {
            ca: path("tls-ca-cert-file"),
            ca_dir: path("tls-ca-cert-dir"),
            client: pair("tls-client-cert-file", "tls-client-key-file")
                .or_else(|| pair("tls-cert-file", "tls-key-file")),
        })
    }
}

impl Master {
    /// A server without a password.
    pub fn new(host: impl Into<String>, port: u16) -> Master {
        Master {
            host: host.into(),
            port,
            user: None,
            password: None,
            tls: None,
            configured: false,
        }
    }

    /// A server to log in to as the settings say whenever a connection is made.
    pub(crate) fn configured(host: String, port: u16) -> Master {
        Master {
            configured: true,
            ..Master::new(host, port)
        }
    }

    /// With what the settings of now say.
    pub(crate) fn with_settings(&self, config: &Config) -> Master {
        let setting = |name: &str| {
            let text = config.remembered.get(name);
            text.map(|text| String::from_utf8_lossy(text).into_owned())
                .filter(|text| !text.is_empty())
        };
        match self.configured {
            true => Master {
                user: setting("masteruser"),
                password: setting("masterauth"),
                tls: MasterTls::configured(setting),
                ..self.clone()
            },
            false => self.clone(),
        }
    }

    /// Encrypts the connection. Without the cargo feature `tls`, none can be made then.
    #[must_use]
    pub fn tls(mut self, tls: MasterTls) -> Master {
        self.tls = Some(tls);
        self
    }

    /// The user (`None` is the default one) and the password to log in with.
    #[must_use]
    pub fn credentials(mut self, user: Option<String>, password: Option<String>) -> Master {
        self.user = user;
        self.password = password;
        self
    }
}

impl fmt::Debug for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Master({}:{})", self.host, self.port)
    }
}

/// A connection that is logged in.
pub(crate) struct Link {
    stream: BufReader<Stream>,
}

/// What the bytes go through.
pub(crate) enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<super::tls::TlsStream>),
}

impl Stream {
    fn open(tcp: TcpStream, master: &Master) -> io::Result<Stream> {
        match &master.tls {
            None => Ok(Stream::Plain(tcp)),
            #[cfg(feature = "tls")]
            Some(tls) => {
                let stream = super::tls::connect(tcp, &master.host, tls)?;
                Ok(Stream::Tls(Box::new(stream)))
            }
            #[cfg(not(feature = "tls"))]
            Some(_) => Err(io::Error::other("TLS needs the cargo feature `tls`")),
        }
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Stream::Plain(tcp) => tcp,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.get_ref(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(tcp) => tcp.read(room),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.read(room),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(tcp) => tcp.write(bytes),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(tcp) => tcp.flush(),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// What the server answers to PSYNC.
pub(crate) enum Answer {
    /// All data comes, as of this place in the stream.
    Full { id: String, offset: u64 },
    /// The stream goes on where it was left; perhaps under another id.
    Continue { id: Option<String> },
}

impl Link {
    pub(crate) fn connect(master: &Master) -> io::Result<Link> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (master.host.as_str(), master.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(SILENCE))?;
                    stream.set_write_timeout(Some(SILENCE))?;
                    let stream = Stream::open(stream, master)?;
                    let mut link = Link {
                        stream: BufReader::with_capacity(256 * 1024, stream),
                    };
                    link.log_in(master)?;
                    return Ok(link);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn log_in(&mut self, master: &Master) -> io::Result<()> {
        if let Some(password) = &master.password {
            let mut args = vec!["AUTH"];
            args.extend(master.user.as_deref());
            args.push(password);
            self.ask(&args)?;
        }
        match self.ask(&["PING"]) {
            // A server whose disk refuses can still be copied.
            Err(error) if error.to_string().starts_with("MISCONF") => Ok(()),
            answer => answer.map(drop),
        }
    }

    pub(crate) fn send(&mut self, args: &[&str]) -> io::Result<()> {
        let args: Vec<Bytes> = args
            .iter()
            .map(|arg| Bytes::copy_from_slice(arg.as_bytes()))
            .collect();
        let mut request = Vec::new();
        resp::encode_command(&args, &mut request);
        let stream = self.stream.get_mut();
        stream.write_all(&request)?;
        stream.flush()
    }

    /// A line without its end.
    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream
            .by_ref()
            .take(LINE)
            .read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while line.last() == Some(&b'\r') {
            line.pop();
        }
        String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// The next line that says something: empty ones only show that the server is alive.
    fn answer(&mut self) -> io::Result<String> {
        loop {
            let line = self.line()?;
            match line.strip_prefix('-') {
                Some(error) => return Err(io::Error::other(error.to_owned())),
                None if line.is_empty() => {}
                None => return Ok(line),
            }
        }
    }

    pub(crate) fn ask(&mut self, args: &[&str]) -> io::Result<String> {
        self.send(args)?;
        self.answer()
    }

    /// The connection itself, to end it from elsewhere.
    pub(crate) fn socket(&self) -> io::Result<TcpStream> {
        self.stream.get_ref().tcp().try_clone()
    }

    pub(crate) fn reader(&mut self) -> &mut BufReader<Stream> {
        &mut self.stream
    }

    /// A read ends after this time with an error that says so.
    pub(crate) fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.stream.get_ref().tcp().set_read_timeout(Some(time))
    }

    /// Tells the server up to where its stream was applied, and up to where it is on the disk if there is a log.
    pub(crate) fn tell(&mut self, offset: u64, synced: Option<u64>) -> io::Result<()> {
        let offset = offset.to_string();
        match synced {
            Some(synced) => self.send(&["REPLCONF", "ACK", &offset, "FACK", &synced.to_string()]),
            None => self.send(&["REPLCONF", "ACK", &offset]),
        }
    }

    /// Asks for all data, or for what was missed since a place in the stream.
    pub(crate) fn synchronize(&mut self, since: Option<(&str, u64)>) -> io::Result<Answer> {
        // Valkey sends fields that expire only to those who say that they know them, and ends the
        // connection otherwise. Redis does not know the word.
        match self.ask(&["REPLCONF", "version", "9.0.0"]) {
            Err(error) if error.kind() != io::ErrorKind::Other => return Err(error),
            _ => {}
        }
        // Only what is understood here: a copy without a length, and a new id after a failover.
        self.ask(&["REPLCONF", "capa", "eof", "capa", "psync2"])?;
        let line = match since {
            Some((id, offset)) => self.ask(&["PSYNC", id, &(offset + 1).to_string()])?,
            None => self.ask(&["PSYNC", "?", "-1"])?,
        };
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("+FULLRESYNC"), Some(id), Some(offset)) => Ok(Answer::Full {
                id: id.to_owned(),
                offset: offset.parse().map_err(|_| unexpected(&line))?,
            }),
            (Some("+CONTINUE"), id, _) => Ok(Answer::Continue {
                id: id.map(str::to_owned),
            }),
            _ => Err(unexpected(&line)),
        }
    }

    /// Reads all data, which follows a [`Answer::Full`].
    pub(crate) fn receive(
        &mut self,
        databases: usize,
        config: &Config,
        now_ms: i64,
        expired: Expired,
        progress: &mut dyn FnMut(&Summary),
    ) -> io::Result<Contents> {
        let line = self.answer()?;
        let bad = |fault: rdb::Fault| match fault {
            rdb::Fault::Io(error) => error,
            fault => io::Error::new(io::ErrorKind::InvalidData, fault.to_string()),
        };
        let mut load = |from: &mut dyn Read| {
            rdb::load(from, databases, config, now_ms, expired, progress).map_err(bad)
        };
        if let Some(mark) = line.strip_prefix("$EOF:") {
            let contents = load(&mut self.stream)?;
            let mut end = [0; MARK];
            self.stream.read_exact(&mut end)?;
            if mark.as_bytes() != end {
                return Err(unexpected("another end than was announced"));
            }
            return Ok(contents);
        }
        let len = line.strip_prefix('$').and_then(|len| len.parse().ok());
        let mut limited = self
            .stream
            .by_ref()
            .take(len.ok_or_else(|| unexpected(&line))?);
        let contents = load(&mut limited)?;
        if limited.limit() > 0 {
            return Err(unexpected("more data than the file has"));
        }
        Ok(contents)
    }
}

fn unexpected(what: &str) -> io::Error {
    let what: String = what.chars().take(100).collect();
    io::Error::new(io::ErrorKind::InvalidData, format!("unexpected: {what}"))
}
