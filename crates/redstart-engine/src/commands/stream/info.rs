//! XINFO: looking inside.

use bytes::Bytes;

use super::{entries_from, entry_reply, group::no_group_for};
use crate::{
    context::Ctx,
    error::{CommandResult, NO_SUCH_KEY},
    number::int_arg,
    registry::printable,
    reply::Reply,
    types::{
        blob::Blob,
        stream::{Group, Id, Stream},
    },
};

fn id_reply(id: Id) -> Reply {
    Reply::Bulk(id.to_bytes())
}

pub(super) fn xinfo_stream(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
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

pub(super) fn xinfo_groups(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
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

pub(super) fn xinfo_consumers(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
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
