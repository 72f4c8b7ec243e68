//! The functions of `redis` and `math`, and those that the sandbox is made of.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use mlua::{Lua, MultiValue, Table, Value};

use super::{
    Raise, SANDBOX, Shared, Slot, Unlimited, argument_error, convert, expected, hex,
    number_argument, position, text_error, type_name,
};
use crate::{
    context::{Ctx, Origin},
    dispatch,
    error::{LOG_FAILED, OUT_OF_MEMORY, Stop},
    number,
    registry::{self, flag},
    reply::{Protocol, Reply},
    slot,
};

/// The state of drand48 before anybody seeds it.
pub(super) const UNSEEDED: u64 = 0x1234_ABCD_330E;

/// What Redis says to a script that would change a library.
const READ_ONLY: &str = "Attempt to modify a readonly table";

const VERSION: &str = "7.0.15";
const VERSION_NUMBER: i64 = 0x0007_000F;

/// An error in the way Redis raises most of its own.
fn reply_error(text: &str) -> mlua::Error {
    Raise::Reply {
        text: format!("ERR {text}").into_bytes(),
        counted: false,
    }
    .into()
}

/// All that `sandbox.lua` is given.
pub(super) fn functions(
    lua: &Lua,
    shared: &Arc<Shared>,
    names: &convert::Names,
) -> mlua::Result<Table> {
    let host = lua.create_table()?;
    host.set("redis", redis(lua, shared, names)?)?;

    host.set(
        "missing",
        lua.create_function(|lua, (_, name): (Value, Value)| -> mlua::Result<()> {
            let mut text = b"Script attempted to access nonexistent global variable '".to_vec();
            text.extend(text_of(&name)?);
            text.push(b'\'');
            Err(text_error(lua, text))
        })?,
    )?;
    host.set(
        "refuse",
        lua.create_function(|lua, _: MultiValue| -> mlua::Result<()> {
            Err(text_error(lua, READ_ONLY))
        })?,
    )?;
    let protected = lua.create_table()?;
    host.set("protected", &protected)?;
    let fronts = protected.clone();
    host.set(
        "setmetatable",
        lua.create_function(move |lua, args: MultiValue| {
            let args = args.into_vec();
            let Some(Value::Table(table)) = args.first() else {
                return Err(expected(lua, 1, "table", args.first()));
            };
            let metatable = match args.get(1) {
                Some(Value::Nil) => None,
                Some(Value::Table(metatable)) => Some(metatable.clone()),
                _ => return Err(argument_error(lua, 2, "nil or table expected")),
            };
            refuse_front(&fronts, table)?;
            if let Some(old) = table.metatable()
                && !matches!(old.raw_get::<Value>("__metatable")?, Value::Nil)
            {
                return Err(text_error(lua, "cannot change a protected metatable"));
            }
            table.set_metatable(metatable)?;
            Ok(table.clone())
        })?,
    )?;
    let fronts = protected;
    host.set(
        "rawset",
        lua.create_function(move |lua, args: MultiValue| {
            let args = args.into_vec();
            let Some(Value::Table(table)) = args.first() else {
                return Err(expected(lua, 1, "table", args.first()));
            };
            for number in [2, 3] {
                if args.len() < number {
                    return Err(argument_error(lua, number, "value expected"));
                }
            }
            refuse_front(&fronts, table)?;
            table.raw_set(&args[1], &args[2])?;
            Ok(table.clone())
        })?,
    )?;
    host.set(
        "not_a_table",
        lua.create_function(
            |lua, (name, value, level): (String, Value, Option<usize>)| -> mlua::Result<()> {
                let text = format!(
                    "{}bad argument #1 to '{name}' (table expected, got {})",
                    position(lua, level.unwrap_or(2)),
                    type_name(Some(&value))
                );
                Err(Raise::Text(text.into_bytes()).into())
            },
        )?,
    )?;
    host.set(
        "refuse_at",
        lua.create_function(|lua, level: usize| -> mlua::Result<()> {
            let text = format!("{}{READ_ONLY}", position(lua, level));
            Err(Raise::Text(text.into_bytes()).into())
        })?,
    )?;

    let of = shared.clone();
    let known = names.clone();
    host.set(
        "unwrap",
        lua.create_function(move |lua, value: Value| {
            of.check_killed()?;
            object_of(lua, &known, value)
        })?,
    )?;
    let of = shared.clone();
    let known = names.clone();
    host.set(
        "unwrap_text",
        lua.create_function(move |lua, value: Value| {
            of.check_killed()?;
            let value = object_of(lua, &known, value)?;
            if let Value::Table(table) = &value {
                let text: Value = table.raw_get(&known.err)?;
                if matches!(
                    text,
                    Value::String(_) | Value::Integer(_) | Value::Number(_)
                ) {
                    return Ok(text);
                }
            }
            Ok(value)
        })?,
    )?;
    let of = shared.clone();
    let known = names.clone();
    host.set(
        "handler",
        lua.create_function(move |lua, value: Value| {
            let text = failure_text(lua, &of, &known, value)?;
            of.slot.lock().failure = Some(text);
            Ok(())
        })?,
    )?;

    let of = shared.clone();
    host.set(
        "random",
        lua.create_function(move |lua, args: MultiValue| {
            let args = args.into_vec();
            let r = f64::from(draw(&of) % 0x7FFF_FFFF) / f64::from(0x7FFF_FFFF_u32);
            match args.len() {
                0 => Ok(r),
                1 => {
                    let upper = number_argument(lua, &args, 1)? as i32;
                    if upper < 1 {
                        return Err(argument_error(lua, 1, "interval is empty"));
                    }
                    Ok((r * f64::from(upper)).floor() + 1.0)
                }
                2 => {
                    let lower = number_argument(lua, &args, 1)? as i32;
                    let upper = number_argument(lua, &args, 2)? as i32;
                    if lower > upper {
                        return Err(argument_error(lua, 2, "interval is empty"));
                    }
                    let span = upper.wrapping_sub(lower).wrapping_add(1);
                    Ok((r * f64::from(span)).floor() + f64::from(lower))
                }
                _ => Err(text_error(lua, "wrong number of arguments")),
            }
        })?,
    )?;
    let of = shared.clone();
    host.set(
        "randomseed",
        lua.create_function(move |lua, args: MultiValue| {
            let args = args.into_vec();
            let seed = number_argument(lua, &args, 1)? as i64 as i32;
            let state = (u64::from(seed as u32) << 16) + 0x330E;
            of.chance.store(state & 0xFFFF_FFFF_FFFF, Ordering::Relaxed);
            Ok(())
        })?,
    )?;
    Ok(host)
}

