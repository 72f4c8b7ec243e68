//! Redis's protocol on the wire: requests in, replies out.
//!
//! A request is parsed in place: the parser remembers how far it has come, so that a command that
//! arrives in small pieces is not read again from its start with each piece.

#[cfg(test)]
mod fuzz;

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};

use crate::{
    number::{double_text, parse_int},
    reply::{Protocol, Reply},
};

/// The longest line of an inline command, or of a length.
const MAX_LINE: usize = 64 * 1024;
/// From this size on an argument gets memory of its own, so that a value that is kept does not
/// keep the whole buffer with it.
const OWN: usize = 512;
/// Capacity for this many arguments is kept from batch to batch.
const KEPT: usize = 4096;
/// What a client may send before it is authenticated.
const GUEST_ARGS: i64 = 10;
const GUEST_BULK: i64 = 16 * 1024;

/// Reads commands from the bytes that a client sends.
#[derive(Default)]
pub(crate) struct Parser {
    buffer: BytesMut,
    /// How far the buffer was read.
    at: usize,
    /// Arguments that are complete, of the commands that were read and of the next one.
    args: Vec<Range<usize>>,
    /// How many arguments belong to commands that are complete.
    whole: usize,
    /// How many arguments are still to come; `None` before the command's header was read.
    left: Option<usize>,
    /// The length of the argument that is being received.
    bulk: Option<usize>,
    /// An argument has to end where its length says. Servers do not look, for clients.
    strict: bool,
}

/// How much a client may send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The longest argument.
    pub(crate) bulk: usize,
    pub(crate) authenticated: bool,
}

/// What is wrong with a request, in Redis's words. The connection is of no use any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProtocolError(pub(crate) String);

impl ProtocolError {
    fn new(text: impl Into<String>) -> ProtocolError {
        ProtocolError(text.into())
    }
}

impl Parser {
    /// One that checks the end of each argument, for what may have been damaged.
    pub(crate) fn strict() -> Parser {
        Parser {
            strict: true,
            ..Parser::default()
        }
    }

    /// Where to put what was received.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// How many bytes wait to be parsed or to be completed.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// How many bytes the argument that is being received still lacks.
    pub(crate) fn wanted(&self) -> usize {
        match self.bulk {
            Some(len) => (self.at + len + 2).saturating_sub(self.buffer.len()),
            None => 0,
        }
    }

