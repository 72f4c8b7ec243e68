//! The server itself.

use bytes::Bytes;

use crate::{
    context::Ctx,
    error::CommandResult,
    registry::{Spec, flag::*},
    reply::Reply,
};

use super::{config::CONFIG_COMMANDS, introspection};

const NO_KEYS: (i32, i32, i32) = (0, 0, 0);

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("dbsize", 1, READONLY | FAST, NO_KEYS, dbsize),
    Spec::new("info", -1, LOADING | STALE, NO_KEYS, super::info::info),
    Spec::new("lolwut", -1, READONLY | FAST, NO_KEYS, lolwut),
    Spec::new(
        "bgrewriteaof",
        1,
        ADMIN | NOSCRIPT | NO_ASYNC_LOADING,
        NO_KEYS,
        bgrewriteaof,
    ),
    Spec::container("config", -2, 0, CONFIG_COMMANDS),
    introspection::COMMAND,
];

fn dbsize(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(cx.db().len().into())
}

fn lolwut(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(Reply::Verbatim {
        format: *b"txt",
        text: format!("Redis ver. {}\n", cx.state.config.compat.redis_version()).into(),
    })
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
