//! Ziplists and zipmaps: what listpacks were before Redis 7, read only.

use super::{Fault, listpack::Item};

const HEADER: usize = 10;
const END: u8 = 0xFF;
/// A length that does not fit into a byte follows in four.
const LONG: u8 = 0xFE;

fn damaged() -> Fault {
    Fault::Damaged("a ziplist")
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// The elements of a ziplist.
pub(super) fn read(data: &[u8]) -> Result<Vec<Item<'_>>, Fault> {
    if data.len() <= HEADER || data.last() != Some(&END) {
        return Err(damaged());
    }
    let total = word(data, 0).ok_or_else(damaged)?;
    let tail = word(data, 4).ok_or_else(damaged)? as usize;
    let count = u16::from_le_bytes([data[8], data[9]]);
    if total as usize != data.len() {
        return Err(damaged());
    }
    let body = &data[..data.len() - 1];
    let mut items = Vec::new();
    let (mut at, mut before, mut last) = (HEADER, 0, HEADER);
    while at < body.len() {
        let (previous, header) = match body[at] {
            LONG => (word(body, at + 1).ok_or_else(damaged)? as usize, 5),
            len => (usize::from(len), 1),
        };
        if previous != before {
            return Err(damaged());
        }
        let (item, size) = element(&body[at + header..]).ok_or_else(damaged)?;
        items.push(item);
        last = at;
        before = header + size;
        at += before;
    }
    let counted = count == u16::MAX || usize::from(count) == items.len();
    if !counted || tail != last {
        return Err(damaged());
    }
    Ok(items)
}

/// The first element and its size.
fn element(data: &[u8]) -> Option<(Item<'_>, usize)> {
    let (&first, rest) = data.split_first()?;
    let int = |len| Item::number(rest, len);
    let text = |header, len| Item::text(data, header, len);
    match first {
        0..=0x3F => text(1, usize::from(first)),
        0x40..=0x7F => text(
            2,
            usize::from(first & 0x3F) << 8 | usize::from(*rest.first()?),
        ),
        0x80 => {
            let len: [u8; 4] = rest.get(..4)?.try_into().ok()?;
            text(5, u32::from_be_bytes(len) as usize)
        }
        0xC0 => int(2),
        0xD0 => int(4),
        0xE0 => int(8),
        0xF0 => int(3),
        0xFE => int(1),
        0xF1..=0xFD => Some((Item::Int(i64::from(first & 0xF) - 1), 1)),
        _ => None,
    }
}

/// The fields and values of a zipmap, one after the other.
pub(super) fn read_zipmap(data: &[u8]) -> Result<Vec<Item<'_>>, Fault> {
    let fault = || Fault::Damaged("a zipmap");
    let (&count, mut rest) = data.split_first().ok_or_else(fault)?;
    let mut items = Vec::new();
    loop {
        let (&first, after) = rest.split_first().ok_or_else(fault)?;
        if first == END {
            if !after.is_empty() {
                return Err(fault());
            }
            break;
        }
        let field = zipmap_text(&mut rest, false).ok_or_else(fault)?;
        let value = zipmap_text(&mut rest, true).ok_or_else(fault)?;
        items.extend([field, value]);
    }
    // From 254 pairs on they are not counted.
    if count < LONG && usize::from(count) * 2 != items.len() {
        return Err(fault());
    }
    Ok(items)
}

/// A field, or a value with the unused bytes behind it.
fn zipmap_text<'a>(rest: &mut &'a [u8], padded: bool) -> Option<Item<'a>> {
    let (&first, after) = rest.split_first()?;
    let (len, after) = match first {
        END => return None,
        LONG => (word(after, 0)? as usize, &after[4..]),
        len => (usize::from(len), after),
    };
    let (unused, after) = if padded {
        let (&unused, after) = after.split_first()?;
        (usize::from(unused), after)
    } else {
        (0, after)
    };
    let (text, after) = after.split_at_checked(len)?;
    *rest = after.get(unused..)?;
    Some(Item::Str(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ziplists_of_old_servers_are_read() {
        // What Redis 6 made of "1024", "a", "-3", 70 times "x".
        let mut data = vec![0; HEADER];
        data.extend([0, 0xC0, 0x00, 0x04]);
        data.extend([4, 1, b'a']);
        data.extend([3, 0xFE, 0xFD]);
        let last = data.len() as u32;
        data.extend([3, 0x40, 70]);
        data.extend([b'x'; 70]);
        data.push(END);
        let total = data.len() as u32;
        data[..4].copy_from_slice(&total.to_le_bytes());
        data[4..8].copy_from_slice(&last.to_le_bytes());
        data[8] = 4;
        let long = [b'x'; 70];
        let expected = [
            Item::Int(1024),
            Item::Str(b"a"),
            Item::Int(-3),
            Item::Str(&long),
        ];
        assert!(matches!(read(&data), Ok(items) if items == expected));
        for at in 0..data.len() {
            assert!(read(&data[..at]).is_err(), "{at}");
            for bit in 0..8 {
                data[at] ^= 1 << bit;
                let _ = read(&data);
                data[at] ^= 1 << bit;
            }
        }
    }

    #[test]
    fn zipmaps_are_read() {
        let data = b"\x02\x03foo\x03\x00bar\x05hello\x05\x02world??\xff";
        let words = ["foo", "bar", "hello", "world"].map(|word| Item::Str(word.as_bytes()));
        assert!(matches!(read_zipmap(data), Ok(items) if items == words));
        for at in 0..data.len() {
            assert!(read_zipmap(&data[..at]).is_err(), "{at}");
        }
    }
}