    /// The next complete command. Empty ones are skipped, as Redis does.
    pub(crate) fn next(&mut self, limits: Limits) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        let mut one = Commands::default();
        self.fill(&mut one, 1, limits)?;
        Ok((!one.is_empty()).then_some(one.args))
    }

    /// Adds complete commands until there are `max` of them. What comes before an error is added.
    pub(crate) fn fill(
        &mut self,
        commands: &mut Commands,
        max: usize,
        limits: Limits,
    ) -> Result<(), ProtocolError> {
        // The end of what is complete.
        let mut done = 0;
        let filled = self.fill_from(commands, max, limits, &mut done);
        self.hand_over(commands, done);
        filled
    }

    fn fill_from(
        &mut self,
        commands: &mut Commands,
        max: usize,
        limits: Limits,
        done: &mut usize,
    ) -> Result<(), ProtocolError> {
        while commands.len() < max {
            if self.left.is_none() {
                match self.buffer.get(*done) {
                    None => return Ok(()),
                    Some(b'*') => {
                        if !self.header(*done, limits)? {
                            return Ok(());
                        }
                    }
                    Some(_) => {
                        self.hand_over(commands, std::mem::take(done));
                        match self.inline()? {
                            None => return Ok(()),
                            Some(words) if words.is_empty() => {}
                            Some(words) => commands.push(words),
                        }
                        continue;
                    }
                }
            }
            if !self.multibulk(limits)? {
                return Ok(());
            }
            *done = self.at;
            self.left = None;
            if self.args.len() > self.whole {
                commands.ends.push(commands.args.len() + self.args.len());
                self.whole = self.args.len();
            }
        }
        Ok(())
    }

    /// Takes the commands that end before `done` out of the buffer. They share one piece of it, so
    /// that a batch costs one reference count instead of one for each command.
    fn hand_over(&mut self, commands: &mut Commands, done: usize) {
        if done == 0 {
            return;
        }
        let whole = self.buffer.split_to(done).freeze();
        let args = self.args.drain(..std::mem::take(&mut self.whole));
        commands.args.extend(args.map(|range| {
            if range.len() >= OWN {
                Bytes::copy_from_slice(&whole[range])
            } else {
                whole.slice(range)
            }
        }));
        if self.args.is_empty() && self.args.capacity() > KEPT {
            self.args = Vec::new();
        }
        self.at -= done;
        for range in &mut self.args {
            *range = range.start - done..range.end - done;
        }
    }

    /// A line that starts `at`, without its end; `None` if it is not complete.
    fn line(&self, at: usize, too_long: &str) -> Result<Option<Range<usize>>, ProtocolError> {
        match memchr::memchr(b'\r', &self.buffer[at..]) {
            // The line feed behind it has to be there, too.
            Some(len) if at + len + 1 < self.buffer.len() => Ok(Some(at..at + len)),
            Some(_) => Ok(None),
            None if self.buffer.len() - at > MAX_LINE => Err(ProtocolError::new(too_long)),
            None => Ok(None),
        }
    }

    /// The number behind the mark at `at`, and where its line ends: only what is complete, short and
    /// beyond doubt. Everything else is read with care, and refused in the right words.
    #[inline]
    fn plain_number(&self, at: usize) -> Option<(i64, usize)> {
        const DIGITS: usize = 8;
        let digits = self.buffer.get(at + 1..)?;
        let mut value = 0;
        for (count, &byte) in digits.iter().take(DIGITS + 1).enumerate() {
            match byte {
                b'0'..=b'9' => value = value * 10 + i64::from(byte - b'0'),
                // The line feed behind it has to be there, too.
                b'\r' if count > 0 && count + 1 < digits.len() => {
                    let plain = digits[0] != b'0' || count == 1;
                    return plain.then_some((value, at + 1 + count));
                }
                _ => return None,
            }
        }
        None
    }

    /// Reads the `*<number>` that starts at `from`; whether it is there.
    fn header(&mut self, from: usize, limits: Limits) -> Result<bool, ProtocolError> {
        let (count, end) = match self.plain_number(from) {
            Some(plain) => plain,
            None => {
                let Some(line) = self.line(from, "too big mbulk count string")? else {
                    return Ok(false);
                };
                let count = parse_int(&self.buffer[from + 1..line.end])
                    .filter(|&count| count <= i64::from(i32::MAX))
                    .ok_or_else(|| ProtocolError::new("invalid multibulk length"))?;
                (count, line.end)
            }
        };
        if count > GUEST_ARGS && !limits.authenticated {
            return Err(ProtocolError::new("unauthenticated multibulk length"));
        }
        self.at = end + 2;
        self.left = Some(usize::try_from(count).unwrap_or(0));
        Ok(true)
    }

    /// Reads the arguments; false if some are missing.
    fn multibulk(&mut self, limits: Limits) -> Result<bool, ProtocolError> {
        while self.left.is_some_and(|left| left > 0) {
            let len = match self.bulk {
                Some(len) => len,
                None => {
                    let Some(len) = self.bulk_length(limits)? else {
                        return Ok(false);
                    };
                    len
                }
            };
            if self.buffer.len() < self.at + len + 2 {
                return Ok(false);
            }
            if self.strict && !self.buffer[self.at + len..].starts_with(b"\r\n") {
                return Err(ProtocolError::new("an argument is longer than it says"));
            }
            self.args.push(self.at..self.at + len);
            self.at += len + 2;
            self.bulk = None;
            self.left = self.left.map(|left| left - 1);
        }
        Ok(true)
    }

    /// Reads the `$<length>` of an argument; `None` if it is not complete.
    #[inline]
    fn bulk_length(&mut self, limits: Limits) -> Result<Option<usize>, ProtocolError> {
        let at = self.at;
        let plain = match self.buffer.get(at) {
            Some(b'$') => self.plain_number(at),
            _ => None,
        };
        let (len, end) = match plain {
            Some(plain) => plain,
            None => {
                let Some(line) = self.line(at, "too big bulk count string")? else {
                    return Ok(None);
                };
                let first = self.buffer[at];
                if first != b'$' {
                    let shown = first as char;
                    let text = format!("expected '$', got '{shown}'");
                    return Err(ProtocolError::new(text.replace(['\r', '\n'], " ")));
                }
                let len = parse_int(&self.buffer[at + 1..line.end]);
                (len.unwrap_or(-1), line.end)
            }
        };
        let allowed = usize::try_from(len).ok().filter(|&len| len <= limits.bulk);
        let Some(allowed) = allowed else {
            return Err(ProtocolError::new("invalid bulk length"));
        };
        if len > GUEST_BULK && !limits.authenticated {
            return Err(ProtocolError::new("unauthenticated bulk length"));
        }
        self.at = end + 2;
        self.bulk = Some(allowed);
        Ok(Some(allowed))
    }

    /// Reads a command that a person typed.
    fn inline(&mut self) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        let Some(end) = memchr::memchr(b'\n', &self.buffer) else {
            if self.buffer.len() > MAX_LINE {
                return Err(ProtocolError::new("too big inline request"));
            }
            return Ok(None);
        };
        let line = self.buffer.split_to(end).freeze();
        self.buffer.advance(1);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        split_line(line)
            .map(Some)
            .ok_or_else(|| ProtocolError::new("unbalanced quotes in request"))
    }
}

