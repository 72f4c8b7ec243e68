//! Where an RDB is read from: bytes, lengths and strings, each checked before memory is taken.

use std::io::{self, Read};

use bytes::Bytes;

use super::{Fault, lzf};
use crate::crc64;

/// What a length stands for.
pub(super) enum Length {
    Plain(u64),
    /// A string in one of the encodings below.
    Encoded(u8),
}

const INT_8: u8 = 0;
const INT_16: u8 = 1;
const INT_32: u8 = 2;
const LZF: u8 = 3;

/// A reader that knows the checksum and the number of the bytes that went through it.
pub(super) struct Source<R> {
    inner: R,
    crc: u64,
    at: u64,
    /// The longest string.
    longest: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(inner: R) -> Source<R> {
        Source {
            inner,
            crc: 0,
            at: 0,
            longest: u64::MAX,
        }
    }

    /// Refuses strings that are longer than this, also when they are compressed.
    pub(super) fn limited(inner: R, longest: usize) -> Source<R> {
        Source {
            longest: longest as u64,
            ..Source::new(inner)
        }
    }

    /// Takes a string off the length that the next one may have: the limit is for all of them.
    pub(super) fn shorten_longest(&mut self, len: usize) {
        self.longest = self.longest.saturating_sub(len as u64);
    }

    fn check(&self, len: u64) -> Result<u64, Fault> {
        if len > self.longest {
            return Err(Fault::Damaged("a string of that length"));
        }
        Ok(len)
    }

    /// The checksum of all bytes so far.
    pub(super) fn crc(&self) -> u64 {
        self.crc
    }

    /// How many bytes were read.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        match self.inner.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(Fault::Ended),
            Err(error) => return Err(Fault::Io(error)),
        }
        self.crc = crc64::update(self.crc, &bytes);
        self.at += N as u64;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Fault> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// This many bytes. The memory grows with what is there, whatever the number says.
    pub(super) fn bytes(&mut self, len: u64) -> Result<Vec<u8>, Fault> {
        const AT_ONCE: u64 = 64 * 1024;
        let mut bytes = Vec::with_capacity(len.min(AT_ONCE) as usize);
        self.inner
            .by_ref()
            .take(len)
            .read_to_end(&mut bytes)
            .map_err(Fault::Io)?;
        if (bytes.len() as u64) < len {
            return Err(Fault::Ended);
        }
        self.crc = crc64::update(self.crc, &bytes);
        self.at += len;
        Ok(bytes)
    }

    pub(super) fn length_or_encoding(&mut self) -> Result<Length, Fault> {
        let first = self.byte()?;
        Ok(match first >> 6 {
            0 => Length::Plain(u64::from(first & 0x3F)),
            1 => Length::Plain(u64::from(first & 0x3F) << 8 | u64::from(self.byte()?)),
            2 => Length::Plain(match first {
                0x80 => u64::from(u32::from_be_bytes(self.array()?)),
                0x81 => u64::from_be_bytes(self.array()?),
                _ => return Err(Fault::Damaged("an unknown form of a length")),
            }),
            _ => Length::Encoded(first & 0x3F),
        })
    }

    /// A number that must not be an encoded string.
    pub(super) fn length(&mut self) -> Result<u64, Fault> {
        match self.length_or_encoding()? {
            Length::Plain(length) => Ok(length),
            Length::Encoded(_) => Err(Fault::Damaged("a string where a length is due")),
        }
    }

    pub(super) fn string(&mut self) -> Result<Bytes, Fault> {
        match self.length_or_encoding()? {
            Length::Plain(len) => {
                let len = self.check(len)?;
                self.bytes(len).map(Bytes::from)
            }
            Length::Encoded(INT_8) => Ok(text(i64::from(i8::from_le_bytes(self.array()?)))),
            Length::Encoded(INT_16) => Ok(text(i64::from(i16::from_le_bytes(self.array()?)))),
            Length::Encoded(INT_32) => Ok(text(i64::from(i32::from_le_bytes(self.array()?)))),
            Length::Encoded(LZF) => {
                let packed = self.length()?;
                let len = self.length()?;
                let len =
                    usize::try_from(self.check(len)?).map_err(|_| Fault::Damaged("a length"))?;
                let packed = self.bytes(packed)?;
                lzf::decompress(&packed, len)
                    .map(Bytes::from)
                    .ok_or(Fault::Damaged("a compressed string"))
            }
            Length::Encoded(_) => Err(Fault::Damaged("an unknown encoding of a string")),
        }
    }

    /// Unix milliseconds.
    pub(super) fn time(&mut self) -> Result<i64, Fault> {
        self.array().map(i64::from_le_bytes)
    }

    pub(super) fn double(&mut self) -> Result<f64, Fault> {
        self.array().map(f64::from_le_bytes)
    }
}

fn text(value: i64) -> Bytes {
    crate::number::int_bytes(value)
}
