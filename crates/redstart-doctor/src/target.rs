//! What is examined: a URL or a file.

use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;

use crate::{
    error::{Error, Result},
    snapshot::{is_log_base, is_snapshot},
};

/// Where the facts come from.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// The embedded engine, by its URL.
    Embedded(String),
    Single(Address),
    Sentinel {
        sentinels: Vec<Address>,
        master: String,
    },
    Cluster(Vec<Address>),
    /// A recorded MONITOR log.
    Log(PathBuf),
    /// An append-only file, or the folder of one.
    Aof(PathBuf),
    /// An RDB file.
    Rdb(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How to log in.
#[derive(Clone, Default)]
pub(crate) struct Access {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password: Option<String>,
    pub(crate) db: u32,
    pub(crate) tls: bool,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl Target {
    /// Takes a URL of a store, `host:port`, or the path of a file.
    pub(crate) fn parse(text: &str) -> Result<(Self, Access)> {
        let Some((scheme, rest)) = text.split_once("://") else {
            let path = Path::new(text);
            if path.exists() {
                return Ok((Self::file(path)?, Access::default()));
            }
            if text.contains('/') {
                return Err(Error::Usage(
                    "the target is neither a URL nor a file that exists".to_owned(),
                ));
            }
            return Self::parse(&format!("redis://{text}"));
        };
        let mut access = Access::default();
        if scheme == "memory" {
            return Ok((Self::Embedded(text.to_owned()), access));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if scheme == "file" {
            if !query.is_empty() {
                return Err(Error::Usage(
                    "a file has no parameters: only its database 0 is looked at".to_owned(),
                ));
            }
            let path = PathBuf::from(decode(rest)?);
            return Ok((Self::file(&path)?, access));
        }
        let (base, topology) = match scheme.split_once('+') {
            None if scheme == "unix" => ("redis", Some("unix")),
            None => (scheme, None),
            Some((base, topology)) => (base, Some(topology)),
        };
        access.tls = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(unknown_scheme()),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value)?;
            match name {
                "db" => access.db = database(&value)?,
                "ca" => access.ca = Some(value.into()),
                "cert" => access.cert = Some(value.into()),
                "key" => access.key = Some(value.into()),
                "sentinel_user" => access.sentinel_user = Some(value),
                "sentinel_password" => access.sentinel_password = Some(value),
                // Settings of a store that a reader has no use for.
                "timeout" | "connect_timeout" | "pool" => {}
                _ => {
                    return Err(Error::Usage(
                        "unknown parameter in the URL (known: db, ca, cert, key, sentinel_user, sentinel_password, timeout, connect_timeout, pool); \
                         a ? in a password is written %3F"
                            .to_owned(),
                    ));
                }
            }
        }
        let rest = match rest.rsplit_once('@') {
            None => rest,
            Some((login, rest)) => {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                let filled = |text: String| (!text.is_empty()).then_some(text);
                access.user = filled(decode(user)?);
                access.password = filled(decode(password)?);
                rest
            }
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let target = match topology {
            Some("unix") => Self::Single(Address::Unix(decode(rest)?.into())),
            None => {
                if !path.is_empty() {
                    access.db = database(path)?;
                }
                let mut hosts = addresses(hosts, 6379)?;
                if hosts.len() > 1 {
                    return Err(Error::Usage(
                        "several hosts need redis+sentinel:// or redis+cluster://".to_owned(),
                    ));
                }
                Self::Single(hosts.remove(0))
            }
            Some("sentinel") => {
                let (master, db) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(Error::Usage(
                        "a sentinel URL must name its master: redis+sentinel://h1,h2,h3/master-name".to_owned(),
                    ));
                }
                if !db.is_empty() {
                    access.db = database(db)?;
                }
                Self::Sentinel {
                    sentinels: addresses(hosts, 26379)?,
                    master: decode(master)?,
                }
            }
            Some("cluster") => Self::Cluster(addresses(hosts, 6379)?),
            Some(_) => return Err(unknown_scheme()),
        };
        Ok((target, access))
    }

    /// A folder or file, by its first bytes.
    fn file(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Ok(Self::Aof(path.to_owned()));
        }
        let mut first = [0; 256];
        let read = std::fs::File::open(path)
            .and_then(|mut file| std::io::Read::read(&mut file, &mut first))
            .map_err(|error| Error::Usage(format!("{} cannot be read: {error}", path.display())))?;
        let first = &first[..read];
        if is_snapshot(first) {
            // Commands follow: an append-only file before version 7, or the base of a later one.
            if is_log_base(first) {
                return Ok(Self::Aof(path.to_owned()));
            }
            return Ok(Self::Rdb(path.to_owned()));
        }
        if first.starts_with(b"file ") {
            // The manifest of a log: the files that it names are beside it.
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            return Ok(Self::Aof(folder.unwrap_or(Path::new(".")).to_owned()));
        }
        if first.starts_with(b"*") || first.starts_with(b"#TS:") {
            return Ok(Self::Aof(path.to_owned()));
        }
        Ok(Self::Log(path.to_owned()))
    }
}

// No error repeats a part of a URL: of one that is wrong, any part may be the password.