/// Commands one after the other, with all their arguments in one vector, which is used again and
/// again.
#[derive(Default)]
pub(crate) struct Commands {
    args: Vec<Bytes>,
    /// Where the arguments of each command end.
    ends: Vec<usize>,
    /// How many commands were run.
    next: usize,
}

impl Commands {
    fn push(&mut self, args: Vec<Bytes>) {
        self.args.extend(args);
        self.ends.push(self.args.len());
    }

    /// How many there are, run or not.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none, run or not.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many bytes their arguments have.
    pub(crate) fn bytes(&self) -> usize {
        self.args.iter().map(Bytes::len).sum()
    }

    /// Those that were not run.
    pub(crate) fn rest(&self) -> impl Iterator<Item = &[Bytes]> + Clone {
        let first = self.next.checked_sub(1).map_or(0, |last| self.ends[last]);
        self.ends[self.next..].iter().scan(first, |from, &end| {
            let args = &self.args[*from..end];
            *from = end;
            Some(args)
        })
    }

    /// This many more of them were run.
    pub(crate) fn ran(&mut self, count: usize) {
        self.next += count;
        if self.next == self.ends.len() {
            self.args.clear();
            self.ends.clear();
            self.next = 0;
            if self.args.capacity() > KEPT {
                self.args = Vec::new();
            }
        }
    }
}

/// Splits a typed line at blanks, honouring quotes; `None` if they do not match.
pub(crate) fn split_line(line: &[u8]) -> Option<Vec<Bytes>> {
    let mut args = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(args);
        }
        let mut word = Vec::new();
        while let Some((&first, after)) = rest.split_first() {
            if first.is_ascii_whitespace() || first == 0 {
                break;
            }
            rest = match first {
                b'"' => double_quoted(after, &mut word)?,
                b'\'' => single_quoted(after, &mut word)?,
                other => {
                    word.push(other);
                    after
                }
            };
            // A closing quote ends the word.
            if matches!(first, b'"' | b'\'') {
                if rest.first().is_some_and(|next| !next.is_ascii_whitespace()) {
                    return None;
                }
                break;
            }
        }
        args.push(word.into());
        if rest.first() == Some(&0) {
            return Some(args);
        }
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    let hex = |digit: u8| (digit as char).to_digit(16).map(|digit| digit as u8);
    loop {
        rest = match rest {
            [b'"', after @ ..] => return Some(after),
            [b'\\', b'x', high, low, after @ ..] if hex(*high).is_some() && hex(*low).is_some() => {
                word.push(hex(*high)? * 16 + hex(*low)?);
                after
            }
            [b'\\', escaped, after @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                after
            }
            [other, after @ ..] => {
                word.push(*other);
                after
            }
            [] => return None,
        };
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'\\', b'\'', after @ ..] => {
                word.push(b'\'');
                after
            }
            [b'\'', after @ ..] => return Some(after),
            [other, after @ ..] => {
                word.push(*other);
                after
            }
            [] => return None,
        };
    }
}