/// Refuses to change a library's table.
fn refuse_front(fronts: &Table, table: &Table) -> mlua::Result<()> {
    if matches!(fronts.raw_get::<Value>(table)?, Value::Nil) {
        Ok(())
    } else {
        Err(Raise::Text(READ_ONLY.into()).into())
    }
}

/// The next number of drand48's sequence, below 2^31.
fn draw(shared: &Shared) -> u32 {
    let state = shared.chance.load(Ordering::Relaxed);
    let next = state.wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB) & 0xFFFF_FFFF_FFFF;
    shared.chance.store(next, Ordering::Relaxed);
    (next >> 17) as u32
}

/// An error object as scripts see it: what Rust raised becomes a string or a table.
fn object_of(lua: &Lua, names: &convert::Names, value: Value) -> mlua::Result<Value> {
    let Value::Error(error) = value else {
        return Ok(value);
    };
    match error.downcast_ref::<Raise>() {
        Some(Raise::Text(text)) => Ok(Value::String(lua.create_string(text)?)),
        Some(Raise::Reply { text, counted }) => convert::error_table(lua, names, text, *counted),
        Some(Raise::Killed(text)) => Err(Raise::Killed(text).into()),
        None => Ok(Value::String(lua.create_string(error.to_string())?)),
    }
}

/// What `tostring` makes of a value.
fn text_of(value: &Value) -> mlua::Result<Vec<u8>> {
    Ok(match value {
        Value::String(text) => text.as_bytes().to_vec(),
        other => other.to_string()?.into_bytes(),
    })
}