fn unknown_scheme() -> Error {
    Error::Usage(
        "the URL must begin with redis://, rediss://, valkey://, valkeys://, redis+sentinel://, redis+cluster://, redis+unix://, \
         memory:// or file://"
            .to_owned(),
    )
}

fn decode(text: &str) -> Result<String> {
    percent_decode_str(text)
        .decode_utf8()
        .map(|text| text.into_owned())
        .map_err(|_| Error::Usage("the URL is not UTF-8".to_owned()))
}

fn database(text: &str) -> Result<u32> {
    text.parse()
        .map_err(|_| Error::Usage("the database in the URL must be a number".to_owned()))
}

fn addresses(hosts: &str, port: u16) -> Result<Vec<Address>> {
    let hosts = if hosts.is_empty() { "127.0.0.1" } else { hosts };
    hosts.split(',').map(|host| address(host, port)).collect()
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(crate) fn address(text: &str, default_port: u16) -> Result<Address> {
    let bad = || {
        Error::Usage(
            "a host in the URL is not host or host:port; a login is followed by @, and / : @ in a password are written %2F %3A %40"
                .to_owned(),
        )
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
            (host, rest.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        None => default_port,
        Some(port) => port.parse().map_err(|_| bad())?,
    };
    if host.is_empty() {
        return Err(bad());
    }
    Ok(Address::Tcp(decode(host)?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_every_topology_are_understood() -> Result<()> {
        let (target, access) = Target::parse("redis://u:p%40ss@db.example:7000/3")?;
        assert!(matches!(target, Target::Single(Address::Tcp(host, 7000)) if host == "db.example"));
        assert_eq!(access.password.as_deref(), Some("p@ss"));
        assert_eq!(access.db, 3);
        let (target, _) = Target::parse("redis+sentinel://a,b:1/main/2")?;
        assert!(
            matches!(target, Target::Sentinel { sentinels, master } if sentinels.len() == 2 && master == "main")
        );
        let (target, _) = Target::parse("redis+cluster://[::1]:7001,b:7002")?;
        assert!(
            matches!(target, Target::Cluster(seeds) if seeds[0] == Address::Tcp("::1".into(), 7001))
        );
        let (target, _) = Target::parse("localhost:6380")?;
        assert!(matches!(target, Target::Single(Address::Tcp(_, 6380))));
        assert!(Target::parse("http://x").is_err());
        Ok(())
    }

    /// Whatever is wrong with a URL, a part of it may be a password.
    #[test]
    fn no_error_about_a_url_repeats_its_text() {
        for url in [
            "redis://ann:hunter2",
            "redis://ann:hun?hunter2@db:6379",
            "redis://ann:hun?a=1&hunter2@db:6379",
            "redis://ann:pass@db:hunter2",
            "redis://ann:pass@[hunter2",
            "redis://ann:hunter2@",
            "redis://ann:pass@db/hunter2",
            "redis://hunter2:",
            "redis://:hunter2",
            "redis+sentinel://ann:hunter2@db",
            "redis+sentinel://db/main/hunter2",
            "redis+cluster://ann:hunter2",
            "redis+hunter2://db",
            "hunter2://db",
            "ann:hunter2@db/0",
            "ann:hunter2@db:x",
            "ann:hunter2",
            "http://ann:hunter2@db",
            "redis://db?hunter2=1",
            "redis://db?db=hunter2",
            "redis://ann:hunter2%ff@db",
            "/tmp/hunter2-is-not-there",
        ] {
            if let Err(error) = Target::parse(url) {
                let text = format!("{error} {error:?}");
                assert!(!text.contains("hunter2"), "{url}: {text}");
            } else {
                assert_eq!(url, "redis://ann:hunter2@", "{url} is accepted");
            }
        }
    }

    #[test]
    fn the_manifest_of_a_log_stands_for_its_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let manifest = folder.path().join("appendonly.aof.manifest");
        std::fs::write(&manifest, "file appendonly.aof.1.incr.aof seq 1 type i\n")
            .expect("written");
        let parsed = Target::parse(&manifest.display().to_string());
        let target = parsed.expect("a file").0;
        assert!(matches!(target, Target::Aof(path) if path == folder.path()));
    }

    #[test]
    fn files_are_told_apart_by_their_first_bytes() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let target = |bytes: &[u8]| {
            std::fs::write(file.path(), bytes).expect("written");
            let parsed = Target::parse(&file.path().display().to_string());
            parsed.expect("a file").0
        };
        assert!(matches!(target(b"REDIS0011\xfa"), Target::Rdb(_)));
        assert!(matches!(target(b"VALKEY080\xfa"), Target::Rdb(_)));
        let base = b"REDIS0011\xfa\x08aof-base\xc0";
        assert!(matches!(
            target(&[&base[..], b"\0"].concat()),
            Target::Rdb(_)
        ));
        assert!(matches!(
            target(&[&base[..], b"\x01"].concat()),
            Target::Aof(_)
        ));
        assert!(matches!(target(b"*1\r\n"), Target::Aof(_)));
        assert!(matches!(target(b"OK\n1700"), Target::Log(_)));
    }
}
