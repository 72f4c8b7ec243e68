//! Following and being followed: REPLICAOF, ROLE, and what replicas say: REPLCONF, PSYNC, SYNC.

use bytes::Bytes;

use crate::{
    client::Answers,
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    feed::{self, Hopeful},
    number::{int_arg, int_bytes, range_arg},
    registry::{Spec, flag::*, printable},
    replica::{self, Master},
    reply::Reply,
};

const OPERATE: u32 = ADMIN | NOSCRIPT | STALE | NO_ASYNC_LOADING;
const BECOME: u32 = ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI;
const TELL: u32 = ADMIN | NOSCRIPT | LOADING | STALE | ALLOW_BUSY;
const NO_KEYS: (i32, i32, i32) = (0, 0, 0);

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("psync", -3, BECOME, NO_KEYS, psync),
    Spec::new("replconf", -1, TELL, NO_KEYS, replconf),
    Spec::new("replicaof", 3, OPERATE, NO_KEYS, replicaof),
    Spec::new("role", 1, NOSCRIPT | LOADING | STALE | FAST, NO_KEYS, role),
    Spec::new("slaveof", 3, OPERATE, NO_KEYS, replicaof),
    Spec::new("sync", 1, BECOME, NO_KEYS, sync),
];

fn replicaof(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if cx.state.config.cluster {
        return Err("ERR REPLICAOF not allowed in cluster mode.".into());
    }
    if args[1].eq_ignore_ascii_case(b"no") && args[2].eq_ignore_ascii_case(b"one") {
        replica::end(cx.state);
        return Ok(Reply::OK);
    }
    let port = range_arg(&args[2], 0, 65_535, "ERR Invalid master port")?;
    let host = String::from_utf8_lossy(&args[1]).into_owned();
    // It is written into a line of a file.
    if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("ERR Invalid master host".into());
    }
    let master = Master::configured(host, port as u16);
    if let Some(replica) = &cx.state.replica
        && replica.master == master
    {
        return Ok(Reply::status("OK Already connected to specified master"));
    }
    let now = cx.now_micros;
    replica::follow(cx.state, master, now)
        .map_err(|error| format!("ERR cannot follow the server: {error}"))?;
    Ok(Reply::OK)
}

fn role(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let Some(replica) = &cx.state.replica else {
        let online = cx.state.feed.replicas().into_iter();
        let online = online.filter(|one| one.stage == feed::stream::Stage::Online);
        let replicas = online.map(|one| {
            Reply::Array(vec![
                Reply::bulk(one.host),
                Reply::Bulk(int_bytes(one.port.into())),
                Reply::Bulk(int_bytes(one.acked as i64)),
            ])
        });
        return Ok(Reply::Array(vec![
            Reply::bulk("master"),
            Reply::Int(cx.state.feed.offset() as i64),
            Reply::Array(replicas.collect()),
        ]));
    };
    let offset = replica.position.as_ref().map_or(-1, |at| at.offset as i64);
    Ok(Reply::Array(vec![
        Reply::bulk("slave"),
        Reply::Bulk(Bytes::from(replica.master.host.clone())),
        Reply::Int(replica.master.port.into()),
        Reply::bulk(replica.status.name()),
        Reply::Int(offset),
    ]))
}

fn psync(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let next = int_arg(&args[2])?;
    feed::attach(cx, Some((&args[1], next)))
}

fn sync(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    feed::attach(cx, None)
}

/// What a replica says of itself before it becomes one. Later its connection hears it.
fn replconf(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if args.len().is_multiple_of(2) {
        return Err(SYNTAX.into());
    }
    for pair in args[1..].chunks_exact(2) {
        let (name, value) = (pair[0].to_ascii_lowercase(), &pair[1]);
        match name.as_slice() {
            b"ack" | b"fack" | b"getack" => {
                // These are not answered.
                if cx.client.answers == Answers::On {
                    cx.client.answers = Answers::Skip;
                }
                return Ok(Reply::OK);
            }
            // Who replicates a Valkey says its own version; nothing here depends on it.
            b"version" => continue,
            _ => {}
        }
        let hopeful: &mut Hopeful = cx.client.hopeful.get_or_insert_default();
        match name.as_slice() {
            b"listening-port" => {
                let port = range_arg(
                    value,
                    0,
                    65_535,
                    "ERR value is not an integer or out of range",
                )?;
                hopeful.port = port as u16;
            }
            b"ip-address" if value.len() < 46 => {
                let host = String::from_utf8_lossy(value).into_owned();
                hopeful.host = (!host.is_empty()).then_some(host);
            }
            b"ip-address" => {
                let text = format!(
                    "ERR REPLCONF ip-address provided by replica instance is too long: {} bytes",
                    value.len()
                );
                return Err(text.into());
            }
            // What is not known is of no use here.
            b"capa" if value.eq_ignore_ascii_case(b"eof") => hopeful.eof = true,
            b"capa" if value.eq_ignore_ascii_case(b"psync2") => hopeful.psync2 = true,
            b"capa" => {}
            b"rdb-only" => hopeful.only_copy = int_arg(value)? == 1,
            _ => {
                let text = format!("ERR Unrecognized REPLCONF option: {}", printable(&pair[0]));
                return Err(Stop::from(text));
            }
        }
    }
    Ok(Reply::OK)
}
