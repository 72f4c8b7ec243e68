//! Members from either end, for whoever asks or waits.

use bytes::Bytes;

use super::{Layout, after_removal};
use crate::{
    blocking::{Served, Wait, timeout_arg},
    commands::list::mpop_count,
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    notify::class,
    number::{format_double, positive_arg, range_arg},
    reply::Reply,
    types::{blob::Blob, sorted_set::SortedSet},
};

/// From which end members are popped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extreme {
    Min,
    Max,
}

impl Extreme {
    fn event(self) -> &'static str {
        match self {
            Extreme::Min => "zpopmin",
            Extreme::Max => "zpopmax",
        }
    }

    fn arg(text: &[u8]) -> Result<Extreme, Stop> {
        if text.eq_ignore_ascii_case(b"min") {
            Ok(Extreme::Min)
        } else if text.eq_ignore_ascii_case(b"max") {
            Ok(Extreme::Max)
        } else {
            Err(SYNTAX.into())
        }
    }
}

/// Takes up to `count` members off a set; events and the key's removal included.
fn take(
    cx: &mut Ctx<'_>,
    key: &[u8],
    extreme: Extreme,
    count: usize,
) -> Result<Vec<(Blob, f64)>, Stop> {
    let Some(set) = cx.get_mut::<SortedSet>(key)? else {
        return Ok(Vec::new());
    };
    let count = count.min(set.len());
    let mut taken = Vec::with_capacity(count);
    let (from, to) = match extreme {
        Extreme::Min => (0, count),
        Extreme::Max => (set.len() - count, set.len()),
    };
    set.each(from, to, extreme == Extreme::Max, |member, score| {
        taken.push((member.clone(), score))
    });
    for (member, _) in &taken {
        set.remove(member);
    }
    let emptied = set.is_empty();
    after_removal(cx, key, taken.len(), emptied, extreme.event());
    Ok(taken)
}

pub(super) fn zpopmin(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    pop(cx, args, Extreme::Min)
}

pub(super) fn zpopmax(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    pop(cx, args, Extreme::Max)
}

fn pop(cx: &mut Ctx<'_>, args: &[Bytes], extreme: Extreme) -> CommandResult {
    let count = match args {
        [_, _] => None,
        [_, _, count] => Some(positive_arg(count)? as usize),
        _ => return Err(SYNTAX.into()),
    };
    let layout = if cx.is_resp3() && count.is_some() {
        Layout::Pairs
    } else {
        Layout::Flat
    };
    let taken = take(cx, &args[1], extreme, count.unwrap_or(1))?;
    Ok(members_reply(&taken, layout))
}

fn members_reply(members: &[(Blob, f64)], layout: Layout) -> Reply {
    let mut items = Vec::new();
    for (member, score) in members {
        layout.push(&mut items, member, *score);
    }
    Reply::Array(items)
}

fn removal_effect(key: &Bytes, members: &[(Blob, f64)]) -> Vec<Bytes> {
    let words = [Bytes::from_static(b"ZREM"), key.clone()];
    words
        .into_iter()
        .chain(members.iter().map(|(member, _)| member.to_bytes()))
        .collect()
}

/// The keys, the end and the count of ZMPOP, from the position of `numkeys` on.
fn zmpop_args(args: &[Bytes]) -> Result<(&[Bytes], Extreme, usize), Stop> {
    let count = range_arg(
        &args[0],
        1,
        i64::MAX,
        "ERR numkeys should be greater than 0",
    )?;
    let rest = &args[1..];
    if count as u64 >= rest.len() as u64 {
        return Err(SYNTAX.into());
    }
    let (keys, rest) = rest.split_at(count as usize);
    let extreme = Extreme::arg(&rest[0])?;
    Ok((keys, extreme, mpop_count(&rest[1..])?))
}

fn mpop_reply(key: &Bytes, members: &[(Blob, f64)]) -> Reply {
    Reply::Array(vec![
        Reply::Bulk(key.clone()),
        members_reply(members, Layout::Pairs),
    ])
}

