//! What was received and not yet read.

use std::io;

use redis::{RedisResult, Value};

use super::{reply::Reader, stream::Stream};

/// Room for what is received. It grows for a longer reply and shrinks again after it.
pub(super) const ROOM: usize = 64 * 1024;

/// Receives from a stream and puts values together.
pub(crate) struct Input {
    reader: Reader,
    /// What was received and not yet read is `bytes[begin..end]`.
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
    /// With fewer bytes there is nothing to read.
    wanted: usize,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            reader: Reader::default(),
            bytes: vec![0; ROOM],
            begin: 0,
            end: 0,
            wanted: 1,
        }
    }

    /// Takes what the system has, and returns how much that was; 0 if it is nothing at the moment.
    pub(super) fn receive(&mut self, stream: &Stream) -> io::Result<usize> {
        let is_empty = self.begin == self.end;
        let received = match self.reader.long().filter(|_| is_empty) {
            // The rest of a long string goes where it will stay.
            Some(long) if !long.is_whole() => {
                let (bytes, left) = long.rest();
                stream.try_read_into(bytes, left)
            }
            _ => {
                self.make_room();
                let received = stream.try_read(&mut self.bytes[self.end..]);
                self.end += *received.as_ref().unwrap_or(&0);
                received
            }
        };
        match received {
            Ok(0) => Err(closed()),
            Ok(received) => Ok(received),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Whether there may be a whole value.
    pub(super) fn is_worth_reading(&mut self) -> bool {
        let received = self.end - self.begin;
        match self.reader.long() {
            Some(long) => received > 0 || long.is_whole(),
            None => received >= self.wanted,
        }
    }

    /// The next whole value.
    pub(super) fn next(&mut self) -> RedisResult<Option<Value>> {
        if !self.is_worth_reading() {
            return Ok(None);
        }
        match self.reader.next(&self.bytes[..self.end], &mut self.begin)? {
            Ok(value) => {
                self.wanted = 1;
                Ok(Some(value))
            }
            Err(missing) => {
                self.wanted = missing;
                Ok(None)
            }
        }
    }

    /// Sees to it that there is room behind what was received.
    fn make_room(&mut self) {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
            if self.bytes.len() > ROOM {
                self.bytes.truncate(ROOM);
                self.bytes.shrink_to_fit();
            }
        } else if self.end == self.bytes.len() {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            if self.end > self.bytes.len() / 2 {
                // By what has come, not by what was announced.
                self.bytes.resize(2 * self.bytes.len(), 0);
            }
        }
    }
}

/// The other side has closed the connection.
pub(super) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the connection is closed")
}
