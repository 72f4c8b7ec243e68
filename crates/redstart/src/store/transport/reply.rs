//! Reading what a server sends (RESP2 and RESP3), from pieces of any size.
//!
//! A reply that is not there as a whole is not read again from its start: what is complete of it is kept.

use redis::{ErrorKind, PushKind, RedisError, RedisResult, Value};

/// The deepest nesting that is accepted.
const MAX_DEPTH: usize = 128;
/// What an array may reserve before its elements are there.
const MAX_RESERVED: usize = 1024;
/// The longest line that is not an error or a status in full: a length or a number.
const MAX_NUMBER: usize = 32;
/// The longest line of all.
const MAX_LINE: usize = 1024 * 1024;
/// A string of this length that is not there as a whole is collected where it will stay.
const LONG: usize = 32 * 1024;
/// What a long string may reserve before it is there.
const MAX_RESERVED_BYTES: usize = 256 * 1024;

/// What holds other values.
#[derive(Clone, Copy)]
enum Shape {
    Array,
    Map,
    Set,
    Push,
}

impl Shape {
    fn close(self, values: Vec<Value>) -> Value {
        match self {
            Self::Array => Value::Array(values),
            Self::Set => Value::Set(values),
            Self::Map => {
                let mut pairs = Vec::with_capacity(values.len() / 2);
                let mut values = values.into_iter();
                while let (Some(key), Some(value)) = (values.next(), values.next()) {
                    pairs.push((key, value));
                }
                Value::Map(pairs)
            }
            Self::Push => push(values),
        }
    }
}

/// A message that the server sends by itself. The first element says what it is.
pub(crate) fn push(values: Vec<Value>) -> Value {
    let mut data = values.into_iter();
    let word = match data.next() {
        Some(Value::BulkString(word)) => String::from_utf8_lossy(&word).into_owned(),
        Some(Value::SimpleString(word)) => word,
        _ => String::new(),
    };
    let kind = match word.as_str() {
        "message" => PushKind::Message,
        "smessage" => PushKind::SMessage,
        "pmessage" => PushKind::PMessage,
        "invalidate" => PushKind::Invalidate,
        "subscribe" => PushKind::Subscribe,
        "ssubscribe" => PushKind::SSubscribe,
        "psubscribe" => PushKind::PSubscribe,
        "unsubscribe" => PushKind::Unsubscribe,
        "sunsubscribe" => PushKind::SUnsubscribe,
        "punsubscribe" => PushKind::PUnsubscribe,
        _ => PushKind::Other(word),
    };
    Value::Push {
        kind,
        data: data.collect(),
    }
}

/// An array, or the like, whose elements are still coming.
struct Open {
    shape: Shape,
    left: usize,
    values: Vec<Value>,
}

/// A long string that is still coming, and the two bytes that end it.
pub(super) struct Long {
    bytes: Vec<u8>,
    whole: usize,
}

impl Long {
    fn new(length: usize) -> Self {
        Self {
            bytes: Vec::new(),
            whole: length + 2,
        }
    }

    /// Where the next bytes go, and how many of them are its own. There is room for some.
    pub(super) fn rest(&mut self) -> (&mut Vec<u8>, usize) {
        let left = self.whole - self.bytes.len();
        if self.bytes.len() == self.bytes.capacity() {
            // By what has come, not by what was announced.
            let more = self.bytes.len().max(MAX_RESERVED_BYTES);
            self.bytes.reserve_exact(more.min(left));
        }
        (&mut self.bytes, left)
    }

    pub(super) fn is_whole(&self) -> bool {
        self.bytes.len() == self.whole
    }

    /// Takes what belongs to it; returns how much that was.
    fn take(&mut self, mut input: &[u8]) -> usize {
        let before = input.len();
        while !input.is_empty() && !self.is_whole() {
            let (bytes, left) = self.rest();
            let count = left.min(bytes.capacity() - bytes.len()).min(input.len());
            bytes.extend_from_slice(&input[..count]);
            input = &input[count..];
        }
        before - input.len()
    }

    fn into_value(mut self) -> RedisResult<Value> {
        if !self.bytes.ends_with(b"\r\n") {
            return Err(broken("a string does not end where it should"));
        }
        self.bytes.truncate(self.whole - 2);
        Ok(Value::BulkString(self.bytes))
    }
}

/// Puts replies together.
#[derive(Default)]
pub(crate) struct Reader {
    open: Vec<Open>,
    long: Option<Long>,
}

