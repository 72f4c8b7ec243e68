//! `cjson`: JSON as the lua-cjson library inside Redis reads and writes it.

use std::sync::Arc;

use mlua::{LightUserData, Lua, LuaString, MultiValue, Table, Value};
use parking_lot::Mutex;

use super::{argument_error, convert, expected, number_argument, string_argument, text_error};
use crate::number;

/// Whatever the settings say, nothing is nested more deeply than this.
const HARD_DEPTH: usize = 2000;

#[derive(Clone, Copy, PartialEq)]
enum Invalid {
    Refuse,
    Write,
    Null,
}

#[derive(Clone, Copy)]
struct Settings {
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

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let settings = Arc::new(Mutex::new(Settings::default()));

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
    )?;

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
    )?;
    let of = settings;
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
    )?;
    table.set(
        "new",
        lua.create_function(|lua, _: MultiValue| library(lua))?,
    )?;
    table.set("null", null())?;
    table.set("_NAME", "cjson")?;
    table.set("_VERSION", "2.1.0")?;
    Ok(table)
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

struct Writer<'a> {
    lua: &'a Lua,
    settings: Settings,
    out: Vec<u8>,
}

impl Writer<'_> {
    fn refuse(&self, value: &Value, why: &str) -> mlua::Error {
        let kind = super::type_name(Some(value));
        text_error(self.lua, format!("Cannot serialise {kind}: {why}"))
    }

    fn value(&mut self, value: &Value, depth: usize) -> mlua::Result<()> {
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

    /// The length if the table is to be written as an array.
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
        if depth > self.settings.encode_depth.min(HARD_DEPTH) {
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

enum Kind {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    String(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Error(&'static str),
}

impl Kind {
    /// What complaints call it.
    fn name(&self) -> &'static str {
        match self {
            Kind::ObjectBegin => "T_OBJ_BEGIN",
            Kind::ObjectEnd => "T_OBJ_END",
            Kind::ArrayBegin => "T_ARR_BEGIN",
            Kind::ArrayEnd => "T_ARR_END",
            Kind::String(_) => "T_STRING",
            Kind::Number(_) => "T_NUMBER",
            Kind::Boolean(_) => "T_BOOLEAN",
            Kind::Null => "T_NULL",
            Kind::Colon => "T_COLON",
            Kind::Comma => "T_COMMA",
            Kind::End => "T_END",
            Kind::Error(what) => what,
        }
    }
}

struct Token {
    kind: Kind,
    at: usize,
}

struct Reader<'a> {
    lua: &'a Lua,
    settings: Settings,
    text: &'a [u8],
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(0)
    }

    fn expect(&self, what: &str, token: &Token) -> mlua::Error {
        let text = format!(
            "Expected {what} but found {} at character {}",
            token.kind.name(),
            token.at + 1
        );
        text_error(self.lua, text)
    }

    fn document(mut self) -> mlua::Result<Value> {
        let token = self.token();
        let value = self.value(token)?;
        let token = self.token();
        if !matches!(token.kind, Kind::End) {
            return Err(self.expect("the end", &token));
        }
        Ok(value)
    }

    fn value(&mut self, token: Token) -> mlua::Result<Value> {
        Ok(match token.kind {
            Kind::String(text) => Value::String(self.lua.create_string(text)?),
            Kind::Number(number) => Value::Number(number),
            Kind::Boolean(value) => Value::Boolean(value),
            Kind::Null => null(),
            Kind::ObjectBegin => {
                self.descend()?;
                let table = self.object()?;
                self.depth -= 1;
                Value::Table(table)
            }
            Kind::ArrayBegin => {
                self.descend()?;
                let table = self.array()?;
                self.depth -= 1;
                Value::Table(table)
            }
            _ => return Err(self.expect("value", &token)),
        })
    }

    fn descend(&mut self) -> mlua::Result<()> {
        self.depth += 1;
        if self.depth <= self.settings.decode_depth.min(HARD_DEPTH) {
            return Ok(());
        }
        let text = format!(
            "Found too many nested data structures ({}) at character {}",
            self.depth, self.at
        );
        Err(text_error(self.lua, text))
    }

    fn object(&mut self) -> mlua::Result<Table> {
        let table = self.lua.create_table()?;
        let mut token = self.token();
        if matches!(token.kind, Kind::ObjectEnd) {
            return Ok(table);
        }
        loop {
            let Kind::String(key) = token.kind else {
                return Err(self.expect("object key string", &token));
            };
            let key = self.lua.create_string(key)?;
            token = self.token();
            if !matches!(token.kind, Kind::Colon) {
                return Err(self.expect("colon", &token));
            }
            token = self.token();
            let value = self.value(token)?;
            table.raw_set(key, value)?;
            token = self.token();
            match token.kind {
                Kind::ObjectEnd => return Ok(table),
                Kind::Comma => token = self.token(),
                _ => return Err(self.expect("comma or object end", &token)),
            }
        }
    }

    fn array(&mut self) -> mlua::Result<Table> {
        let table = self.lua.create_table()?;
        let mut token = self.token();
        if matches!(token.kind, Kind::ArrayEnd) {
            return Ok(table);
        }
        for at in 1usize.. {
            let value = self.value(token)?;
            table.raw_set(at, value)?;
            token = self.token();
            match token.kind {
                Kind::ArrayEnd => break,
                Kind::Comma => token = self.token(),
                _ => return Err(self.expect("comma or array end", &token)),
            }
        }
        Ok(table)
    }

    fn token(&mut self) -> Token {
        while matches!(self.byte(self.at), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        let at = self.at;
        let single = match self.byte(at) {
            b'{' => Some(Kind::ObjectBegin),
            b'}' => Some(Kind::ObjectEnd),
            b'[' => Some(Kind::ArrayBegin),
            b']' => Some(Kind::ArrayEnd),
            b':' => Some(Kind::Colon),
            b',' => Some(Kind::Comma),
            _ => None,
        };
        if let Some(kind) = single {
            self.at += 1;
            return Token { kind, at };
        }
        let kind = match self.byte(at) {
            0 => Kind::End,
            b'"' => return self.string(),
            b'-' | b'0'..=b'9' => {
                if !self.settings.decode_invalid && self.is_invalid_number() {
                    Kind::Error("invalid number")
                } else {
                    self.number()
                }
            }
            _ if self.text[at..].starts_with(b"true") => {
                self.at += 4;
                Kind::Boolean(true)
            }
            _ if self.text[at..].starts_with(b"false") => {
                self.at += 5;
                Kind::Boolean(false)
            }
            _ if self.text[at..].starts_with(b"null") => {
                self.at += 4;
                Kind::Null
            }
            b'+' | b'i' | b'I' | b'n' | b'N'
                if self.settings.decode_invalid && self.is_invalid_number() =>
            {
                self.number()
            }
            _ => Kind::Error("invalid token"),
        };
        Token { kind, at }
    }

    /// Whether what stands here is a number to C but none to JSON.
    fn is_invalid_number(&self) -> bool {
        let mut at = self.at;
        match self.byte(at) {
            b'+' => return true,
            b'-' => at += 1,
            _ => {}
        }
        match self.byte(at) {
            b'0' => matches!(self.byte(at + 1), b'x' | b'X' | b'0'..=b'9'),
            0..=b'9' => false,
            _ => {
                let word = &self.text[at..(at + 3).min(self.text.len())];
                word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"nan")
            }
        }
    }

    fn number(&mut self) -> Kind {
        match strtod(&self.text[self.at..]) {
            Some((value, length)) => {
                self.at += length;
                Kind::Number(value)
            }
            None => Kind::Error("invalid number"),
        }
    }

    fn string(&mut self) -> Token {
        let start = self.at;
        let mut text = Vec::new();
        self.at += 1;
        let error = loop {
            match self.byte(self.at) {
                b'"' => {
                    self.at += 1;
                    let kind = Kind::String(text);
                    return Token { kind, at: start };
                }
                0 => break "unexpected end of string",
                b'\\' => {
                    let plain = match self.byte(self.at + 1) {
                        byte @ (b'"' | b'\\' | b'/') => byte,
                        b'b' => 8,
                        b't' => b'\t',
                        b'n' => b'\n',
                        b'f' => 12,
                        b'r' => b'\r',
                        b'u' => match self.unicode() {
                            Some((code, length)) => {
                                let mut buffer = [0; 4];
                                text.extend_from_slice(code.encode_utf8(&mut buffer).as_bytes());
                                self.at += length;
                                continue;
                            }
                            None => break "invalid unicode escape code",
                        },
                        _ => break "invalid escape code",
                    };
                    text.push(plain);
                    self.at += 2;
                }
                byte => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        };
        Token {
            kind: Kind::Error(error),
            at: self.at,
        }
    }

    /// The character that `\uXXXX`, or a pair of them, stands for, and how long that is.
    fn unicode(&self) -> Option<(char, usize)> {
        let unit = self.hex4(self.at + 2)?;
        if unit & 0xF800 != 0xD800 {
            return Some((char::from_u32(unit)?, 6));
        }
        if unit & 0x400 != 0 || self.byte(self.at + 6) != b'\\' || self.byte(self.at + 7) != b'u' {
            return None;
        }
        let low = self.hex4(self.at + 8)?;
        if low & 0xFC00 != 0xDC00 {
            return None;
        }
        let code = (((unit & 0x3FF) << 10) | (low & 0x3FF)) + 0x1_0000;
        Some((char::from_u32(code)?, 12))
    }

    fn hex4(&self, at: usize) -> Option<u32> {
        let mut value = 0;
        for index in 0..4 {
            value = value * 16 + (self.byte(at + index) as char).to_digit(16)?;
        }
        Some(value)
    }
}

/// The number at the start of a text as C's `strtod` reads it, and how long it is.
fn strtod(text: &[u8]) -> Option<(f64, usize)> {
    let mut at = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let negative = text.first() == Some(&b'-');
    let sign = |value: f64| if negative { -value } else { value };
    let rest = &text[at..];
    let starts =
        |word: &[u8]| rest.len() >= word.len() && rest[..word.len()].eq_ignore_ascii_case(word);
    if starts(b"infinity") {
        return Some((sign(f64::INFINITY), at + 8));
    }
    if starts(b"inf") {
        return Some((sign(f64::INFINITY), at + 3));
    }
    if starts(b"nan") {
        return Some((sign(f64::NAN), at + 3));
    }
    let digits =
        |from: usize, ok: fn(&u8) -> bool| text[from..].iter().take_while(|b| ok(b)).count();
    let exponent = |from: usize, mark: u8| {
        if text.get(from).is_some_and(|b| b | 0x20 == mark) {
            let signed = usize::from(matches!(text.get(from + 1), Some(b'+' | b'-')));
            let count = digits((from + 1 + signed).min(text.len()), u8::is_ascii_digit);
            if count > 0 {
                return 1 + signed + count;
            }
        }
        0
    };
    if starts(b"0x") {
        let start = at;
        at += 2;
        let whole = digits(at, u8::is_ascii_hexdigit);
        at += whole;
        let mut fraction = 0;
        if text.get(at) == Some(&b'.') {
            fraction = digits(at + 1, u8::is_ascii_hexdigit);
            if whole + fraction > 0 {
                at += 1 + fraction;
            }
        }
        if whole + fraction == 0 {
            return Some((sign(0.0), start + 1));
        }
        at += exponent(at, b'p');
        let value = number::parse_double(&text[start..at])?;
        return Some((sign(value), at));
    }
    let whole = digits(at, u8::is_ascii_digit);
    at += whole;
    let mut fraction = 0;
    if text.get(at) == Some(&b'.') {
        fraction = digits(at + 1, u8::is_ascii_digit);
        if whole + fraction > 0 {
            at += 1 + fraction;
        }
    }
    if whole + fraction == 0 {
        return None;
    }
    at += exponent(at, b'e');
    let value: f64 = std::str::from_utf8(&text[..at]).ok()?.parse().ok()?;
    Some((value, at))
}
