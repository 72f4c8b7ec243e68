//! All settings that Redis 7.0 knows, with its types, ranges, defaults and aliases.
//!
//! A setting that the engine acts on has a field (`acts`). The others are checked and remembered:
//! they concern what does not exist here (replicas, defragmentation, threads), or what is the same
//! either way (freeing in the background). Some defaults differ from redis-server's, because CONFIG GET
//! tells what is so: nothing is saved on its own (`save`), the listener is on the loopback address
//! (`bind`), DEBUG is there for clients of this machine (`enable-debug-command`), and there is no
//! file of the process's number (`pidfile`).
//!
//! One table, and so one file, however long it is.

use std::{borrow::Cow, collections::HashMap, path::PathBuf, sync::LazyLock};

use super::{
    Config, MemoryPolicy,
    parameter::{Found, Given, Kind, Parameter},
    words,
};
use crate::{compat::versions::VALKEY, engine::Fsync};

const I32: i64 = i32::MAX as i64;
const I64: i64 = i64::MAX;
const CPUS: Kind = Kind::Text;
const LOCALITY: Kind = Kind::Enum(&["no", "yes", "local"]);
const POLICIES: &[&str] = &[
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "noeviction",
];

const fn yes(name: &'static str) -> Parameter {
    Parameter::new(name, Kind::Bool, "yes")
}

const fn no(name: &'static str) -> Parameter {
    Parameter::new(name, Kind::Bool, "no")
}

const fn int(name: &'static str, min: i64, max: i64, default: &'static str) -> Parameter {
    Parameter::new(name, Kind::Int(min, max), default)
}

const fn memory(name: &'static str, min: i64, default: &'static str) -> Parameter {
    Parameter::new(name, Kind::Memory(min), default)
}

const fn text(name: &'static str, default: &'static str) -> Parameter {
    Parameter::new(name, Kind::Text, default)
}

const fn choice(
    name: &'static str,
    names: &'static [&'static str],
    default: &'static str,
) -> Parameter {
    Parameter::new(name, Kind::Enum(names), default)
}

/// A number with a field of its own.
macro_rules! field {
    ($parameter:expr, $field:ident) => {
        $parameter.acts(
            |config| config.$field.to_string(),
            |config, given| {
                config.$field = given.number as _;
                Ok(())
            },
        )
    };
}

/// A number that is remembered within narrower limits than it is accepted.
macro_rules! clamped {
    ($parameter:expr, $name:literal, $default:literal, $min:expr, $max:expr) => {
        $parameter.acts(
            |config| match config.remembered.get($name) {
                Some(text) => String::from_utf8_lossy(text).into_owned(),
                None => $default.into(),
            },
            |config, given| {
                let number = given.number.clamp($min, $max).to_string();
                config.remembered.insert($name, number.into());
                Ok(())
            },
        )
    };
}

fn word(yes: bool) -> String {
    if yes { "yes" } else { "no" }.into()
}

fn path(given: &Given) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(&given.text))
}

fn set_dir(config: &mut Config, given: &Given) -> Result<(), String> {
    // Relative to what it was, as a change of the process's own folder would be.
    let dir = config.dir().join(path(given));
    if !dir.is_dir() {
        let error = std::io::Error::from_raw_os_error(2);
        let text = error.to_string();
        let text = text.split(" (os").next().unwrap_or_default().to_owned();
        return Err(text);
    }
    config.dir = Some(dir);
    Ok(())
}

fn set_policy(config: &mut Config, given: &Given) -> Result<(), String> {
    if let Some(policy) = MemoryPolicy::named(&given.text) {
        config.policy = policy;
    }
    Ok(())
}

pub(crate) fn policy_name(policy: MemoryPolicy) -> &'static str {
    policy.name()
}

fn set_defrag(_: &mut Config, given: &Given) -> Result<(), String> {
    if given.number == 0 {
        return Ok(());
    }
    Err(
        "Active defragmentation cannot be enabled: it requires a Redis server compiled with a \
         modified Jemalloc like the one shipped by default with the Redis source distribution"
            .into(),
    )
}

