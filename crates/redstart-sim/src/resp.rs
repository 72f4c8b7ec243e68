//! Commands out of bytes, as clients send them: arrays of bulk strings.

use bytes::{Buf as _, Bytes, BytesMut};

/// Splits a stream of bytes into commands.
#[derive(Default)]
pub struct Parser(BytesMut);

/// The bytes are no commands.
#[derive(Debug)]
pub struct Malformed;

impl Parser {
    /// Adds what was received.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole command, if it has come.
    ///
    /// # Errors
    ///
    /// If the bytes are no command.
    pub fn next(&mut self) -> Result<Option<Vec<Bytes>>, Malformed> {
        let mut at = 0;
        let Some(count) = number(&self.0, &mut at, b'*')? else {
            return Ok(None);
        };
        let mut bounds = Vec::with_capacity(count);
        for _ in 0..count {
            let Some(length) = number(&self.0, &mut at, b'$')? else {
                return Ok(None);
            };
            if self.0.len() < at + length + 2 {
                return Ok(None);
            }
            bounds.push((at, at + length));
            at += length + 2;
        }
        let whole = self.0.copy_to_bytes(at);
        let args = bounds.into_iter().map(|(from, to)| whole.slice(from..to));
        Ok(Some(args.collect()))
    }
}

/// `<mark><number>\r\n`.
fn number(bytes: &[u8], at: &mut usize, mark: u8) -> Result<Option<usize>, Malformed> {
    let Some(rest) = bytes.get(*at..).filter(|rest| !rest.is_empty()) else {
        return Ok(None);
    };
    if rest[0] != mark {
        return Err(Malformed);
    }
    let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    let digits = std::str::from_utf8(&rest[1..end]).map_err(|_| Malformed)?;
    *at += end + 2;
    digits.parse().map(Some).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_pieces_of_any_size() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*1\r\n$4\r\nPING\r\n";
        for size in 1..bytes.len() {
            let mut parser = Parser::default();
            let mut found = Vec::new();
            for piece in bytes.chunks(size) {
                parser.feed(piece);
                while let Some(command) = parser.next().unwrap() {
                    found.push(command);
                }
            }
            assert_eq!(found.len(), 2, "in pieces of {size}");
            assert_eq!(found[0], ["GET", "a"]);
        }
    }
}
