//! URLs of stores, parsed by hand because a list of hosts is not a host that a general parser accepts.

use std::{path::PathBuf, sync::Arc, time::Duration};

use percent_encoding::percent_decode_str;

use super::CredentialsProvider;
use crate::error::{Error, Result};

/// Where a store is and how to talk to it.
#[derive(Clone)]
pub(crate) struct Location {
    pub(crate) target: Target,
    pub(crate) settings: Settings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Memory {
        name: Option<String>,
        cluster_strict: bool,
        /// The version whose part the engine takes.
        compat: Option<String>,
    },
    File {
        dir: PathBuf,
        fsync: FsyncPolicy,
        cluster_strict: bool,
        compat: Option<String>,
    },
    Single(Address),
    Sentinel {
        sentinels: Vec<Address>,
        master: String,
    },
    Cluster {
        seeds: Vec<Address>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FsyncPolicy {
    Always,
    EverySec,
    No,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// What the query parameters and the builder set.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// Asked in place of the two above.
    pub(crate) provider: Option<Arc<dyn CredentialsProvider>>,
    /// What servers call the connections, for people.
    pub(crate) client_name: Option<String>,
    pub(crate) sentinel_username: Option<String>,
    pub(crate) sentinel_password: Option<String>,
    pub(crate) db: i64,
    pub(crate) tls: bool,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) client_cert: Option<PathBuf>,
    pub(crate) client_key: Option<PathBuf>,
    pub(crate) deadline: Duration,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) pool: usize,
    /// Reads that may be stale are answered by replicas.
    pub(crate) replica_reads: bool,
    /// A copy in this process answers reads that may be stale, while it is not older than this.
    pub(crate) mirror: Option<Duration>,
    /// Connections lead to a replica of a Cluster, which has to be told that it is asked for its own copy.
    pub(crate) read_only: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            username: None,
            password: None,
            provider: None,
            client_name: None,
            sentinel_username: None,
            sentinel_password: None,
            db: 0,
            tls: false,
            ca: None,
            client_cert: None,
            client_key: None,
            deadline: Duration::from_secs(1),
            connect_timeout: None,
            pool: 1,
            replica_reads: false,
            mirror: None,
            read_only: false,
        }
    }
}

const MAX_POOL: usize = 256;
/// How old a copy in this process may be, unless the URL says otherwise, and the least that it can say.
const MIRROR_AGE: Duration = Duration::from_secs(5);
const LEAST_MIRROR_AGE: Duration = Duration::from_millis(100);
/// The longest deadline and time-out.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(3600);

impl Settings {
    /// How long one attempt to connect may take.
    pub(crate) fn patience(&self) -> Duration {
        self.connect_timeout
            .unwrap_or(self.deadline.max(Duration::from_secs(1)))
    }

    pub(crate) fn set_deadline(&mut self, deadline: Duration) -> Result<()> {
        if deadline.is_zero() {
            return Err(Error::config("a deadline of zero would fail every call"));
        }
        self.deadline = deadline.min(MAX_TIME);
        Ok(())
    }

    pub(crate) fn set_connect_timeout(&mut self, timeout: Duration) -> Result<()> {
        if timeout.is_zero() {
            return Err(Error::config(
                "a connect time-out of zero would fail every attempt",
            ));
        }
        self.connect_timeout = Some(timeout.min(MAX_TIME));
        Ok(())
    }