fn mpop(
    cx: &mut Ctx<'_>,
    keys: &[Bytes],
    extreme: Extreme,
    limit: usize,
) -> Result<Option<Reply>, Stop> {
    for key in keys {
        if cx.get_mut::<SortedSet>(key)?.is_some() {
            let taken = take(cx, key, extreme, limit)?;
            cx.propagate(removal_effect(key, &taken));
            return Ok(Some(mpop_reply(key, &taken)));
        }
    }
    Ok(None)
}

pub(super) fn zmpop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (keys, extreme, limit) = zmpop_args(&args[1..])?;
    Ok(mpop(cx, keys, extreme, limit)?.unwrap_or(Reply::NilArray))
}

pub(super) fn bzmpop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let deadline = timeout_arg(cx, &args[1])?;
    let (keys, extreme, limit) = zmpop_args(&args[2..])?;
    if let Some(reply) = mpop(cx, keys, extreme, limit)? {
        return Ok(reply);
    }
    cx.block(Wait {
        keys: keys.to_vec(),
        deadline,
        hears_of_absence: false,
        on_timeout: Reply::NilArray,
        serve: Box::new(move |cx, key| {
            let taken = serve_take(cx, key, extreme, limit)?;
            let reply = mpop_reply(key, &taken);
            Some(put_back(key, taken, reply))
        }),
    })
}

/// [`take`] for a client that waits: nothing if there is no sorted set.
fn serve_take(
    cx: &mut Ctx<'_>,
    key: &Bytes,
    extreme: Extreme,
    count: usize,
) -> Option<Vec<(Blob, f64)>> {
    if !matches!(cx.get_mut::<SortedSet>(key), Ok(Some(_))) {
        return None;
    }
    let taken = take(cx, key, extreme, count).ok()?;
    cx.record(removal_effect(key, &taken));
    Some(taken)
}

/// A reply that, if nobody takes it, puts the members back.
fn put_back(key: &Bytes, members: Vec<(Blob, f64)>, reply: Reply) -> Served {
    let key = key.clone();
    let undo = move |cx: &mut Ctx<'_>| {
        let mut effect = vec![
            Bytes::from_static(b"ZADD"),
            key.clone(),
            Bytes::from_static(b"NX"),
        ];
        let done = cx.edit_or_create(&key, |set: &mut SortedSet, config, _| {
            for (member, score) in members {
                // Whoever added the member anew in the meantime has decided on its score.
                if !set.contains(&member) {
                    set.insert(&member, score, config);
                }
                effect.extend([format_double(score), member.into_bytes()]);
            }
        });
        if done.is_ok() {
            cx.changed(&key, class::SORTED_SET, "zadd");
            cx.record(effect);
        }
    };
    Served {
        reply,
        undo: Some(Box::new(undo)),
    }
}

pub(super) fn bzpopmin(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    block_pop(cx, args, Extreme::Min)
}

pub(super) fn bzpopmax(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    block_pop(cx, args, Extreme::Max)
}

fn block_pop(cx: &mut Ctx<'_>, args: &[Bytes], extreme: Extreme) -> CommandResult {
    fn reply(key: &Bytes, taken: &[(Blob, f64)]) -> Reply {
        let mut items = vec![Reply::Bulk(key.clone())];
        for (member, score) in taken {
            Layout::Flat.push(&mut items, member, *score);
        }
        Reply::Array(items)
    }
    let (keys, timeout) = (&args[1..args.len() - 1], &args[args.len() - 1]);
    let deadline = timeout_arg(cx, timeout)?;
    for key in keys {
        if cx.get_mut::<SortedSet>(key)?.is_some() {
            let taken = take(cx, key, extreme, 1)?;
            cx.propagate(removal_effect(key, &taken));
            return Ok(reply(key, &taken));
        }
    }
    cx.block(Wait {
        keys: keys.to_vec(),
        deadline,
        hears_of_absence: false,
        on_timeout: Reply::NilArray,
        serve: Box::new(move |cx, key| {
            let taken = serve_take(cx, key, extreme, 1)?;
            let answer = reply(key, &taken);
            Some(put_back(key, taken, answer))
        }),
    })
}
