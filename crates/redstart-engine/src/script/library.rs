//! The functions of `redis`.

use std::sync::Arc;

use mlua::{Lua, MultiValue, Table, Value};
use redstart_lua::Natives;

use super::{
    command::arguments,
    convert, function, hex,
    raise::Raise,
    running::{CALL, PCALL},
    shared::Shared,
};
use crate::{
    compat::{Compat, versions},
    registry,
    reply::Protocol,
};

const LEVELS: [(&str, i64); 4] = [
    ("LOG_DEBUG", 0),
    ("LOG_VERBOSE", 1),
    ("LOG_NOTICE", 2),
    ("LOG_WARNING", 3),
];

/// An error as Redis raises most of its own.
pub(super) fn reply_error(text: &str) -> mlua::Error {
    Raise::Reply {
        text: format!("ERR {text}").into_bytes(),
        counted: false,
    }
    .into()
}

/// The table `redis`.
pub(super) fn redis(
    lua: &Lua,
    natives: &Natives,
    shared: &Arc<Shared>,
    names: &convert::Names,
    compat: Compat,
) -> mlua::Result<Table> {
    let redis = lua.create_table()?;

    redis.set("call", natives.function(lua, CALL)?)?;
    redis.set("pcall", natives.function(lua, PCALL)?)?;

    let known = names.clone();
    redis.set(
        "error_reply",
        lua.create_function(move |lua, args: MultiValue| {
            let text = match (args.len(), args.front()) {
                (1, Some(Value::String(text))) => {
                    convert::error_text(convert::c_string(&text.as_bytes()))
                }
                _ => b"ERR wrong number or type of arguments".to_vec(),
            };
            convert::error_table(lua, &known, &text, false)
        })?,
    )?;
    let known = names.clone();
    redis.set(
        "status_reply",
        lua.create_function(move |lua, args: MultiValue| {
            if args.len() == 1
                && let Some(Value::String(text)) = args.front()
            {
                let table = lua.create_table_with_capacity(0, 1)?;
                table.raw_set(&known.ok, text)?;
                return Ok(Value::Table(table));
            }
            let text = b"ERR wrong number or type of arguments";
            convert::error_table(lua, &known, text, false)
        })?,
    )?;
    redis.set(
        "sha1hex",
        lua.create_function(|lua, args: MultiValue| {
            if args.len() != 1 {
                return Err(reply_error("wrong number of arguments"));
            }
            let text = match args.front() {
                Some(value @ (Value::String(_) | Value::Integer(_) | Value::Number(_))) => {
                    lua.coerce_string(value.clone())?
                }
                _ => None,
            };
            let digest = match text {
                Some(text) => super::digest(&text.as_bytes()),
                None => super::digest(b""),
            };
            lua.create_string(hex(&digest))
        })?,
    )?;
    redis.set("log", lua.create_function(log)?)?;

    let of = shared.clone();
    redis.set(
        "setresp",
        lua.create_function(move |_, args: MultiValue| {
            if args.len() != 1 {
                return Err(reply_error("redis.setresp() requires one argument."));
            }
            let protocol = match args.front().and_then(convert::number_of) {
                Some(2.0) => Protocol::Resp2,
                Some(3.0) => Protocol::Resp3,
                _ => return Err(reply_error("RESP version must be 2 or 3.")),
            };
            of.stage.lock().client.protocol = protocol;
            Ok(())
        })?,
    )?;
    redis.set(
        "set_repl",
        lua.create_function(|_, args: MultiValue| {
            if args.len() != 1 {
                return Err(reply_error("redis.set_repl() requires two arguments."));
            }
            match args.front().and_then(convert::number_of) {
                Some(flags) if (0.0..=3.0).contains(&flags) => Ok(()),
                _ => Err(reply_error(
                    "Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.",
                )),
            }
        })?,
    )?;
    redis.set(
        "replicate_commands",
        lua.create_function(|_, _: MultiValue| Ok(true))?,
    )?;
    redis.set(
        "breakpoint",
        lua.create_function(|_, _: MultiValue| Ok(false))?,
    )?;
    redis.set("debug", lua.create_function(|_, _: MultiValue| Ok(()))?)?;
    let of = shared.clone();
    redis.set(
        "acl_check_cmd",
        lua.create_function(move |_, args: MultiValue| {
            let args = match arguments(&args) {
                Ok(args) => args,
                Err(text) => return Err(reply_error(text)),
            };
            let spec = registry::lookup(&args).filter(|spec| spec.exists_in(compat));
            let Some(spec) = spec else {
                return Err(reply_error(
                    "Invalid command passed to redis.acl_check_cmd()",
                ));
            };
            let stage = of.stage.lock();
            Ok(stage.client.account.may_call(spec, &args))
        })?,
    )?;

    for (name, level) in LEVELS {
        redis.set(name, level)?;
    }
    for (name, value) in [
        ("REPL_NONE", 0),
        ("REPL_AOF", 1),
        ("REPL_SLAVE", 2),
        ("REPL_REPLICA", 2),
        ("REPL_ALL", 3),
    ] {
        redis.set(name, value)?;
    }
    set_versions(&redis, compat)?;
    Ok(redis)
}

/// The table `redis` as the code of a library sees it while it is loaded.
pub(super) fn redis_at_load(
    lua: &Lua,
    shared: &Arc<Shared>,
    callbacks: &Table,
    compat: Compat,
) -> mlua::Result<Table> {
    let redis = lua.create_table()?;
    let of = shared.clone();
    let callbacks = callbacks.clone();
    redis.set(
        "register_function",
        lua.create_function(move |_, args: MultiValue| {
            function::register(&mut of.loading.lock(), &callbacks, &args)
                .map_err(|text| reply_error(&text))
        })?,
    )?;
    redis.set("log", lua.create_function(log)?)?;
    for (name, level) in LEVELS {
        redis.set(name, level)?;
    }
    set_versions(&redis, compat)?;
    Ok(redis)
}

fn set_versions(redis: &Table, compat: Compat) -> mlua::Result<()> {
    redis.set("REDIS_VERSION", compat.redis_version())?;
    redis.set("REDIS_VERSION_NUM", compat.redis_version_number())?;
    if compat.is_in(versions::VALKEY) {
        redis.set("SERVER_NAME", compat.server())?;
        redis.set("VALKEY_VERSION", compat.version())?;
        redis.set("VALKEY_VERSION_NUM", compat.version_number())?;
    }
    Ok(())
}

fn log(lua: &Lua, args: MultiValue) -> mlua::Result<()> {
    if args.len() < 2 {
        return Err(reply_error("redis.log() requires two arguments or more."));
    }
    let Some(level) = args.front().and_then(convert::number_of) else {
        return Err(reply_error("First argument must be a number (log level)."));
    };
    let mut text = String::new();
    for value in args.iter().skip(1) {
        if let Some(part) = lua.coerce_string(value.clone()).ok().flatten() {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(&part.to_string_lossy());
        }
    }
    match level as i64 {
        0 => tracing::debug!("script: {text}"),
        1 => tracing::debug!("script: {text}"),
        2 => tracing::info!("script: {text}"),
        3 => tracing::warn!("script: {text}"),
        _ => return Err(reply_error("Invalid debug level.")),
    }
    Ok(())
}