    pub(crate) fn set_client_name(&mut self, name: String) -> Result<()> {
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::config(
                "a client's name is made of ASCII letters, digits and punctuation, without spaces",
            ));
        }
        self.client_name = Some(name);
        Ok(())
    }

    pub(crate) fn set_pool(&mut self, connections: usize) -> Result<()> {
        if !(1..=MAX_POOL).contains(&connections) {
            return Err(bad_pool());
        }
        self.pool = connections;
        Ok(())
    }

    /// The parameters that all servers have.
    fn apply(&mut self, params: &mut Params) -> Result<()> {
        if let Some(db) = params.take("db") {
            self.db = database(&db)?;
        }
        if let Some(deadline) = params.duration("timeout")? {
            self.deadline = deadline;
        }
        self.connect_timeout = params.duration("connect_timeout")?;
        if let Some(name) = params.take("client_name") {
            self.set_client_name(name)?;
        }
        self.replica_reads = params.flag("replica_reads")?;
        if let Some(pool) = params.take("pool") {
            self.set_pool(pool.parse().map_err(|_| bad_pool())?)?;
        }
        for (name, file) in [
            ("ca", &mut self.ca),
            ("cert", &mut self.client_cert),
            ("key", &mut self.client_key),
        ] {
            if let Some(path) = params.take(name) {
                if !self.tls {
                    return Err(Error::config(format!(
                        "{name} needs a TLS scheme such as rediss://"
                    )));
                }
                *file = Some(path.into());
            }
        }
        Ok(())
    }

    fn set_mirror(&mut self, scheme: &Scheme, params: &mut Params) -> Result<()> {
        if !matches!(scheme.topology, Topology::Single) {
            return Err(Error::config(
                "a mirror follows one server over TCP: mirror+redis:// or mirror+rediss:// (or valkey in place of \
                 redis)",
            ));
        }
        let max_age = params.duration("max_age")?.unwrap_or(MIRROR_AGE);
        if max_age < LEAST_MIRROR_AGE {
            return Err(Error::config("max_age must be at least 100ms"));
        }
        self.mirror = Some(max_age);
        Ok(())
    }

    /// Takes `user:password@` off the front.
    fn take_credentials<'a>(&mut self, rest: &'a str) -> Result<&'a str> {
        let Some((user_info, rest)) = rest.rsplit_once('@') else {
            return Ok(rest);
        };
        let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
        let user = decode(user, "the user's name")?;
        let password = decode(password, "the password")?;
        self.username = (!user.is_empty()).then_some(user);
        self.password = (!password.is_empty()).then_some(password);
        Ok(rest)
    }
}

fn bad_pool() -> Error {
    Error::config(format!("pool must be a number from 1 to {MAX_POOL}"))
}

impl Location {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            Error::config(
                "a store's URL must begin with memory://, file://, redis://, rediss://, redis+unix://, \
                 redis+sentinel://, redis+cluster:// or mirror+redis:// (or valkey in place of redis)",
            )
        })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut params = Params::parse(query)?;
        let mut settings = Settings::default();
        let target = match scheme {
            "memory" => Target::memory(rest, &mut params)?,
            "file" => Target::file(rest, &mut params)?,
            _ => {
                let (scheme, mirror) = match scheme.strip_prefix("mirror+") {
                    None => (scheme, false),
                    Some(scheme) => (scheme, true),
                };
                let scheme = Scheme::parse(scheme)?;
                if mirror {
                    settings.set_mirror(&scheme, &mut params)?;
                }
                settings.tls = scheme.tls;
                let rest = settings.take_credentials(rest)?;
                Target::server(scheme.topology, rest, &mut params, &mut settings)?
            }
        };
        settings.apply(&mut params)?;
        params.finish()?;
        Ok(Self { target, settings })
    }
}

impl Target {
    fn memory(rest: &str, params: &mut Params) -> Result<Self> {
        let name = decode(rest, "the name of a memory store")?;
        Ok(Self::Memory {
            name: (!name.is_empty()).then_some(name),
            cluster_strict: params.flag("cluster_strict")?,
            compat: params.take("compat"),
        })
    }

    fn file(rest: &str, params: &mut Params) -> Result<Self> {
        let dir = decode(rest, "the folder of a file store")?;
        if !dir.starts_with('/') || dir.len() < 2 {
            return Err(Error::config(
                "file:// needs an absolute folder, as in file:///var/lib/app",
            ));
        }
        let fsync = match params.take("fsync").as_deref() {
            None | Some("everysec") => FsyncPolicy::EverySec,
            Some("always") => FsyncPolicy::Always,
            Some("no") => FsyncPolicy::No,
            Some(_) => return Err(Error::config("fsync must be always, everysec or no")),
        };
        Ok(Self::File {
            dir: dir.into(),
            fsync,
            cluster_strict: params.flag("cluster_strict")?,
            compat: params.take("compat"),
        })
    }

    fn server(
        topology: Topology,
        rest: &str,
        params: &mut Params,
        settings: &mut Settings,
    ) -> Result<Self> {
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        match topology {
            Topology::Unix => {
                let path = decode(rest, "the path of the socket")?;
                if !path.starts_with('/') || path.len() < 2 {
                    return Err(Error::config(
                        "a unix socket needs an absolute path, as in redis+unix:///run/redis.sock",
                    ));
                }
                Ok(Self::Single(Address::Unix(path.into())))
            }
            Topology::Single => {
                settings.db = database(path)?;
                let mut hosts = addresses(hosts, 6379)?;
                if hosts.len() > 1 {
                    return Err(Error::config(
                        "several hosts need redis+sentinel:// or redis+cluster://",
                    ));
                }
                Ok(Self::Single(hosts.remove(0)))
            }
            Topology::Sentinel => {
                let (master, db) = path.split_once('/').unwrap_or((path, ""));
                let master = decode(master, "the master's name")?;
                if master.is_empty() {
                    return Err(Error::config(
                        "a sentinel URL must name its master: redis+sentinel://h1,h2,h3/master-name/0",
                    ));
                }
                settings.db = database(db)?;
                settings.sentinel_username = params.take("sentinel_user");
                settings.sentinel_password = params.take("sentinel_password");
                Ok(Self::Sentinel {
                    sentinels: addresses(hosts, 26379)?,
                    master,
                })
            }
            Topology::Cluster => {
                if database(path)? != 0 {
                    return Err(Error::config("a cluster has database 0 only"));
                }
                Ok(Self::Cluster {
                    seeds: addresses(hosts, 6379)?,
                })
            }
        }
    }
}

