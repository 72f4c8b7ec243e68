//! Streams and consumer groups.

use bytes::Bytes;

use crate::{
    blocking::{Served, Undo, Wait, timeout_ms_arg},
    context::{Ctx, Origin},
    error::{CommandResult, NO_SUCH_KEY, SYNTAX, Stop},
    notify::class,
    number::{int_arg, int_bytes, parse_int, range_arg},
    registry::{Spec, flag::*, printable},
    reply::Reply,
    types::{
        blob::Blob,
        stream::{Entry, Group, Id, Limit, Pending, Stream, Trim},
    },
};

const GROUP_KEY: (i32, i32, i32) = (2, 2, 1);

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("xadd", -5, WRITE | DENYOOM | FAST, (1, 1, 1), xadd),
    Spec::new("xlen", 2, READONLY | FAST, (1, 1, 1), xlen),
    Spec::new("xrange", -4, READONLY, (1, 1, 1), xrange),
    Spec::new("xrevrange", -4, READONLY, (1, 1, 1), xrevrange),
    Spec::new("xdel", -3, WRITE | FAST, (1, 1, 1), xdel),
    Spec::new("xtrim", -4, WRITE, (1, 1, 1), xtrim),
    Spec::new("xsetid", -3, WRITE | DENYOOM | FAST, (1, 1, 1), xsetid),
    Spec::new(
        "xread",
        -4,
        READONLY | BLOCKING | MOVABLEKEYS,
        (0, 0, 0),
        xread,
    )
    .movable(read_keys),
    Spec::new(
        "xreadgroup",
        -7,
        WRITE | BLOCKING | MOVABLEKEYS,
        (0, 0, 0),
        xreadgroup,
    )
    .movable(read_keys),
    Spec::new("xack", -4, WRITE | FAST, (1, 1, 1), xack),
    Spec::new("xpending", -3, READONLY, (1, 1, 1), xpending),
    Spec::new("xclaim", -6, WRITE | FAST, (1, 1, 1), xclaim),
    Spec::new("xautoclaim", -6, WRITE | FAST, (1, 1, 1), xautoclaim),
    Spec::container("xgroup", -2, 0, XGROUP_COMMANDS),
    Spec::container("xinfo", -2, 0, XINFO_COMMANDS),
];

static XGROUP_COMMANDS: &[Spec] = &[
    Spec::sub(
        "create",
        "xgroup|create",
        -5,
        WRITE | DENYOOM,
        GROUP_KEY,
        xgroup_create,
    ),
    Spec::sub("setid", "xgroup|setid", -5, WRITE, GROUP_KEY, xgroup_setid),
    Spec::sub(
        "destroy",
        "xgroup|destroy",
        4,
        WRITE,
        GROUP_KEY,
        xgroup_destroy,
    ),
    Spec::sub(
        "createconsumer",
        "xgroup|createconsumer",
        5,
        WRITE | DENYOOM,
        GROUP_KEY,
        xgroup_createconsumer,
    ),
    Spec::sub(
        "delconsumer",
        "xgroup|delconsumer",
        5,
        WRITE,
        GROUP_KEY,
        xgroup_delconsumer,
    ),
];

static XINFO_COMMANDS: &[Spec] = &[
    Spec::sub(
        "stream",
        "xinfo|stream",
        -3,
        READONLY,
        GROUP_KEY,
        xinfo_stream,
    ),
    Spec::sub(
        "groups",
        "xinfo|groups",
        3,
        READONLY,
        GROUP_KEY,
        xinfo_groups,
    ),
    Spec::sub(
        "consumers",
        "xinfo|consumers",
        4,
        READONLY,
        GROUP_KEY,
        xinfo_consumers,
    ),
];

const BAD_ID: &str = "ERR Invalid stream ID specified as stream command argument";
const BAD_START: &str = "ERR invalid start ID for the interval";
const BAD_END: &str = "ERR invalid end ID for the interval";

// ---- ids ----

