//! What SCAN, HSCAN, SSCAN and ZSCAN share.

use bytes::Bytes;

use crate::{
    error::{SYNTAX, Stop},
    glob,
    number::{int_arg, int_bytes},
    reply::Reply,
};

/// The options of a scan.
pub(crate) struct Options {
    pub(crate) count: usize,
    pub(crate) pattern: Option<Bytes>,
    pub(crate) type_name: Option<Bytes>,
}

impl Options {
    pub(crate) fn parse(args: &[Bytes], with_type: bool) -> Result<Options, Stop> {
        let mut options = Options {
            count: 10,
            pattern: None,
            type_name: None,
        };
        for pair in args.chunks(2) {
            let [option, value] = pair else {
                return Err(SYNTAX.into());
            };
            if option.eq_ignore_ascii_case(b"count") {
                let count = int_arg(value)?;
                if count < 1 {
                    return Err(SYNTAX.into());
                }
                options.count = count as usize;
            } else if option.eq_ignore_ascii_case(b"match") {
                // A lone star is no restriction.
                options.pattern = (value.as_ref() != b"*").then(|| value.clone());
            } else if with_type && option.eq_ignore_ascii_case(b"type") {
                options.type_name = Some(value.clone());
            } else {
                return Err(SYNTAX.into());
            }
        }
        Ok(options)
    }

    pub(crate) fn admits(&self, name: &[u8]) -> bool {
        self.pattern
            .as_ref()
            .is_none_or(|pattern| glob::matches(pattern, name))
    }
}

/// The cursor argument, read as C's `strtoul` does: it ends at a zero byte, nothing is 0, a sign is
/// accepted, and wraps.
pub(crate) fn cursor_arg(text: &[u8]) -> Result<u64, Stop> {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    let text = &text[..end];
    if text.is_empty() {
        return Ok(0);
    }
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    std::str::from_utf8(digits)
        .ok()
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse::<u64>().ok())
        .map(|value| {
            if negative {
                value.wrapping_neg()
            } else {
                value
            }
        })
        .ok_or(Stop::Error("ERR invalid cursor".into()))
}

/// The reply of a scan's step.
pub(crate) fn reply(cursor: u64, items: Vec<Reply>) -> Reply {
    Reply::Array(vec![
        Reply::Bulk(int_bytes(cursor as i64)),
        Reply::Array(items),
    ])
}