/// What the scheme of a server's URL says.
struct Scheme {
    tls: bool,
    topology: Topology,
}

enum Topology {
    Single,
    Unix,
    Sentinel,
    Cluster,
}

impl Scheme {
    fn parse(scheme: &str) -> Result<Self> {
        let (base, suffix) = match scheme.split_once('+') {
            None if scheme == "unix" => ("redis", Some("unix")),
            None => (scheme, None),
            Some((base, suffix)) => (base, Some(suffix)),
        };
        let tls = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(unknown_scheme(scheme)),
        };
        let topology = match suffix {
            None => Topology::Single,
            Some("unix") if !tls => Topology::Unix,
            Some("sentinel") => Topology::Sentinel,
            Some("cluster") => Topology::Cluster,
            Some(_) => return Err(unknown_scheme(scheme)),
        };
        if tls && !cfg!(feature = "tls") {
            return Err(Error::config("TLS needs the cargo feature `tls`"));
        }
        Ok(Self { tls, topology })
    }
}

fn unknown_scheme(scheme: &str) -> Error {
    Error::config(format!("{scheme:?} is not a scheme of a store URL"))
}

fn decode(text: &str, what: &str) -> Result<String> {
    percent_decode_str(text)
        .decode_utf8()
        .map(|text| text.into_owned())
        .map_err(|_| Error::config(format!("{what} in the URL is not UTF-8")))
}

fn database(path: &str) -> Result<i64> {
    if path.is_empty() {
        return Ok(0);
    }
    path.parse::<u32>()
        .map(i64::from)
        .map_err(|_| Error::config("the database in the URL must be a number"))
}

fn addresses(hosts: &str, default_port: u16) -> Result<Vec<Address>> {
    let hosts = if hosts.is_empty() { "127.0.0.1" } else { hosts };
    hosts
        .split(',')
        .map(|host| address(host, default_port))
        .collect()
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
fn address(text: &str, default_port: u16) -> Result<Address> {
    let bad = || Error::config(format!("{text:?} in the URL is not host or host:port"));
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
        match rest {
            "" => (host, None),
            _ => (host, Some(rest.strip_prefix(':').ok_or_else(bad)?)),
        }
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let port = match port {
        None => default_port,
        Some(port) => port.parse().ok().filter(|p| *p > 0).ok_or_else(bad)?,
    };
    let host = decode(host, "the host")?;
    if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(bad());
    }
    Ok(Address::Tcp { host, port })
}

struct Params(Vec<(String, String)>);

