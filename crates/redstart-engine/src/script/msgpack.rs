//! `cmsgpack`: MessagePack.

use std::sync::Arc;

use mlua::{Lua, MultiValue, Table, Value};

use super::{
    argument::{argument_error, number_argument, string_argument},
    raise::text_error,
    shared::Shared,
    stack::is_stack_used_up,
};

/// Tables nested more deeply than this are written as nil.
const MAX_NESTING: usize = 16;
/// How deeply nested data is read.
const MAX_DEPTH: usize = 1000;
/// More than this is not written: no string of Redis is longer.
const LONGEST: usize = 512 << 20;

pub(super) fn library(lua: &Lua, shared: &Arc<Shared>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let shared = shared.clone();
    table.set(
        "pack",
        lua.create_function(move |lua, args: MultiValue| {
            let longest = LONGEST.min(shared.limits.lock().bytes());
            pack(lua, &args, longest)
        })?,
    )?;
    table.set(
        "unpack",
        lua.create_function(|lua, args: MultiValue| unpack(lua, &args.into_vec(), 0, 0))?,
    )?;
    table.set(
        "unpack_one",
        lua.create_function(|lua, args: MultiValue| {
            let args = args.into_vec();
            let offset = optional_integer(lua, &args, 2)?;
            unpack(lua, &args, 1, offset)
        })?,
    )?;
    table.set(
        "unpack_limit",
        lua.create_function(|lua, args: MultiValue| {
            let args = args.into_vec();
            let limit = number_argument(lua, &args, 2)? as i32;
            let offset = optional_integer(lua, &args, 3)?;
            unpack(lua, &args, limit, offset)
        })?,
    )?;
    table.set("_NAME", "cmsgpack")?;
    table.set("_VERSION", "lua-cmsgpack 0.4.0")?;
    table.set("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo")?;
    table.set("_DESCRIPTION", "MessagePack C implementation for Lua")?;
    Ok(table)
}

fn optional_integer(lua: &Lua, args: &[Value], number: usize) -> mlua::Result<i32> {
    match args.get(number - 1) {
        None | Some(Value::Nil) => Ok(0),
        Some(_) => Ok(number_argument(lua, args, number)? as i32),
    }
}

fn pack(lua: &Lua, args: &MultiValue, longest: usize) -> mlua::Result<mlua::LuaString> {
    if args.is_empty() {
        return Err(argument_error(lua, 0, "MessagePack pack needs input."));
    }
    let mut writer = Writer {
        lua,
        longest,
        out: Vec::new(),
    };
    for value in args {
        writer.value(value, 0)?;
    }
    lua.create_string(&writer.out)
}

struct Writer<'a> {
    lua: &'a Lua,
    /// How many bytes may be written: a table can hold itself more than once.
    longest: usize,
    out: Vec<u8>,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, level: usize) -> mlua::Result<()> {
        if self.out.len() > self.longest {
            return Err(text_error(self.lua, "the packed data would be too long"));
        }
        let out = &mut self.out;
        match value {
            Value::String(text) => {
                let text = text.as_bytes();
                match text.len() {
                    len @ 0..=31 => out.push(0xA0 | len as u8),
                    len @ 32..=0xFF => out.extend([0xD9, len as u8]),
                    len @ 0x100..=0xFFFF => {
                        out.push(0xDA);
                        out.extend((len as u16).to_be_bytes());
                    }
                    len => {
                        out.push(0xDB);
                        out.extend((len as u32).to_be_bytes());
                    }
                }
                out.extend_from_slice(&text);
            }
            Value::Boolean(value) => out.push(if *value { 0xC3 } else { 0xC2 }),
            Value::Integer(value) => write_integer(out, *value),
            Value::Number(value) => write_number(out, *value),
            Value::Table(table) if level < MAX_NESTING => self.table(table, level)?,
            _ => out.push(0xC0),
        }
        Ok(())
    }

    fn table(&mut self, table: &Table, level: usize) -> mlua::Result<()> {
        let mut is_array = true;
        let mut count = 0usize;
        let mut max = 0.0f64;
        for pair in table.pairs::<Value, Value>() {
            let (key, _) = pair?;
            count += 1;
            match super::convert::number_of(&key) {
                Some(at) if at > 0.0 && at == f64::from(at as i32) => max = max.max(at),
                _ => is_array = false,
            }
        }
        let out = &mut self.out;
        if is_array && max == count as f64 {
            match count {
                0..=15 => out.push(0x90 | count as u8),
                16..=0xFFFF => {
                    out.push(0xDC);
                    out.extend((count as u16).to_be_bytes());
                }
                _ => {
                    out.push(0xDD);
                    out.extend((count as u32).to_be_bytes());
                }
            }
            for at in 1..=count {
                self.value(&table.raw_get(at)?, level + 1)?;
            }
        } else {
            match count {
                0..=15 => out.push(0x80 | count as u8),
                16..=0xFFFF => {
                    out.push(0xDE);
                    out.extend((count as u16).to_be_bytes());
                }
                _ => {
                    out.push(0xDF);
                    out.extend((count as u32).to_be_bytes());
                }
            }
            for pair in table.pairs::<Value, Value>() {
                let (key, value) = pair?;
                self.value(&key, level + 1)?;
                self.value(&value, level + 1)?;
            }
        }
        Ok(())
    }
}

