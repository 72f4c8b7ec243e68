//! `struct`: values to and from binary layouts.

use mlua::{Lua, MultiValue, Table, Value};

use super::{
    argument::{argument_error, number_argument, string_argument},
    raise::text_error,
};

const MAX_INTEGER: usize = 32;
const MAX_ALIGNMENT: i32 = 8;

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.set("pack", lua.create_function(pack)?)?;
    table.set("unpack", lua.create_function(unpack)?)?;
    table.set("size", lua.create_function(size)?)?;
    Ok(table)
}

/// Reads a format option by option.
struct Format<'a> {
    lua: &'a Lua,
    rest: &'a [u8],
    big: bool,
    align: usize,
}

impl<'a> Format<'a> {
    fn new(lua: &'a Lua, text: &'a [u8]) -> Format<'a> {
        let end = memchr::memchr(0, text).unwrap_or(text.len());
        Format {
            lua,
            rest: &text[..end],
            big: false,
            align: 1,
        }
    }

    /// The next option and its size.
    fn next(&mut self) -> mlua::Result<Option<(u8, usize)>> {
        let Some((&option, rest)) = self.rest.split_first() else {
            return Ok(None);
        };
        self.rest = rest;
        let size = match option {
            b'b' | b'B' | b'x' => 1,
            b'h' | b'H' => 2,
            b'l' | b'L' | b'T' | b'd' => 8,
            b'f' => 4,
            b'c' => self.number(1)? as usize,
            b'i' | b'I' => {
                let size = self.number(4)? as usize;
                if size > MAX_INTEGER {
                    let text =
                        format!("integral size {size} is larger than limit of {MAX_INTEGER}");
                    return Err(text_error(self.lua, text));
                }
                size
            }
            _ => 0,
        };
        Ok(Some((option, size)))
    }

    fn number(&mut self, default: i32) -> mlua::Result<i32> {
        let digits = self.rest.iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(default);
        }
        let mut value = 0i32;
        for digit in &self.rest[..digits] {
            value = value
                .checked_mul(10)
                .and_then(|value| value.checked_add(i32::from(digit - b'0')))
                .ok_or_else(|| text_error(self.lua, "integral size overflow"))?;
        }
        self.rest = &self.rest[digits..];
        Ok(value)
    }

    /// How many bytes to skip before a value of this size.
    fn padding(&self, at: usize, option: u8, size: usize) -> usize {
        if size == 0 || option == b'c' {
            return 0;
        }
        let size = size.min(self.align);
        (size - (at & (size - 1))) & (size - 1)
    }

    /// An option that only changes how the others are read.
    fn control(&mut self, option: u8) -> mlua::Result<()> {
        match option {
            b' ' => {}
            b'>' => self.big = true,
            b'<' => self.big = false,
            b'!' => {
                let align = self.number(MAX_ALIGNMENT)?;
                if align <= 0 || align & (align - 1) != 0 {
                    let text = format!("alignment {align} is not a power of 2");
                    return Err(text_error(self.lua, text));
                }
                self.align = align as usize;
            }
            other => {
                let text = format!("invalid format option '{}'", other as char);
                return Err(argument_error(self.lua, 1, &text));
            }
        }
        Ok(())
    }
}

fn is_integer(option: u8) -> bool {
    matches!(
        option,
        b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I'
    )
}

fn put(out: &mut Vec<u8>, little: &[u8], big: bool) {
    if big {
        out.extend(little.iter().rev());
    } else {
        out.extend_from_slice(little);
    }
}

fn pack(lua: &Lua, args: MultiValue) -> mlua::Result<mlua::LuaString> {
    let mut args = args.into_vec();
    // A missing argument is called nil in complaints.
    args.push(Value::Nil);
    let format = string_argument(lua, &args, 1)?;
    let format = format.as_bytes();
    let mut format = Format::new(lua, &format);
    let mut out = Vec::new();
    let mut next = 2;
    while let Some((option, size)) = format.next()? {
        let padding = format.padding(out.len(), option, size);
        out.resize(out.len() + padding, 0);
        match option {
            _ if is_integer(option) => {
                let number = number_argument(lua, &args, next)?;
                next += 1;
                let value = if number < 0.0 {
                    crate::number::truncate(number) as u64
                } else {
                    number as u64
                };
                let mut bytes = [0; MAX_INTEGER];
                bytes[..8].copy_from_slice(&value.to_le_bytes());
                put(&mut out, &bytes[..size], format.big);
            }
            b'x' => out.push(0),
            b'f' => {
                let value = number_argument(lua, &args, next)? as f32;
                next += 1;
                put(&mut out, &value.to_le_bytes(), format.big);
            }
            b'd' => {
                let value = number_argument(lua, &args, next)?;
                next += 1;
                put(&mut out, &value.to_le_bytes(), format.big);
            }
            b'c' | b's' => {
                let text = string_argument(lua, &args, next)?;
                next += 1;
                let text = text.as_bytes();
                let size = if size == 0 { text.len() } else { size };
                if text.len() < size {
                    return Err(argument_error(lua, next, "string too short"));
                }
                out.extend_from_slice(&text[..size]);
                if option == b's' {
                    out.push(0);
                }
            }
            other => format.control(other)?,
        }
    }
    lua.create_string(out)
}

