//! Members from either end.

use bytes::Bytes;

use super::{Layout, after_removal};
use crate::{
    blocking::timeout_arg,
    commands::pop::{Pop, Poppable, mpop_args},
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    notify::class,
    number::{format_double, positive_arg},
    reply::Reply,
    types::{blob::Blob, sorted_set::SortedSet},
};

/// From which end members are popped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extreme {
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

impl Poppable for SortedSet {
    type End = Extreme;
    type Item = (Blob, f64);

    fn take(
        cx: &mut Ctx<'_>,
        key: &[u8],
        end: Extreme,
        count: usize,
    ) -> Result<Vec<(Blob, f64)>, Stop> {
        take(cx, key, end, count)
    }

    fn effect(_: &Pop<SortedSet>, key: &Bytes, members: &[(Blob, f64)]) -> Vec<Bytes> {
        let words = [Bytes::from_static(b"ZREM"), key.clone()];
        words
            .into_iter()
            .chain(members.iter().map(|(member, _)| member.to_bytes()))
            .collect()
    }

    fn put_back(cx: &mut Ctx<'_>, key: &Bytes, _: Extreme, members: Vec<(Blob, f64)>) {
        let words: [&'static [u8]; 2] = [b"ZADD", b"NX"];
        let [name, nx] = words.map(Bytes::from_static);
        let mut effect = vec![name, key.clone(), nx];
        let done = cx.edit_or_create(key, |set: &mut SortedSet, config, _| {
            for (member, score) in members {
                // A client that added the member meanwhile has decided on its score.
                if !set.contains(&member) {
                    set.insert(&member, score, config);
                }
                effect.extend([format_double(score), member.into_bytes()]);
            }
        });
        if done.is_ok() {
            cx.changed(key, class::SORTED_SET, "zadd");
            cx.record(effect);
        }
    }
}

/// Several members of a sorted set: ZMPOP.
fn pop_many(end: Extreme, limit: usize) -> Pop<SortedSet> {
    Pop {
        end,
        count: Some(limit),
        reply: |key, members| {
            let members = members_reply(members, Layout::Pairs);
            Reply::Array(vec![Reply::Bulk(key.clone()), members])
        },
    }
}

/// One member of a sorted set: BZPOPMIN.
fn pop_one(end: Extreme) -> Pop<SortedSet> {
    Pop {
        end,
        count: None,
        reply: |key, members| {
            let mut items = vec![Reply::Bulk(key.clone())];
            for (member, score) in members {
                Layout::Flat.push(&mut items, member, *score);
            }
            Reply::Array(items)
        },
    }
}

pub(super) fn zmpop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (keys, extreme, limit) = mpop_args(&args[1..], Extreme::arg)?;
    let popped = pop_many(extreme, limit).run(cx, keys)?;
    Ok(popped.unwrap_or(Reply::NilArray))
}

pub(super) fn bzmpop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let deadline = timeout_arg(cx, &args[1])?;
    let (keys, extreme, limit) = mpop_args(&args[2..], Extreme::arg)?;
    pop_many(extreme, limit).run_or_wait(cx, keys, deadline)
}

pub(super) fn bzpopmin(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    block_pop(cx, args, Extreme::Min)
}

pub(super) fn bzpopmax(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    block_pop(cx, args, Extreme::Max)
}

fn block_pop(cx: &mut Ctx<'_>, args: &[Bytes], extreme: Extreme) -> CommandResult {
    let (keys, timeout) = (&args[1..args.len() - 1], &args[args.len() - 1]);
    let deadline = timeout_arg(cx, timeout)?;
    pop_one(extreme).run_or_wait(cx, keys, deadline)
}
