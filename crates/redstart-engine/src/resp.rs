//! Redis's protocol on the wire: requests in, replies out.
//!
//! A request is parsed in place: the parser remembers how far it has come, so that a command that
//! arrives in small pieces is not read again from its start with each piece.

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
/// What a client may send before it is authenticated.
const GUEST_ARGS: i64 = 10;
const GUEST_BULK: i64 = 16 * 1024;

/// Reads commands from the bytes that a client sends.
#[derive(Default)]
pub(crate) struct Parser {
    buffer: BytesMut,
    /// How far the command at the start of the buffer was read.
    at: usize,
    /// Arguments of that command that are complete.
    args: Vec<Range<usize>>,
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
        loop {
            let command = match self.left {
                Some(_) => self.multibulk(limits)?,
                None => match self.buffer.first() {
                    None => return Ok(None),
                    Some(b'*') => {
                        if !self.header(limits)? {
                            return Ok(None);
                        }
                        self.multibulk(limits)?
                    }
                    Some(_) => self.inline()?,
                },
            };
            match command {
                None => return Ok(None),
                Some(command) if command.is_empty() => {}
                Some(command) => return Ok(Some(command)),
            }
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

    /// Reads `*<number>`; whether it is there.
    fn header(&mut self, limits: Limits) -> Result<bool, ProtocolError> {
        let Some(line) = self.line(0, "too big mbulk count string")? else {
            return Ok(false);
        };
        let count = parse_int(&self.buffer[1..line.end]);
        let count = count
            .filter(|&count| count <= i64::from(i32::MAX))
            .ok_or_else(|| ProtocolError::new("invalid multibulk length"))?;
        if count > GUEST_ARGS && !limits.authenticated {
            return Err(ProtocolError::new("unauthenticated multibulk length"));
        }
        self.at = line.end + 2;
        self.left = Some(usize::try_from(count).unwrap_or(0));
        Ok(true)
    }

    /// Reads the arguments; `None` if some are missing.
    fn multibulk(&mut self, limits: Limits) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        while self.left.is_some_and(|left| left > 0) {
            let len = match self.bulk {
                Some(len) => len,
                None => {
                    let at = self.at;
                    let Some(line) = self.line(at, "too big bulk count string")? else {
                        return Ok(None);
                    };
                    let first = self.buffer[at];
                    if first != b'$' {
                        let shown = first as char;
                        let text = format!("expected '$', got '{shown}'");
                        return Err(ProtocolError::new(text.replace(['\r', '\n'], " ")));
                    }
                    let len = parse_int(&self.buffer[at + 1..line.end])
                        .filter(|&len| usize::try_from(len).is_ok_and(|len| len <= limits.bulk))
                        .ok_or_else(|| ProtocolError::new("invalid bulk length"))?;
                    if len > GUEST_BULK && !limits.authenticated {
                        return Err(ProtocolError::new("unauthenticated bulk length"));
                    }
                    self.at = line.end + 2;
                    self.bulk = Some(len as usize);
                    len as usize
                }
            };
            if self.buffer.len() < self.at + len + 2 {
                return Ok(None);
            }
            if self.strict && !self.buffer[self.at + len..].starts_with(b"\r\n") {
                return Err(ProtocolError::new("an argument is longer than it says"));
            }
            self.args.push(self.at..self.at + len);
            self.at += len + 2;
            self.bulk = None;
            self.left = self.left.map(|left| left - 1);
        }
        let whole = self.buffer.split_to(self.at).freeze();
        let args = self.args.drain(..).map(|range| {
            if range.len() >= OWN {
                Bytes::copy_from_slice(&whole[range])
            } else {
                whole.slice(range)
            }
        });
        let args = args.collect();
        self.at = 0;
        self.left = None;
        Ok(Some(args))
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
    out.push(mark);
    out.extend_from_slice(itoa::Buffer::new().format(len).as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn put_bulk(out: &mut Vec<u8>, mark: u8, data: &[u8]) {
    put_len(out, mark, data.len());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

fn put_line(out: &mut Vec<u8>, mark: u8, text: &[u8]) {
    out.push(mark);
    // A line break would end the reply.
    out.extend(text.iter().map(|&byte| match byte {
        b'\r' | b'\n' => b' ',
        other => other,
    }));
    out.extend_from_slice(b"\r\n");
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
        Reply::Int(value) => put_line(out, b':', itoa::Buffer::new().format(*value).as_bytes()),
        Reply::Bulk(data) => put_bulk(out, b'$', data),
        Reply::Array(items) => all(b'*', items, out),
        Reply::Set(items) => all(if rich { b'~' } else { b'*' }, items, out),
        Reply::Push(items) => all(if rich { b'>' } else { b'*' }, items, out),
        Reply::Map(pairs) => {
            if rich {
                put_len(out, b'%', pairs.len());
            } else {
                put_len(out, b'*', pairs.len() * 2);
            }
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
