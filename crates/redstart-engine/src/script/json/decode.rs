//! JSON as Lua values.

use mlua::{Lua, Table, Value};

use super::{HARD_DEPTH, Settings, null};
use crate::{
    number,
    script::{raise::text_error, stack::is_stack_used_up},
};

enum TokenKind {
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

impl TokenKind {
    /// What complaints call it.
    fn name(&self) -> &'static str {
        match self {
            TokenKind::ObjectBegin => "T_OBJ_BEGIN",
            TokenKind::ObjectEnd => "T_OBJ_END",
            TokenKind::ArrayBegin => "T_ARR_BEGIN",
            TokenKind::ArrayEnd => "T_ARR_END",
            TokenKind::String(_) => "T_STRING",
            TokenKind::Number(_) => "T_NUMBER",
            TokenKind::Boolean(_) => "T_BOOLEAN",
            TokenKind::Null => "T_NULL",
            TokenKind::Colon => "T_COLON",
            TokenKind::Comma => "T_COMMA",
            TokenKind::End => "T_END",
            TokenKind::Error(what) => what,
        }
    }
}

struct Token {
    kind: TokenKind,
    at: usize,
}

pub(super) struct Reader<'a> {
    pub(super) lua: &'a Lua,
    pub(super) settings: Settings,
    pub(super) text: &'a [u8],
    pub(super) at: usize,
    pub(super) depth: usize,
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

    pub(super) fn document(mut self) -> mlua::Result<Value> {
        let token = self.token();
        let value = self.value(token)?;
        let token = self.token();
        if !matches!(token.kind, TokenKind::End) {
            return Err(self.expect("the end", &token));
        }
        Ok(value)
    }

    fn value(&mut self, token: Token) -> mlua::Result<Value> {
        Ok(match token.kind {
            TokenKind::String(text) => Value::String(self.lua.create_string(text)?),
            TokenKind::Number(number) => Value::Number(number),
            TokenKind::Boolean(value) => Value::Boolean(value),
            TokenKind::Null => null(),
            TokenKind::ObjectBegin => {
                self.descend()?;
                let table = self.object()?;
                self.depth -= 1;
                Value::Table(table)
            }
            TokenKind::ArrayBegin => {
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
        if self.depth <= self.settings.decode_depth.min(HARD_DEPTH) && !is_stack_used_up() {
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
        if matches!(token.kind, TokenKind::ObjectEnd) {
            return Ok(table);
        }
        loop {
            let TokenKind::String(key) = token.kind else {
                return Err(self.expect("object key string", &token));
            };
            let key = self.lua.create_string(key)?;
            token = self.token();
            if !matches!(token.kind, TokenKind::Colon) {
                return Err(self.expect("colon", &token));
            }
            token = self.token();
            let value = self.value(token)?;
            table.raw_set(key, value)?;
            token = self.token();
            match token.kind {
                TokenKind::ObjectEnd => return Ok(table),
                TokenKind::Comma => token = self.token(),
                _ => return Err(self.expect("comma or object end", &token)),
            }
        }
    }

    fn array(&mut self) -> mlua::Result<Table> {
        let table = self.lua.create_table()?;
        let mut token = self.token();
        if matches!(token.kind, TokenKind::ArrayEnd) {
            return Ok(table);
        }
        for at in 1usize.. {
            let value = self.value(token)?;
            table.raw_set(at, value)?;
            token = self.token();
            match token.kind {
                TokenKind::ArrayEnd => break,
                TokenKind::Comma => token = self.token(),
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
            b'{' => Some(TokenKind::ObjectBegin),
            b'}' => Some(TokenKind::ObjectEnd),
            b'[' => Some(TokenKind::ArrayBegin),
            b']' => Some(TokenKind::ArrayEnd),
            b':' => Some(TokenKind::Colon),
            b',' => Some(TokenKind::Comma),
            _ => None,
        };
        if let Some(kind) = single {
            self.at += 1;
            return Token { kind, at };
        }
        let kind = match self.byte(at) {
            0 => TokenKind::End,
            b'"' => return self.string(),
            b'-' | b'0'..=b'9' => {
                if !self.settings.decode_invalid && self.is_invalid_number() {
                    TokenKind::Error("invalid number")
                } else {
                    self.number()
                }
            }
            _ if self.text[at..].starts_with(b"true") => {
                self.at += 4;
                TokenKind::Boolean(true)
            }
            _ if self.text[at..].starts_with(b"false") => {
                self.at += 5;
                TokenKind::Boolean(false)
            }
            _ if self.text[at..].starts_with(b"null") => {
                self.at += 4;
                TokenKind::Null
            }
            b'+' | b'i' | b'I' | b'n' | b'N'
                if self.settings.decode_invalid && self.is_invalid_number() =>
            {
                self.number()
            }
            _ => TokenKind::Error("invalid token"),
        };
        Token { kind, at }
    }

    /// Whether the text here is a number in C but not in JSON.
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

    fn number(&mut self) -> TokenKind {
        match strtod(&self.text[self.at..]) {
            Some((value, length)) => {
                self.at += length;
                TokenKind::Number(value)
            }
            None => TokenKind::Error("invalid number"),
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
                    let kind = TokenKind::String(text);
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
            kind: TokenKind::Error(error),
            at: self.at,
        }
    }

    /// The character that `\uXXXX`, or a pair of them, encodes, and how long that is.
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
