//! Splits a stream of RESP2 or RESP3 bytes into frames, so that the proxy can count requests and
//! replies. It checks nothing beyond what it needs to find where a frame ends.

/// The direction of a stream: a request may also be an inline command, a plain line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Requests,
    Replies,
}

/// Collects bytes and returns whole frames.
#[derive(Debug)]
pub(crate) struct Framer {
    side: Side,
    buffer: Vec<u8>,
    /// How far into the buffer the frame at its start has been read.
    at: usize,
    /// How many values that frame still needs.
    pending: u64,
    /// The stream is not RESP (TLS, Postgres): bytes pass as they arrive.
    raw: bool,
}

enum Step {
    Value,
    More,
    NotResp,
}

impl Framer {
    pub(crate) fn new(side: Side) -> Self {
        Self {
            side,
            buffer: Vec::new(),
            at: 0,
            pending: 1,
            raw: false,
        }
    }

    pub(crate) fn is_raw(&self) -> bool {
        self.raw
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame; of a stream that is not RESP, whatever has arrived.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        while !self.raw && self.pending > 0 {
            match self.step() {
                Step::Value => {}
                Step::More => return None,
                Step::NotResp => self.raw = true,
            }
        }
        let end = if self.raw { self.buffer.len() } else { self.at };
        (self.at, self.pending) = (0, 1);
        let rest = self.buffer.split_off(end);
        let frame = std::mem::replace(&mut self.buffer, rest);
        (!frame.is_empty()).then_some(frame)
    }

    /// Reads one value at `at`; an aggregate adds its elements to `pending`.
    fn step(&mut self) -> Step {
        let rest = &self.buffer[self.at..];
        let Some(&kind) = rest.first() else {
            return Step::More;
        };
        let known = b"+-:_,#($!=*~>%|".contains(&kind);
        let inline = self.side == Side::Requests && self.at == 0;
        if !known && !(inline && (kind.is_ascii_graphic() || kind == b'\r' || kind == b'\n')) {
            return Step::NotResp;
        }
        let Some(line) = rest.iter().position(|&byte| byte == b'\n') else {
            return Step::More;
        };
        let header = line + 1;
        let number = || {
            std::str::from_utf8(rest.get(1..line)?)
                .ok()?
                .trim_end()
                .parse::<i64>()
                .ok()
        };
        let (size, children) = match kind {
            b'$' | b'!' | b'=' => match number() {
                // A null has no body.
                Some(length) => match u64::try_from(length) {
                    Ok(length) => (header + usize::try_from(length).unwrap_or(0) + 2, 0),
                    Err(_) => (header, 0),
                },
                None => return Step::NotResp,
            },
            b'*' | b'~' | b'>' | b'%' | b'|' => match number() {
                Some(count) => {
                    let count = u64::try_from(count).unwrap_or(0);
                    match kind {
                        b'%' => (header, 2 * count),
                        // Attributes come before the value that they belong to.
                        b'|' => (header, 2 * count + 1),
                        _ => (header, count),
                    }
                }
                None => return Step::NotResp,
            },
            _ => (header, 0),
        };
        if rest.len() < size {
            return Step::More;
        }
        self.at += size;
        self.pending = self.pending - 1 + children;
        Step::Value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(side: Side, chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut framer = Framer::new(side);
        let mut out = Vec::new();
        for chunk in chunks {
            framer.push(chunk);
            while let Some(frame) = framer.next() {
                out.push(frame);
            }
        }
        out
    }

    #[test]
    fn frames_are_the_same_however_the_bytes_are_cut() {
        let stream: &[&[u8]] = &[
            b"+OK\r\n",
            b"*2\r\n$3\r\na\r\n\r\n*1\r\n:1\r\n",
            b"%1\r\n+k\r\n*-1\r\n",
            b"|1\r\n+ttl\r\n:3\r\n$-1\r\n",
            b">3\r\n+message\r\n+c\r\n$1\r\nx\r\n",
            b"*0\r\n",
        ];
        let whole = stream.concat();
        assert_eq!(frames(Side::Replies, &[&whole]), stream);
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(frames(Side::Replies, &bytes), stream);
        let sevens: Vec<&[u8]> = whole.chunks(7).collect();
        assert_eq!(frames(Side::Replies, &sevens), stream);
    }

    #[test]
    fn an_inline_command_is_a_request_but_no_reply() {
        assert_eq!(frames(Side::Requests, &[b"PING\r\nPI", b"NG\r\n"]).len(), 2);
        // Not RESP: it passes as it arrives.
        assert_eq!(frames(Side::Replies, &[b"\x16\x03", b"\x01"]).len(), 2);
    }
}