/// The text of the reply for an error that ended the script; runs on the stack of the error.
fn failure_text(
    lua: &Lua,
    shared: &Shared,
    names: &convert::Names,
    value: Value,
) -> mlua::Result<String> {
    let (coded, text) = match &value {
        Value::Error(error) => match error.downcast_ref::<Raise>() {
            Some(Raise::Text(text)) => (false, text.clone()),
            Some(Raise::Reply { text, .. }) => (true, text.clone()),
            Some(Raise::Killed(text)) => (false, text.as_bytes().to_vec()),
            None => (false, error.to_string().into_bytes()),
        },
        Value::Table(table) => match table.raw_get::<Value>(&names.err)? {
            Value::Nil => (false, b"unknown error".to_vec()),
            text => (true, text_of(&text)?),
        },
        other => (false, text_of(other)?),
    };
    let mut text = String::from_utf8_lossy(convert::c_string(&text)).into_owned();
    if !coded {
        text.insert_str(0, "ERR ");
    }
    let place = |level| {
        lua.inspect_stack(level, |frame| {
            let line = frame.current_line().map_or(-1, |line| line as i64);
            let source = frame.source();
            (
                source.what == "C",
                source.source.as_deref().unwrap_or("?").to_owned(),
                line,
            )
        })
    };
    // The error's own frame is the third; where that is a C function, its caller is meant. What the
    // sandbox does on a script's behalf is passed over.
    let mut level = 2;
    let place = loop {
        match place(level) {
            Some((true, ..)) if level == 2 => level += 1,
            Some((_, source, _)) if source == SANDBOX => level += 1,
            other => break other,
        }
    };
    if let Some((_, source, line)) = place {
        let sha = hex(&shared.slot.lock().digest);
        text.push_str(&format!(" script: {sha}, on {source}:{line}."));
    }
    Ok(text.replace(['\r', '\n'], " "))
}

fn redis(lua: &Lua, shared: &Arc<Shared>, names: &convert::Names) -> mlua::Result<Table> {
    let redis = lua.create_table()?;

    let of = shared.clone();
    let known = names.clone();
    let call =
        lua.create_function(
            move |lua, args: MultiValue| match command(lua, &of, &args)? {
                Ok((Reply::Error(text), _)) => Err(Raise::Reply {
                    text: convert::error_text(text.as_bytes()),
                    counted: true,
                }
                .into()),
                Ok((reply, protocol)) => {
                    let _unlimited = Unlimited::new(lua)?;
                    convert::to_lua(lua, &known, reply, protocol)
                }
                Err(Refused { text, counted }) => Err(Raise::Reply { text, counted }.into()),
            },
        )?;
    redis.set("call", call)?;

    let of = shared.clone();
    let known = names.clone();
    let pcall =
        lua.create_function(
            move |lua, args: MultiValue| match command(lua, &of, &args)? {
                Ok((reply, protocol)) => {
                    let _unlimited = Unlimited::new(lua)?;
                    convert::to_lua(lua, &known, reply, protocol)
                }
                Err(Refused { text, counted }) => convert::error_table(lua, &known, &text, counted),
            },
        )?;
    redis.set("pcall", pcall)?;

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
            of.slot.lock().client.protocol = protocol;
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
    redis.set(
        "acl_check_cmd",
        lua.create_function(|lua, args: MultiValue| {
            let args = match arguments(lua, &args) {
                Ok(args) => args,
                Err(text) => return Err(reply_error(text)),
            };
            if registry::command(&args[0]).is_none() {
                return Err(reply_error(
                    "Invalid command passed to redis.acl_check_cmd()",
                ));
            }
            Ok(true)
        })?,
    )?;

    for (name, value) in [
        ("LOG_DEBUG", 0),
        ("LOG_VERBOSE", 1),
        ("LOG_NOTICE", 2),
        ("LOG_WARNING", 3),
        ("REPL_NONE", 0),
        ("REPL_AOF", 1),
        ("REPL_SLAVE", 2),
        ("REPL_REPLICA", 2),
        ("REPL_ALL", 3),
        ("REDIS_VERSION_NUM", VERSION_NUMBER),
    ] {
        redis.set(name, value)?;
    }
    redis.set("REDIS_VERSION", VERSION)?;
    Ok(redis)
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

/// The arguments of a command as Lua passed them.
fn arguments(lua: &Lua, args: &MultiValue) -> Result<Vec<Bytes>, &'static str> {
    if args.is_empty() {
        return Err("Please specify at least one argument for this redis lib call");
    }
    let _ = lua;
    let mut list = Vec::with_capacity(args.len());
    for value in args {
        list.push(match value {
            Value::String(text) => Bytes::copy_from_slice(&text.as_bytes()),
            Value::Integer(value) => number::int_bytes(*value),
            Value::Number(value) => number::format_double(*value),
            _ => return Err("Lua redis lib command arguments must be strings or integers"),
        });
    }
    Ok(list)
}

