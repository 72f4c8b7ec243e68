//! The Rust functions that `sandbox.lua` is made of.

use std::sync::Arc;

use mlua::{Lua, LuaString, MultiValue, Table, Value};
use redstart_lua::Natives;

use super::{
    argument::{argument_error, expected, type_name},
    chance, convert, library,
    raise::{Raise, position, text_error},
    runtime::SANDBOX,
    shared::Shared,
};

use crate::compat::{Compat, versions};

/// What Redis says to a script that would change a library.
const READ_ONLY: &str = "Attempt to modify a readonly table";

/// All that `sandbox.lua` is given.
pub(super) fn functions(
    lua: &Lua,
    natives: &Natives,
    shared: &Arc<Shared>,
    names: &convert::Names,
    compat: Compat,
) -> mlua::Result<Table> {
    let host = lua.create_table()?;
    host.set(
        "redis",
        library::redis(lua, natives, shared, names, compat)?,
    )?;
    host.set("valkey", compat.is_in(versions::VALKEY))?;
    chance::set_functions(lua, shared, &host)?;

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
            // Each value takes up a little of the room that mlua has for values: what is not
            // needed goes first.
            let mut args = args.into_vec();
            args.truncate(2);
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
            let mut args = args.into_vec();
            args.truncate(3);
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
        "raise_own",
        lua.create_function(
            |lua, (name, text, level): (String, LuaString, usize)| -> mlua::Result<()> {
                Err(own_error(lua, &name, &text.as_bytes(), level).into())
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
            of.stage.lock().failure = Some(text);
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
        let label = shared.stage.lock().label.clone();
        let label = label.text();
        text.push_str(&format!(" script: {label}, on {source}:{line}."));
    }
    Ok(text.replace(['\r', '\n'], " "))
}

/// How the errors of Lua's own string functions and `unpack` begin.
const OWN_ERRORS: &[&str] = &[
    "bad argument",
    "calling '?'",
    "invalid capture",
    "invalid pattern capture",
    "invalid replacement value",
    "malformed pattern",
    "missing '['",
    "pattern too complex",
    "too many captures",
    "too many results",
    "unfinished capture",
];

/// The error of one of Lua's own functions that the sandbox called for a script: with the function's name and the position of
/// the script. The error of a function that the script passed stays as it is.
fn own_error(lua: &Lua, name: &str, text: &[u8], level: usize) -> Raise {
    let mut begins = OWN_ERRORS.iter();
    if !begins.any(|begin| text.starts_with(begin.as_bytes())) {
        return Raise::Text(text.to_vec());
    }
    let text = String::from_utf8_lossy(text).replacen("'?'", &format!("'{name}'"), 1);
    Raise::Text(format!("{}{text}", position(lua, level)).into_bytes())
}
