//! DEBUG: what test suites ask of a server. Nothing for programs, and only for clients of this
//! machine, as with the server's `enable-debug-command local`.

use std::time::Duration;

use bytes::Bytes;

use super::keys::help;
use crate::{
    aof,
    client::Answers,
    compat::versions,
    config::memory,
    context::Ctx,
    digest::{self, Digest},
    error::{CommandResult, NO_SUCH_KEY, SYNTAX, Stop},
    feed,
    number::{int_arg, parse_double},
    rdb,
    registry::{self, Spec, flag::*},
    reply::Reply,
    types::Value,
};

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new(
        "debug",
        -2,
        ADMIN | NOSCRIPT | LOADING | STALE,
        (0, 0, 0),
        debug,
    ),
    Spec::new(
        "shutdown",
        -1,
        ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | ALLOW_BUSY,
        (0, 0, 0),
        shutdown,
    ),
];

/// Why SHUTDOWN was of no effect.
const FAILED: &str = "ERR Errors trying to SHUTDOWN. Check logs.";

/// Ends the listener; what is received by then is executed and saved, and the log is closed with the
/// engine.
fn shutdown(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (mut save, mut now, mut force, mut abort) = (None, false, false, false);
    let (mut safe, mut failover) = (false, false);
    let is_valkey = cx.state.config.compat.is_in(versions::VALKEY);
    for word in &args[1..] {
        match word.to_ascii_lowercase().as_slice() {
            b"save" if save.is_none() => save = Some(true),
            b"nosave" if save.is_none() => save = Some(false),
            b"now" => now = true,
            b"force" => force = true,
            b"abort" => abort = true,
            b"safe" if is_valkey => safe = true,
            b"failover" if is_valkey => failover = true,
            _ => return Err(SYNTAX.into()),
        }
    }
    if abort {
        if save.is_some() || now || force || safe || failover {
            return Err(SYNTAX.into());
        }
        return Err("ERR No shutdown in progress.".into());
    }
    let is_cluster = cx.state.config.cluster;
    if failover && !is_cluster {
        return Err("ERR SHUTDOWN FAILOVER is only supported in cluster mode.".into());
    }
    if cx.state.listeners == 0 {
        return Err("ERR there is no listener to end: drop the engine instead".into());
    }
    // All slots are here, and there is no replica that could take them over.
    if safe && is_cluster && !force {
        tracing::error!("without this node the cluster is down: the server goes on");
        return Err(FAILED.into());
    }
    let saves = save.unwrap_or_else(|| rdb::has_save_points(&cx.state.config));
    if saves {
        // Everybody would wait for the end of a file that has less than the one to come.
        cx.state.saves.cancel();
    }
    // It may be refused only now. What others write while their connections end is saved after that.
    if saves && let Err(error) = rdb::save(cx.state, cx.now_micros) {
        tracing::error!(%error, "the snapshot was not written: the server goes on");
        if !force {
            return Err(FAILED.into());
        }
    }
    cx.state.saves_at_end = Some(saves);
    cx.state.shutdown.notify_one();
    // As with the server, the connection's end is the answer.
    cx.client.answers = Answers::Skip;
    cx.client.closing = true;
    Ok(Reply::OK)
}

fn debug(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    // Without a word about it, clients of this machine may.
    let setting = cx.state.config.remembered.get("enable-debug-command");
    let allowed = match setting.map(|word| word.as_ref()) {
        Some(b"yes") => true,
        Some(b"no") => false,
        _ => cx.client.is_local(),
    };
    if !allowed {
        return Err(
            "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", \
             you can run it from a local connection, otherwise you need to set this option in the \
             configuration file, and then restart the server."
                .into(),
        );
    }
    let word = args[1].to_ascii_lowercase();
    match (word.as_slice(), &args[2..]) {
        (b"help", []) => Ok(subcommands()),
        (b"sleep", [seconds]) => sleep(seconds),
        (b"object", [key, ..]) => object(cx, key),
        (b"set-active-expire", [on]) => {
            cx.state.active_expire = int_arg(on)? != 0;
            Ok(Reply::OK)
        }
        (b"digest", []) => Ok(shown(digest::of_all(cx.state))),
        (b"digest-value", keys) => Ok(Reply::Array(
            keys.iter()
                .map(|key| {
                    let slot = cx.peek(key);
                    let digest = slot.map(|slot| digest::of_value(cx.db().entry(slot)));
                    shown(digest.unwrap_or_default())
                })
                .collect(),
        )),
        (b"reload", []) => reload(cx, false),
        (b"loadaof", []) => reload(cx, true),
        (b"change-repl-id", []) => {
            feed::end(cx.state);
            Ok(Reply::OK)
        }
        (b"quicklist-packed-threshold", [size]) => match memory(size) {
            // Lists have one representation here.
            Some(size) if size < 4 << 30 => Ok(Reply::OK),
            _ => {
                Err("ERR argument must be a memory value bigger than 1 and smaller than 4gb".into())
            }
        },
        _ => Err(format!(
            "ERR unknown subcommand or wrong number of arguments for '{}'. Try DEBUG HELP.",
            registry::printable(&args[1])
        )
        .into()),
    }
}