/// One element, or that there is none yet.
enum Element {
    Value(Value),
    Several(Shape, usize),
    /// The start of a string of so many bytes.
    Long(usize),
    /// At least this many bytes are needed, counted from the element's start.
    Missing(usize),
}

impl Reader {
    /// The long string that is coming. Its bytes may be put there, instead of being given to `next`.
    pub(super) fn long(&mut self) -> Option<&mut Long> {
        self.long.as_mut()
    }

    /// Reads from `input[*at..]` and moves `at` behind what was read. Without a whole reply, says how many
    /// bytes there have to be behind `at` before it is worth asking again.
    pub(crate) fn next(
        &mut self,
        input: &[u8],
        at: &mut usize,
    ) -> RedisResult<Result<Value, usize>> {
        loop {
            let mut value = if let Some(long) = &mut self.long {
                *at += long.take(&input[*at..]);
                match self.long.take_if(|long| long.is_whole()) {
                    Some(long) => long.into_value()?,
                    None => return Ok(Err(1)),
                }
            } else {
                let (element, length) = element(&input[*at..])?;
                if !matches!(element, Element::Missing(_)) {
                    *at += length;
                }
                match element {
                    Element::Missing(bytes) => return Ok(Err(bytes)),
                    Element::Long(bytes) => {
                        self.long = Some(Long::new(bytes));
                        continue;
                    }
                    Element::Several(shape, left) if left > 0 => {
                        if self.open.len() == MAX_DEPTH {
                            return Err(broken("arrays are nested too deep"));
                        }
                        self.open.push(Open {
                            shape,
                            left,
                            values: Vec::with_capacity(left.min(MAX_RESERVED)),
                        });
                        continue;
                    }
                    Element::Several(shape, _) => shape.close(Vec::new()),
                    Element::Value(value) => value,
                }
            };
            loop {
                let Some(open) = self.open.last_mut() else {
                    return Ok(Ok(value));
                };
                open.values.push(value);
                open.left -= 1;
                if open.left > 0 {
                    break;
                }
                value = open.shape.close(std::mem::take(&mut open.values));
                self.open.pop();
            }
        }
    }
}

/// The element at the start of `input` and its length.
fn element(input: &[u8]) -> RedisResult<(Element, usize)> {
    let Some((&kind, rest)) = input.split_first() else {
        return Ok((Element::Missing(1), 0));
    };
    match kind {
        b'$' | b'*' | b':' | b'>' | b'%' | b'~' | b'=' | b'!' => {
            let Some((number, digits)) = number(rest)? else {
                return Ok((Element::Missing(input.len() + 1), 0));
            };
            let length = 1 + digits + 2;
            let several = |shape, count| Ok((Element::Several(shape, count), length));
            match (kind, usize::try_from(number)) {
                (b':', _) => Ok((Element::Value(Value::Int(number)), length)),
                (b'*', Ok(count)) => several(Shape::Array, count),
                (b'>', Ok(count)) => several(Shape::Push, count),
                (b'~', Ok(count)) => several(Shape::Set, count),
                (b'%', Ok(count)) => match count.checked_mul(2) {
                    Some(count) => several(Shape::Map, count),
                    None => Err(broken("a length is too large")),
                },
                (b'$' | b'=' | b'!', Ok(bytes)) => text(kind, input, length, bytes),
                _ if number == -1 => Ok((Element::Value(Value::Nil), length)),
                _ => Err(broken("a length is negative")),
            }
        }
        b'+' | b'-' | b'_' | b'#' | b',' | b'(' => {
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                if rest.len() > MAX_LINE {
                    return Err(broken("a line has no end"));
                }
                return Ok((Element::Missing(input.len() + 1), 0));
            };
            let length = 1 + end + 1;
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            let value = match (kind, line) {
                (b'+', b"OK") => Value::Okay,
                (b'+' | b'(', text) => {
                    Value::SimpleString(String::from_utf8_lossy(text).into_owned())
                }
                (b'_', b"") => Value::Nil,
                (b'#', b"t") => Value::Boolean(true),
                (b'#', b"f") => Value::Boolean(false),
                (b',', number) => std::str::from_utf8(number)
                    .ok()
                    .and_then(|number| number.parse().ok())
                    .map(Value::Double)
                    .ok_or_else(|| broken("invalid number in reply"))?,
                // Parsed by the client, so that an error is the same on every kind of connection.
                (b'-', _) => redis::parse_redis_value(&input[..length])?,
                _ => return Err(broken("invalid value in reply")),
            };
            Ok((Element::Value(value), length))
        }
        _ => Err(broken("unknown type of reply")),
    }
}

