//! Following another server: REPLICAOF and ROLE.

use bytes::Bytes;

use crate::{
    context::Ctx,
    error::CommandResult,
    number::range_arg,
    registry::{Spec, flag::*},
    replica::{self, Master},
    reply::Reply,
};

const OPERATE: u32 = ADMIN | NOSCRIPT | STALE | NO_ASYNC_LOADING;

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("replicaof", 3, OPERATE, (0, 0, 0), replicaof),
    Spec::new(
        "role",
        1,
        NOSCRIPT | LOADING | STALE | FAST,
        (0, 0, 0),
        role,
    ),
    Spec::new("slaveof", 3, OPERATE, (0, 0, 0), replicaof),
];

fn replicaof(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if args[1].eq_ignore_ascii_case(b"no") && args[2].eq_ignore_ascii_case(b"one") {
        cx.state.replica = None;
        return Ok(Reply::OK);
    }
    let port = range_arg(&args[2], 0, 65_535, "ERR Invalid master port")?;
    let host = String::from_utf8_lossy(&args[1]).into_owned();
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
        return Ok(Reply::Array(vec![
            Reply::bulk("master"),
            Reply::ZERO,
            Reply::empty(),
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
