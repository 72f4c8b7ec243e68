//! Listpacks: many strings and integers in one string.

use bytes::Bytes;

use super::Fault;
use crate::{number::parse_int, types::blob::Blob};

const HEADER: usize = 6;
const END: u8 = 0xFF;
/// The number of elements is not kept if it does not fit.
const UNCOUNTED: u16 = u16::MAX;

/// An element of a packed string.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Item<'a> {
    Str(&'a [u8]),
    Int(i64),
}

impl<'a> Item<'a> {
    pub(super) fn blob(self) -> Blob {
        match self {
            Item::Str(text) => Blob::new(text),
            Item::Int(value) => Blob::new(itoa::Buffer::new().format(value).as_bytes()),
        }
    }

    pub(super) fn bytes(self) -> Bytes {
        match self {
            Item::Str(text) => Bytes::copy_from_slice(text),
            Item::Int(value) => crate::number::int_bytes(value),
        }
    }

    /// The signed little-endian number of `len` bytes behind an element's first byte, and the size of the element.
    pub(super) fn number(rest: &[u8], len: usize) -> Option<(Self, usize)> {
        let bytes = rest.get(..len)?;
        let mut word = [0; 8];
        // At the top of the word, so that the shift extends the sign.
        word[8 - len..].copy_from_slice(bytes);
        let number = i64::from_le_bytes(word) >> (64 - 8 * len);
        Some((Self::Int(number), 1 + len))
    }

    /// The text behind an element's header, and the size of the element.
    pub(super) fn text(data: &'a [u8], header: usize, len: usize) -> Option<(Self, usize)> {
        let text = data.get(header..header.checked_add(len)?)?;
        Some((Self::Str(text), header + len))
    }

    /// The integer that the element is or spells.
    pub(super) fn int(self) -> Option<i64> {
        match self {
            Item::Int(value) => Some(value),
            Item::Str(text) => parse_int(text),
        }
    }
}

fn damaged() -> Fault {
    Fault::Damaged("a listpack")
}

/// The size of the length that follows an element of this size.
fn back_len(size: usize) -> usize {
    match size {
        ..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    }
}

fn put_back_len(out: &mut Vec<u8>, size: usize) {
    let count = back_len(size);
    for at in (0..count).rev() {
        let seven = (size >> (7 * at)) as u8 & 0x7F;
        // All but the first are marked.
        out.push(if at + 1 == count { seven } else { seven | 0x80 });
    }
}

/// The elements of a listpack.
pub(super) fn read(data: &[u8]) -> Result<Vec<Item<'_>>, Fault> {
    let (header, body) = data.split_at_checked(HEADER).ok_or_else(damaged)?;
    let total = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let count = u16::from_le_bytes([header[4], header[5]]);
    let (&end, mut rest) = body.split_last().ok_or_else(damaged)?;
    if total as usize != data.len() || end != END {
        return Err(damaged());
    }
    let mut items = Vec::new();
    let mut expected = Vec::with_capacity(5);
    while !rest.is_empty() {
        let (item, size) = element(rest).ok_or_else(damaged)?;
        expected.clear();
        put_back_len(&mut expected, size);
        let after = rest
            .get(size..)
            .and_then(|rest| rest.strip_prefix(&expected[..]));
        rest = after.ok_or_else(damaged)?;
        items.push(item);
    }
    if count != UNCOUNTED && usize::from(count) != items.len() {
        return Err(damaged());
    }
    Ok(items)
}

/// The first element and its size without the length that follows it.
fn element(data: &[u8]) -> Option<(Item<'_>, usize)> {
    let (&first, rest) = data.split_first()?;
    let int = |len| Item::number(rest, len);
    let text = |header, len| Item::text(data, header, len);
    match first {
        0..=0x7F => Some((Item::Int(i64::from(first)), 1)),
        0x80..=0xBF => text(1, usize::from(first & 0x3F)),
        0xC0..=0xDF => {
            let raw = i64::from(first & 0x1F) << 8 | i64::from(*rest.first()?);
            // Thirteen bits with a sign.
            Some((Item::Int((raw << 51) >> 51), 2))
        }
        0xE0..=0xEF => text(
            2,
            usize::from(first & 0xF) << 8 | usize::from(*rest.first()?),
        ),
        0xF0 => {
            let len: [u8; 4] = rest.get(..4)?.try_into().ok()?;
            text(5, u32::from_le_bytes(len) as usize)
        }
        0xF1 => int(2),
        0xF2 => int(3),
        0xF3 => int(4),
        0xF4 => int(8),
        _ => None,
    }
}