/// A string of `bytes` bytes that begins at `start`.
fn text(kind: u8, input: &[u8], start: usize, bytes: usize) -> RedisResult<(Element, usize)> {
    let end = start
        .checked_add(bytes)
        .filter(|end| *end < usize::MAX - 2)
        .ok_or_else(|| broken("a length is too large"))?;
    let content = match input.get(start..end + 2) {
        None if kind == b'$' && bytes >= LONG => return Ok((Element::Long(bytes), start)),
        None => return Ok((Element::Missing(end + 2), 0)),
        Some([content @ .., b'\r', b'\n']) => content,
        Some(_) => return Err(broken("a string does not end where it should")),
    };
    let value = match kind {
        // Three letters and a colon say how the text is formatted.
        b'=' => Value::BulkString(content.get(4..).unwrap_or_default().to_vec()),
        b'!' => redis::parse_redis_value(&input[..end + 2])?,
        _ => Value::BulkString(content.to_vec()),
    };
    Ok((Element::Value(value), end + 2))
}

/// The number before the end of the line, and how many bytes it takes; `None` if the line is not whole.
fn number(input: &[u8]) -> RedisResult<Option<(i64, usize)>> {
    let bad = || broken("invalid integer in reply");
    let (negative, digits) = match input.first() {
        Some(b'-') => (true, &input[1..]),
        _ => (false, input),
    };
    let mut number: i64 = 0;
    for (at, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                // Summed below zero, where the smallest number has room too.
                number = number
                    .checked_mul(10)
                    .and_then(|number| number.checked_sub(i64::from(byte - b'0')))
                    .ok_or_else(bad)?;
            }
            b'\r' if at > 0 => {
                return match digits.get(at + 1) {
                    None => Ok(None),
                    Some(b'\n') => {
                        let number = if negative {
                            Some(number)
                        } else {
                            number.checked_neg()
                        };
                        let taken = at + usize::from(negative);
                        Ok(Some((number.ok_or_else(bad)?, taken)))
                    }
                    Some(_) => Err(bad()),
                };
            }
            _ => return Err(bad()),
        }
        if at > MAX_NUMBER {
            return Err(bad());
        }
    }
    Ok(None)
}

