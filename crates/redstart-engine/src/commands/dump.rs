//! Values and databases in binary form: DUMP, RESTORE, SAVE, BGSAVE, LASTSAVE.

use bytes::Bytes;

use crate::{
    compat::versions,
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    eviction,
    keyspace::NEVER,
    notify::class,
    number::{int_arg, int_bytes},
    rdb::{self, Refused},
    registry::{Spec, flag::*},
    reply::Reply,
    types::Value,
};

pub(crate) static VALUES: &[Spec] = &[
    Spec::new("dump", 2, READONLY, (1, 1, 1), dump),
    Spec::new("restore", -4, WRITE | DENYOOM, (1, 1, 1), restore),
    Spec::new(
        "restore-asking",
        -4,
        WRITE | DENYOOM | ASKING,
        (1, 1, 1),
        restore,
    ),
];

pub(crate) static SNAPSHOTS: &[Spec] = &[
    Spec::new(
        "bgsave",
        -1,
        ADMIN | NOSCRIPT | NO_ASYNC_LOADING,
        (0, 0, 0),
        bgsave,
    ),
    Spec::new("lastsave", 1, LOADING | STALE | FAST, (0, 0, 0), lastsave),
    Spec::new(
        "save",
        1,
        ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI,
        (0, 0, 0),
        save,
    ),
];

const BAD_FORMAT: &str = "ERR Bad data format";
const RUNNING: &str = "ERR Background save already in progress";
const NOT_RUNNING: &str = "ERR Background saving is currently not in progress or scheduled";

fn dump(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    match cx.find_read(&args[1]) {
        None => Ok(Reply::Nil),
        Some(slot) => {
            let config = &cx.state.config;
            let value = &cx.state.dbs[cx.client.db].entry(slot).value;
            let payload = rdb::dump(value, config);
            Ok(Reply::Bulk(payload.into()))
        }
    }
}

/// What RESTORE may be told beside the value.
#[derive(Default)]
struct Options {
    replace: bool,
    absolute: bool,
    idle: Option<i64>,
    freq: Option<i64>,
}

impl Options {
    fn parse(args: &[Bytes]) -> Result<Options, Stop> {
        let mut options = Options::default();
        let mut rest = args.iter();
        while let Some(word) = rest.next() {
            if word.eq_ignore_ascii_case(b"replace") {
                options.replace = true;
            } else if word.eq_ignore_ascii_case(b"absttl") {
                options.absolute = true;
            } else if word.eq_ignore_ascii_case(b"idletime")
                && options.freq.is_none()
                && let Some(seconds) = rest.next()
            {
                let seconds = int_arg(seconds)?;
                if seconds < 0 {
                    return Err("ERR Invalid IDLETIME value, must be >= 0".into());
                }
                options.idle = Some(seconds);
            } else if word.eq_ignore_ascii_case(b"freq")
                && options.idle.is_none()
                && let Some(freq) = rest.next()
            {
                let freq = int_arg(freq)?;
                if !(0..=255).contains(&freq) {
                    return Err("ERR Invalid FREQ value, must be >= 0 and <= 255".into());
                }
                options.freq = Some(freq);
            } else {
                return Err(SYNTAX.into());
            }
        }
        Ok(options)
    }
}

fn restore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let options = Options::parse(&args[4..])?;
    let key = &args[1];
    if !options.replace && cx.exists(key) {
        return Err("BUSYKEY Target key name already exists.".into());
    }
    let ttl = int_arg(&args[2])?;
    if ttl < 0 {
        return Err("ERR Invalid TTL value, must be >= 0".into());
    }
    let now = cx.now_ms();
    // A log, and a followed server, may still speak of fields whose time is over, and of strings that
    // are longer than is allowed by now.
    let kept = cx.state.loading || cx.state.replica.is_some();
    let longest = match kept {
        true => usize::MAX,
        false => cx.state.config.proto_max_bulk_len,
    };
    let mut value =
        rdb::restore(&args[3], &cx.state.config, longest).map_err(|refused| match refused {
            Refused::Footer => Stop::from("ERR DUMP payload version or checksum are wrong"),
            Refused::Contents(fault) => {
                tracing::debug!(%fault, "a payload is refused");
                Stop::from(BAD_FORMAT)
            }
        })?;
    let mut remade = None;
    if let Value::Hash(hash) = &mut value
        && !kept
        && !hash.remove_due(now, usize::MAX).is_empty()
    {
        if hash.is_empty() {
            return Err(BAD_FORMAT.into());
        }
        // Who repeats this later must not find fields that were not there.
        remade = Some(rdb::dump(&value, &cx.state.config));
    }
    let deadline = match ttl {
        0 => NEVER,
        ttl if options.absolute => ttl,
        ttl => ttl.saturating_add(now),
    };
    let was_there = options.replace && cx.delete(key);
    // At the deadline itself a key is gone, unless a log says that it was there.
    if deadline != NEVER && deadline <= now && !cx.state.loading && cx.state.replica.is_none() {
        if was_there {
            cx.notify(class::GENERIC, "del", key);
            cx.dirty(1);
            cx.propagate([Bytes::from_static(b"DEL"), key.clone()]);
        }
        return Ok(Reply::OK);
    }
    let slot = cx.add(key, value, deadline);
    let now_secs = (now / 1000) as u32;
    let counts = cx.state.config.policy.counts_uses();
    let entry = cx.db().entry_mut(slot);
    match (options.idle, options.freq) {
        (Some(seconds), _) if !counts => {
            let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
            entry.used = entry.used.saturating_sub(seconds);
        }
        (_, Some(frequency)) if counts => {
            entry.used = eviction::used_so_often(frequency as u32, now_secs);
        }
        _ => {}
    }
    cx.changed(key, class::GENERIC, "restore");
    let relative = deadline != NEVER && !options.absolute;
    if relative || remade.is_some() {
        let mut effect = args.to_vec();
        if relative {
            effect[2] = int_bytes(deadline);
            effect.push(Bytes::from_static(b"ABSTTL"));
        }
        if let Some(payload) = remade {
            effect[3] = payload.into();
        }
        cx.propagate(effect);
    }
    Ok(Reply::OK)
}

fn lastsave(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(Reply::Int(cx.state.saves.last()))
}

fn save(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    if cx.state.saves.is_running() {
        return Err(RUNNING.into());
    }
    match rdb::save(cx.state, cx.now_micros) {
        Ok(()) => Ok(Reply::OK),
        Err(error) => Err(format!("ERR the snapshot was not written: {error}").into()),
    }
}

fn bgsave(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    match &args[1..] {
        [] => {}
        [word] if word.eq_ignore_ascii_case(b"schedule") => {}
        [word]
            if word.eq_ignore_ascii_case(b"cancel")
                && cx.state.config.compat.is_in(versions::VALKEY) =>
        {
            return match cx.state.saves.cancel() {
                true => Ok(Reply::status("Background saving cancelled")),
                false => Err(NOT_RUNNING.into()),
            };
        }
        _ => return Err(SYNTAX.into()),
    }
    if cx.state.saves.is_running() {
        return Err(RUNNING.into());
    }
    match rdb::save_later(cx.state, cx.now_micros) {
        Ok(()) => Ok(Reply::status("Background saving started")),
        Err(error) => Err(format!("ERR the snapshot was not written: {error}").into()),
    }
}