/// A listpack that is being written.
pub(super) struct Writer {
    data: Vec<u8>,
    count: usize,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer {
            data: vec![0; HEADER],
            count: 0,
        }
    }
}

impl Writer {
    /// How long the listpack would be now.
    pub(super) fn len(&self) -> usize {
        self.data.len() + 1
    }

    pub(super) fn int(&mut self, value: i64) {
        let from = self.data.len();
        let bytes = value.to_le_bytes();
        match value {
            0..=127 => self.data.push(value as u8),
            -4096..=4095 => {
                let raw = value as u16 & 0x1FFF;
                self.data.extend([(raw >> 8) as u8 | 0xC0, raw as u8]);
            }
            -32_768..=32_767 => self.wide(0xF1, &bytes[..2]),
            -8_388_608..=8_388_607 => self.wide(0xF2, &bytes[..3]),
            -2_147_483_648..=2_147_483_647 => self.wide(0xF3, &bytes[..4]),
            _ => self.wide(0xF4, &bytes),
        }
        self.end(from);
    }

    fn wide(&mut self, first: u8, bytes: &[u8]) {
        self.data.push(first);
        self.data.extend_from_slice(bytes);
    }

    /// A string; as an integer if it spells one.
    pub(super) fn text(&mut self, text: &[u8]) {
        if text.len() <= 20
            && let Some(value) = parse_int(text)
        {
            return self.int(value);
        }
        let from = self.data.len();
        match text.len() {
            len @ 0..64 => self.data.push(0x80 | len as u8),
            len @ 64..4096 => self.data.extend([0xE0 | (len >> 8) as u8, len as u8]),
            len => {
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                self.wide(0xF0, &len.to_le_bytes());
            }
        }
        self.data.extend_from_slice(text);
        self.end(from);
    }

    fn end(&mut self, from: usize) {
        let size = self.data.len() - from;
        put_back_len(&mut self.data, size);
        self.count += 1;
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.data.push(END);
        let total = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        let count = u16::try_from(self.count).unwrap_or(UNCOUNTED);
        self.data[..4].copy_from_slice(&total.to_le_bytes());
        self.data[4..HEADER].copy_from_slice(&count.to_le_bytes());
        self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn elements_of_every_size_come_back() {
        let mut ints = vec![0, i64::MIN, i64::MAX];
        for bit in 0..63 {
            for near in -1..=1 {
                ints.extend([(1i64 << bit) + near, -(1i64 << bit) + near]);
            }
        }
        let lens = [
            0, 1, 20, 21, 63, 64, 120, 130, 4095, 4096, 16_380, 16_390, 2_097_160,
        ];
        let texts: Vec<Vec<u8>> = lens.iter().map(|&len| vec![b'x'; len]).collect();
        let mut writer = Writer::default();
        ints.iter().for_each(|&value| writer.int(value));
        texts.iter().for_each(|text| writer.text(text));
        writer.text(b"-42");
        writer.text(b"007");
        let data = writer.finish();
        let mut expected: Vec<Item<'_>> = ints.iter().map(|&value| Item::Int(value)).collect();
        expected.extend(texts.iter().map(|text| Item::Str(text)));
        expected.extend([Item::Int(-42), Item::Str(b"007")]);
        assert!(matches!(read(&data), Ok(items) if items == expected));
    }

    proptest! {
        #[test]
        fn damage_is_refused_or_harmless(
            texts in prop::collection::vec("[a-z0-9]{0,80}", 0..12),
            flips in prop::collection::vec((any::<usize>(), 0u8..8), 1..4),
            cut in any::<usize>(),
        ) {
            let mut writer = Writer::default();
            texts.iter().for_each(|text| writer.text(text.as_bytes()));
            let mut data = writer.finish();
            for (at, bit) in flips {
                let at = at % data.len();
                data[at] ^= 1 << bit;
            }
            let _ = read(&data);
            prop_assert!(read(&data[..cut % data.len()]).is_err());
        }
    }
}
