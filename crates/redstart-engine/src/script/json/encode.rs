//! Lua values as JSON.

use mlua::{Lua, LuaString, Table, Value};

use super::{HARD_DEPTH, Invalid, Settings};
use crate::{
    number,
    script::{argument::type_name, convert, raise::text_error, stack::is_stack_used_up},
};

/// More than this is not written, whatever the settings let through: no string of Redis is longer.
const LONGEST: usize = 512 << 20;

pub(super) struct Writer<'a> {
    pub(super) lua: &'a Lua,
    pub(super) settings: Settings,
    pub(super) out: Vec<u8>,
}

impl Writer<'_> {
    fn refuse(&self, value: &Value, why: &str) -> mlua::Error {
        let kind = type_name(Some(value));
        text_error(self.lua, format!("Cannot serialise {kind}: {why}"))
    }

    pub(super) fn value(&mut self, value: &Value, depth: usize) -> mlua::Result<()> {
        if self.out.len() > LONGEST {
            return Err(self.refuse(value, "the text would be too long"));
        }
        match value {
            Value::String(text) => self.string(text),
            Value::Integer(number) => self.number(*number as f64, value)?,
            Value::Number(number) => self.number(*number, value)?,
            Value::Boolean(true) => self.out.extend_from_slice(b"true"),
            Value::Boolean(false) => self.out.extend_from_slice(b"false"),
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(pointer) if pointer.0.is_null() => {
                self.out.extend_from_slice(b"null");
            }
            Value::Table(table) => self.table(table, value, depth + 1)?,
            other => return Err(self.refuse(other, "type not supported")),
        }
        Ok(())
    }

    fn number(&mut self, number: f64, value: &Value) -> mlua::Result<()> {
        if !number.is_finite() {
            match self.settings.encode_invalid {
                Invalid::Refuse => return Err(self.refuse(value, "must not be NaN or Inf")),
                Invalid::Write if number.is_nan() => self.out.extend_from_slice(b"nan"),
                Invalid::Write if number > 0.0 => self.out.extend_from_slice(b"inf"),
                Invalid::Write => self.out.extend_from_slice(b"-inf"),
                Invalid::Null => self.out.extend_from_slice(b"null"),
            }
            return Ok(());
        }
        let precision = self.settings.precision;
        if precision == 14 && number.abs() < 1e14 && number.fract() == 0.0 && number != 0.0 {
            let mut buffer = itoa::Buffer::new();
            let text = buffer.format(number as i64);
            self.out.extend_from_slice(text.as_bytes());
        } else {
            let text = number::general(number, precision);
            self.out.extend_from_slice(text.as_bytes());
        }
        Ok(())
    }

    fn string(&mut self, text: &LuaString) {
        self.out.push(b'"');
        for &byte in text.as_bytes().iter() {
            match byte {
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => self.out.extend_from_slice(b"\\\\"),
                b'/' => self.out.extend_from_slice(b"\\/"),
                8 => self.out.extend_from_slice(b"\\b"),
                b'\t' => self.out.extend_from_slice(b"\\t"),
                b'\n' => self.out.extend_from_slice(b"\\n"),
                12 => self.out.extend_from_slice(b"\\f"),
                b'\r' => self.out.extend_from_slice(b"\\r"),
                0..=31 | 127 => self.out.extend(format!("\\u{byte:04x}").bytes()),
                _ => self.out.push(byte),
            }
        }
        self.out.push(b'"');
    }

    /// The length if the table is written as an array.
    fn array_length(&self, table: &Table, value: &Value) -> mlua::Result<Option<usize>> {
        let mut max = 0.0f64;
        let mut items = 0i64;
        for pair in table.pairs::<Value, Value>() {
            let (key, _) = pair?;
            match convert::number_of(&key) {
                Some(at) if at.floor() == at && at >= 1.0 => {
                    max = max.max(at);
                    items += 1;
                }
                _ => return Ok(None),
            }
        }
        let Settings {
            sparse_convert,
            sparse_ratio,
            sparse_safe,
            ..
        } = self.settings;
        if sparse_ratio > 0
            && max > (items * i64::from(sparse_ratio)) as f64
            && max > f64::from(sparse_safe)
        {
            if !sparse_convert {
                return Err(self.refuse(value, "excessively sparse array"));
            }
            return Ok(None);
        }
        Ok((max > 0.0).then_some(max as usize))
    }

    fn table(&mut self, table: &Table, value: &Value, depth: usize) -> mlua::Result<()> {
        if depth > self.settings.encode_depth.min(HARD_DEPTH) || is_stack_used_up() {
            let text = format!("Cannot serialise, excessive nesting ({depth})");
            return Err(text_error(self.lua, text));
        }
        if let Some(length) = self.array_length(table, value)? {
            self.out.push(b'[');
            for at in 1..=length {
                if at > 1 {
                    self.out.push(b',');
                }
                self.value(&table.raw_get(at)?, depth)?;
            }
            self.out.push(b']');
            return Ok(());
        }
        self.out.push(b'{');
        let mut first = true;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            if !first {
                self.out.push(b',');
            }
            first = false;
            match &key {
                Value::String(text) => self.string(text),
                Value::Integer(number) => {
                    self.out.push(b'"');
                    self.number(*number as f64, &key)?;
                    self.out.push(b'"');
                }
                Value::Number(number) => {
                    self.out.push(b'"');
                    self.number(*number, &key)?;
                    self.out.push(b'"');
                }
                other => return Err(self.refuse(other, "table key must be a number or string")),
            }
            self.out.push(b':');
            self.value(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }
}
