//! `cjson`: JSON as the lua-cjson library inside Redis reads and writes it.
//!
//! Unlike there, settings last for one script: no client changes how the scripts of others work.

mod decode;
mod encode;

use std::sync::Arc;

use mlua::{LightUserData, Lua, MultiValue, Table, Value};
use parking_lot::Mutex;

use super::{
    argument::{argument_error, expected, number_argument, string_argument},
    raise::text_error,
};
use decode::Reader;
use encode::Writer;

/// Whatever the settings say, nothing is nested more deeply than this.
const HARD_DEPTH: usize = 2000;

#[derive(Clone, Copy, PartialEq)]
enum Invalid {
    Refuse,
    Write,
    Null,
}

/// What scripts can choose by `cjson`'s own functions.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    sparse_convert: bool,
    sparse_ratio: i32,
    sparse_safe: i32,
    encode_depth: usize,
    decode_depth: usize,
    encode_invalid: Invalid,
    decode_invalid: bool,
    keep_buffer: bool,
    precision: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sparse_convert: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_depth: 1000,
            decode_depth: 1000,
            encode_invalid: Invalid::Refuse,
            decode_invalid: true,
            keep_buffer: true,
            precision: 14,
        }
    }
}

/// The library with these settings, which its functions change.
pub(super) fn library(lua: &Lua, settings: &Arc<Mutex<Settings>>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    set_codec(lua, &table, settings)?;
    set_encoding_options(lua, &table, settings)?;
    set_decoding_options(lua, &table, settings)?;
    table.set(
        "new",
        lua.create_function(|lua, _: MultiValue| library(lua, &Arc::default()))?,
    )?;
    table.set("null", null())?;
    table.set("_NAME", "cjson")?;
    table.set("_VERSION", "2.1.0")?;
    Ok(table)
}

/// `encode` and `decode`.
fn set_codec(lua: &Lua, table: &Table, settings: &Arc<Mutex<Settings>>) -> mlua::Result<()> {
    let of = settings.clone();
    table.set(
        "encode",
        lua.create_function(move |lua, args: MultiValue| {
            if args.len() != 1 {
                return Err(argument_error(lua, 1, "expected 1 argument"));
            }
            let mut writer = Writer {
                lua,
                settings: *of.lock(),
                out: Vec::with_capacity(64),
            };
            if let Some(value) = args.front() {
                writer.value(value, 0)?;
            }
            lua.create_string(&writer.out)
        })?,
    )?;
    let of = settings.clone();
    table.set(
        "decode",
        lua.create_function(move |lua, args: MultiValue| {
            let args = args.into_vec();
            if args.len() != 1 {
                return Err(argument_error(lua, 1, "expected 1 argument"));
            }
            let text = string_argument(lua, &args, 1)?;
            let text = text.as_bytes();
            // Anything but ASCII up front is another encoding.
            if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
                let text = "JSON parser does not support UTF-16 or UTF-32";
                return Err(text_error(lua, text));
            }
            let settings = *of.lock();
            Reader {
                lua,
                settings,
                text: &text,
                at: 0,
                depth: 0,
            }
            .document()
        })?,
    )
}