fn put_len(out: &mut Vec<u8>, mark: u8, len: usize) {
    // Most lengths have one digit or two.
    match len {
        0..10 => out.extend_from_slice(&[mark, b'0' + len as u8, b'\r', b'\n']),
        10..100 => {
            let (tens, ones) = ((len / 10) as u8, (len % 10) as u8);
            out.extend_from_slice(&[mark, b'0' + tens, b'0' + ones, b'\r', b'\n']);
        }
        _ => put_number(out, mark, itoa::Buffer::new().format(len)),
    }
}

fn put_number(out: &mut Vec<u8>, mark: u8, digits: &str) {
    out.push(mark);
    out.extend_from_slice(digits.as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn put_bulk(out: &mut Vec<u8>, mark: u8, data: &[u8]) {
    put_len(out, mark, data.len());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

fn put_line(out: &mut Vec<u8>, mark: u8, text: &[u8]) {
    out.push(mark);
    // A line break would end the reply.
    if text.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
        out.extend(text.iter().map(|&byte| match byte {
            b'\r' | b'\n' => b' ',
            other => other,
        }));
    } else {
        out.extend_from_slice(text);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes a binary string.
#[inline]
pub(crate) fn encode_bulk(data: &[u8], out: &mut Vec<u8>) {
    put_bulk(out, b'$', data);
}

/// Writes an integer as a binary string.
pub(crate) fn encode_int_bulk(value: i64, out: &mut Vec<u8>) {
    put_bulk(out, b'$', itoa::Buffer::new().format(value).as_bytes());
}

/// Begins an array of this many items.
pub(crate) fn encode_array(len: usize, out: &mut Vec<u8>) {
    put_len(out, b'*', len);
}

/// Begins a map of this many pairs.
pub(crate) fn encode_map(pairs: usize, protocol: Protocol, out: &mut Vec<u8>) {
    match protocol {
        Protocol::Resp3 => put_len(out, b'%', pairs),
        Protocol::Resp2 => put_len(out, b'*', pairs * 2),
    }
}

/// Begins a set of this many members.
pub(crate) fn encode_set(len: usize, protocol: Protocol, out: &mut Vec<u8>) {
    match protocol {
        Protocol::Resp3 => put_len(out, b'~', len),
        Protocol::Resp2 => put_len(out, b'*', len),
    }
}

/// Writes a reply as the client is to see it.
pub(crate) fn encode(reply: &Reply, protocol: Protocol, out: &mut Vec<u8>) {
    let rich = protocol == Protocol::Resp3;
    let all = |mark: u8, items: &[Reply], out: &mut Vec<u8>| {
        put_len(out, mark, items.len());
        for item in items {
            encode(item, protocol, out);
        }
    };
    match reply {
        Reply::Nil | Reply::NilArray if rich => out.extend_from_slice(b"_\r\n"),
        Reply::Nil => out.extend_from_slice(b"$-1\r\n"),
        Reply::NilArray => out.extend_from_slice(b"*-1\r\n"),
        Reply::Status(text) => put_line(out, b'+', text.as_bytes()),
        Reply::Error(text) => put_line(out, b'-', text.as_bytes()),
        Reply::Int(value) => put_number(out, b':', itoa::Buffer::new().format(*value)),
        Reply::Bulk(data) => put_bulk(out, b'$', data),
        Reply::Array(items) => all(b'*', items, out),
        Reply::Set(items) => {
            encode_set(items.len(), protocol, out);
            for item in items {
                encode(item, protocol, out);
            }
        }
        Reply::Push(items) => all(if rich { b'>' } else { b'*' }, items, out),
        Reply::Map(pairs) => {
            encode_map(pairs.len(), protocol, out);
            for (key, value) in pairs {
                encode(key, protocol, out);
                encode(value, protocol, out);
            }
        }
        Reply::Double(value) if rich => put_line(out, b',', double_text(*value).as_bytes()),
        Reply::Double(value) => put_bulk(out, b'$', double_text(*value).as_bytes()),
        Reply::Bool(value) if rich => put_line(out, b'#', if *value { b"t" } else { b"f" }),
        Reply::Bool(value) => put_line(out, b':', if *value { b"1" } else { b"0" }),
        Reply::BigNumber(digits) if rich => put_line(out, b'(', digits.as_bytes()),
        Reply::BigNumber(digits) => put_bulk(out, b'$', digits.as_bytes()),
        Reply::Verbatim { format, text } if rich => {
            put_len(out, b'=', text.len() + 4);
            out.extend_from_slice(format);
            out.push(b':');
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
        Reply::Verbatim { text, .. } => put_bulk(out, b'$', text),
    }
}

/// Writes a command as a client would send it.
pub(crate) fn encode_command(args: &[Bytes], out: &mut Vec<u8>) {
    put_len(out, b'*', args.len());
    for arg in args {
        put_bulk(out, b'$', arg);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        bulk: 1000,
        authenticated: true,
    };

    fn parse(pieces: &[&[u8]]) -> Result<Vec<Vec<Bytes>>, ProtocolError> {
        let mut parser = Parser::default();
        let mut commands = Vec::new();
        for piece in pieces {
            parser.buffer().extend_from_slice(piece);
            while let Some(command) = parser.next(LIMITS)? {
                commands.push(command);
            }
        }
        Ok(commands)
    }

    fn words(line: &str) -> Vec<Bytes> {
        line.split(' ')
            .map(|word| Bytes::copy_from_slice(word.as_bytes()))
            .collect()
    }

    #[test]
    fn typed_lines_are_split_as_in_redis() {
        assert_eq!(
            parse(&[b"SET a b\r\nGET a\n"]).unwrap(),
            [words("SET a b"), words("GET a")]
        );
        assert_eq!(
            parse(&[b"\r\n\r\n  \r\nPING\r\n"]).unwrap(),
            [words("PING")]
        );
        let quoted = parse(&[b"SET \"a \\x41\\n\" 'it\\'s'\r\n"]).unwrap();
        assert_eq!(quoted[0][1], "a A\n");
        assert_eq!(quoted[0][2], "it's");
        for bad in ["SET \"a\r\n", "SET 'a\r\n", "SET \"a\"b\r\n"] {
            assert!(parse(&[bad.as_bytes()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn bad_requests_are_refused_in_redis_s_words() {
        for (request, error) in [
            ("*x\r\n", "invalid multibulk length"),
            ("*99999999999\r\n", "invalid multibulk length"),
            ("*1\r\nx\r\n", "expected '$', got 'x'"),
            ("*1\r\n*1\r\n", "expected '$', got '*'"),
            ("*1\r\n$x\r\n", "invalid bulk length"),
            ("*1\r\n$-1\r\n", "invalid bulk length"),
            ("*1\r\n$1001\r\n", "invalid bulk length"),
        ] {
            assert_eq!(
                parse(&[request.as_bytes()]),
                Err(ProtocolError::new(error)),
                "{request:?}"
            );
        }
        let long = "x".repeat(MAX_LINE + 1);
        for (start, error) in [
            ("", "too big inline request"),
            ("*", "too big mbulk count string"),
            ("*1\r\n$", "too big bulk count string"),
        ] {
            let request = format!("{start}{long}");
            assert_eq!(parse(&[request.as_bytes()]), Err(ProtocolError::new(error)));
        }
        assert_eq!(parse(&[b"*0\r\n*-5\r\nPING\r\n"]).unwrap(), [words("PING")]);
    }

    #[test]
    fn a_guest_may_not_send_much() {
        let guest = Limits {
            authenticated: false,
            ..LIMITS
        };
        for request in ["*11\r\n", "*1\r\n$16385\r\n"] {
            let mut parser = Parser::default();
            parser.buffer().extend_from_slice(request.as_bytes());
            let limits = Limits {
                bulk: 1_000_000,
                ..guest
            };
            assert!(parser.next(limits).is_err(), "{request}");
        }
    }

    /// What was parsed before the end or the first error, and whether there was one.
    fn parse_all(pieces: &[&[u8]]) -> (Vec<Vec<Bytes>>, bool) {
        let mut parser = Parser::default();
        let (mut commands, mut fed) = (Vec::new(), 0);
        for piece in pieces {
            parser.buffer().extend_from_slice(piece);
            fed += piece.len();
            loop {
                match parser.next(LIMITS) {
                    Ok(Some(command)) => commands.push(command),
                    Ok(None) => break,
                    Err(_) => return (commands, true),
                }
            }
            assert!(parser.len() <= fed, "more waits than was sent");
            assert!(
                parser.wanted() <= LIMITS.bulk + 2,
                "more is awaited than allowed"
            );
        }
        (commands, false)
    }

    /// The fuzz target of the parser: valid requests with random changes. Whatever comes, it neither
    /// panics nor waits for more than is allowed, and it does not matter how the bytes are cut.
    /// `cargo xtask fuzz --parser` gives it more rounds and a seed.
    #[test]
    fn fuzz_parser() {
        use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

        const WORDS: &[&[u8]] = &[
            b"*",
            b"$",
            b"\r\n",
            b"\n",
            b"\r",
            b"-1",
            b"0",
            b"1",
            b"1000",
            b"1001",
            b"1048577",
            b"9223372036854775807",
            b"-9223372036854775808",
            b"99999999999999999999",
            b"\"",
            b"'",
            b"\\x",
            b"\0",
            b" ",
            b"+",
            b"*1\r\n$4\r\nPING\r\n",
            b"PING\r\n",
            b"*0\r\n",
            b"$-1\r\n",
        ];
        let seed = match std::env::var("REDSTART_FUZZ_SEED") {
            Ok(seed) => seed.parse().expect("a number"),
            Err(_) => rand::random(),
        };
        let rounds = redstart_testkit::scale(20_000, "parser");
        println!("{rounds} rounds of REDSTART_FUZZ_SEED={seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (mut parsed, mut refused) = (0u64, 0u64);
        for round in 0..rounds {
            let mut input = Vec::new();
            for _ in 0..random.random_range(1..5) {
                let args: Vec<Bytes> = (0..random.random_range(1..5))
                    .map(|_| vec![random.random::<u8>(); random.random_range(0..40)].into())
                    .collect();
                encode_command(&args, &mut input);
            }
            for _ in 0..random.random_range(0..6) {
                let at = random.random_range(0..=input.len());
                let end = (at + random.random_range(0..8)).min(input.len());
                match random.random_range(0..4) {
                    0 => drop(input.drain(at..end)),
                    1 => {
                        let copy = input[at..end].to_vec();
                        input.splice(at..at, copy);
                    }
                    2 if at < input.len() => input[at] = random.random(),
                    _ => {
                        let word = WORDS.choose(&mut random).expect("there are words");
                        input.splice(at..at, word.iter().copied());
                    }
                }
            }
            let whole = parse_all(&[&input]);
            let mut pieces = Vec::new();
            let mut rest = &input[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(random.random_range(1..=rest.len().min(30)));
                pieces.push(piece);
                rest = after;
            }
            let cut = parse_all(&pieces);
            assert_eq!(whole, cut, "round {round}: {}", input.escape_ascii());
            parsed += whole.0.len() as u64;
            refused += u64::from(whole.1);
        }
        println!("{parsed} commands parsed, {refused} inputs refused");
        assert!(
            parsed > rounds / 4 && refused > rounds / 100,
            "{parsed} {refused}"
        );
    }

    proptest! {
        #[test]
        fn commands_are_the_same_however_they_are_cut(
            commands in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 1..6), 1..6),
            cuts in prop::collection::vec(1usize..200, 0..40),
        ) {
            let commands: Vec<Vec<Bytes>> = commands
                .into_iter()
                .map(|args| args.into_iter().map(Bytes::from).collect())
                .collect();
            let mut wire = Vec::new();
            for args in &commands {
                encode_command(args, &mut wire);
            }
            let mut pieces = Vec::new();
            let mut rest = &wire[..];
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            pieces.push(rest);
            prop_assert_eq!(parse(&pieces).unwrap(), commands);
        }

        #[test]
        fn garbage_never_panics(pieces in prop::collection::vec(
            prop::collection::vec(prop_oneof![
                any::<u8>(), Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'"')
            ], 0..60), 0..20))
        {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let _ = parse(&pieces);
        }
    }
}