fn unpack(lua: &Lua, args: MultiValue) -> mlua::Result<MultiValue> {
    let args = args.into_vec();
    let format = string_argument(lua, &args, 1)?;
    let format = format.as_bytes();
    let data = string_argument(lua, &args, 2)?;
    let data = data.as_bytes();
    let start = match args.get(2) {
        None | Some(Value::Nil) => 1.0,
        Some(_) => number_argument(lua, &args, 3)?,
    };
    if start < 1.0 {
        return Err(argument_error(lua, 3, "offset must be 1 or greater"));
    }
    let mut at = start as usize - 1;
    let mut format = Format::new(lua, &format);
    let mut values: Vec<Value> = Vec::new();
    let too_short = || argument_error(lua, 2, "data string too short");
    while let Some((option, size)) = format.next()? {
        at += format.padding(at, option, size);
        if size > data.len() || at > data.len() - size {
            return Err(too_short());
        }
        let mut size = size;
        match option {
            _ if is_integer(option) => {
                let mut value = 0u64;
                for index in 0..size {
                    let index = if format.big { index } else { size - 1 - index };
                    value = (value << 8) | u64::from(data[at + index]);
                }
                let number = if option.is_ascii_lowercase() {
                    let unused = 64 - 8 * size.min(8) as u32;
                    if unused == 64 {
                        0.0
                    } else {
                        (((value << unused) as i64) >> unused) as f64
                    }
                } else {
                    value as f64
                };
                values.push(Value::Number(number));
            }
            b'x' => {}
            b'f' | b'd' => {
                let mut bytes = data[at..at + size].to_vec();
                if format.big {
                    bytes.reverse();
                }
                let number = match (
                    <[u8; 4]>::try_from(&bytes[..]),
                    <[u8; 8]>::try_from(&bytes[..]),
                ) {
                    (Ok(bytes), _) => f64::from(f32::from_le_bytes(bytes)),
                    (_, Ok(bytes)) => f64::from_le_bytes(bytes),
                    _ => 0.0,
                };
                values.push(Value::Number(number));
            }
            b'c' => {
                if size == 0 {
                    let Some(Value::Number(length)) = values.pop() else {
                        return Err(text_error(lua, "format 'c0' needs a previous size"));
                    };
                    size = length as usize;
                    if size > data.len() || at > data.len() - size {
                        return Err(too_short());
                    }
                }
                values.push(Value::String(lua.create_string(&data[at..at + size])?));
            }
            b's' => {
                let Some(length) = memchr::memchr(0, &data[at..]) else {
                    return Err(text_error(lua, "unfinished string in data"));
                };
                values.push(Value::String(lua.create_string(&data[at..at + length])?));
                size = length + 1;
            }
            other => format.control(other)?,
        }
        at += size;
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(MultiValue::from_vec(values))
}

fn size(lua: &Lua, args: MultiValue) -> mlua::Result<f64> {
    let args = args.into_vec();
    let format = string_argument(lua, &args, 1)?;
    let format = format.as_bytes();
    let mut format = Format::new(lua, &format);
    let mut at = 0;
    while let Some((option, size)) = format.next()? {
        at += format.padding(at, option, size);
        if option == b's' {
            return Err(argument_error(lua, 1, "option 's' has no fixed size"));
        }
        if option == b'c' && size == 0 {
            return Err(argument_error(lua, 1, "option 'c0' has no fixed size"));
        }
        if !option.is_ascii_alphanumeric() {
            format.control(option)?;
        }
        at += size;
    }
    Ok(at as f64)
}
