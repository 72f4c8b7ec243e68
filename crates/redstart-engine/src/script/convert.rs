//! Replies to Lua values and back, by Redis's rules.

use bytes::Bytes;
use mlua::{Lua, LuaString, MultiValue, Table, Value};

use super::raise::Raise;
use crate::{
    number,
    reply::{Protocol, Reply},
};

/// How deeply a script's reply may be nested.
const MAX_DEPTH: usize = 1000;
const TOO_LARGE: &str = "the reply would take more memory than a script may use";

/// The field names of reply tables, made once.
#[derive(Clone)]
pub(super) struct Names {
    pub(super) err: LuaString,
    pub(super) ok: LuaString,
    double: LuaString,
    map: LuaString,
    set: LuaString,
    big_number: LuaString,
    verbatim_string: LuaString,
    string: LuaString,
    format: LuaString,
    ignore: LuaString,
}

impl Names {
    pub(super) fn new(lua: &Lua) -> mlua::Result<Names> {
        Ok(Names {
            err: lua.create_string("err")?,
            ok: lua.create_string("ok")?,
            double: lua.create_string("double")?,
            map: lua.create_string("map")?,
            set: lua.create_string("set")?,
            big_number: lua.create_string("big_number")?,
            verbatim_string: lua.create_string("verbatim_string")?,
            string: lua.create_string("string")?,
            format: lua.create_string("format")?,
            ignore: lua.create_string("ignore_error_stats_update")?,
        })
    }
}

/// `{err = text}`.
pub(super) fn error_table(
    lua: &Lua,
    names: &Names,
    text: &[u8],
    counted: bool,
) -> mlua::Result<Value> {
    let table = lua.create_table_with_capacity(0, 1 + usize::from(counted))?;
    table.raw_set(&names.err, lua.create_string(text)?)?;
    if counted {
        table.raw_set(&names.ignore, true)?;
    }
    Ok(Value::Table(table))
}

/// An error's text as scripts see it: with a code, without a line break at its end.
pub(super) fn error_text(text: &[u8]) -> Vec<u8> {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let (code, message) = match memchr::memchr(b' ', text) {
        Some(blank) => (&text[..blank], &text[blank + 1..]),
        None => (&b"ERR"[..], text),
    };
    let is_break = |byte: &&u8| matches!(byte, b'\r' | b'\n');
    let start = message.iter().take_while(is_break).count();
    let end = message[start..].iter().rev().take_while(is_break).count();
    let message = &message[start..message.len() - end];
    [code, b" ", message].concat()
}

/// What `lua_tostring` makes of a string or a number; `None` for anything else.
pub(super) fn text_of_value(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(_) | Value::Number(_) => value.to_string().ok().map(String::into_bytes),
        _ => None,
    }
}

/// Up to a NUL, where C's strings end.
pub(super) fn c_string(text: &[u8]) -> &[u8] {
    &text[..memchr::memchr(0, text).unwrap_or(text.len())]
}

/// A command's reply, already in the shape of the script's protocol, as a Lua value.
pub(super) fn to_lua(
    lua: &Lua,
    names: &Names,
    reply: Reply,
    protocol: Protocol,
) -> mlua::Result<Value> {
    Ok(match reply {
        Reply::Int(value) => Value::Number(value as f64),
        Reply::Bulk(data) => Value::String(lua.create_string(&data)?),
        Reply::Nil | Reply::NilArray if protocol == Protocol::Resp3 => Value::Nil,
        Reply::Nil | Reply::NilArray => Value::Boolean(false),
        Reply::Status(text) => {
            let table = lua.create_table_with_capacity(0, 1)?;
            table.raw_set(&names.ok, lua.create_string(text.as_bytes())?)?;
            Value::Table(table)
        }
        Reply::Error(text) => error_table(lua, names, &error_text(text.as_bytes()), true)?,
        Reply::Array(items) | Reply::Push(items) => {
            Value::Table(sequence(lua, names, items, protocol)?)
        }
        Reply::Map(pairs) => {
            let map = lua.create_table_with_capacity(0, pairs.len())?;
            for (key, value) in pairs {
                // Never nil: no command answers with a map that has such a key.
                map.raw_set(
                    to_lua(lua, names, key, protocol)?,
                    to_lua(lua, names, value, protocol)?,
                )?;
            }
            field(lua, &names.map, Value::Table(map))?
        }
        Reply::Set(items) => {
            let set = lua.create_table_with_capacity(0, items.len())?;
            for item in items {
                set.raw_set(to_lua(lua, names, item, protocol)?, true)?;
            }
            field(lua, &names.set, Value::Table(set))?
        }
        Reply::Double(value) => field(lua, &names.double, Value::Number(value))?,
        Reply::Bool(value) => Value::Boolean(value),
        Reply::BigNumber(digits) => {
            let digits = Value::String(lua.create_string(digits)?);
            field(lua, &names.big_number, digits)?
        }
        Reply::Verbatim { format, text } => {
            let inner = lua.create_table_with_capacity(0, 2)?;
            inner.raw_set(&names.string, lua.create_string(&text)?)?;
            inner.raw_set(&names.format, lua.create_string(format)?)?;
            field(lua, &names.verbatim_string, Value::Table(inner))?
        }
    })
}

