//! The server itself.

use std::fmt::Write as _;

use bytes::Bytes;

use crate::{
    compat::versions,
    config::policy_name,
    context::Ctx,
    error::{CommandResult, SYNTAX},
    free, memory,
    number::int_arg,
    pubsub::Kind,
    registry::{Spec, flag::*},
    reply::Reply,
};

use super::{config::CONFIG_COMMANDS, introspection};

/// The Redis whose commands and replies these are.

const NO_KEYS: (i32, i32, i32) = (0, 0, 0);
const OPERATE: u32 = ADMIN | NOSCRIPT | LOADING | STALE;
const LOOK: u32 = ADMIN | LOADING | STALE;

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("dbsize", 1, READONLY | FAST, NO_KEYS, dbsize),
    Spec::new("info", -1, LOADING | STALE, NO_KEYS, info),
    Spec::new("lolwut", -1, READONLY | FAST, NO_KEYS, lolwut),
    Spec::new("role", 1, NOSCRIPT | LOADING | STALE | FAST, NO_KEYS, role),
    Spec::new(
        "bgrewriteaof",
        1,
        ADMIN | NOSCRIPT | NO_ASYNC_LOADING,
        NO_KEYS,
        bgrewriteaof,
    ),
    Spec::container("config", -2, 0, CONFIG_COMMANDS),
    Spec::container("memory", -2, 0, MEMORY_COMMANDS),
    Spec::container("slowlog", -2, 0, SLOWLOG_COMMANDS),
    Spec::container("latency", -2, 0, LATENCY_COMMANDS),
    introspection::COMMAND,
];

static MEMORY_COMMANDS: &[Spec] = &[
    Spec::sub(
        "usage",
        "memory|usage",
        -3,
        READONLY,
        (2, 2, 1),
        memory_usage,
    ),
    Spec::sub("doctor", "memory|doctor", 2, 0, NO_KEYS, memory_doctor),
    Spec::sub("purge", "memory|purge", 2, 0, NO_KEYS, ok),
];

static SLOWLOG_COMMANDS: &[Spec] = &[
    Spec::sub("get", "slowlog|get", -2, LOOK, NO_KEYS, slowlog_get),
    Spec::sub("len", "slowlog|len", 2, LOOK, NO_KEYS, zero),
    Spec::sub("reset", "slowlog|reset", 2, LOOK, NO_KEYS, ok),
];

static LATENCY_COMMANDS: &[Spec] = &[
    Spec::sub("latest", "latency|latest", 2, OPERATE, NO_KEYS, empty),
    Spec::sub("history", "latency|history", 3, OPERATE, NO_KEYS, empty),
    Spec::sub("reset", "latency|reset", -2, OPERATE, NO_KEYS, zero),
    Spec::sub(
        "histogram",
        "latency|histogram",
        -2,
        OPERATE,
        NO_KEYS,
        empty_map,
    ),
];

fn ok(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(Reply::OK)
}

fn zero(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(Reply::ZERO)
}

fn empty(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(Reply::empty())
}

fn empty_map(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(Reply::Map(Vec::new()))
}

fn dbsize(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(cx.db().len().into())
}

fn lolwut(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(Reply::Verbatim {
        format: *b"txt",
        text: format!("Redis ver. {}\n", cx.state.config.compat.redis_version()).into(),
    })
}

fn role(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(Reply::Array(vec![
        Reply::bulk("master"),
        Reply::ZERO,
        Reply::empty(),
    ]))
}

fn bgrewriteaof(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    match cx.state.effects.rewrite() {
        Some(true) => Ok(Reply::status(
            "Background append only file rewriting started",
        )),
        Some(false) => Err("ERR Background append only file rewriting already in progress".into()),
        None => Err("ERR there is no append only file".into()),
    }
}

fn slowlog_get(_: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    match args.get(2).map(|count| int_arg(count)).transpose()? {
        Some(count) if count < -1 => Err("ERR count should be greater than or equal to -1".into()),
        _ => Ok(Reply::empty()),
    }
}

fn memory_doctor(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(Reply::Verbatim {
        format: *b"txt",
        text: Bytes::from_static(b"No problems are known."),
    })
}

fn memory_usage(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    match &args[3..] {
        [] => {}
        [word, count] if word.eq_ignore_ascii_case(b"SAMPLES") => {
            if int_arg(count)? < 0 {
                return Err(SYNTAX.into());
            }
        }
        _ => return Err(SYNTAX.into()),
    }
    let Some(slot) = cx.peek(&args[2]) else {
        return Ok(Reply::Nil);
    };
    let db = cx.db();
    let size = db.key(slot).heap_size() + db.entry(slot).size();
    Ok(size.into())
}

fn info(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    const DEFAULT: [&str; 10] = [
        "server",
        "clients",
        "memory",
        "persistence",
        "stats",
        "replication",
        "cpu",
        "modules",
        "errorstats",
        "cluster",
    ];
    let words: Vec<String> = args[1..]
        .iter()
        .map(|word| String::from_utf8_lossy(word).to_lowercase())
        .collect();
    let everything = words.is_empty()
        || words
            .iter()
            .any(|word| matches!(word.as_str(), "default" | "all" | "everything"));
    let mut text = String::new();
    for section in DEFAULT.into_iter().chain(["keyspace"]) {
        if everything || words.iter().any(|word| word == section) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            write_section(cx, section, &mut text);
        }
    }
    Ok(Reply::Verbatim {
        format: *b"txt",
        text: text.into(),
    })
}

