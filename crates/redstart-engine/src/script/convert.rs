//! Replies to Lua values and back, by Redis's rules.

use bytes::Bytes;
use mlua::{Lua, LuaString, Value};
use redstart_lua::{StackFull, Table, Values};

use crate::{
    number,
    reply::{Protocol, Reply},
};

/// How deeply a script's reply may be nested.
const MAX_DEPTH: usize = 1000;
const TOO_LARGE: &str = "the reply would take more memory than a script may use";

/// The fields of tables that stand for replies; the entry of scripts knows them by their places here.
pub(super) const FIELDS: [&str; 9] = [
    "err",
    "ok",
    "double",
    "map",
    "set",
    "big_number",
    "verbatim_string",
    "string",
    "format",
];
const ERR: usize = 0;
const OK: usize = 1;
const DOUBLE: usize = 2;
const MAP: usize = 3;
const SET: usize = 4;
const BIG_NUMBER: usize = 5;
const VERBATIM_STRING: usize = 6;
const STRING: usize = 7;
const FORMAT: usize = 8;
/// Marks an error that the statistics have counted.
const IGNORE: &str = "ignore_error_stats_update";

/// The field names of error tables, made once.
#[derive(Clone)]
pub(super) struct Names {
    pub(super) err: LuaString,
    pub(super) ok: LuaString,
    ignore: LuaString,
}