fn broken(what: &'static str) -> RedisError {
    RedisError::from((
        ErrorKind::Parse,
        "invalid reply from the server",
        what.to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Everything in `input`, given in pieces that end at the cuts.
    fn read(input: &[u8], cuts: &[usize]) -> RedisResult<Vec<Value>> {
        let (mut reader, mut at, mut values) = (Reader::default(), 0, Vec::new());
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (input.len() + 1)).collect();
        cuts.push(input.len());
        cuts.sort_unstable();
        for cut in cuts {
            while let Ok(value) = reader.next(&input[..cut], &mut at)? {
                values.push(value);
            }
        }
        Ok(values)
    }

    fn encode(value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::Nil => out.extend(b"$-1\r\n"),
            Value::Int(number) => out.extend(format!(":{number}\r\n").bytes()),
            Value::Okay => out.extend(b"+OK\r\n"),
            Value::SimpleString(text) => out.extend(format!("+{text}\r\n").bytes()),
            Value::BulkString(bytes) => {
                out.extend(format!("${}\r\n", bytes.len()).bytes());
                out.extend(bytes);
                out.extend(b"\r\n");
            }
            Value::Array(values) => {
                out.extend(format!("*{}\r\n", values.len()).bytes());
                values.iter().for_each(|value| encode(value, out));
            }
            Value::Boolean(flag) => out.extend(if *flag { b"#t\r\n" } else { b"#f\r\n" }),
            Value::Double(number) => out.extend(format!(",{number}\r\n").bytes()),
            Value::Set(values) => {
                out.extend(format!("~{}\r\n", values.len()).bytes());
                values.iter().for_each(|value| encode(value, out));
            }
            Value::Map(pairs) => {
                out.extend(format!("%{}\r\n", pairs.len()).bytes());
                for (key, value) in pairs {
                    encode(key, out);
                    encode(value, out);
                }
            }
            Value::Push { kind, data } => {
                out.extend(format!(">{}\r\n", data.len() + 1).bytes());
                let word = kind.to_string();
                encode(&Value::BulkString(word.into_bytes()), out);
                data.iter().for_each(|value| encode(value, out));
            }
            _ => unreachable!("no such value is made"),
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            Just(Value::Okay),
            any::<i64>().prop_map(Value::Int),
            any::<bool>().prop_map(Value::Boolean),
            (-1e9..1e9).prop_map(Value::Double),
            "[a-zA-Z ]{0,20}"
                .prop_filter("is read as Okay", |text| text != "OK")
                .prop_map(Value::SimpleString),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
        ];
        leaf.prop_recursive(5, 40, 6, |inner| {
            let several = || proptest::collection::vec(inner.clone(), 0..6);
            let kind = prop_oneof![
                Just(PushKind::SMessage),
                Just(PushKind::Invalidate),
                Just(PushKind::SSubscribe),
            ];
            prop_oneof![
                several().prop_map(Value::Array),
                several().prop_map(Value::Set),
                proptest::collection::vec((inner.clone(), inner.clone()), 0..4)
                    .prop_map(Value::Map),
                (kind, several()).prop_map(|(kind, data)| Value::Push { kind, data }),
            ]
        })
    }

    proptest! {
        #[test]
        fn replies_are_read_from_any_pieces(
            values in proptest::collection::vec(values(), 1..6),
            cuts in proptest::collection::vec(any::<usize>(), 0..12),
        ) {
            let mut bytes = Vec::new();
            values.iter().for_each(|value| encode(value, &mut bytes));
            prop_assert_eq!(read(&bytes, &cuts).expect("it is well formed"), values);
        }

        #[test]
        fn garbage_is_an_error_or_a_wait_and_never_a_panic(
            bytes in proptest::collection::vec(
                prop_oneof![Just(b'*'), Just(b'$'), Just(b'>'), Just(b'%'), Just(b'-'), Just(b':'), Just(b'\r'), Just(b'\n'), Just(b'1'), any::<u8>()],
                0..60,
            ),
        ) {
            let _ = read(&bytes, &[]);
        }
    }

    #[test]
    fn errors_are_those_of_the_client() {
        for line in [
            "-ERR no\r\n",
            "-MOVED 12 127.0.0.1:7000\r\n",
            "-NOSCRIPT x\r\n",
        ] {
            let ours = read(line.as_bytes(), &[]).expect("it is well formed");
            let theirs = redis::parse_redis_value(line.as_bytes()).expect("it is well formed");
            assert_eq!(ours, [theirs]);
        }
    }

    #[test]
    fn limits_of_numbers_are_read() {
        let text = format!(":{}\r\n:{}\r\n", i64::MIN, i64::MAX);
        let numbers = read(text.as_bytes(), &[]).expect("it is well formed");
        assert_eq!(numbers, [Value::Int(i64::MIN), Value::Int(i64::MAX)]);
        for bad in [
            ":9223372036854775808\r\n",
            ":\r\n",
            ":1x\r\n",
            "$-2\r\n",
            "?\r\n",
        ] {
            assert!(read(bad.as_bytes(), &[]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_long_string_is_read_from_any_pieces_and_reserves_by_what_has_come() {
        let long = Value::BulkString((0..5 * LONG).map(|n| n as u8).collect());
        let values = [
            Value::Array(vec![Value::Int(1), long.clone(), Value::Okay]),
            long,
            Value::Int(2),
        ];
        let mut bytes = Vec::new();
        values.iter().for_each(|value| encode(value, &mut bytes));
        for step in [1, 7, 1_000, LONG, 3 * LONG] {
            let cuts: Vec<usize> = (0..bytes.len()).step_by(step).collect();
            assert_eq!(read(&bytes, &cuts).expect("it is well formed"), values);
        }
        let bad = [format!("${LONG}\r\n").into_bytes(), vec![b'x'; LONG + 2]].concat();
        assert!(read(&bad, &[9]).is_err());

        let (mut reader, mut at) = (Reader::default(), 0);
        let claim = b"$9223372036854775000\r\nabc";
        assert!(reader.next(claim, &mut at).expect("it may come").is_err());
        let (bytes, _) = reader.long().expect("it has begun").rest();
        assert!(bytes.capacity() <= 2 * MAX_RESERVED_BYTES);
    }

    #[test]
    fn an_array_of_any_claimed_length_reserves_little_and_depth_has_an_end() {
        let (mut reader, mut at) = (Reader::default(), 0);
        let claim = b"*9223372036854775807\r\n";
        assert!(reader.next(claim, &mut at).expect("it may come").is_err());
        let deep = b"*1\r\n".repeat(MAX_DEPTH + 1);
        assert!(read(&deep, &[]).is_err());
    }
}