fn write_section(cx: &mut Ctx<'_>, section: &str, text: &mut String) {
    let mut title = section.to_owned();
    title[..1].make_ascii_uppercase();
    if section == "cpu" {
        title = "CPU".into();
    }
    let _ = write!(text, "# {title}\r\n");
    let now = cx.now_micros;
    let state = &mut *cx.state;
    let uptime = (now - state.started).max(0) / 1_000_000;
    let mut line = |key: &str, value: &dyn std::fmt::Display| {
        let _ = write!(text, "{key}:{value}\r\n");
    };
    match section {
        "server" => {
            let compat = state.config.compat;
            line("redis_version", &compat.redis_version());
            if compat.is_in(versions::VALKEY) {
                line("server_name", &compat.server());
                line("valkey_version", &compat.version());
            }
            line("redis_git_sha1", &"00000000");
            line("redis_git_dirty", &0);
            line("redis_mode", &"standalone");
            line("os", &std::env::consts::OS);
            line("arch_bits", &usize::BITS);
            line("process_id", &std::process::id());
            line("tcp_port", &state.config.port);
            line("server_time_usec", &now);
            line("uptime_in_seconds", &uptime);
            line("uptime_in_days", &(uptime / 86_400));
            line("hz", &10);
            line("configured_hz", &10);
            line("lru_clock", &((now / 1_000_000) & 0xFF_FFFF));
            line("redstart_version", &env!("CARGO_PKG_VERSION"));
        }
        "clients" => {
            line("connected_clients", &state.clients.len());
            line("cluster_connections", &0);
            line("maxclients", &state.config.maxclients);
            line("blocked_clients", &state.blocking.len());
            line("tracking_clients", &state.tracking.clients());
        }
        "memory" => {
            let used = memory::used(state);
            line("used_memory", &used);
            line("used_memory_human", &human(used));
            line("used_memory_dataset", &used);
            line("maxmemory", &state.config.maxmemory);
            line("maxmemory_human", &human(state.config.maxmemory));
            line("maxmemory_policy", &policy_name(state.config.policy));
            line("lazyfree_pending_objects", &free::pending());
        }
        "persistence" => {
            line("loading", &0);
            line("async_loading", &0);
            line(
                "rdb_changes_since_last_save",
                &state.saves.unsaved(state.dirty),
            );
            line(
                "rdb_bgsave_in_progress",
                &u8::from(state.saves.is_running()),
            );
            line("rdb_last_save_time", &state.saves.last());
            let health = state.effects.health();
            let rewriting = health.as_ref().is_some_and(|health| health.rewriting);
            let status = |fine: bool| if fine { "ok" } else { "err" };
            line("rdb_last_bgsave_status", &status(!state.saves.has_failed()));
            let rewritten = health.as_ref().is_none_or(|health| health.rewritten);
            let writable = health.as_ref().is_none_or(|health| health.writable);
            line("aof_enabled", &u8::from(health.is_some()));
            line("aof_rewrite_in_progress", &u8::from(rewriting));
            line("aof_last_bgrewrite_status", &status(rewritten));
            line("aof_last_write_status", &status(writable));
        }
        "stats" => {
            let stats = &state.stats;
            line("total_connections_received", &stats.connections);
            line("total_commands_processed", &stats.commands);
            line("expired_keys", &stats.expired);
            line("evicted_keys", &stats.evicted);
            line("keyspace_hits", &stats.hits);
            line("keyspace_misses", &stats.misses);
            line("pubsub_channels", &state.pubsub.table(Kind::Channel).len());
            line("pubsub_patterns", &state.pubsub.table(Kind::Pattern).len());
            line(
                "pubsubshard_channels",
                &state.pubsub.table(Kind::Shard).len(),
            );
            line("tracking_total_keys", &state.tracking.keys());
            line("tracking_total_items", &state.tracking.items());
            line("tracking_total_prefixes", &state.tracking.prefixes());
            line("total_error_replies", &stats.errors);
        }
        "replication" => {
            line("role", &"master");
            line("connected_slaves", &0);
            line("master_failover_state", &"no-failover");
            line("master_repl_offset", &0);
            line("second_repl_offset", &-1);
            line("repl_backlog_active", &0);
        }
        "cluster" => line("cluster_enabled", &0),
        "keyspace" => {
            for (number, db) in state.dbs.iter().enumerate() {
                if db.len() > 0 {
                    let facts = format!("keys={},expires={},avg_ttl=0", db.len(), db.volatile());
                    line(&format!("db{number}"), &facts);
                }
            }
        }
        _ => {}
    }
}

/// Bytes as INFO writes them for people.
fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "K", "M", "G"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{bytes}B")
            } else {
                format!("{value:.2}{unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.2}T")
}
