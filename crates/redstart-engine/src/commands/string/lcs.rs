//! LCS: the longest text that two strings have in common.

use bytes::Bytes;

use crate::{
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    number::int_arg,
    reply::Reply,
    types::string::Str,
};

struct Options {
    only_len: bool,
    indexes: bool,
    with_len: bool,
    /// Shorter matches are left out.
    min_len: usize,
}

impl Options {
    fn parse(args: &[Bytes]) -> Result<Options, Stop> {
        let (mut only_len, mut indexes, mut with_len, mut min_len) = (false, false, false, 0);
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            if arg.eq_ignore_ascii_case(b"idx") {
                indexes = true;
            } else if arg.eq_ignore_ascii_case(b"len") {
                only_len = true;
            } else if arg.eq_ignore_ascii_case(b"withmatchlen") {
                with_len = true;
            } else if arg.eq_ignore_ascii_case(b"minmatchlen") {
                let value = rest.next().ok_or(Stop::from(SYNTAX))?;
                min_len = int_arg(value)?.max(0) as usize;
            } else {
                return Err(SYNTAX.into());
            }
        }
        if only_len && indexes {
            return Err("ERR If you want both the length and indexes, please just use IDX.".into());
        }
        Ok(Options {
            only_len,
            indexes,
            with_len,
            min_len,
        })
    }
}

pub(super) fn lcs(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let texts: [Result<Bytes, Stop>; 2] = [&args[1], &args[2]].map(|key| {
        let value = cx.get::<Str>(key)?;
        Ok(value.map(Str::to_bytes).unwrap_or_default())
    });
    let [Ok(a), Ok(b)] = &texts else {
        return Err("ERR The specified keys must contain string values".into());
    };
    let Options {
        only_len,
        indexes,
        with_len,
        min_len,
    } = Options::parse(&args[3..])?;
    let cells = (a.len() + 1).saturating_mul(b.len() + 1);
    if cells.saturating_mul(4) > cx.state.config.proto_max_bulk_len {
        return Err(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len".into(),
        );
    }
    let table = table(a, b, cells);
    let len = table[cells - 1] as usize;
    if only_len {
        return Ok(len.into());
    }
    let (common, matches) = walk_back(a, b, &table, min_len, with_len);
    if indexes {
        return Ok(Reply::Map(vec![
            (Reply::bulk("matches"), Reply::Array(matches)),
            (Reply::bulk("len"), len.into()),
        ]));
    }
    Ok(Reply::Bulk(common.into()))
}

/// How much the beginnings of both texts have in common, for all lengths of both.
fn table(a: &[u8], b: &[u8], cells: usize) -> Vec<u32> {
    let width = b.len() + 1;
    let mut table = vec![0u32; cells];
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            table[i * width + j] = if a[i - 1] == b[j - 1] {
                table[(i - 1) * width + j - 1] + 1
            } else {
                table[(i - 1) * width + j].max(table[i * width + j - 1])
            };
        }
    }
    table
}

/// The common text, and where its stretches are.
fn walk_back(
    a: &[u8],
    b: &[u8],
    table: &[u32],
    min_len: usize,
    with_len: bool,
) -> (Vec<u8>, Vec<Reply>) {
    let width = b.len() + 1;
    let mut common = Vec::new();
    let mut matches = Vec::new();
    // The stretch of equal bytes that the walk back is in: starts and ends in both texts.
    let mut stretch: Option<[usize; 4]> = None;
    let (mut i, mut j) = (a.len(), b.len());
    while i > 0 && j > 0 {
        let mut ends = false;
        if a[i - 1] == b[j - 1] {
            common.push(a[i - 1]);
            match &mut stretch {
                None => stretch = Some([i - 1, i - 1, j - 1, j - 1]),
                Some(range) if range[0] == i && range[2] == j => {
                    range[0] -= 1;
                    range[2] -= 1;
                }
                // Redis drops the byte that interrupts a stretch from the ranges, not from the text.
                Some(_) => ends = true,
            }
            ends |= stretch.is_some_and(|range| range[0] == 0 || range[2] == 0);
            i -= 1;
            j -= 1;
        } else {
            if table[(i - 1) * width + j] > table[i * width + j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
            ends = stretch.is_some();
        }
        if ends && let Some([a_from, a_to, b_from, b_to]) = stretch.take() {
            let match_len = a_to - a_from + 1;
            if min_len == 0 || match_len >= min_len {
                let mut entry = vec![
                    Reply::Array(vec![a_from.into(), a_to.into()]),
                    Reply::Array(vec![b_from.into(), b_to.into()]),
                ];
                if with_len {
                    entry.push(match_len.into());
                }
                matches.push(Reply::Array(entry));
            }
        }
    }
    common.reverse();
    (common, matches)
}
