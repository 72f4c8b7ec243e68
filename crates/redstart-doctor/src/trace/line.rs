//! One line of MONITOR: `1339518083.107412 [0 127.0.0.1:60866] "set" "k" "v"`; or of the log of an application or a proxy, in
//! JSON: `{"time":1339518083.107412,"client":"api-1","command":["SET","k","v"]}`.

use std::borrow::Cow;

use serde_json::Value;

/// One command, as the server ran it.
#[derive(Debug, PartialEq)]
pub(crate) struct Line<'a> {
    /// Seconds since 1970.
    pub(crate) at: f64,
    pub(crate) db: u32,
    /// The client's address; `lua` for what a script called.
    pub(crate) client: Cow<'a, str>,
    pub(crate) words: Vec<Vec<u8>>,
    /// The end of the line was cut off.
    pub(crate) cut: bool,
}

impl<'a> Line<'a> {
    /// `None` if it is a line of neither form.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        if line.first() == Some(&b'{') {
            return Self::parse_json(line);
        }
        let line = line.strip_prefix(b"+").unwrap_or(line);
        let open = line.iter().position(|byte| *byte == b'[')?;
        let close = open + line[open..].iter().position(|byte| *byte == b']')?;
        // An IPv6 address has brackets of its own.
        let close = match line.get(close + 1) {
            Some(b':') => close + 1 + line[close + 1..].iter().position(|byte| *byte == b']')?,
            _ => close,
        };
        let at = std::str::from_utf8(&line[..open])
            .ok()?
            .trim()
            .parse()
            .ok()?;
        let source = std::str::from_utf8(&line[open + 1..close]).ok()?;
        let (db, client) = source.split_once(' ')?;
        let (words, cut) = words(&line[close + 1..]);
        (!words.is_empty()).then_some(Self {
            at,
            db: db.parse().ok()?,
            client: Cow::Borrowed(client),
            words,
            cut,
        })
    }

    /// `time` is in seconds since 1970, or RFC 3339; `client` tells connections apart; `db` is 0 unless it is there.
    fn parse_json(line: &[u8]) -> Option<Self> {
        let line: Value = serde_json::from_slice(line).ok()?;
        let at = match line.get("time")? {
            Value::Number(seconds) => seconds.as_f64()?,
            Value::String(text) => {
                let time: jiff::Timestamp = text.parse().ok()?;
                time.as_microsecond() as f64 / 1e6
            }
            _ => return None,
        };
        let word = |value: &Value| match value {
            Value::String(text) => Some(text.clone().into_bytes()),
            Value::Number(number) => Some(number.to_string().into_bytes()),
            _ => None,
        };
        let words = line.get("command")?.as_array()?.iter().map(word);
        let words: Vec<Vec<u8>> = words.collect::<Option<_>>()?;
        let db = line.get("db").map_or(Some(0), Value::as_u64)?;
        (!words.is_empty()).then_some(Self {
            at,
            db: db.try_into().ok()?,
            client: Cow::Owned(line.get("client")?.as_str()?.to_owned()),
            words,
            cut: false,
        })
    }

    pub(crate) fn is_script(&self) -> bool {
        self.client == "lua"
    }
}

/// The quoted words, without their escapes, and whether the last one was cut.
fn words(text: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut words = Vec::new();
    let mut bytes = text.iter().copied();
    let hex = |byte: Option<u8>| byte.and_then(|byte| (byte as char).to_digit(16));
    while let Some(byte) = bytes.next() {
        if byte != b'"' {
            continue;
        }
        let mut word = Vec::new();
        loop {
            match bytes.next() {
                None => {
                    words.push(word);
                    return (words, true);
                }
                Some(b'"') => break,
                Some(b'\\') => match bytes.next() {
                    Some(b'n') => word.push(b'\n'),
                    Some(b'r') => word.push(b'\r'),
                    Some(b't') => word.push(b'\t'),
                    Some(b'a') => word.push(7),
                    Some(b'b') => word.push(8),
                    Some(b'x') => {
                        let (high, low) = (hex(bytes.next()), hex(bytes.next()));
                        word.push((high.unwrap_or(0) * 16 + low.unwrap_or(0)) as u8);
                    }
                    Some(other) => word.push(other),
                    None => {
                        words.push(word);
                        return (words, true);
                    }
                },
                Some(other) => word.push(other),
            }
        }
        words.push(word);
    }
    (words, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = Line::parse(br#"1339518083.107412 [0 127.0.0.1:60866] "set" "k\"\x00\n" "v""#)
            .expect("a line");
        assert_eq!(line.client, "127.0.0.1:60866");
        assert_eq!(
            line.words,
            [b"set".to_vec(), b"k\"\0\n".to_vec(), b"v".to_vec()]
        );
        assert!(!line.cut);
        let line = Line::parse(br#"1.5 [3 lua] "get" "k""#).expect("a line");
        assert!(line.is_script() && line.db == 3);
        let line = Line::parse(br#"1.5 [0 [::1]:5000] "get" "k""#).expect("a line");
        assert_eq!(line.client, "[::1]:5000");
    }

    #[test]
    fn a_line_in_json_is_taken_apart() {
        let line = Line::parse(br#"{"time":1.5,"client":"api-1","command":["INCRBY","k",5]}"#)
            .expect("a line");
        assert_eq!((line.at, line.db, &*line.client), (1.5, 0, "api-1"));
        let words = [b"INCRBY".to_vec(), b"k".to_vec(), b"5".to_vec()];
        assert_eq!(line.words, words);
        let line = Line::parse(
            br#"{"command":["GET","k"],"client":"a","time":"2026-01-01T12:00:00.25Z","db":3}"#,
        )
        .expect("a line");
        assert_eq!((line.at, line.db), (1_767_268_800.25, 3));
        for odd in [
            &br#"{"time":1.5,"client":"a","command":[]}"#[..],
            br#"{"time":1.5,"client":"a","command":[{}]}"#,
            br#"{"time":1.5,"command":["GET","k"]}"#,
            br#"{"client":"a","command":["GET","k"]}"#,
            br#"{"time":true,"client":"a","command":["GET"]}"#,
            b"{",
        ] {
            assert_eq!(Line::parse(odd), None);
        }
    }

    #[test]
    fn a_cut_line_keeps_its_beginning_and_rubbish_is_no_line() {
        let line = Line::parse(br#"1.5 [0 x:1] "set" "k" "abc"#).expect("a line");
        assert!(line.cut);
        assert_eq!(line.words.len(), 3);
        assert_eq!(Line::parse(b"OK"), None);
        assert_eq!(Line::parse(b""), None);
        assert_eq!(Line::parse(b"[[[]]"), None);
    }
}