static PARAMETERS: &[Parameter] = &[
    // ---- the listener ----
    field!(int("port", 0, 65535, "6379").immutable(), port),
    Parameter::new("bind", Kind::Words(words::addresses), "127.0.0.1 -::1").immutable(),
    text("bind-source-addr", ""),
    yes("protected-mode").acts(
        |config| word(config.protected_mode),
        |config, given| {
            config.protected_mode = given.number != 0;
            Ok(())
        },
    ),
    int("tcp-backlog", 0, I32, "511").immutable(),
    int("tcp-keepalive", 0, I32, "300"),
    text("unixsocket", "").immutable(),
    Parameter::new("unixsocketperm", Kind::Octal, "0").immutable(),
    int("socket-mark-id", 0, u32::MAX as i64, "0").immutable(),
    field!(int("timeout", 0, I32, "0"), timeout),
    field!(int("maxclients", 1, u32::MAX as i64, "10000"), maxclients),
    field!(
        memory("proto-max-bulk-len", 1 << 20, "536870912"),
        proto_max_bulk_len
    ),
    field!(
        memory("client-query-buffer-limit", 1 << 20, "1073741824"),
        query_buffer_limit
    ),
    Parameter::new(
        "client-output-buffer-limit",
        Kind::Words(words::output_limits),
        "",
    )
    .acts(
        |config| words::limits_text(&config.output_limits),
        |config, given| {
            if let Some(limits) = words::parse_limits(&given.text) {
                config.output_limits = limits;
            }
            Ok(())
        },
    ),
    Parameter::new("maxmemory-clients", Kind::MemoryOrPercent, "0"),
    int("io-threads", 1, 128, "1").immutable(),
    no("io-threads-do-reads").immutable(),
    int("tls-port", 0, 65535, "0").immutable(),
    int("tls-session-cache-size", 0, I32, "20480"),
    int("tls-session-cache-timeout", 0, I32, "300"),
    no("tls-cluster"),
    no("tls-replication"),
    choice("tls-auth-clients", &["no", "yes", "optional"], "yes"),
    no("tls-prefer-server-ciphers"),
    yes("tls-session-caching"),
    text("tls-cert-file", ""),
    text("tls-key-file", ""),
    text("tls-key-file-pass", ""),
    text("tls-client-cert-file", ""),
    text("tls-client-key-file", ""),
    text("tls-client-key-file-pass", ""),
    text("tls-dh-params-file", ""),
    text("tls-ca-cert-file", ""),
    text("tls-ca-cert-dir", ""),
    text("tls-protocols", ""),
    text("tls-ciphers", ""),
    text("tls-ciphersuites", ""),
    // ---- the process ----
    no("daemonize").immutable(),
    text("pidfile", "").immutable(),
    text("logfile", "").immutable(),
    choice(
        "loglevel",
        &["debug", "verbose", "notice", "warning"],
        "notice",
    ),
    no("syslog-enabled").immutable(),
    text("syslog-ident", "redis").immutable(),
    choice(
        "syslog-facility",
        &[
            "user", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
        ],
        "local0",
    )
    .immutable(),
    choice("supervised", &["upstart", "systemd", "auto", "no"], "no").immutable(),
    yes("set-proc-title").immutable(),
    Parameter::new(
        "proc-title-template",
        Kind::Checked(words::title_template),
        "{title} {listen-addr} {server-mode}",
    ),
    no("always-show-logo").immutable(),
    yes("crash-log-enabled"),
    yes("crash-memcheck-enabled"),
    yes("disable-thp").immutable(),
    text("ignore-warnings", ""),
    Parameter::new("server_cpulist", CPUS, "").immutable(),
    Parameter::new("bio_cpulist", CPUS, "").immutable(),
    Parameter::new("aof_rewrite_cpulist", CPUS, "").immutable(),
    Parameter::new("bgsave_cpulist", CPUS, "").immutable(),
    choice(
        "oom-score-adj",
        &["no", "yes", "relative", "absolute"],
        "no",
    ),
    Parameter::new(
        "oom-score-adj-values",
        Kind::Words(words::oom_scores),
        "0 200 800",
    ),
    Parameter::new(
        "shutdown-on-sigint",
        Kind::Words(words::shutdown),
        "default",
    ),
    Parameter::new(
        "shutdown-on-sigterm",
        Kind::Words(words::shutdown),
        "default",
    ),
    int("shutdown-timeout", 0, I32, "10"),
    clamped!(int("hz", 0, I32, "10"), "hz", "10", 1, 500),
    yes("dynamic-hz"),
    yes("activerehashing"),
    yes("jemalloc-bg-thread"),
    no("activedefrag").acts(|_| word(false), set_defrag),
    memory("active-defrag-ignore-bytes", 1, "104857600"),
    int("active-defrag-threshold-lower", 0, 1000, "10"),
    int("active-defrag-threshold-upper", 0, 1000, "100"),
    int("active-defrag-cycle-min", 1, 99, "1"),
    int("active-defrag-cycle-max", 1, 99, "25"),
    int("active-defrag-max-scan-fields", 1, I64, "1000"),
    // ---- who may do what ----
    text("requirepass", "").acts(
        |config| config.password.clone().unwrap_or_default(),
        |config, given| {
            let text = String::from_utf8(given.text.to_vec()).map_err(|_| "not valid UTF-8")?;
            config.password = (!text.is_empty()).then_some(text);
            Ok(())
        },
    ),
    text("aclfile", "").immutable().acts(
        |config| match &config.acl_file {
            Some(path) => path.display().to_string(),
            None => String::new(),
        },
        |config, given| {
            config.acl_file = (!given.text.is_empty()).then(|| path(given));
            Ok(())
        },
    ),
    choice(
        "acl-pubsub-default",
        &["allchannels", "resetchannels"],
        "resetchannels",
    )
    .acts(
        |config| match config.acl_all_channels {
            true => "allchannels".into(),
            false => "resetchannels".into(),
        },
        |config, given| {
            config.acl_all_channels = given.text.eq_ignore_ascii_case(b"allchannels");
            Ok(())
        },
    ),
    field!(int("acllog-max-len", 0, I64, "128"), acllog_max_len),
    Parameter::new("enable-protected-configs", LOCALITY, "no").immutable(),
    // DEBUG is there for clients of this machine.
    Parameter::new("enable-debug-command", LOCALITY, "local").immutable(),
    Parameter::new("enable-module-command", LOCALITY, "no").immutable(),
    // ---- data ----
    field!(int("databases", 1, I32, "16").immutable(), databases),
    field!(Parameter::new("maxmemory", Kind::Unsigned, "0"), maxmemory),
    choice("maxmemory-policy", POLICIES, "noeviction")
        .acts(|config| config.policy.name().into(), set_policy),
    field!(int("maxmemory-samples", 1, I32, "5"), maxmemory_samples),
    field!(
        int("maxmemory-eviction-tenacity", 0, 100, "10"),
        eviction_tenacity
    ),
    field!(int("lfu-log-factor", 0, I32, "10"), lfu_log_factor),
    field!(int("lfu-decay-time", 0, I32, "1"), lfu_decay_time),
    int("active-expire-effort", 1, 10, "1"),
    no("lazyfree-lazy-eviction"),
    no("lazyfree-lazy-expire"),
    no("lazyfree-lazy-server-del"),
    no("lazyfree-lazy-user-del"),
    no("lazyfree-lazy-user-flush"),
    Parameter::new(
        "notify-keyspace-events",
        Kind::Checked(words::check_events),
        "",
    )
    .acts(
        |config| words::events_text(config.notify),
        |config, given| {
            config.notify = words::parse_events(&given.text).unwrap_or_default();
            Ok(())
        },
    ),
    field!(
        int("hash-max-listpack-entries", 0, I64, "512").alias("hash-max-ziplist-entries"),
        hash_max_listpack_entries
    ),
    field!(
        memory("hash-max-listpack-value", 0, "64").alias("hash-max-ziplist-value"),
        hash_max_listpack_value
    ),
    field!(
        int("set-max-intset-entries", 0, I64, "512"),
        set_max_intset_entries
    ),
    field!(
        int("zset-max-listpack-entries", 0, I64, "128").alias("zset-max-ziplist-entries"),
        zset_max_listpack_entries
    ),
    field!(
        memory("zset-max-listpack-value", 0, "64").alias("zset-max-ziplist-value"),
        zset_max_listpack_value
    ),
    // Every list is a quicklist by name.
    int("list-max-listpack-size", i32::MIN as i64, I32, "-2").alias("list-max-ziplist-size"),
    int("list-compress-depth", 0, I32, "0"),
    memory("stream-node-max-bytes", 0, "4096"),
    field!(
        int("stream-node-max-entries", 0, I64, "100"),
        stream_node_max_entries
    ),
    field!(
        memory("hll-sparse-max-bytes", 0, "3000"),
        hll_sparse_max_bytes
    ),
    choice("sanitize-dump-payload", &["no", "yes", "clients"], "no"),
    field!(
        int("busy-reply-threshold", 0, I64, "5000").alias("lua-time-limit"),
        script_time_limit
    ),
    field!(
        int("tracking-table-max-keys", 0, I64, "1000000"),
        tracking_max_keys
    ),
    // ---- what is watched ----
    field!(
        int("slowlog-log-slower-than", -1, I64, "10000"),
        slowlog_slower_than
    ),
    field!(int("slowlog-max-len", 0, I64, "128"), slowlog_max_len),
    // Valkey's names of the two, and its other logs.
    field!(
        int("commandlog-execution-slower-than", -1, I64, "10000").only(VALKEY),
        slowlog_slower_than
    ),
    field!(
        int("commandlog-slow-execution-max-len", 0, I64, "128").only(VALKEY),
        slowlog_max_len
    ),
    field!(
        int("commandlog-request-larger-than", -1, I64, "1048576").only(VALKEY),
        large_request
    ),
    field!(
        int("commandlog-large-request-max-len", 0, I64, "128").only(VALKEY),
        large_requests_max_len
    ),
    field!(
        int("commandlog-reply-larger-than", -1, I64, "1048576").only(VALKEY),
        large_reply
    ),
    field!(
        int("commandlog-large-reply-max-len", 0, I64, "128").only(VALKEY),
        large_replies_max_len
    ),
    field!(
        int("latency-monitor-threshold", 0, I64, "0"),
        latency_threshold
    ),
    yes("latency-tracking").acts(
        |config| word(config.latency_tracking),
        |config, given| {
            config.latency_tracking = given.number != 0;
            Ok(())
        },
    ),
    Parameter::new(
        "latency-tracking-info-percentiles",
        Kind::Words(words::percentiles),
        "",
    )
    .acts(
        |config| words::percentiles_text(&config.percentiles),
        |config, given| {
            let text = String::from_utf8_lossy(&given.text).into_owned();
            let numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
            config.percentiles = Cow::Owned(numbers.collect());
            Ok(())
        },
    ),
    // ---- the disk ----
    text("dir", "")
        .protected()
        .acts(|config| config.dir().display().to_string(), set_dir),
    Parameter::new("dbfilename", Kind::Checked(words::file_name), "dump.rdb").protected(),
    Parameter::new("save", Kind::Words(words::save), ""),
    yes("stop-writes-on-bgsave-error").acts(
        |config| word(config.stop_writes_unsaved),
        |config, given| {
            config.stop_writes_unsaved = given.number != 0;
            Ok(())
        },
    ),
    yes("rdbcompression").acts(
        |config| word(config.rdb_compression),
        |config, given| {
            config.rdb_compression = given.number != 0;
            Ok(())
        },
    ),
    yes("rdbchecksum").immutable(),
    yes("rdb-save-incremental-fsync"),
    no("rdb-del-sync-files"),
    no("appendonly").acts(
        |config| word(config.append_only),
        |config, given| {
            config.append_only = given.number != 0;
            Ok(())
        },
    ),
    choice("appendfsync", &["everysec", "always", "no"], "everysec").acts(
        |config| match config.fsync {
            Fsync::Always => "always".into(),
            Fsync::EverySec => "everysec".into(),
            Fsync::No => "no".into(),
        },
        |config, given| {
            config.fsync = [Fsync::EverySec, Fsync::Always, Fsync::No][given.number as usize];
            Ok(())
        },
    ),
    Parameter::new(
        "appendfilename",
        Kind::Checked(words::file_name),
        "appendonly.aof",
    )
    .immutable(),
    Parameter::new(
        "appenddirname",
        Kind::Checked(words::file_name),
        "appendonlydir",
    )
    .immutable(),
    field!(
        int("auto-aof-rewrite-percentage", 0, I32, "100"),
        rewrite_percentage
    ),
    field!(
        memory("auto-aof-rewrite-min-size", 0, "67108864"),
        rewrite_from
    ),
    no("no-appendfsync-on-rewrite"),
    yes("aof-load-truncated"),
    yes("aof-use-rdb-preamble"),
    no("aof-timestamp-enabled"),
    no("aof-disable-auto-gc"),
    yes("aof-rewrite-incremental-fsync"),
    // ---- replication ----
    text("replicaof", "").alias("slaveof").immutable(),
    text("masterauth", ""),
    text("masteruser", ""),
    yes("replica-serve-stale-data").alias("slave-serve-stale-data"),
    yes("replica-read-only").alias("slave-read-only"),
    yes("replica-ignore-maxmemory").alias("slave-ignore-maxmemory"),
    no("replica-lazy-flush").alias("slave-lazy-flush"),
    int("replica-priority", 0, I32, "100").alias("slave-priority"),
    text("replica-announce-ip", "").alias("slave-announce-ip"),
    int("replica-announce-port", 0, 65535, "0").alias("slave-announce-port"),
    yes("replica-announced"),
    no("replica-ignore-disk-write-errors"),
    int("min-replicas-to-write", 0, I32, "0").alias("min-slaves-to-write"),
    int("min-replicas-max-lag", 0, I32, "10").alias("min-slaves-max-lag"),
    clamped!(
        memory("repl-backlog-size", 1, "1048576"),
        "repl-backlog-size",
        "1048576",
        16384,
        I64
    ),
    int("repl-backlog-ttl", 0, I64, "3600"),
    int("repl-timeout", 1, I32, "60"),
    int("repl-ping-replica-period", 1, I32, "10").alias("repl-ping-slave-period"),
    no("repl-disable-tcp-nodelay"),
    yes("repl-diskless-sync"),
    int("repl-diskless-sync-delay", 0, I32, "5"),
    int("repl-diskless-sync-max-replicas", 0, I32, "0"),
    choice(
        "repl-diskless-load",
        &["disabled", "on-empty-db", "swapdb"],
        "disabled",
    ),
    choice(
        "propagation-error-behavior",
        &["ignore", "panic", "panic-on-replicas"],
        "ignore",
    ),
    // ---- cluster ----
    no("cluster-enabled").immutable().acts(
        |config| word(config.cluster),
        |config, given| {
            config.cluster = given.number != 0;
            Ok(())
        },
    ),
    text("cluster-config-file", "nodes.conf").immutable(),
    int("cluster-port", 0, 65535, "0").immutable(),
    int("cluster-node-timeout", 0, I64, "15000"),
    int("cluster-migration-barrier", 0, I32, "1"),
    int("cluster-replica-validity-factor", 0, I32, "10").alias("cluster-slave-validity-factor"),
    no("cluster-replica-no-failover").alias("cluster-slave-no-failover"),
    yes("cluster-require-full-coverage"),
    no("cluster-allow-reads-when-down"),
    yes("cluster-allow-pubsubshard-when-down"),
    yes("cluster-allow-replica-migration"),
    text("cluster-announce-ip", ""),
    int("cluster-announce-port", 0, 65535, "0"),
    int("cluster-announce-bus-port", 0, 65535, "0"),
    int("cluster-announce-tls-port", 0, 65535, "0"),
    Parameter::new(
        "cluster-announce-hostname",
        Kind::Checked(words::hostname),
        "",
    ),
    choice(
        "cluster-preferred-endpoint-type",
        &["ip", "hostname", "unknown-endpoint"],
        "ip",
    ),
    Parameter::new("cluster-link-sendbuf-limit", Kind::Unsigned, "0"),
];