fn subcommands() -> Reply {
    help(&[
        "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CHANGE-REPL-ID",
        "    Replicas get all data again.",
        "DIGEST",
        "    Output a hex signature representing the current DB content.",
        "DIGEST-VALUE <key> [<key> ...]",
        "    Output a hex signature of the values of all the specified keys.",
        "LOADAOF",
        "    Flush the data and load the append only file again.",
        "OBJECT <key>",
        "    Show low level info about `key` and associated value.",
        "QUICKLIST-PACKED-THRESHOLD <size>",
        "    Accepted; lists have one representation.",
        "RELOAD",
        "    Write all data, flush it and load it again.",
        "SET-ACTIVE-EXPIRE <0|1>",
        "    Setting it to 0 disables expiring keys in background when they are not",
        "    accessed.",
        "SLEEP <seconds>",
        "    Stop the server for <seconds>. Decimals allowed.",
        "HELP",
        "    Prints this help.",
    ])
}

fn shown(digest: Digest) -> Reply {
    Reply::Status(digest.to_string().into())
}

/// Holds up everybody, as the server does.
fn sleep(seconds: &[u8]) -> CommandResult {
    // Text that is not a number counts as zero, as with C's `strtod`.
    let seconds = parse_double(seconds).unwrap_or(0.0);
    if let Ok(time) = Duration::try_from_secs_f64(seconds) {
        std::thread::sleep(time);
    }
    Ok(Reply::OK)
}

fn object(cx: &mut Ctx<'_>, key: &Bytes) -> CommandResult {
    let Some(slot) = cx.peek(key) else {
        return Err(NO_SUCH_KEY.into());
    };
    let now = cx.now_micros / 1_000_000;
    let entry = cx.db().entry(slot);
    let idle = (now - i64::from(entry.used)).max(0);
    let mut text = format!(
        "Value at:{key:p} refcount:1 encoding:{} serializedlength:{} lru:{} lru_seconds_idle:{idle}",
        entry.value.encoding(),
        entry.value.heap_size(),
        i64::from(entry.used) & 0xFF_FFFF,
        key = &raw const *entry,
    );
    if let Value::List(list) = &entry.value {
        let size = list.heap_size();
        text += &format!(
            " ql_nodes:1 ql_avg_node:{:.2} ql_listpack_max:-2 ql_compressed:0 ql_uncompressed_size:{size}",
            list.len() as f64
        );
    }
    Ok(Reply::Status(text.into()))
}

/// Makes all data again from what it is written as: the files of the log, or a copy in memory.
fn reload(cx: &mut Ctx<'_>, from_log: bool) -> CommandResult {
    let now = cx.now_micros;
    let failed = |error| Stop::from(format!("ERR Error trying to load the data: {error}"));
    if from_log {
        let Some(mut sink) = cx.state.effects.lend() else {
            return Err("ERR there is no append only file".into());
        };
        // What is done meanwhile is not for replicas.
        feed::end(cx.state);
        let loaded = sink.reload(cx.state, now);
        cx.state.effects.give_back(sink);
        loaded.map_err(failed)?;
    } else {
        feed::end(cx.state);
        aof::reload(cx.state, now).map_err(failed)?;
    }
    cx.state.effects.touch_all();
    Ok(Reply::OK)
}