fn set_encoding_options(
    lua: &Lua,
    table: &Table,
    settings: &Arc<Mutex<Settings>>,
) -> mlua::Result<()> {
    let of = settings.clone();
    table.set(
        "encode_sparse_array",
        lua.create_function(move |lua, args: MultiValue| {
            let args = limited(lua, args, 3)?;
            let mut settings = of.lock();
            if let Some(value) = boolean_option(lua, &args, 1)? {
                settings.sparse_convert = value;
            }
            if let Some(value) = integer_option(lua, &args, 2, 0, i32::MAX)? {
                settings.sparse_ratio = value;
            }
            if let Some(value) = integer_option(lua, &args, 3, 0, i32::MAX)? {
                settings.sparse_safe = value;
            }
            let now = *settings;
            Ok((now.sparse_convert, now.sparse_ratio, now.sparse_safe))
        })?,
    )?;
    let of = settings.clone();
    table.set(
        "encode_max_depth",
        lua.create_function(move |lua, args: MultiValue| {
            let args = limited(lua, args, 1)?;
            let mut settings = of.lock();
            if let Some(value) = integer_option(lua, &args, 1, 1, i32::MAX)? {
                settings.encode_depth = value as usize;
            }
            Ok(settings.encode_depth)
        })?,
    )?;
    let of = settings.clone();
    table.set(
        "encode_number_precision",
        lua.create_function(move |lua, args: MultiValue| {
            let args = limited(lua, args, 1)?;
            let mut settings = of.lock();
            if let Some(value) = integer_option(lua, &args, 1, 1, 14)? {
                settings.precision = value as usize;
            }
            Ok(settings.precision)
        })?,
    )?;
    let of = settings.clone();
    table.set(
        "encode_keep_buffer",
        lua.create_function(move |lua, args: MultiValue| {
            let args = limited(lua, args, 1)?;
            let mut settings = of.lock();
            if let Some(value) = boolean_option(lua, &args, 1)? {
                settings.keep_buffer = value;
            }
            Ok(settings.keep_buffer)
        })?,
    )?;
    let of = settings.clone();
    table.set(
        "encode_invalid_numbers",
        lua.create_function(move |lua, args: MultiValue| {
            let args = limited(lua, args, 1)?;
            let mut settings = of.lock();
            match args.first() {
                Some(Value::String(word)) if *word.as_bytes() == b"null"[..] => {
                    settings.encode_invalid = Invalid::Null;
                }
                Some(Value::String(word)) => {
                    let text = format!("invalid option '{}'", word.to_string_lossy());
                    return Err(argument_error(lua, 1, &text));
                }
                _ => {
                    if let Some(value) = boolean_option(lua, &args, 1)? {
                        settings.encode_invalid = if value {
                            Invalid::Write
                        } else {
                            Invalid::Refuse
                        };
                    }
                }
            }
            Ok(match settings.encode_invalid {
                Invalid::Refuse => Value::Boolean(false),
                Invalid::Write => Value::Boolean(true),
                Invalid::Null => Value::String(lua.create_string("null")?),
            })
        })?,
    )
}

fn set_decoding_options(
    lua: &Lua,
    table: &Table,
    settings: &Arc<Mutex<Settings>>,
) -> mlua::Result<()> {
    let of = settings.clone();
    table.set(
        "decode_max_depth",
        lua.create_function(move |lua, args: MultiValue| {
            let args = limited(lua, args, 1)?;
            let mut settings = of.lock();
            if let Some(value) = integer_option(lua, &args, 1, 1, i32::MAX)? {
                settings.decode_depth = value as usize;
            }
            Ok(settings.decode_depth)
        })?,
    )?;
    let of = settings.clone();
    table.set(
        "decode_invalid_numbers",
        lua.create_function(move |lua, args: MultiValue| {
            let args = limited(lua, args, 1)?;
            let mut settings = of.lock();
            if let Some(value) = boolean_option(lua, &args, 1)? {
                settings.decode_invalid = value;
            }
            Ok(settings.decode_invalid)
        })?,
    )
}

fn null() -> Value {
    Value::LightUserData(LightUserData(std::ptr::null_mut()))
}

fn limited(lua: &Lua, args: MultiValue, count: usize) -> mlua::Result<Vec<Value>> {
    if args.len() > count {
        return Err(argument_error(lua, count + 1, "found too many arguments"));
    }
    Ok(args.into_vec())
}

fn integer_option(
    lua: &Lua,
    args: &[Value],
    number: usize,
    min: i32,
    max: i32,
) -> mlua::Result<Option<i32>> {
    if matches!(args.get(number - 1), None | Some(Value::Nil)) {
        return Ok(None);
    }
    let value = number_argument(lua, args, number)? as i32;
    if !(min..=max).contains(&value) {
        let text = format!("expected integer between {min} and {max}");
        return Err(argument_error(lua, number, &text));
    }
    Ok(Some(value))
}

fn boolean_option(lua: &Lua, args: &[Value], number: usize) -> mlua::Result<Option<bool>> {
    match args.get(number - 1) {
        None | Some(Value::Nil) => Ok(None),
        Some(Value::Boolean(value)) => Ok(Some(*value)),
        other => Err(expected(lua, number, "boolean", other)),
    }
}
