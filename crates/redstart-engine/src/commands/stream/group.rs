//! Consumer groups and what they have pending.

use bytes::Bytes;

use super::{any_id_arg, end_arg, id_arg, ids, set_id_effect, start_arg};
use crate::{
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    notify::class,
    number::{int_arg, int_bytes},
    registry::printable,
    reply::Reply,
    types::{
        blob::Blob,
        stream::{Group, Id, Pending, Stream},
    },
};

pub(super) fn no_group(key: &[u8], group: &[u8]) -> Stop {
    format!(
        "NOGROUP No such key '{}' or consumer group '{}'",
        printable(key),
        printable(group)
    )
    .into()
}

pub(super) fn no_group_for(key: &[u8], group: &[u8]) -> Stop {
    format!(
        "NOGROUP No such consumer group '{}' for key name '{}'",
        printable(group),
        printable(key)
    )
    .into()
}

pub(super) fn needs_key() -> Stop {
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

pub(super) fn xgroup_create(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
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

pub(super) fn xgroup_setid(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
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

pub(super) fn xgroup_destroy(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[2];
    let stream = cx.get_mut::<Stream>(key)?.ok_or_else(needs_key)?;
    if stream.groups.remove(args[3].as_ref()).is_none() {
        return Ok(Reply::ZERO);
    }
    cx.notify(class::STREAM, "xgroup-destroy", key);
    cx.dirty(1);
    // Clients that wait in this group are told.
    cx.signal_ready(key);
    Ok(Reply::ONE)
}

pub(super) fn xgroup_createconsumer(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
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

pub(super) fn xgroup_delconsumer(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
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

pub(super) fn xack(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let Some(stream) = cx.get_mut_read::<Stream>(&args[1])? else {
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

pub(super) fn xpending(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
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
