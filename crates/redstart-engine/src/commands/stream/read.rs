//! Reading streams: ranges, and entries for clients that wait for them or share them in a group.

use bytes::Bytes;

use super::{
    bulk, claim_effect, create_consumer_effect, end_arg, entries_from, entry_reply,
    group::no_group, id_arg, one_entry, set_id_effect, start_arg,
};
use crate::{
    blocking::{Served, Undo, Wait, timeout_ms_arg},
    compat::versions,
    context::{Ctx, Origin},
    error::{CommandResult, NO_SUCH_KEY, SYNTAX, Stop},
    notify::class,
    number::int_arg,
    registry::printable,
    reply::Reply,
    types::{
        blob::Blob,
        stream::{Entry, Id, Pending, Stream},
    },
};

pub(super) fn xrange(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    range(cx, args, false)
}

pub(super) fn xrevrange(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
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
pub(super) fn read_keys(args: &[Bytes]) -> Option<Vec<usize>> {
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

pub(super) fn xread(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    read(cx, args, false)
}

pub(super) fn xreadgroup(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let result = read(cx, args, true);
    // What it changed is recorded piece by piece.
    cx.propagate_nothing();
    result
}

/// What XREAD and XREADGROUP are asked for.
struct ReadOptions<'a> {
    /// The deadline, if it may block; `None` in it waits forever.
    block: Option<Option<i64>>,
    count: u64,
    reader: Option<Reader>,
    keys: &'a [Bytes],
    ids: &'a [Bytes],
}

fn read_options<'a>(
    cx: &Ctx<'_>,
    args: &'a [Bytes],
    grouped: bool,
) -> Result<ReadOptions<'a>, Stop> {
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
    Ok(ReadOptions {
        block,
        count,
        reader,
        keys,
        ids,
    })
}

fn read(cx: &mut Ctx<'_>, args: &[Bytes], grouped: bool) -> CommandResult {
    let ReadOptions {
        block,
        count,
        reader,
        keys,
        ids,
    } = read_options(cx, args, grouped)?;
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
        synced: None,
        hears_of_absence: reader.is_some(),
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
    let newer = cx.state.config.compat.is_in(versions::FROM_7_4);
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
        // All above the id before the last one.
        (b"+", None) if newer => Ok(From::After(stream.map_or(Id::ZERO, |stream| {
            stream.last_id.previous().unwrap_or(Id::ZERO)
        }))),
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
    let stream = cx.get_mut::<Stream>(key).ok()??;
    if stream.last_id <= *id {
        return None;
    }
    let entries = entries_from(stream, id.next()?, count);
    let found = vec![(Reply::Bulk(key.clone()), Reply::Array(entries))];
    Some(by_stream(cx, found).into())
}

fn serve_group(cx: &mut Ctx<'_>, key: &Bytes, reader: &Reader, count: u64) -> Option<Served> {
    let error = |text: &str| Some(Served::from(Reply::Error(text.into())));
    let stream = match cx.get_mut::<Stream>(key) {
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
    cx.touch(key);
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
    // Entries that were pending for no consumer before.
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
    cx.touch(key);
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
    let (now, logged) = (cx.now_ms(), cx.state.effects.enabled());
    let Some(stream) = cx.get_mut::<Stream>(key)? else {
        return Ok(Vec::new());
    };
    let Some(mut group) = stream.groups.remove(reader.group.as_ref()) else {
        return Err(no_group(key, &reader.group));
    };
    let (number, created) = group.see(&reader.consumer, now);
    // Servers keep a new count and time from their replicas and logs; a copy is to be equal here.
    let mut effects = Vec::new();
    if created && logged {
        effects.push(create_consumer_effect(key, &reader.group, &reader.consumer));
    }
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
                let delivered = group.pending.get_mut(&id).map(|pending| {
                    pending.time = now;
                    pending.count += 1;
                    *pending
                });
                if let Some(pending) = delivered.filter(|_| logged) {
                    effects.push(claim_effect(key, &reader.group, &group, id, pending));
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
    }
    cx.propagate_nothing();
    for effect in effects {
        cx.propagate(effect);
    }
    Ok(replies)
}