fn write_number(out: &mut Vec<u8>, value: f64) {
    let whole = crate::number::truncate(value);
    if whole as f64 == value && !(whole == i64::MIN && value > 0.0) {
        write_integer(out, whole);
        return;
    }
    let single = value as f32;
    if f64::from(single) == value {
        out.push(0xCA);
        out.extend(single.to_be_bytes());
    } else {
        out.push(0xCB);
        out.extend(value.to_be_bytes());
    }
}

fn write_integer(out: &mut Vec<u8>, value: i64) {
    match value {
        0..=127 => out.push(value as u8),
        128..=0xFF => out.extend([0xCC, value as u8]),
        0x100..=0xFFFF => {
            out.push(0xCD);
            out.extend((value as u16).to_be_bytes());
        }
        0x1_0000..=0xFFFF_FFFF => {
            out.push(0xCE);
            out.extend((value as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            out.push(0xCF);
            out.extend(value.to_be_bytes());
        }
        -32..=-1 => out.push(value as i8 as u8),
        -128..=-33 => out.extend([0xD0, value as i8 as u8]),
        -32_768..=-129 => {
            out.push(0xD1);
            out.extend((value as i16).to_be_bytes());
        }
        -2_147_483_648..=-32_769 => {
            out.push(0xD2);
            out.extend((value as i32).to_be_bytes());
        }
        _ => {
            out.push(0xD3);
            out.extend(value.to_be_bytes());
        }
    }
}

enum Bad {
    Short,
    Format,
    Lua(mlua::Error),
}

impl From<mlua::Error> for Bad {
    fn from(error: mlua::Error) -> Bad {
        Bad::Lua(error)
    }
}

struct Reader<'a> {
    lua: &'a Lua,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Bad> {
        if self.rest.len() < count {
            return Err(Bad::Short);
        }
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(taken)
    }

    /// A big-endian integer of this many bytes.
    fn unsigned(&mut self, bytes: usize) -> Result<u64, Bad> {
        let taken = self.take(bytes)?;
        Ok(taken
            .iter()
            .fold(0, |value, byte| (value << 8) | u64::from(*byte)))
    }

    fn signed(&mut self, bytes: usize) -> Result<f64, Bad> {
        let unused = 64 - 8 * bytes as u32;
        let value = self.unsigned(bytes)?;
        Ok((((value << unused) as i64) >> unused) as f64)
    }

    fn string(&mut self, count: usize) -> Result<Value, Bad> {
        let taken = self.take(count)?;
        Ok(Value::String(self.lua.create_string(taken)?))
    }

    fn array(&mut self, count: usize, depth: usize) -> Result<Value, Bad> {
        let table = self.lua.create_table()?;
        for at in 1..=count {
            let value = self.value(depth + 1)?;
            table.raw_set(at, value)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, count: usize, depth: usize) -> Result<Value, Bad> {
        let table = self.lua.create_table()?;
        for _ in 0..count {
            let key = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            match &key {
                Value::Nil => return Err(plain("table index is nil")),
                Value::Number(number) if number.is_nan() => {
                    return Err(plain("table index is NaN"));
                }
                _ => table.raw_set(key, value)?,
            }
        }
        Ok(Value::Table(table))
    }

    fn value(&mut self, depth: usize) -> Result<Value, Bad> {
        if depth > MAX_DEPTH || is_stack_used_up() {
            return Err(plain("stack overflow (in function mp_decode_to_lua_type)"));
        }
        let tag = self.take(1)?[0];
        Ok(match tag {
            0x00..=0x7F => Value::Number(f64::from(tag)),
            0xE0..=0xFF => Value::Number(f64::from(tag as i8)),
            0x80..=0x8F => self.map(usize::from(tag & 0x0F), depth)?,
            0x90..=0x9F => self.array(usize::from(tag & 0x0F), depth)?,
            0xA0..=0xBF => self.string(usize::from(tag & 0x1F))?,
            0xC0 => Value::Nil,
            0xC2 => Value::Boolean(false),
            0xC3 => Value::Boolean(true),
            0xD9 => {
                let count = self.unsigned(1)?;
                self.string(count as usize)?
            }
            0xDA => {
                let count = self.unsigned(2)?;
                self.string(count as usize)?
            }
            0xDB => {
                let count = self.unsigned(4)?;
                self.string(count as usize)?
            }
            0xCA => Value::Number(f64::from(f32::from_bits(self.unsigned(4)? as u32))),
            0xCB => Value::Number(f64::from_bits(self.unsigned(8)?)),
            0xCC => Value::Number(self.unsigned(1)? as f64),
            0xCD => Value::Number(self.unsigned(2)? as f64),
            0xCE => Value::Number(self.unsigned(4)? as f64),
            // Read as signed, as the library does.
            0xCF => Value::Number(self.signed(8)?),
            0xD0 => Value::Number(self.signed(1)?),
            0xD1 => Value::Number(self.signed(2)?),
            0xD2 => Value::Number(self.signed(4)?),
            0xD3 => Value::Number(self.signed(8)?),
            0xDC => {
                let count = self.unsigned(2)?;
                self.array(count as usize, depth)?
            }
            0xDD => {
                let count = self.unsigned(4)?;
                self.array(count as usize, depth)?
            }
            0xDE => {
                let count = self.unsigned(2)?;
                self.map(count as usize, depth)?
            }
            0xDF => {
                let count = self.unsigned(4)?;
                self.map(count as usize, depth)?
            }
            _ => return Err(Bad::Format),
        })
    }
}

fn plain(text: &str) -> Bad {
    Bad::Lua(super::raise::Raise::Text(text.as_bytes().to_vec()).into())
}

/// Reads up to `limit` values from `offset` on; with neither given, all of them.
fn unpack(lua: &Lua, args: &[Value], limit: i32, offset: i32) -> mlua::Result<MultiValue> {
    let data = string_argument(lua, args, 1)?;
    let data = data.as_bytes();
    if offset < 0 || limit < 0 {
        let text = format!(
            "Invalid request to unpack with offset of {offset} and limit of {}.",
            data.len()
        );
        return Err(text_error(lua, text));
    }
    if offset as usize > data.len() {
        let text = format!(
            "Start offset {offset} greater than input length {}.",
            data.len()
        );
        return Err(text_error(lua, text));
    }
    let all = limit == 0 && offset == 0;
    let limit = if all { usize::MAX } else { limit as usize };
    let mut reader = Reader {
        lua,
        rest: &data[offset as usize..],
    };
    let mut values = Vec::new();
    while !reader.rest.is_empty() && values.len() < limit {
        match reader.value(0) {
            Ok(value) => values.push(value),
            Err(Bad::Short) => return Err(text_error(lua, "Missing bytes in input.")),
            Err(Bad::Format) => return Err(text_error(lua, "Bad data format in input.")),
            Err(Bad::Lua(error)) => return Err(error),
        }
    }
    if !all {
        let next = if reader.rest.is_empty() {
            -1.0
        } else {
            (data.len() - reader.rest.len()) as f64
        };
        values.insert(0, Value::Number(next));
    }
    Ok(MultiValue::from_vec(values))
}