impl Params {
    fn parse(query: &str) -> Result<Self> {
        query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, "1"));
                Ok((name.to_owned(), decode(value, "a parameter")?))
            })
            .collect::<Result<Vec<_>>>()
            .map(Self)
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(n, _)| n == name)?;
        Some(self.0.remove(at).1)
    }

    fn flag(&mut self, name: &str) -> Result<bool> {
        match self.take(name).as_deref() {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(_) => Err(Error::config(format!("{name} must be 0 or 1"))),
        }
    }

    /// `250ms`, `2s`; a bare number is seconds, as other clients' URLs have it.
    fn duration(&mut self, name: &str) -> Result<Option<Duration>> {
        let Some(text) = self.take(name) else {
            return Ok(None);
        };
        let parsed = if let Some(ms) = text.strip_suffix("ms") {
            ms.parse().ok().map(Duration::from_millis)
        } else {
            let secs = text.strip_suffix('s').unwrap_or(&text);
            secs.parse::<f64>()
                .ok()
                .and_then(|s| Duration::try_from_secs_f64(s).ok())
        };
        parsed
            .filter(|d| !d.is_zero() && *d <= MAX_TIME)
            .map(Some)
            .ok_or_else(|| {
                Error::config(format!(
                    "{name} must be a time such as 500ms or 2s, at most an hour"
                ))
            })
    }

    fn finish(self) -> Result<()> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(Error::config(format!(
                "unknown parameter {name:?} in the URL of this store"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Location {
        Location::parse(url).unwrap_or_else(|e| panic!("{url}: {e}"))
    }

    #[test]
    fn every_kind_of_url_is_understood() {
        assert_eq!(
            parse("memory://").target,
            Target::Memory {
                name: None,
                cluster_strict: false,
                compat: None,
            }
        );
        assert_eq!(
            parse("memory://jobs?cluster_strict=1&compat=valkey-9").target,
            Target::Memory {
                name: Some("jobs".into()),
                cluster_strict: true,
                compat: Some("valkey-9".into()),
            }
        );
        assert_eq!(
            parse("file:///var/lib/app?fsync=always").target,
            Target::File {
                dir: "/var/lib/app".into(),
                fsync: FsyncPolicy::Always,
                cluster_strict: false,
                compat: None,
            }
        );
        let single = parse("rediss://bob:p%40ss@cache.example:7000/3?timeout=250ms&pool=4");
        assert_eq!(
            single.target,
            Target::Single(Address::Tcp {
                host: "cache.example".into(),
                port: 7000
            })
        );
        assert_eq!(single.settings.username.as_deref(), Some("bob"));
        assert_eq!(single.settings.password.as_deref(), Some("p@ss"));
        assert_eq!(single.settings.db, 3);
        assert!(single.settings.tls);
        assert_eq!(single.settings.deadline, Duration::from_millis(250));
        assert_eq!(single.settings.pool, 4);
        assert_eq!(
            parse("valkey+unix:///run/valkey.sock?db=2").target,
            Target::Single(Address::Unix("/run/valkey.sock".into()))
        );
        assert_eq!(
            parse("redis://[::1]:6380").target,
            Target::Single(Address::Tcp {
                host: "::1".into(),
                port: 6380
            })
        );
        let sentinel = parse("redis+sentinel://:pw@a,b:27000,c/main/2");
        match sentinel.target {
            Target::Sentinel { sentinels, master } => {
                assert_eq!(sentinels.len(), 3);
                assert_eq!(
                    sentinels[1],
                    Address::Tcp {
                        host: "b".into(),
                        port: 27000
                    }
                );
                assert_eq!(master, "main");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(sentinel.settings.db, 2);
        let mirror = parse("mirror+rediss://bob:pw@a:7000/3?max_age=500ms&ca=/x");
        assert_eq!(mirror.settings.mirror, Some(Duration::from_millis(500)));
        assert!(mirror.settings.tls && mirror.settings.db == 3);
        assert!(matches!(
            mirror.target,
            Target::Single(Address::Tcp { port: 7000, .. })
        ));
        for url in ["mirror+redis://a", "mirror+valkey://a"] {
            assert_eq!(parse(url).settings.mirror, Some(MIRROR_AGE), "{url}");
        }
        assert_eq!(parse("redis://a").settings.mirror, None);
        assert!(matches!(
            parse("redis+cluster://a:1,b:2").target,
            Target::Cluster { seeds } if seeds.len() == 2
        ));
    }

    #[test]
    fn a_bad_url_is_refused_without_repeating_its_password() {
        for bad in [
            "localhost",
            "http://localhost",
            "redis+foo://localhost",
            "rediss+unix:///x",
            "redis://:secret@localhost:port",
            "redis://:secret@localhost:0",
            "redis://:secret@a,b",
            "redis://:secret@localhost/zero",
            "redis://:secret@localhost?tiemout=1s",
            "redis://:secret@localhost?timeout=0",
            "redis://:secret@localhost?timeout=soon",
            "redis://:secret@localhost?pool=0",
            "redis://:secret@localhost?ca=/x",
            "redis+sentinel://:secret@a,b",
            "redis+cluster://:secret@a/1",
            "redis+unix://relative",
            "mirror://:secret@a",
            "mirror+memory://",
            "mirror+mirror+redis://:secret@a",
            "mirror+redis+unix:///run/redis.sock",
            "mirror+redis+sentinel://:secret@a,b/main",
            "mirror+redis+cluster://:secret@a",
            "mirror+redis://:secret@a,b",
            "mirror+redis://:secret@a?max_age=99ms",
            "mirror+redis://:secret@a?max_age=soon",
            "mirror+redis://:secret@a?max_age=0",
            "redis://:secret@a?max_age=1s",
            "file://relative",
            "file:///x?fsync=sometimes",
        ] {
            let error = Location::parse(bad)
                .err()
                .unwrap_or_else(|| panic!("{bad} was taken"));
            assert!(error.is_config(), "{bad}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
