//! Payloads in the encodings of older servers, which no server of today writes.

use std::sync::LazyLock;

use redstart_engine::Reply;

/// A length before a string.
fn length(len: usize, out: &mut Vec<u8>) {
    match len {
        0..64 => out.push(len as u8),
        64..16_384 => out.extend([0x40 | (len >> 8) as u8, len as u8]),
        _ => {
            out.push(0x80);
            out.extend((len as u32).to_be_bytes());
        }
    }
}

fn string(text: &[u8], out: &mut Vec<u8>) {
    length(text.len(), out);
    out.extend_from_slice(text);
}

/// A ziplist of strings, and of integers where a word is one.
pub(crate) fn ziplist(words: &[&str]) -> Vec<u8> {
    let mut data = vec![0; 10];
    let (mut before, mut last) = (0, 10);
    for word in words {
        last = data.len();
        if before < 254 {
            data.push(before as u8);
        } else {
            data.push(254);
            data.extend((before as u32).to_le_bytes());
        }
        match word.parse::<i64>() {
            Ok(int @ 0..=12) => data.push(0xF1 + int as u8),
            Ok(int @ -128..=127) => data.extend([0xFE, int as u8]),
            Ok(int @ -32_768..=32_767) => {
                data.push(0xC0);
                data.extend((int as i16).to_le_bytes());
            }
            Ok(int @ -8_388_608..=8_388_607) => {
                data.push(0xF0);
                data.extend(&(int as i32).to_le_bytes()[..3]);
            }
            Ok(int @ -2_147_483_648..=2_147_483_647) => {
                data.push(0xD0);
                data.extend((int as i32).to_le_bytes());
            }
            Ok(int) => {
                data.push(0xE0);
                data.extend(int.to_le_bytes());
            }
            Err(_) => {
                match word.len() {
                    len @ 0..64 => data.push(len as u8),
                    len @ 64..16_384 => data.extend([0x40 | (len >> 8) as u8, len as u8]),
                    len => {
                        data.push(0x80);
                        data.extend((len as u32).to_be_bytes());
                    }
                }
                data.extend(word.as_bytes());
            }
        }
        before = data.len() - last;
    }
    data.push(0xFF);
    let total = data.len() as u32;
    data[..4].copy_from_slice(&total.to_le_bytes());
    data[4..8].copy_from_slice(&(last as u32).to_le_bytes());
    data[8..10].copy_from_slice(&(words.len() as u16).to_le_bytes());
    data
}

fn zipmap(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut data = vec![pairs.len() as u8];
    let len = |len: usize, data: &mut Vec<u8>| {
        if len < 254 {
            data.push(len as u8);
        } else {
            data.push(254);
            data.extend((len as u32).to_le_bytes());
        }
    };
    for (at, (field, value)) in pairs.iter().enumerate() {
        len(field.len(), &mut data);
        data.extend(field.as_bytes());
        len(value.len(), &mut data);
        // Some bytes behind a value may be free.
        data.push(at as u8 % 3);
        data.extend(value.as_bytes());
        data.extend(&b"??"[..at % 3]);
    }
    data.push(0xFF);
    data
}

/// Names and payloads without a footer, each with the version that it is of.
pub(crate) fn payloads() -> Vec<(&'static str, u16, Vec<u8>)> {
    let long = "x".repeat(300);
    let words = [
        "a",
        "",
        "5",
        "12",
        "13",
        "-1",
        "127",
        "-129",
        "40000",
        "-8388608",
        "2147483647",
        "9223372036854775807",
        "word",
        &long,
        "after a long one",
        "\u{e9}",
    ];
    let mut all = Vec::new();
    let mut add = |name, version, kind: u8, body: Vec<u8>| {
        all.push((name, version, [&[kind][..], &body].concat()));
    };
    let packed = |data: Vec<u8>| {
        let mut out = Vec::new();
        string(&data, &mut out);
        out
    };
    let strings = |words: &[&str]| {
        let mut out = Vec::new();
        length(words.len(), &mut out);
        words
            .iter()
            .for_each(|word| string(word.as_bytes(), &mut out));
        out
    };
    add("list", 6, 1, strings(&words));
    add("set", 6, 2, strings(&words));
    let mut scores = Vec::new();
    length(4, &mut scores);
    for (member, score) in [
        ("a", &b"\x041.25"[..]),
        ("b", b"\xfe"),
        ("c", b"\xff"),
        ("d", b"\x02-7"),
    ] {
        string(member.as_bytes(), &mut scores);
        scores.extend(score);
    }
    add("zset", 6, 3, scores);
    let mut hash = strings(&words);
    hash[0] = 8;
    add("hash", 6, 4, hash);
    add(
        "zipmap",
        6,
        9,
        packed(zipmap(&[
            ("a", "1"),
            ("b", ""),
            ("c", "third"),
            (&long, &long),
        ])),
    );
    add("list ziplist", 6, 10, packed(ziplist(&words)));
    add(
        "zset ziplist",
        7,
        12,
        packed(ziplist(&["c", "-inf", "b", "1.5", "a", "7", &long, "inf"])),
    );
    add(
        "hash ziplist",
        8,
        13,
        packed(ziplist(&["a", "1", "b", "-70000", "17", &long])),
    );
    let mut quicklist = Vec::new();
    length(3, &mut quicklist);
    for node in [&words[..4], &words[4..5], &words[5..]] {
        string(&ziplist(node), &mut quicklist);
    }
    add("quicklist", 9, 14, quicklist);
    all
}

/// Adds version and checksum.
pub(crate) fn with_footer(mut payload: Vec<u8>, version: u16) -> Vec<u8> {
    payload.extend(version.to_le_bytes());
    let checksum = crc64(&payload);
    payload.extend(checksum.to_le_bytes());
    payload
}

/// The footer again after the contents were changed.
pub(crate) fn with_new_checksum(mut payload: Vec<u8>) -> Vec<u8> {
    payload.truncate(payload.len() - 8);
    let checksum = crc64(&payload);
    payload.extend(checksum.to_le_bytes());
    payload
}

/// Bit by bit, from the definition: the engine's own is checked by this, too.
fn byte(byte: u64) -> u64 {
    (0..8).fold(byte, |crc, _| {
        crc >> 1
            ^ if crc & 1 == 1 {
                0x95AC_9329_AC4B_C9B5
            } else {
                0
            }
    })
}

pub(crate) fn crc64(data: &[u8]) -> u64 {
    static TABLE: LazyLock<Vec<u64>> = LazyLock::new(|| (0..256).map(byte).collect());
    let table = &TABLE[..];
    data.iter().fold(0u64, |crc, &byte| {
        crc >> 8 ^ table[usize::from(crc as u8 ^ byte)]
    })
}

pub(crate) fn is_refused(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text)
        if text.starts_with("ERR Bad data format") || text.starts_with("ERR DUMP payload"))
}
