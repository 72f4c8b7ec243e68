//! The arguments of Rust functions that Lua calls, read and refused as by `luaL_check…`.

use mlua::{Lua, LuaString, Value};

use super::raise::text_error;

/// A complaint about an argument of the running function, as `luaL_argerror` raises it.
pub(super) fn argument_error(lua: &Lua, number: usize, text: &str) -> mlua::Error {
    let (name, method) = lua
        .inspect_stack(0, |frame| {
            let names = frame.names();
            (
                names
                    .name
                    .map_or_else(|| "?".to_owned(), |n| n.into_owned()),
                names.name_what.is_some_and(|what| what == "method"),
            )
        })
        .unwrap_or_else(|| ("?".to_owned(), false));
    if method && number == 1 {
        return text_error(lua, format!("calling '{name}' on bad self ({text})"));
    }
    let number = number - usize::from(method);
    text_error(lua, format!("bad argument #{number} to '{name}' ({text})"))
}

/// What Lua calls the type of an argument in complaints.
pub(super) fn type_name(value: Option<&Value>) -> &'static str {
    match value {
        None => "no value",
        Some(Value::Integer(_) | Value::Number(_)) => "number",
        Some(Value::LightUserData(_)) => "userdata",
        Some(Value::Error(_)) => "userdata",
        Some(other) => other.type_name(),
    }
}

pub(super) fn expected(lua: &Lua, number: usize, what: &str, value: Option<&Value>) -> mlua::Error {
    let text = format!("{what} expected, got {}", type_name(value));
    argument_error(lua, number, &text)
}

/// A number argument (counted from 1), read as `luaL_checknumber` reads it.
pub(super) fn number_argument(lua: &Lua, args: &[Value], number: usize) -> mlua::Result<f64> {
    match args.get(number - 1) {
        Some(Value::Integer(value)) => Ok(*value as f64),
        Some(Value::Number(value)) => Ok(*value),
        Some(value @ Value::String(_)) => match lua.coerce_number(value.clone())? {
            Some(value) => Ok(value),
            None => Err(expected(lua, number, "number", Some(value))),
        },
        other => Err(expected(lua, number, "number", other)),
    }
}

/// A string argument (counted from 1), read as `luaL_checklstring` reads it.
pub(super) fn string_argument(lua: &Lua, args: &[Value], number: usize) -> mlua::Result<LuaString> {
    match args.get(number - 1) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(value @ (Value::Integer(_) | Value::Number(_))) => lua
            .coerce_string(value.clone())?
            .ok_or_else(|| expected(lua, number, "string", Some(value))),
        other => Err(expected(lua, number, "string", other)),
    }
}
