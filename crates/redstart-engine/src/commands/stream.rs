//! Streams and consumer groups.
//!
//! Here are ids and what adds and removes entries; the rest is in `stream/`: `read`, `group`, `claim`, `delete`, `trim`, `info`.

use bytes::Bytes;

use crate::{
    compat::versions,
    context::Ctx,
    error::{CommandResult, NO_SUCH_KEY, SYNTAX, Stop},
    notify::class,
    number::{int_arg, int_bytes, parse_int},
    registry::{Spec, flag::*},
    reply::Reply,
    types::stream::{Entry, Group, Id, Pending, Stream},
};

mod claim;
mod delete;
mod group;
mod info;
mod read;
mod trim;

use claim::{xautoclaim, xclaim};
use delete::{xackdel, xdelex};
use group::{
    xack, xgroup_create, xgroup_createconsumer, xgroup_delconsumer, xgroup_destroy, xgroup_setid,
    xpending,
};
use info::{xinfo_consumers, xinfo_groups, xinfo_stream};
use read::{read_keys, xrange, xread, xreadgroup, xrevrange};
use trim::{exact_trim, parse_options};

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
    Spec::new("xackdel", -6, WRITE | FAST, (1, 1, 1), xackdel).only(versions::FROM_8_2),
    Spec::new("xdelex", -5, WRITE | FAST, (1, 1, 1), xdelex).only(versions::FROM_8_2),
    Spec::new("xpending", -3, READONLY, (1, 1, 1), xpending),
    Spec::new("xclaim", -6, WRITE | FAST, (1, 1, 1), xclaim),
    Spec::new("xautoclaim", -6, WRITE | FAST, (1, 1, 1), xautoclaim),
    Spec::container("xgroup", -2, 0, XGROUP_COMMANDS),
    Spec::container("xinfo", -2, 0, XINFO_COMMANDS),
];

static XGROUP_COMMANDS: &[Spec] = &[
    Spec::sub(
        "help",
        "xgroup|help",
        2,
        LOADING | STALE,
        (0, 0, 0),
        super::help::help,
    ),
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
        "help",
        "xinfo|help",
        2,
        LOADING | STALE,
        (0, 0, 0),
        super::help::help,
    ),
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

/// An id; `missing` is the part behind the dash if it is not given.
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
    // Not a change for clients that watch the key: its entries are the same.
    cx.notify(class::STREAM, "xsetid", &args[1]);
    cx.dirty(1);
    Ok(Reply::OK)
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