/// What a command was refused with before it ran.
struct Refused {
    text: Vec<u8>,
    counted: bool,
}

impl Refused {
    fn new(text: &str) -> Refused {
        Refused {
            text: format!("ERR {text}").into_bytes(),
            counted: true,
        }
    }
}

/// Runs the command that a script calls; its reply is in the shape of the protocol beside it.
fn command(
    lua: &Lua,
    shared: &Shared,
    args: &MultiValue,
) -> mlua::Result<Result<(Reply, Protocol), Refused>> {
    let args = match arguments(lua, args) {
        Ok(args) => args,
        Err(text) => {
            return Ok(Err(Refused {
                text: format!("ERR {text}").into_bytes(),
                counted: false,
            }));
        }
    };
    let mut slot = shared.slot.lock();
    if !slot.running {
        return Err(reply_error(
            "redis.call/pcall can only be called inside a script invocation",
        ));
    }
    let protocol = slot.client.protocol;
    Ok(execute(shared, &mut slot, &args).map(|reply| (reply, protocol)))
}

fn execute(shared: &Shared, slot: &mut Slot, args: &[Bytes]) -> Result<Reply, Refused> {
    let spec = match registry::resolve(args) {
        Ok(spec) => spec,
        Err(_) => {
            let known = registry::command(&args[0]).is_some_and(|spec| {
                spec.subcommands.is_empty()
                    || args.len() < 2
                    || spec
                        .subcommands
                        .iter()
                        .any(|sub| sub.name.as_bytes().eq_ignore_ascii_case(&args[1]))
            });
            return Err(Refused::new(if known {
                "Wrong number of args calling Redis command from script"
            } else {
                "Unknown Redis command called from script"
            }));
        }
    };
    if spec.is(flag::NOSCRIPT) {
        return Err(Refused::new(
            "This Redis command is not allowed from script",
        ));
    }
    if spec.is(flag::WRITE) {
        if slot.read_only {
            return Err(Refused::new(
                "Write commands are not allowed from read-only scripts.",
            ));
        }
        // What has begun to write goes on, even if that takes memory.
        let wrote = shared.watchdog.wrote.load(Ordering::Relaxed);
        if slot.state.out_of_memory && spec.is(flag::DENYOOM) {
            if !wrote {
                return Err(Refused {
                    text: OUT_OF_MEMORY.into(),
                    counted: true,
                });
            }
            slot.state.out_of_memory = false;
        }
        if !wrote {
            if slot.state.effects.is_failing() {
                return Err(Refused {
                    text: LOG_FAILED.into(),
                    counted: true,
                });
            }
            shared.watchdog.wrote.store(true, Ordering::Release);
        }
    }
    if let Some(declared) = &slot.declared {
        check_declared(declared, spec, args)?;
    }
    let protocol = slot.client.protocol;
    let mut cx = Ctx::new(
        &mut slot.state,
        &mut slot.client,
        slot.now_micros,
        Origin::Script,
    );
    Ok(match cx.call(spec, args) {
        Ok(reply) => dispatch::shape(reply, protocol),
        Err(Stop::Error(text)) => Reply::Error(text.into_owned()),
        Err(Stop::Block(wait)) => dispatch::shape(wait.on_timeout, protocol),
    })
}

/// In cluster-strict mode a script may touch the keys it declared, and channels of their slot.
fn check_declared(
    declared: &[Bytes],
    spec: &registry::Spec,
    args: &[Bytes],
) -> Result<(), Refused> {
    let channels = spec.is(flag::PUBSUB);
    let mut undeclared = None;
    spec.each_key(args, |at| {
        let key = &args[at];
        let fine = if channels {
            declared
                .first()
                .is_none_or(|first| slot::of(first) == slot::of(key))
        } else {
            declared.contains(key)
        };
        if !fine {
            undeclared = Some(at);
        }
    });
    match undeclared {
        None => Ok(()),
        Some(_) if channels => Err(Refused::new(
            "Script attempted to access keys that do not hash to the same slot",
        )),
        Some(_) => Err(Refused::new(
            "Script attempted to access a key that is not among its KEYS",
        )),
    }
}
