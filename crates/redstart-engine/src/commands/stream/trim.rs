//! The options of XADD and XTRIM: how a stream is trimmed.

use bytes::Bytes;

use super::{BAD_ID, bulk, id_arg, parse_u64};
use crate::{
    context::Ctx,
    error::{SYNTAX, Stop},
    number::int_arg,
    types::stream::{Id, Limit, Stream, Trim},
};

/// The options before the fields of XADD, or all options of XTRIM.
pub(super) struct Options {
    pub(super) trim: Option<Trim>,
    /// Where the trimming's operator and value are, to replace them.
    trim_at: usize,
    pub(super) no_create: bool,
    pub(super) id: Option<(Id, bool)>,
    /// Where the options end: at the id of XADD.
    pub(super) end: usize,
}

pub(super) fn parse_options(cx: &Ctx<'_>, args: &[Bytes], xadd: bool) -> Result<Options, Stop> {
    let mut options = Options {
        trim: None,
        trim_at: 0,
        no_create: false,
        id: None,
        end: args.len(),
    };
    let mut at_most = None;
    let mut at = 2;
    while at < args.len() {
        let more = args.len() - 1 - at;
        let word = args[at].to_ascii_lowercase();
        match word.as_slice() {
            b"*" if xadd => {
                options.end = at;
                break;
            }
            b"maxlen" | b"minid" if more > 0 => {
                if options.trim.is_some() {
                    return Err(
                        "ERR syntax error, MAXLEN and MINID options at the same time are \
                                not compatible"
                            .into(),
                    );
                }
                let approximate = more >= 2 && args[at + 1].as_ref() == b"~";
                if approximate || (more >= 2 && args[at + 1].as_ref() == b"=") {
                    at += 1;
                }
                let limit = if word == b"maxlen" {
                    let max = int_arg(&args[at + 1])?;
                    let max = u64::try_from(max)
                        .map_err(|_| Stop::from("ERR The MAXLEN argument must be >= 0."))?;
                    Limit::MaxLen(max)
                } else {
                    Limit::MinId(id_arg(&args[at + 1], 0)?)
                };
                at += 1;
                options.trim_at = at;
                options.trim = Some(Trim {
                    limit,
                    approximate,
                    at_most: 0,
                });
            }
            b"limit" if more > 0 => {
                let value = int_arg(&args[at + 1])?;
                let value = u64::try_from(value)
                    .map_err(|_| Stop::from("ERR The LIMIT argument must be >= 0."))?;
                at_most = Some(value);
                at += 1;
            }
            b"nomkstream" if xadd => options.no_create = true,
            _ if xadd => {
                let text = &args[at];
                let id = match text.strip_suffix(b"-*") {
                    Some(ms) => {
                        let ms = parse_u64(ms).ok_or(Stop::Error(BAD_ID.into()))?;
                        (Id { ms, seq: 0 }, false)
                    }
                    None => (id_arg(text, 0)?, true),
                };
                options.id = Some(id);
                options.end = at;
                break;
            }
            _ => return Err(SYNTAX.into()),
        }
        at += 1;
    }
    let node_entries = cx.state.config.stream_node_max_entries as u64;
    limit_trim(&mut options.trim, at_most, xadd, node_entries)?;
    Ok(options)
}

/// Applies LIMIT, or how much an approximate trimming does without one.
fn limit_trim(
    trim: &mut Option<Trim>,
    at_most: Option<u64>,
    xadd: bool,
    node_entries: u64,
) -> Result<(), Stop> {
    match trim {
        None if at_most.is_some_and(|value| value > 0) => {
            return Err(
                "ERR syntax error, LIMIT cannot be used without specifying a trimming \
                        strategy"
                    .into(),
            );
        }
        None if !xadd => {
            return Err("ERR syntax error, XTRIM must be called with a trimming strategy".into());
        }
        None => {}
        Some(trim) => match at_most {
            Some(_) if !trim.approximate => {
                return Err(
                    "ERR syntax error, LIMIT cannot be used without the special ~ option".into(),
                );
            }
            Some(value) => trim.at_most = value,
            None if trim.approximate => {
                trim.at_most = match 100 * node_entries {
                    0 => 10_000,
                    limit => limit.min(1_000_000),
                };
            }
            None => {}
        },
    }
    Ok(())
}

/// The arguments of a trimming command with the outcome instead of an approximation.
pub(super) fn exact_trim(args: &[Bytes], options: &Options, stream: &Stream) -> Vec<Bytes> {
    let mut args = args.to_vec();
    if let Some(trim) = options.trim
        && trim.approximate
    {
        args[options.trim_at - 1] = bulk("=");
        args[options.trim_at] = match trim.limit {
            Limit::MaxLen(_) => Bytes::from(stream.len().to_string()),
            Limit::MinId(_) if stream.len() > 0 => stream.first_id().to_bytes(),
            // No id is a lower bound for nothing.
            Limit::MinId(_) => {
                args[options.trim_at - 2] = bulk("MAXLEN");
                bulk("0")
            }
        };
        // Its LIMIT has no place beside an exact value.
        if let Some(limit) = args[2..options.end]
            .iter()
            .position(|word| word.eq_ignore_ascii_case(b"LIMIT"))
        {
            args.drain(limit + 2..limit + 4);
        }
    }
    args
}