static BY_NAME: LazyLock<HashMap<&'static str, &'static Parameter>> = LazyLock::new(|| {
    let mut table = HashMap::new();
    for parameter in PARAMETERS {
        table.insert(parameter.name, parameter);
        if let Some(alias) = parameter.alias {
            table.insert(alias, parameter);
        }
    }
    table
});

/// The setting of that name, in any case.
pub(crate) fn find(name: &[u8]) -> Option<Found> {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    let (name, parameter) = BY_NAME.get_key_value(name.as_str())?;
    Some(Found { name, parameter })
}

/// All settings, by all their names.
pub(crate) fn names() -> impl Iterator<Item = Found> {
    PARAMETERS.iter().flat_map(|parameter| {
        let names = std::iter::once(parameter.name).chain(parameter.alias);
        names.map(move |name| Found { name, parameter })
    })
}

/// All settings once.
pub(super) fn all() -> impl Iterator<Item = &'static Parameter> {
    PARAMETERS.iter()
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        path::{Path, PathBuf},
    };

    use bytes::Bytes;

    use super::*;

    /// The files of a folder and of those in it.
    fn files(folder: &Path, all: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => files(&path, all),
                false => all.push(path),
            }
        }
    }

    #[test]
    fn settings_without_an_effect_are_listed_with_their_reasons() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(package.join("../../docs/engine.md")).unwrap();
        let (_, list) = page
            .split_once("## Settings that are remembered only")
            .unwrap();
        let mut listed = BTreeSet::new();
        for row in list.lines().filter(|line| line.starts_with("| `")) {
            let mut cells = row.split('|').skip(1).map(str::trim);
            let (names, why) = (cells.next().unwrap(), cells.next().unwrap());
            assert!(!why.is_empty(), "{row}");
            for name in names.split(", ") {
                assert!(
                    listed.insert(name.trim_matches('`').to_owned()),
                    "{name} twice"
                );
            }
        }
        // Whatever acts on a remembered value asks for it by its name; these only read files.
        let mut paths = Vec::new();
        files(&package.join("src"), &mut paths);
        paths.retain(|path| path.extension().is_some_and(|end| end == "rs"));
        let apart = ["config/table.rs", "config/file.rs", "config/words.rs"];
        paths.retain(|path| !apart.iter().any(|end| path.ends_with(end)));
        let text: String = paths
            .iter()
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect();
        let is_read = |name: &str| text.contains(&format!("\"{name}\""));
        let remembered = PARAMETERS
            .iter()
            .filter(|parameter| parameter.field.is_none());
        let without: BTreeSet<String> = remembered
            .filter(|parameter| !is_read(parameter.name))
            .map(|parameter| parameter.name.to_owned())
            .collect();
        assert_eq!(without, listed);
    }

    #[test]
    fn every_default_is_a_value_that_is_accepted() {
        for parameter in PARAMETERS {
            if parameter.name == "dir" {
                continue;
            }
            let mut config = Config::default();
            let before = parameter.get(&config);
            let words: Vec<Bytes> = match parameter.takes_words() {
                true => before
                    .split(|byte| *byte == b' ')
                    .filter(|word| !word.is_empty())
                    .map(Bytes::copy_from_slice)
                    .collect(),
                false => vec![before.clone()],
            };
            let set = parameter.set(&mut config, &words);
            assert_eq!(set, Ok(()), "{}", parameter.name);
            assert_eq!(parameter.get(&config), before, "{}", parameter.name);
        }
    }
}