impl Names {
    pub(super) fn new(lua: &Lua) -> mlua::Result<Names> {
        Ok(Names {
            err: lua.create_string(FIELDS[ERR])?,
            ok: lua.create_string(FIELDS[OK])?,
            ignore: lua.create_string(IGNORE)?,
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

/// `{err = text}` as a value to be pushed.
pub(super) fn push_error(values: &mut Values, text: Vec<u8>, counted: bool) {
    values.map(1 + usize::from(counted));
    values.text(FIELDS[ERR]);
    values.bytes(text);
    if counted {
        values.text(IGNORE);
        values.boolean(true);
    }
    values.end();
}

/// A command's reply, already in the shape of the script's protocol, as a value to be pushed.
pub(super) fn push_reply(values: &mut Values, reply: Reply, protocol: Protocol) {
    match reply {
        Reply::Int(value) => values.number(value as f64),
        Reply::Bulk(data) => values.bytes(data),
        Reply::Nil | Reply::NilArray if protocol == Protocol::Resp3 => values.nil(),
        Reply::Nil | Reply::NilArray => values.boolean(false),
        Reply::Status(text) => {
            values.map(1);
            values.text(FIELDS[OK]);
            values.text(text);
            values.end();
        }
        Reply::Error(text) => push_error(values, error_text(text.as_bytes()), true),
        Reply::Array(items) | Reply::Push(items) => {
            values.array(items.len());
            for item in items {
                push_reply(values, item, protocol);
            }
            values.end();
        }
        Reply::Map(pairs) => {
            field(values, MAP);
            values.map(pairs.len());
            for (key, value) in pairs {
                // Never nil: no command answers with a map that has such a key.
                push_reply(values, key, protocol);
                push_reply(values, value, protocol);
            }
            values.end();
            values.end();
        }
        Reply::Set(items) => {
            field(values, SET);
            values.set(items.len());
            for item in items {
                push_reply(values, item, protocol);
            }
            values.end();
            values.end();
        }
        Reply::Double(value) => {
            field(values, DOUBLE);
            values.number(value);
            values.end();
        }
        Reply::Bool(value) => values.boolean(value),
        Reply::BigNumber(digits) => {
            field(values, BIG_NUMBER);
            values.text(digits);
            values.end();
        }
        Reply::Verbatim { format, text } => {
            field(values, VERBATIM_STRING);
            values.map(2);
            values.text(FIELDS[STRING]);
            values.bytes(text);
            values.text(FIELDS[FORMAT]);
            values.bytes(Bytes::copy_from_slice(&format));
            values.end();
            values.end();
        }
    }
}

/// Opens a table of one field, for the value that follows.
fn field(values: &mut Values, name: usize) {
    values.map(1);
    values.text(FIELDS[name]);
}

/// Why nothing can be made of what a script returned.
pub(super) enum Unfit {
    TooLarge,
    StackFull,
}

impl Unfit {
    pub(super) fn text(&self) -> &'static str {
        match self {
            Unfit::TooLarge => TOO_LARGE,
            Unfit::StackFull => "stack overflow",
        }
    }
}

impl From<StackFull> for Unfit {
    fn from(_: StackFull) -> Unfit {
        Unfit::StackFull
    }
}

/// Makes a reply of what a script returned.
pub(super) struct Converter {
    /// What the script chose by `redis.setresp`.
    pub(super) protocol: Protocol,
    /// How many bytes the reply may still take: a table can hold itself more than once.
    pub(super) left: usize,
}

impl Converter {
    pub(super) fn value(&mut self, value: redstart_lua::Value<'_>) -> Result<Reply, Unfit> {
        self.convert(value, 0)
    }

    fn take(&mut self, bytes: usize) -> Result<(), Unfit> {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => return Err(Unfit::TooLarge),
        }
        Ok(())
    }

    fn bytes(&mut self, text: &[u8]) -> Result<Bytes, Unfit> {
        self.take(text.len())?;
        Ok(Bytes::copy_from_slice(text))
    }

    /// Text for one line of the protocol: up to a NUL, as C ends strings, without line breaks.
    fn line(&mut self, text: &[u8]) -> Result<String, Unfit> {
        self.take(text.len())?;
        Ok(String::from_utf8_lossy(c_string(text)).replace(['\r', '\n'], " "))
    }

    fn convert(&mut self, value: redstart_lua::Value<'_>, depth: usize) -> Result<Reply, Unfit> {
        use redstart_lua::Value;
        self.take(size_of::<Reply>())?;
        if depth > MAX_DEPTH {
            return Ok(Reply::Error("ERR reached lua stack limit".into()));
        }
        Ok(match value {
            Value::Bytes(text) => Reply::Bulk(self.bytes(text)?),
            Value::Number(value) => Reply::Int(number::truncate(value)),
            Value::Boolean(value) if self.protocol == Protocol::Resp3 => Reply::Bool(value),
            Value::Boolean(true) => Reply::Int(1),
            Value::Boolean(false) => Reply::Nil,
            Value::Table(table) => return self.table(&table, depth),
            Value::Nil | Value::Other => Reply::Nil,
        })
    }

    fn table(&mut self, table: &Table<'_>, depth: usize) -> Result<Reply, Unfit> {
        use redstart_lua::Value;
        // A list may have such a field, too.
        if let Some(reply) = self.named(table, depth)? {
            return Ok(reply);
        }
        // The length that Lua tells may be any, and far more than there are items.
        let mut items = Vec::with_capacity(table.length().min(1024));
        table.items(|value: Value<'_>| -> Result<(), Unfit> {
            items.push(self.convert(value, depth + 1)?);
            Ok(())
        })?;
        Ok(Reply::Array(items))
    }

    /// The reply that a table stands for by one of its fields; of several, by the first in Redis's order.
    fn named(&mut self, table: &Table<'_>, depth: usize) -> Result<Option<Reply>, Unfit> {
        use redstart_lua::Value;
        if let Some(text) = self.line_of(table, ERR)? {
            return Ok(Some(Reply::Error(text)));
        }
        if let Some(text) = self.line_of(table, OK)? {
            return Ok(Some(Reply::Status(text.into())));
        }
        let double = table.field(DOUBLE, |value| match value {
            Value::Number(value) => Some(value),
            _ => None,
        })?;
        if let Some(value) = double {
            return Ok(Some(Reply::Double(value)));
        }
        if let Some(digits) = self.line_of(table, BIG_NUMBER)? {
            return Ok(Some(Reply::BigNumber(digits)));
        }
        let verbatim = table.field(VERBATIM_STRING, |inner| match inner {
            Value::Table(inner) => self.verbatim(&inner),
            _ => Ok(None),
        })??;
        if verbatim.is_some() {
            return Ok(verbatim);
        }
        let map = table.field(MAP, |map| -> Result<_, Unfit> {
            let Value::Table(map) = map else {
                return Ok(None);
            };
            let mut pairs = Vec::new();
            map.pairs(|key, value| -> Result<(), Unfit> {
                pairs.push((
                    self.convert(key, depth + 1)?,
                    self.convert(value, depth + 1)?,
                ));
                Ok(())
            })?;
            Ok(Some(Reply::Map(pairs)))
        })??;
        if map.is_some() {
            return Ok(map);
        }
        table.field(SET, |set| -> Result<_, Unfit> {
            let Value::Table(set) = set else {
                return Ok(None);
            };
            let mut items = Vec::new();
            set.pairs(|member, _| -> Result<(), Unfit> {
                items.push(self.convert(member, depth + 1)?);
                Ok(())
            })?;
            Ok(Some(Reply::Set(items)))
        })?
    }

    fn verbatim(&mut self, inner: &Table<'_>) -> Result<Option<Reply>, Unfit> {
        use redstart_lua::Value;
        let format = inner.field(FORMAT, |name| match name {
            Value::Bytes(name) => {
                let mut format = *b"   ";
                for (to, from) in format.iter_mut().zip(name) {
                    *to = *from;
                }
                Some(format)
            }
            _ => None,
        })?;
        let Some(format) = format else {
            return Ok(None);
        };
        inner.field(STRING, |text| match text {
            Value::Bytes(text) => Ok(Some(Reply::Verbatim {
                format,
                text: self.bytes(text)?,
            })),
            _ => Ok(None),
        })?
    }

    /// A field that is a string, as a line.
    fn line_of(&mut self, table: &Table<'_>, name: usize) -> Result<Option<String>, Unfit> {
        let line = table.field(name, |value| match value {
            redstart_lua::Value::Bytes(text) => Some(self.line(text)),
            _ => None,
        })?;
        line.transpose()
    }
}

pub(super) fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(value) => Some(*value as f64),
        Value::Number(value) => Some(*value),
        _ => None,
    }
}