fn field(lua: &Lua, name: &LuaString, value: Value) -> mlua::Result<Value> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set(name, value)?;
    Ok(Value::Table(table))
}

fn sequence(
    lua: &Lua,
    names: &Names,
    items: Vec<Reply>,
    protocol: Protocol,
) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(items.len(), 0)?;
    for (at, item) in items.into_iter().enumerate() {
        table.raw_set(at + 1, to_lua(lua, names, item, protocol)?)?;
    }
    Ok(table)
}

/// Makes a reply of what a script returned.
pub(super) struct Converter<'a> {
    pub(super) names: &'a Names,
    /// What the script chose by `redis.setresp`.
    pub(super) protocol: Protocol,
    /// How many bytes the reply may still take: a table can hold itself more than once.
    pub(super) left: usize,
}

impl Converter<'_> {
    pub(super) fn value(&mut self, value: Value) -> mlua::Result<Reply> {
        self.convert(value, 0)
    }

    /// The items of an array, up to the first nil.
    pub(super) fn array(&mut self, items: MultiValue) -> mlua::Result<Reply> {
        let mut replies = Vec::with_capacity(items.len());
        for item in items {
            if item.is_nil() {
                break;
            }
            replies.push(self.convert(item, 1)?);
        }
        Ok(Reply::Array(replies))
    }

    fn take(&mut self, bytes: usize) -> mlua::Result<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => return Err(Raise::Text(TOO_LARGE.into()).into()),
        }
        Ok(())
    }

    fn bytes(&mut self, text: &LuaString) -> mlua::Result<Bytes> {
        let text = text.as_bytes();
        self.take(text.len())?;
        Ok(Bytes::copy_from_slice(&text))
    }

    /// Text for one line of the protocol: up to a NUL, as C ends strings, without line breaks.
    fn line(&mut self, text: &LuaString) -> mlua::Result<String> {
        let text = text.as_bytes();
        self.take(text.len())?;
        Ok(String::from_utf8_lossy(c_string(&text)).replace(['\r', '\n'], " "))
    }

    fn convert(&mut self, value: Value, depth: usize) -> mlua::Result<Reply> {
        self.take(size_of::<Reply>())?;
        if depth > MAX_DEPTH {
            return Ok(Reply::Error("ERR reached lua stack limit".into()));
        }
        Ok(match value {
            Value::String(text) => Reply::Bulk(self.bytes(&text)?),
            Value::Integer(value) => Reply::Int(value),
            Value::Number(value) => Reply::Int(number::truncate(value)),
            Value::Boolean(value) if self.protocol == Protocol::Resp3 => Reply::Bool(value),
            Value::Boolean(true) => Reply::Int(1),
            Value::Boolean(false) => Reply::Nil,
            Value::Table(table) => return self.table(&table, depth),
            _ => Reply::Nil,
        })
    }

    fn table(&mut self, table: &Table, depth: usize) -> mlua::Result<Reply> {
        let names = self.names;
        if let Value::String(text) = table.raw_get(&names.err)? {
            return Ok(Reply::Error(self.line(&text)?));
        }
        if let Value::String(text) = table.raw_get(&names.ok)? {
            return Ok(Reply::Status(self.line(&text)?.into()));
        }
        if let Some(value) = number_of(&table.raw_get(&names.double)?) {
            return Ok(Reply::Double(value));
        }
        if let Value::Table(map) = table.raw_get(&names.map)? {
            let mut pairs = Vec::new();
            for pair in map.pairs::<Value, Value>() {
                let (key, value) = pair?;
                pairs.push((
                    self.convert(key, depth + 1)?,
                    self.convert(value, depth + 1)?,
                ));
            }
            return Ok(Reply::Map(pairs));
        }
        if let Value::Table(set) = table.raw_get(&names.set)? {
            let mut items = Vec::new();
            for pair in set.pairs::<Value, Value>() {
                items.push(self.convert(pair?.0, depth + 1)?);
            }
            return Ok(Reply::Set(items));
        }
        if let Value::String(digits) = table.raw_get(&names.big_number)? {
            return Ok(Reply::BigNumber(self.line(&digits)?));
        }
        if let Value::Table(inner) = table.raw_get(&names.verbatim_string)?
            && let Value::String(text) = inner.raw_get(&names.string)?
            && let Value::String(name) = inner.raw_get(&names.format)?
        {
            let mut format = *b"   ";
            for (to, from) in format.iter_mut().zip(name.as_bytes().iter()) {
                *to = *from;
            }
            let text = self.bytes(&text)?;
            return Ok(Reply::Verbatim { format, text });
        }
        // The length that Lua tells may be any, and far more than there are items.
        let mut items = Vec::with_capacity(table.raw_len().min(1024));
        for at in 1usize.. {
            match table.raw_get::<Value>(at)? {
                Value::Nil => break,
                value => items.push(self.convert(value, depth + 1)?),
            }
        }
        Ok(Reply::Array(items))
    }
}

pub(super) fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(value) => Some(*value as f64),
        Value::Number(value) => Some(*value),
        _ => None,
    }
}