/// A number as C's `strtoull` reads it: blanks, a sign and leading zeros are let pass.
fn parse_u64(text: &[u8]) -> Option<u64> {
    if let Some(value) = parse_int(text) {
        return u64::try_from(value).ok();
    }
    let text = text.trim_ascii_start();
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut value: u64 = 0;
    for digit in digits {
        value = value
            .checked_mul(10)?
            .checked_add(u64::from(digit - b'0'))?;
    }
    Some(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

/// An id; `missing` stands in for the part behind the dash if it is not given.
fn parse_id(text: &[u8], missing: u64) -> Option<Id> {
    if text.len() > 127 {
        return None;
    }
    match memchr::memchr(b'-', text) {
        None => Some(Id {
            ms: parse_u64(text)?,
            seq: missing,
        }),
        Some(dash) => Some(Id {
            ms: parse_u64(&text[..dash])?,
            seq: parse_u64(&text[dash + 1..])?,
        }),
    }
}

/// An id that is not `-` or `+`.
fn id_arg(text: &[u8], missing: u64) -> Result<Id, Stop> {
    parse_id(text, missing).ok_or(Stop::Error(BAD_ID.into()))
}

/// An id, or `-` or `+` for the least and the greatest.
fn any_id_arg(text: &[u8], missing: u64) -> Result<Id, Stop> {
    match text {
        b"-" => Ok(Id::ZERO),
        b"+" => Ok(Id::MAX),
        _ => id_arg(text, missing),
    }
}

fn start_arg(text: &[u8]) -> Result<Id, Stop> {
    match text {
        [b'(', rest @ ..] if !rest.is_empty() => {
            id_arg(rest, 0)?.next().ok_or(Stop::Error(BAD_START.into()))
        }
        _ => any_id_arg(text, 0),
    }
}

fn end_arg(text: &[u8]) -> Result<Id, Stop> {
    match text {
        [b'(', rest @ ..] if !rest.is_empty() => id_arg(rest, u64::MAX)?
            .previous()
            .ok_or(Stop::Error(BAD_END.into())),
        _ => any_id_arg(text, u64::MAX),
    }
}

// ---- replies ----

fn entry_reply(id: Id, entry: &Entry<'_>) -> Reply {
    let mut words = Vec::new();
    entry.each(|field, value| {
        words.push(Reply::bulk(field));
        words.push(Reply::bulk(value));
    });
    Reply::Array(vec![Reply::Bulk(id.to_bytes()), Reply::Array(words)])
}

/// The entry of that id, if it is there.
fn one_entry(stream: &Stream, id: Id) -> Option<Reply> {
    let mut reply = None;
    stream.range(id, id, |id, entry| {
        reply = Some(entry_reply(id, &entry));
        false
    });
    reply
}

/// Up to `count` entries from `start` on; 0 is all of them.
fn entries_from(stream: &Stream, start: Id, count: u64) -> Vec<Reply> {
    let mut replies = Vec::new();
    stream.range(start, Id::MAX, |id, entry| {
        replies.push(entry_reply(id, &entry));
        count == 0 || (replies.len() as u64) < count
    });
    replies
}

fn bulk(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

// ---- adding, trimming, deleting ----

/// What stands before the fields of XADD, or all of XTRIM.
struct Options {
    trim: Option<Trim>,
    /// Where the trimming's operator and value stand, to write them anew.
    trim_at: usize,
    no_create: bool,
    id: Option<(Id, bool)>,
    /// Where the options end: at the id of XADD.
    end: usize,
}

fn parse_options(cx: &Ctx<'_>, args: &[Bytes], xadd: bool) -> Result<Options, Stop> {
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
    match &mut options.trim {
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
    Ok(options)
}

/// The arguments of a trimming command with the outcome in the place of an approximation.
fn exact_trim(args: &[Bytes], options: &Options, stream: &Stream) -> Vec<Bytes> {
    let mut args = args.to_vec();
    if let Some(trim) = options.trim
        && trim.approximate
    {
        args[options.trim_at - 1] = bulk("=");
        args[options.trim_at] = match trim.limit {
            Limit::MaxLen(_) => Bytes::from(stream.len().to_string()),
            Limit::MinId(_) => stream.first_id().to_bytes(),
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

fn xadd(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let options = parse_options(cx, args, true)?;
    let pairs = args.get(options.end + 1..).unwrap_or_default();
    if pairs.len() < 2 || pairs.len() % 2 == 1 {
        return Err(Stop::wrong_arity("xadd"));
    }
    if options.id == Some((Id::ZERO, true)) {
        return Err("ERR The ID specified in XADD must be greater than 0-0".into());
    }
    let (key, now) = (&args[1], cx.now_ms());
    let node_entries = cx.state.config.stream_node_max_entries;
    if cx.get_mut::<Stream>(key)?.is_none() && options.no_create {
        return Ok(Reply::Nil);
    }
    let stream = cx.get_or_create::<Stream>(key)?;
    if stream.last_id == Id::MAX {
        return Err(
            "ERR The stream has exhausted the last possible ID, unable to add more items".into(),
        );
    }
    let id = match options.id {
        None => stream.next_id(now as u64),
        Some((id, true)) => Some(id),
        Some((id, false)) if id.ms == stream.last_id.ms => {
            let Some(seq) = stream.last_id.seq.checked_add(1) else {
                // Redis's own words for it.
                return Err("ERR Elements are too large to be stored".into());
            };
            Some(Id { ms: id.ms, seq })
        }
        Some((id, false)) => Some(id),
    };
    let Some(id) = id.filter(|id| *id > stream.last_id) else {
        return Err(
            "ERR The ID specified in XADD is equal or smaller than the target stream top item"
                .into(),
        );
    };
    stream.append(id, pairs, node_entries);
    let trimmed = options.trim.map_or(0, |trim| stream.trim(trim));
    let mut effect = exact_trim(args, &options, stream);
    let id_at = effect.len() - pairs.len() - 1;
    effect[id_at] = id.to_bytes();
    cx.changed(key, class::STREAM, "xadd");
    if trimmed > 0 {
        cx.notify(class::STREAM, "xtrim", key);
    }
    cx.propagate(effect);
    cx.signal_ready(key);
    Ok(Reply::Bulk(id.to_bytes()))
}

fn xtrim(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let options = parse_options(cx, args, false)?;
    let (Some(stream), Some(trim)) = (cx.get_mut::<Stream>(&args[1])?, options.trim) else {
        return Ok(Reply::ZERO);
    };
    let removed = stream.trim(trim);
    if removed > 0 {
        let effect = exact_trim(args, &options, stream);
        cx.modified(&args[1]);
        cx.notify(class::STREAM, "xtrim", &args[1]);
        cx.dirty(removed as usize);
        cx.propagate(effect);
    }
    Ok(Reply::Int(removed as i64))
}

fn xdel(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let Some(stream) = cx.get_mut::<Stream>(&args[1])? else {
        return Ok(Reply::ZERO);
    };
    let ids = ids(&args[2..])?;
    let deleted = ids.into_iter().filter(|&id| stream.delete(id)).count();
    if deleted > 0 {
        cx.modified(&args[1]);
        cx.notify(class::STREAM, "xdel", &args[1]);
        cx.dirty(deleted);
    }
    Ok(deleted.into())
}

fn ids(args: &[Bytes]) -> Result<Vec<Id>, Stop> {
    args.iter().map(|text| id_arg(text, 0)).collect()
}

fn xlen(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let len = cx.get::<Stream>(&args[1])?.map_or(0, Stream::len);
    Ok(Reply::Int(len as i64))
}

fn xsetid(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let id = id_arg(&args[2], 0)?;
    let (mut added, mut max_deleted) = (None, Id::ZERO);
    let mut rest = &args[3..];
    while let [word, value, more @ ..] = rest {
        if word.eq_ignore_ascii_case(b"ENTRIESADDED") {
            let value = int_arg(value)?;
            if value < 0 {
                return Err("ERR entries_added must be positive".into());
            }
            added = Some(value as u64);
        } else if word.eq_ignore_ascii_case(b"MAXDELETEDID") {
            max_deleted = id_arg(value, 0)?;
            if id < max_deleted {
                return Err(
                    "ERR The ID specified in XSETID is smaller than the provided \
                            max_deleted_entry_id"
                        .into(),
                );
            }
        } else {
            return Err(SYNTAX.into());
        }
        rest = more;
    }
    if !rest.is_empty() {
        return Err(SYNTAX.into());
    }
    let Some(stream) = cx.get_mut::<Stream>(&args[1])? else {
        return Err(NO_SUCH_KEY.into());
    };
    if stream.len() > 0 {
        if id < stream.last_entry_id() {
            return Err(
                "ERR The ID specified in XSETID is smaller than the target stream top item".into(),
            );
        }
        if added.is_some_and(|added| stream.len() > added) {
            return Err(
                "ERR The entries_added specified in XSETID is smaller than the target \
                        stream length"
                    .into(),
            );
        }
    }
    stream.last_id = id;
    if let Some(added) = added {
        stream.entries_added = added;
    }
    if max_deleted != Id::ZERO {
        stream.max_deleted_id = max_deleted;
    }
    // No change to those who watch the key: its entries are the same.
    cx.notify(class::STREAM, "xsetid", &args[1]);
    cx.dirty(1);
    Ok(Reply::OK)
}

// ---- reading ----

fn xrange(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range(cx, args, false)
}

fn xrevrange(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range(cx, args, true)
}

fn range(cx: &mut Ctx<'_>, args: &[Bytes], back: bool) -> CommandResult {
    let (start, end) = if back {
        (&args[3], &args[2])
    } else {
        (&args[2], &args[3])
    };
    let (start, end) = (start_arg(start)?, end_arg(end)?);
    let mut count = None;
    let mut rest = &args[4..];
    while let Some(word) = rest.first() {
        match rest {
            [_, value, more @ ..] if word.eq_ignore_ascii_case(b"COUNT") => {
                count = Some(int_arg(value)?.max(0) as usize);
                rest = more;
            }
            _ => return Err(SYNTAX.into()),
        }
    }
    let Some(stream) = cx.get::<Stream>(&args[1])? else {
        return Ok(Reply::empty());
    };
    if count == Some(0) {
        return Ok(Reply::NilArray);
    }
    let count = count.unwrap_or(usize::MAX);
    let mut replies = Vec::new();
    let visit = |id, entry: Entry<'_>| {
        replies.push(entry_reply(id, &entry));
        replies.len() < count
    };
    if back {
        stream.range_back(start, end, visit);
    } else {
        stream.range(start, end, visit);
    }
    Ok(Reply::Array(replies))
}

/// Where the keys of XREAD and XREADGROUP are.
fn read_keys(args: &[Bytes]) -> Option<Vec<usize>> {
    let mut at = 1;
    while at < args.len() {
        match args[at].to_ascii_lowercase().as_slice() {
            b"block" | b"count" => at += 1,
            b"group" => at += 2,
            b"noack" => {}
            b"streams" => {
                let count = args.len() - at - 1;
                if count == 0 || !count.is_multiple_of(2) {
                    return None;
                }
                return Some((at + 1..at + 1 + count / 2).collect());
            }
            _ => return None,
        }
        at += 1;
    }
    None
}

/// Who reads in XREADGROUP.
#[derive(Clone)]
struct Reader {
    group: Bytes,
    consumer: Bytes,
    no_ack: bool,
}

/// From where on a stream is read.
#[derive(Clone, Copy)]
enum From {
    /// Entries above this id.
    After(Id),
    /// Those of the consumer's pending entries that are above this id.
    Old(Id),
    /// What no consumer of the group was given so far.
    New,
}

fn xread(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    read(cx, args, false)
}

fn xreadgroup(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let result = read(cx, args, true);
    // What it changed is recorded piece by piece.
    cx.propagate_nothing();
    result
}

fn read(cx: &mut Ctx<'_>, args: &[Bytes], grouped: bool) -> CommandResult {
    let (mut block, mut count, mut no_ack, mut group, mut streams) = (None, 0, false, None, None);
    let mut at = 1;
    while at < args.len() {
        let more = args.len() - 1 - at;
        match args[at].to_ascii_lowercase().as_slice() {
            b"block" if more > 0 => {
                if cx.origin == Origin::Script {
                    let name = String::from_utf8_lossy(&args[0]);
                    return Err(format!(
                        "ERR {name} command is not allowed with BLOCK option from scripts"
                    )
                    .into());
                }
                at += 1;
                block = Some(timeout_ms_arg(cx, &args[at])?);
            }
            b"count" if more > 0 => {
                at += 1;
                count = int_arg(&args[at])?.max(0) as u64;
            }
            b"streams" if more > 0 => {
                let rest = &args[at + 1..];
                if !rest.len().is_multiple_of(2) {
                    return Err(
                        "ERR Unbalanced XREAD list of streams: for each stream key an ID \
                                or '$' must be specified."
                            .into(),
                    );
                }
                streams = Some(rest.split_at(rest.len() / 2));
                break;
            }
            b"group" if more >= 2 => {
                if !grouped {
                    return Err(
                        "ERR The GROUP option is only supported by XREADGROUP. You called \
                                XREAD instead."
                            .into(),
                    );
                }
                group = Some((args[at + 1].clone(), args[at + 2].clone()));
                at += 2;
            }
            b"noack" => {
                if !grouped {
                    return Err(
                        "ERR The NOACK option is only supported by XREADGROUP. You called \
                                XREAD instead."
                            .into(),
                    );
                }
                no_ack = true;
            }
            _ => return Err(SYNTAX.into()),
        }
        at += 1;
    }
    let Some((keys, ids)) = streams else {
        return Err(SYNTAX.into());
    };
    if grouped && group.is_none() {
        return Err("ERR Missing GROUP option for XREADGROUP".into());
    }
    let reader = group.map(|(group, consumer)| Reader {
        group,
        consumer,
        no_ack,
    });
    let mut starts = Vec::with_capacity(ids.len());
    for (key, id) in keys.iter().zip(ids) {
        starts.push(resolve(cx, key, id, reader.as_ref())?);
    }
    let mut found = Vec::new();
    for (key, &start) in keys.iter().zip(&starts) {
        if !is_readable(cx, key, start, reader.as_ref())? {
            continue;
        }
        let entries = match (&reader, start) {
            (None, From::After(id) | From::Old(id)) => {
                let stream = cx.get::<Stream>(key)?;
                stream
                    .zip(id.next())
                    .map(|(stream, start)| entries_from(stream, start, count))
                    .unwrap_or_default()
            }
            (None, From::New) => Vec::new(),
            (Some(reader), From::Old(id)) => history(cx, key, reader, id, count)?,
            (Some(reader), From::After(_) | From::New) => {
                let (entries, effects, _) = deliver(cx, key, reader, count)?;
                for effect in effects {
                    cx.propagate(effect);
                }
                entries
            }
        };
        if reader.is_some() {
            cx.dirty(1);
        }
        found.push((Reply::Bulk(key.clone()), Reply::Array(entries)));
    }
    if !found.is_empty() {
        return Ok(by_stream(cx, found));
    }
    let Some(deadline) = block else {
        return Ok(Reply::NilArray);
    };
    let starts: Vec<(Bytes, From)> = keys.iter().cloned().zip(starts).collect();
    cx.block(Wait {
        keys: keys.to_vec(),
        deadline,
        on_timeout: Reply::NilArray,
        serve: Box::new(move |cx, key| match &reader {
            None => serve_read(cx, key, &starts, count),
            Some(reader) => serve_group(cx, key, reader, count),
        }),
    })
}

/// Streams and their entries, in the shape that the protocol asks for.
fn by_stream(cx: &Ctx<'_>, found: Vec<(Reply, Reply)>) -> Reply {
    if cx.is_resp3() {
        Reply::Map(found)
    } else {
        let pair = |(key, entries)| Reply::Array(vec![key, entries]);
        Reply::Array(found.into_iter().map(pair).collect())
    }
}

/// Understands the id that was given for a stream, and checks the stream and the group.
fn resolve(
    cx: &mut Ctx<'_>,
    key: &Bytes,
    id: &Bytes,
    reader: Option<&Reader>,
) -> Result<From, Stop> {
    let stream = cx.get::<Stream>(key)?;
    if let Some(reader) = reader
        && !stream.is_some_and(|stream| stream.groups.contains_key(reader.group.as_ref()))
    {
        return Err(format!(
            "NOGROUP No such key '{}' or consumer group '{}' in XREADGROUP with GROUP option",
            printable(key),
            printable(&reader.group)
        )
        .into());
    }
    match (id.as_ref(), reader) {
        (b"$", Some(_)) => Err(
            "ERR The $ ID is meaningless in the context of XREADGROUP: you \
                               want to read the history of this consumer by specifying a proper \
                               ID, or use the > ID to get new messages. The $ ID would just return \
                               an empty result set."
                .into(),
        ),
        (b"$", None) => Ok(From::After(
            stream.map_or(Id::ZERO, |stream| stream.last_id),
        )),
        (b">", Some(_)) => Ok(From::New),
        (b">", None) => Err(
            "ERR The > ID can be specified only when calling XREADGROUP using the \
                             GROUP <group> <consumer> option."
                .into(),
        ),
        (id, None) => Ok(From::After(id_arg(id, 0)?)),
        // To Redis `>` is the largest id, and so the largest id is `>`.
        (id, Some(_)) => Ok(match id_arg(id, 0)? {
            Id::MAX => From::New,
            id => From::Old(id),
        }),
    }
}

/// Whether a stream has something to say at once.
fn is_readable(
    cx: &mut Ctx<'_>,
    key: &Bytes,
    start: From,
    reader: Option<&Reader>,
) -> Result<bool, Stop> {
    let Some(stream) = cx.get::<Stream>(key)? else {
        return Ok(false);
    };
    let after = match (start, reader) {
        (From::Old(_), _) => return Ok(true),
        (From::After(id), _) => id,
        (From::New, Some(reader)) => match stream.groups.get(reader.group.as_ref()) {
            Some(group) => group.last_id,
            None => return Ok(false),
        },
        (From::New, None) => return Ok(false),
    };
    Ok(stream.len() > 0 && stream.last_entry_id() > after)
}

fn serve_read(
    cx: &mut Ctx<'_>,
    key: &Bytes,
    starts: &[(Bytes, From)],
    count: u64,
) -> Option<Served> {
    let (_, From::After(id)) = starts.iter().find(|(other, _)| other == key)? else {
        return None;
    };
    let stream = cx.get::<Stream>(key).ok()??;
    if stream.last_id <= *id {
        return None;
    }
    let entries = entries_from(stream, id.next()?, count);
    let found = vec![(Reply::Bulk(key.clone()), Reply::Array(entries))];
    Some(by_stream(cx, found).into())
}

fn serve_group(cx: &mut Ctx<'_>, key: &Bytes, reader: &Reader, count: u64) -> Option<Served> {
    let error = |text: &str| Some(Served::from(Reply::Error(text.into())));
    let stream = match cx.get::<Stream>(key) {
        Ok(Some(stream)) => stream,
        _ => return error("UNBLOCKED the stream key no longer exists"),
    };
    let Some(group) = stream.groups.get(reader.group.as_ref()) else {
        return error("NOGROUP the consumer group this client was blocked on no longer exists");
    };
    if stream.last_id <= group.last_id {
        return None;
    }
    let (entries, effects, undo) = deliver(cx, key, reader, count).ok()?;
    for effect in effects {
        cx.record(effect);
    }
    let found = vec![(Reply::Bulk(key.clone()), Reply::Array(entries))];
    Some(Served {
        reply: by_stream(cx, found),
        undo: Some(undo),
    })
}

/// What was delivered: the entries, what to record, and how to undo it.
type Delivery = (Vec<Reply>, Vec<Vec<Bytes>>, Undo);

/// Gives a consumer what is new to its group.
fn deliver(cx: &mut Ctx<'_>, key: &Bytes, reader: &Reader, count: u64) -> Result<Delivery, Stop> {
    let (now, logged) = (cx.now_ms(), cx.state.effects.enabled());
    let Some(stream) = cx.get_mut::<Stream>(key)? else {
        return Err(NO_SUCH_KEY.into());
    };
    let Some(mut group) = stream.groups.remove(reader.group.as_ref()) else {
        return Err(no_group(key, &reader.group));
    };
    let before = (group.last_id, group.entries_read);
    let (consumer, created) = group.see(&reader.consumer, now);
    let mut replies = Vec::new();
    let mut effects = Vec::new();
    // What was pending for nobody before.
    let mut fresh = Vec::new();
    if created && logged {
        effects.push(create_consumer_effect(key, &reader.group, &reader.consumer));
    }
    if let Some(start) = before.0.next() {
        stream.range(start, Id::MAX, |id, entry| {
            if let Some((last_id, entries_read)) = stream.advance(&group, id) {
                group.last_id = last_id;
                group.entries_read = entries_read;
            }
            replies.push(entry_reply(id, &entry));
            if !reader.no_ack {
                if !group.pending.contains_key(&id) {
                    fresh.push(id);
                }
                let pending = Pending {
                    consumer,
                    time: now,
                    count: 1,
                };
                group.assign(id, pending);
                if logged {
                    effects.push(claim_effect(key, &reader.group, &group, id, pending));
                }
            }
            count == 0 || (replies.len() as u64) < count
        });
    }
    if logged && !replies.is_empty() {
        effects.push(set_id_effect(key, &reader.group, &group));
    }
    let after = group.last_id;
    stream.groups.insert(Blob::new(&reader.group), group);
    if created {
        cx.notify(class::STREAM, "xgroup-createconsumer", key);
    }
    let (key, reader) = (key.clone(), reader.clone());
    let undo: Undo = Box::new(move |cx| take_back(cx, &key, &reader, before, after, &fresh));
    Ok((replies, effects, undo))
}

/// Makes as if entries had not been delivered, unless the group has gone on meanwhile. In that case
/// they stay pending for the consumer, and are found there.
fn take_back(
    cx: &mut Ctx<'_>,
    key: &Bytes,
    reader: &Reader,
    before: (Id, Option<i64>),
    after: Id,
    fresh: &[Id],
) {
    let Ok(Some(stream)) = cx.get_mut::<Stream>(key) else {
        return;
    };
    let Some(group) = stream.groups.get_mut(reader.group.as_ref()) else {
        return;
    };
    if group.last_id != after {
        return;
    }
    (group.last_id, group.entries_read) = before;
    let mut ack = vec![bulk("XACK"), key.clone(), reader.group.clone()];
    for &id in fresh {
        let theirs = group.number(&reader.consumer);
        if group.pending.get(&id).map(|pending| pending.consumer) == theirs && group.release(id) {
            ack.push(id.to_bytes());
        }
    }
    let set_id = set_id_effect(key, &reader.group, group);
    if ack.len() > 3 {
        cx.record(ack);
    }
    cx.record(set_id);
    cx.signal_ready(key);
}

/// A consumer's own pending entries, delivered once more.
fn history(
    cx: &mut Ctx<'_>,
    key: &Bytes,
    reader: &Reader,
    after: Id,
    count: u64,
) -> Result<Vec<Reply>, Stop> {
    let now = cx.now_ms();
    let Some(stream) = cx.get_mut::<Stream>(key)? else {
        return Ok(Vec::new());
    };
    let Some(mut group) = stream.groups.remove(reader.group.as_ref()) else {
        return Err(no_group(key, &reader.group));
    };
    let (number, created) = group.see(&reader.consumer, now);
    let ids: Vec<Id> = match (group.consumer(number), after.next()) {
        (Some(consumer), Some(start)) => {
            let limit = if count == 0 {
                usize::MAX
            } else {
                count as usize
            };
            consumer
                .pending
                .range(start..)
                .take(limit)
                .copied()
                .collect()
        }
        _ => Vec::new(),
    };
    let mut replies = Vec::with_capacity(ids.len());
    for id in ids {
        match one_entry(stream, id) {
            Some(reply) => {
                if let Some(pending) = group.pending.get_mut(&id) {
                    pending.time = now;
                    pending.count += 1;
                }
                replies.push(reply);
            }
            // Deleted since it was delivered.
            None => replies.push(Reply::Array(vec![
                Reply::Bulk(id.to_bytes()),
                Reply::NilArray,
            ])),
        }
    }
    stream.groups.insert(Blob::new(&reader.group), group);
    if created {
        cx.notify(class::STREAM, "xgroup-createconsumer", key);
        cx.propagate(create_consumer_effect(key, &reader.group, &reader.consumer));
    }
    Ok(replies)
}

// ---- effects ----

fn create_consumer_effect(key: &Bytes, group: &Bytes, consumer: &[u8]) -> Vec<Bytes> {
    vec![
        bulk("XGROUP"),
        bulk("CREATECONSUMER"),
        key.clone(),
        group.clone(),
        Bytes::copy_from_slice(consumer),
    ]
}

/// Makes an entry pending as it is now.
pub(crate) fn claim_effect(
    key: &Bytes,
    name: &Bytes,
    group: &Group,
    id: Id,
    pending: Pending,
) -> Vec<Bytes> {
    let consumer = group.consumer(pending.consumer);
    vec![
        bulk("XCLAIM"),
        key.clone(),
        name.clone(),
        consumer.map_or(Bytes::new(), |consumer| consumer.name.to_bytes()),
        bulk("0"),
        id.to_bytes(),
        bulk("TIME"),
        int_bytes(pending.time),
        bulk("RETRYCOUNT"),
        int_bytes(pending.count as i64),
        bulk("FORCE"),
        bulk("JUSTID"),
        bulk("LASTID"),
        group.last_id.to_bytes(),
    ]
}

fn set_id_effect(key: &Bytes, name: &Bytes, group: &Group) -> Vec<Bytes> {
    vec![
        bulk("XGROUP"),
        bulk("SETID"),
        key.clone(),
        name.clone(),
        group.last_id.to_bytes(),
        bulk("ENTRIESREAD"),
        int_bytes(group.entries_read_arg()),
    ]
}

// ---- groups ----

fn no_group(key: &[u8], group: &[u8]) -> Stop {
    format!(
        "NOGROUP No such key '{}' or consumer group '{}'",
        printable(key),
        printable(group)
    )
    .into()
}

fn no_group_for(key: &[u8], group: &[u8]) -> Stop {
    format!(
        "NOGROUP No such consumer group '{}' for key name '{}'",
        printable(group),
        printable(key)
    )
    .into()
}

fn needs_key() -> Stop {
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use \
     the MKSTREAM option to create an empty stream automatically."
        .into()
}

/// The options behind the id of CREATE and SETID: whether to make the stream, and ENTRIESREAD.
fn group_options(args: &[Bytes], create: bool) -> Result<(bool, Option<i64>), Stop> {
    let (mut make, mut read) = (false, None);
    let mut rest = &args[5..];
    while let [word, more @ ..] = rest {
        if create && word.eq_ignore_ascii_case(b"MKSTREAM") {
            make = true;
            rest = more;
        } else if let [value, more @ ..] = more
            && word.eq_ignore_ascii_case(b"ENTRIESREAD")
        {
            let value = int_arg(value)?;
            if value < -1 {
                return Err("ERR value for ENTRIESREAD must be positive or -1".into());
            }
            read = (value >= 0).then_some(value);
            rest = more;
        } else {
            return Err(format!(
                "ERR unknown subcommand or wrong number of arguments for '{}'. Try XGROUP HELP.",
                printable(&args[1])
            )
            .into());
        }
    }
    Ok((make, read))
}

fn xgroup_create(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (make, entries_read) = group_options(args, true)?;
    let (key, name) = (&args[2], &args[3]);
    let last_id = cx.get_mut::<Stream>(key)?.map(|stream| stream.last_id);
    if last_id.is_none() && !make {
        return Err(needs_key());
    }
    let id = match args[4].as_ref() {
        b"$" => last_id.unwrap_or_default(),
        id => id_arg(id, 0)?,
    };
    let stream = cx.get_or_create::<Stream>(key)?;
    if stream.groups.contains_key(name.as_ref()) {
        return Err("BUSYGROUP Consumer Group name already exists".into());
    }
    let mut group = Group::default();
    group.last_id = id;
    group.entries_read = entries_read;
    stream.groups.insert(Blob::new(name), group);
    if last_id.is_none() {
        cx.modified(key);
    }
    cx.notify(class::STREAM, "xgroup-create", key);
    cx.dirty(1);
    Ok(Reply::OK)
}

fn xgroup_setid(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (_, entries_read) = group_options(args, false)?;
    let (key, name) = (&args[2], &args[3]);
    let stream = cx.get_mut::<Stream>(key)?.ok_or_else(needs_key)?;
    let last_id = stream.last_id;
    let group = stream
        .groups
        .get_mut(name.as_ref())
        .ok_or_else(|| no_group_for(key, name))?;
    group.last_id = match args[4].as_ref() {
        b"$" => last_id,
        id => any_id_arg(id, 0)?,
    };
    group.entries_read = entries_read;
    let effect = set_id_effect(key, name, group);
    cx.propagate(effect);
    cx.notify(class::STREAM, "xgroup-setid", key);
    cx.dirty(1);
    Ok(Reply::OK)
}

fn xgroup_destroy(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[2];
    let stream = cx.get_mut::<Stream>(key)?.ok_or_else(needs_key)?;
    if stream.groups.remove(args[3].as_ref()).is_none() {
        return Ok(Reply::ZERO);
    }
    cx.notify(class::STREAM, "xgroup-destroy", key);
    cx.dirty(1);
    // Whoever waits in this group is told.
    cx.signal_ready(key);
    Ok(Reply::ONE)
}

fn xgroup_createconsumer(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (key, name, now) = (&args[2], &args[3], cx.now_ms());
    let stream = cx.get_mut::<Stream>(key)?.ok_or_else(needs_key)?;
    let group = stream
        .groups
        .get_mut(name.as_ref())
        .ok_or_else(|| no_group_for(key, name))?;
    if group.number(&args[4]).is_some() {
        return Ok(Reply::ZERO);
    }
    group.see(&args[4], now);
    cx.notify(class::STREAM, "xgroup-createconsumer", key);
    cx.dirty(1);
    Ok(Reply::ONE)
}

fn xgroup_delconsumer(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (key, name) = (&args[2], &args[3]);
    let stream = cx.get_mut::<Stream>(key)?.ok_or_else(needs_key)?;
    let group = stream
        .groups
        .get_mut(name.as_ref())
        .ok_or_else(|| no_group_for(key, name))?;
    let Some(pending) = group.remove_consumer(&args[4]) else {
        return Ok(Reply::ZERO);
    };
    cx.notify(class::STREAM, "xgroup-delconsumer", key);
    cx.dirty(1);
    Ok(pending.into())
}

fn xack(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let Some(stream) = cx.get_mut::<Stream>(&args[1])? else {
        return Ok(Reply::ZERO);
    };
    let Some(group) = stream.groups.get_mut(args[2].as_ref()) else {
        return Ok(Reply::ZERO);
    };
    let ids = ids(&args[3..])?;
    let count = ids.into_iter().filter(|&id| group.release(id)).count();
    cx.dirty(count);
    Ok(count.into())
}

fn xpending(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if args.len() != 3 && !(6..=9).contains(&args.len()) {
        return Err(SYNTAX.into());
    }
    let mut filter = None;
    if args.len() >= 6 {
        let mut at = 3;
        let mut min_idle = 0;
        if args[3].eq_ignore_ascii_case(b"IDLE") {
            min_idle = int_arg(&args[4])?;
            if args.len() < 8 {
                return Err(SYNTAX.into());
            }
            at = 5;
        }
        let count = int_arg(&args[at + 2])?.max(0) as usize;
        let (start, end) = (start_arg(&args[at])?, end_arg(&args[at + 1])?);
        filter = Some((min_idle, start, end, count, args.get(at + 3)));
    }
    let (key, name, now) = (&args[1], &args[2], cx.now_ms());
    let group = cx
        .get::<Stream>(key)?
        .and_then(|stream| stream.groups.get(name.as_ref()))
        .ok_or_else(|| no_group(key, name))?;
    let Some((min_idle, start, end, count, consumer)) = filter else {
        return Ok(summary(group));
    };
    let mut replies = Vec::new();
    let mut visit = |id: Id, pending: &Pending| {
        let idle = now - pending.time;
        if min_idle != 0 && idle < min_idle {
            return;
        }
        let owner = group.consumer(pending.consumer);
        replies.push(Reply::Array(vec![
            Reply::Bulk(id.to_bytes()),
            Reply::Bulk(owner.map_or(Bytes::new(), |owner| owner.name.to_bytes())),
            Reply::Int(idle.max(0)),
            Reply::Int(pending.count as i64),
        ]));
    };
    if start > end || count == 0 {
        return Ok(Reply::empty());
    }
    match consumer {
        None => {
            let mut left = count;
            for (&id, pending) in group.pending.range(start..=end) {
                if min_idle == 0 || now - pending.time >= min_idle {
                    left -= 1;
                }
                visit(id, pending);
                if left == 0 {
                    break;
                }
            }
        }
        Some(name) => {
            let consumer = group.number(name).and_then(|number| group.consumer(number));
            let ids = consumer
                .iter()
                .flat_map(|consumer| consumer.pending.range(start..=end));
            let entries = ids.filter_map(|id| Some((*id, group.pending.get(id)?)));
            entries
                .filter(|(_, pending)| min_idle == 0 || now - pending.time >= min_idle)
                .take(count)
                .for_each(|(id, pending)| visit(id, pending));
        }
    }
    Ok(Reply::Array(replies))
}

fn summary(group: &Group) -> Reply {
    let ends = (
        group.pending.first_key_value(),
        group.pending.last_key_value(),
    );
    let (Some((first, _)), Some((last, _))) = ends else {
        return Reply::Array(vec![Reply::ZERO, Reply::Nil, Reply::Nil, Reply::NilArray]);
    };
    let consumers = group
        .consumers()
        .filter(|consumer| !consumer.pending.is_empty())
        .map(|consumer| {
            Reply::Array(vec![
                Reply::Bulk(consumer.name.to_bytes()),
                Reply::Bulk(int_bytes(consumer.pending.len() as i64)),
            ])
        });
    Reply::Array(vec![
        group.pending.len().into(),
        Reply::Bulk(first.to_bytes()),
        Reply::Bulk(last.to_bytes()),
        Reply::Array(consumers.collect()),
    ])
}

fn xclaim(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (key, name, now) = (&args[1], &args[2], cx.now_ms());
    let logged = cx.state.effects.enabled();
    let known = cx
        .get_mut::<Stream>(key)?
        .is_some_and(|stream| stream.groups.contains_key(name.as_ref()));
    if !known {
        return Err(no_group(key, name));
    }
    let min_idle =
        parse_int(&args[4]).ok_or(Stop::from("ERR Invalid min-idle-time argument for XCLAIM"))?;
    let ids: Vec<Id> = args[5..]
        .iter()
        .map_while(|text| parse_id(text, 0))
        .collect();
    let (mut time, mut retries, mut force, mut just_id) = (None, None, false, false);
    let mut last_id = Id::ZERO;
    let mut rest = &args[5 + ids.len()..];
    while let [word, more @ ..] = rest {
        rest = more;
        let mut number = |error: &'static str| -> Result<i64, Stop> {
            let value = parse_int(&more[0]).ok_or(Stop::from(error))?;
            rest = &more[1..];
            Ok(value)
        };
        match word.to_ascii_lowercase().as_slice() {
            b"force" => force = true,
            b"justid" => just_id = true,
            b"idle" if !more.is_empty() => {
                let idle = number("ERR Invalid IDLE option argument for XCLAIM")?;
                time = Some(now.wrapping_sub(idle));
            }
            b"time" if !more.is_empty() => {
                time = Some(number("ERR Invalid TIME option argument for XCLAIM")?);
            }
            b"retrycount" if !more.is_empty() => {
                retries = Some(number("ERR Invalid RETRYCOUNT option argument for XCLAIM")?);
            }
            b"lastid" if !more.is_empty() => {
                last_id = id_arg(&more[0], 0)?;
                rest = &more[1..];
            }
            _ => {
                let word = printable(word);
                return Err(format!("ERR Unrecognized XCLAIM option '{word}'").into());
            }
        }
    }
    let time = time.filter(|time| (0..=now).contains(time)).unwrap_or(now);
    let retries = retries.and_then(|retries| u64::try_from(retries).ok());
    let Some(stream) = cx.get_mut::<Stream>(key)? else {
        return Err(no_group(key, name));
    };
    let Some(mut group) = stream.groups.remove(name.as_ref()) else {
        return Err(no_group(key, name));
    };
    let mut effects = Vec::new();
    let mut changes = 0;
    let moved = last_id > group.last_id;
    if moved {
        group.last_id = last_id;
    }
    // Seen, and made, with the first entry that it gets.
    let mut claimant = None;
    let mut created = false;
    let mut replies = Vec::new();
    let mut told = false;
    for id in ids {
        let before = group.pending.get(&id).copied();
        let entry = one_entry(stream, id);
        let Some(entry) = entry else {
            // Deleted from the stream: nobody can work on it any more.
            if let Some(before) = before {
                if logged {
                    effects.push(claim_effect(key, name, &group, id, before));
                }
                group.release(id);
                (told, changes) = (true, changes + 1);
            }
            continue;
        };
        let mut pending = match before {
            Some(before) if min_idle > 0 && now - before.time < min_idle => continue,
            Some(before) => before,
            None if force => Pending {
                consumer: 0,
                time,
                count: 1,
            },
            None => continue,
        };
        pending.consumer = *claimant.get_or_insert_with(|| {
            let consumer;
            (consumer, created) = group.see(&args[3], now);
            if created {
                changes += 1;
                effects.push(create_consumer_effect(key, name, &args[3]));
            }
            consumer
        });
        pending.time = time;
        match retries {
            Some(retries) => pending.count = retries,
            None if !just_id => pending.count += 1,
            None => {}
        }
        group.assign(id, pending);
        replies.push(if just_id {
            Reply::Bulk(id.to_bytes())
        } else {
            entry
        });
        if logged {
            effects.push(claim_effect(key, name, &group, id, pending));
        }
        (told, changes) = (true, changes + 1);
    }
    if moved && !told {
        effects.push(set_id_effect(key, name, &group));
        changes += 1;
    }
    stream.groups.insert(Blob::new(name), group);
    finish_claim(cx, key, created, changes, effects);
    Ok(Reply::Array(replies))
}

fn finish_claim(
    cx: &mut Ctx<'_>,
    key: &Bytes,
    created: bool,
    changes: usize,
    effects: Vec<Vec<Bytes>>,
) {
    if created {
        cx.notify(class::STREAM, "xgroup-createconsumer", key);
    }
    cx.dirty(changes);
    cx.propagate_nothing();
    for effect in effects {
        cx.propagate(effect);
    }
}

fn xautoclaim(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let min_idle = parse_int(&args[4]).ok_or(Stop::from(
        "ERR Invalid min-idle-time argument for XAUTOCLAIM",
    ))?;
    let start = start_arg(&args[5])?;
    let (mut count, mut just_id) = (100, false);
    let mut rest = &args[6..];
    while let [word, more @ ..] = rest {
        match more {
            [value, more @ ..] if word.eq_ignore_ascii_case(b"COUNT") => {
                count = range_arg(value, 1, i64::MAX / 16, "ERR COUNT must be > 0")?;
                rest = more;
            }
            _ if word.eq_ignore_ascii_case(b"JUSTID") => {
                just_id = true;
                rest = more;
            }
            _ => return Err(SYNTAX.into()),
        }
    }
    let (key, name, now) = (&args[1], &args[2], cx.now_ms());
    let logged = cx.state.effects.enabled();
    let Some(stream) = cx.get_mut::<Stream>(key)? else {
        return Err(no_group(key, name));
    };
    let Some(mut group) = stream.groups.remove(name.as_ref()) else {
        return Err(no_group(key, name));
    };
    let mut effects = Vec::new();
    let mut changes = 0;
    // Seen, and made, with the first entry that it gets.
    let mut claimant = None;
    let mut created = false;
    let (mut replies, mut deleted) = (Vec::new(), Vec::new());
    // So many entries are looked at for each one that is asked for.
    let mut attempts = count.saturating_mul(10);
    let mut next = Some(start);
    let mut cursor = None;
    while let Some(from) = next {
        let Some((&id, &before)) = group.pending.range(from..).next() else {
            break;
        };
        if attempts == 0 || count == 0 {
            cursor = Some(id);
            break;
        }
        attempts -= 1;
        next = id.next();
        let Some(entry) = one_entry(stream, id) else {
            if logged {
                effects.push(claim_effect(key, name, &group, id, before));
            }
            group.release(id);
            deleted.push(Reply::Bulk(id.to_bytes()));
            changes += 1;
            count -= 1;
            continue;
        };
        if min_idle > 0 && now - before.time < min_idle {
            continue;
        }
        let consumer = *claimant.get_or_insert_with(|| {
            let consumer;
            (consumer, created) = group.see(&args[3], now);
            if created {
                changes += 1;
                effects.push(create_consumer_effect(key, name, &args[3]));
            }
            consumer
        });
        let pending = Pending {
            consumer,
            time: now,
            count: before.count + u64::from(!just_id),
        };
        group.assign(id, pending);
        replies.push(if just_id {
            Reply::Bulk(id.to_bytes())
        } else {
            entry
        });
        if logged {
            effects.push(claim_effect(key, name, &group, id, pending));
        }
        changes += 1;
        count -= 1;
    }
    stream.groups.insert(Blob::new(name), group);
    finish_claim(cx, key, created, changes, effects);
    Ok(Reply::Array(vec![
        Reply::Bulk(cursor.unwrap_or_default().to_bytes()),
        Reply::Array(replies),
        Reply::Array(deleted),
    ]))
}

// ---- looking inside ----

fn id_reply(id: Id) -> Reply {
    Reply::Bulk(id.to_bytes())
}

fn xinfo_stream(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if cx.get::<Stream>(&args[2])?.is_none() {
        return Err(NO_SUCH_KEY.into());
    }
    let full = match &args[3..] {
        [] => None,
        [word] if word.eq_ignore_ascii_case(b"FULL") => Some(10),
        [word, count, value]
            if word.eq_ignore_ascii_case(b"FULL") && count.eq_ignore_ascii_case(b"COUNT") =>
        {
            let count = int_arg(value)?;
            Some(u64::try_from(count).unwrap_or(10))
        }
        _ => {
            return Err(format!(
                "ERR unknown subcommand or wrong number of arguments for '{}'. Try XINFO HELP.",
                printable(&args[1])
            )
            .into());
        }
    };
    let Some(stream) = cx.get::<Stream>(&args[2])? else {
        return Err(NO_SUCH_KEY.into());
    };
    let pair = |key: &'static str, value: Reply| (Reply::bulk(key), value);
    let mut facts = vec![
        pair("length", Reply::Int(stream.len() as i64)),
        pair("radix-tree-keys", stream.node_count().into()),
        pair("radix-tree-nodes", stream.radix_nodes().into()),
        pair("last-generated-id", id_reply(stream.last_id)),
        pair("max-deleted-entry-id", id_reply(stream.max_deleted_id)),
        pair("entries-added", Reply::Int(stream.entries_added as i64)),
        pair("recorded-first-entry-id", id_reply(stream.first_id())),
    ];
    match full {
        None => {
            facts.push(pair("groups", stream.groups.len().into()));
            let (mut first, mut last) = (Reply::Nil, Reply::Nil);
            stream.range(Id::ZERO, Id::MAX, |id, entry| {
                first = entry_reply(id, &entry);
                false
            });
            stream.range_back(Id::ZERO, Id::MAX, |id, entry| {
                last = entry_reply(id, &entry);
                false
            });
            facts.push(pair("first-entry", first));
            facts.push(pair("last-entry", last));
        }
        Some(count) => {
            let entries = entries_from(stream, Id::ZERO, count);
            facts.push(pair("entries", Reply::Array(entries)));
            let groups = stream
                .groups
                .iter()
                .map(|(name, group)| full_group(stream, name, group, count));
            facts.push(pair("groups", Reply::Array(groups.collect())));
        }
    }
    Ok(Reply::Map(facts))
}

fn full_group(stream: &Stream, name: &Blob, group: &Group, count: u64) -> Reply {
    let pair = |key: &'static str, value: Reply| (Reply::bulk(key), value);
    let limit = if count == 0 {
        usize::MAX
    } else {
        count as usize
    };
    let pending = group.pending.iter().take(limit).map(|(id, pending)| {
        let owner = group.consumer(pending.consumer);
        Reply::Array(vec![
            id_reply(*id),
            Reply::Bulk(owner.map_or(Bytes::new(), |owner| owner.name.to_bytes())),
            Reply::Int(pending.time),
            Reply::Int(pending.count as i64),
        ])
    });
    let consumers = group.consumers().map(|consumer| {
        let pending = consumer.pending.iter().take(limit).filter_map(|id| {
            let pending = group.pending.get(id)?;
            Some(Reply::Array(vec![
                id_reply(*id),
                Reply::Int(pending.time),
                Reply::Int(pending.count as i64),
            ]))
        });
        Reply::Map(vec![
            pair("name", Reply::Bulk(consumer.name.to_bytes())),
            pair("seen-time", Reply::Int(consumer.seen)),
            pair("pel-count", consumer.pending.len().into()),
            pair("pending", Reply::Array(pending.collect())),
        ])
    });
    Reply::Map(vec![
        pair("name", Reply::Bulk(name.to_bytes())),
        pair("last-delivered-id", id_reply(group.last_id)),
        pair(
            "entries-read",
            group.entries_read.map_or(Reply::Nil, Reply::Int),
        ),
        pair("lag", stream.lag(group).map_or(Reply::Nil, Reply::Int)),
        pair("pel-count", group.pending.len().into()),
        pair("pending", Reply::Array(pending.collect())),
        pair("consumers", Reply::Array(consumers.collect())),
    ])
}

fn xinfo_groups(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let Some(stream) = cx.get::<Stream>(&args[2])? else {
        return Err(NO_SUCH_KEY.into());
    };
    let pair = |key: &'static str, value: Reply| (Reply::bulk(key), value);
    let groups = stream.groups.iter().map(|(name, group)| {
        Reply::Map(vec![
            pair("name", Reply::Bulk(name.to_bytes())),
            pair("consumers", group.consumer_count().into()),
            pair("pending", group.pending.len().into()),
            pair("last-delivered-id", id_reply(group.last_id)),
            pair(
                "entries-read",
                group.entries_read.map_or(Reply::Nil, Reply::Int),
            ),
            pair("lag", stream.lag(group).map_or(Reply::Nil, Reply::Int)),
        ])
    });
    Ok(Reply::Array(groups.collect()))
}

fn xinfo_consumers(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (key, name, now) = (&args[2], &args[3], cx.now_ms());
    let Some(stream) = cx.get::<Stream>(key)? else {
        return Err(NO_SUCH_KEY.into());
    };
    let group = stream
        .groups
        .get(name.as_ref())
        .ok_or_else(|| no_group_for(key, name))?;
    let consumers = group.consumers().map(|consumer| {
        Reply::Map(vec![
            (Reply::bulk("name"), Reply::Bulk(consumer.name.to_bytes())),
            (Reply::bulk("pending"), consumer.pending.len().into()),
            (
                Reply::bulk("idle"),
                Reply::Int((now - consumer.seen).max(0)),
            ),
        ])
    });
    Ok(Reply::Array(consumers.collect()))
}
