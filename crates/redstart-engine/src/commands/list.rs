//! Lists. Moving items between them is in `list/transfer`.

mod transfer;

use bytes::Bytes;

use transfer::{blmove, brpoplpush, lmove, rpoplpush};

use crate::{
    blocking::timeout_arg,
    commands::pop::{Pop, Poppable, mpop_args},
    context::Ctx,
    error::{CommandResult, NO_SUCH_KEY, SYNTAX, Stop},
    notify::class,
    number::{int_arg, int_bytes, positive_arg, range_arg},
    registry::{Spec, flag::*, keys_counted_first, keys_counted_second},
    reply::Reply,
    types::{
        blob::Blob,
        list::{End, List},
    },
};

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new(
        "blmove",
        6,
        WRITE | DENYOOM | NOSCRIPT | BLOCKING,
        (1, 2, 1),
        blmove,
    ),
    Spec::new(
        "blmpop",
        -5,
        WRITE | BLOCKING | MOVABLEKEYS,
        (0, 0, 0),
        blmpop,
    )
    .movable(keys_counted_second),
    Spec::new("blpop", -3, WRITE | NOSCRIPT | BLOCKING, (1, -2, 1), blpop),
    Spec::new("brpop", -3, WRITE | NOSCRIPT | BLOCKING, (1, -2, 1), brpop),
    Spec::new(
        "brpoplpush",
        4,
        WRITE | DENYOOM | NOSCRIPT | BLOCKING,
        (1, 2, 1),
        brpoplpush,
    ),
    Spec::new("lindex", 3, READONLY, (1, 1, 1), lindex),
    Spec::new("linsert", 5, WRITE | DENYOOM, (1, 1, 1), linsert),
    Spec::new("llen", 2, READONLY | FAST, (1, 1, 1), llen),
    Spec::new("lmove", 5, WRITE | DENYOOM, (1, 2, 1), lmove),
    Spec::new("lmpop", -4, WRITE | MOVABLEKEYS, (0, 0, 0), lmpop).movable(keys_counted_first),
    Spec::new("lpop", -2, WRITE | FAST, (1, 1, 1), lpop),
    Spec::new("lpos", -3, READONLY, (1, 1, 1), lpos),
    Spec::new("lpush", -3, WRITE | DENYOOM | FAST, (1, 1, 1), lpush),
    Spec::new("lpushx", -3, WRITE | DENYOOM | FAST, (1, 1, 1), lpushx),
    Spec::new("lrange", 4, READONLY, (1, 1, 1), lrange),
    Spec::new("lrem", 4, WRITE, (1, 1, 1), lrem),
    Spec::new("lset", 4, WRITE | DENYOOM, (1, 1, 1), lset),
    Spec::new("ltrim", 4, WRITE, (1, 1, 1), ltrim),
    Spec::new("rpop", -2, WRITE | FAST, (1, 1, 1), rpop),
    Spec::new("rpoplpush", 3, WRITE | DENYOOM, (1, 2, 1), rpoplpush),
    Spec::new("rpush", -3, WRITE | DENYOOM | FAST, (1, 1, 1), rpush),
    Spec::new("rpushx", -3, WRITE | DENYOOM | FAST, (1, 1, 1), rpushx),
];

fn push_event(end: End) -> &'static str {
    match end {
        End::Left => "lpush",
        End::Right => "rpush",
    }
}

fn pop_event(end: End) -> &'static str {
    match end {
        End::Left => "lpop",
        End::Right => "rpop",
    }
}

fn end_name(end: End) -> Bytes {
    Bytes::from_static(match end {
        End::Left => b"LEFT",
        End::Right => b"RIGHT",
    })
}

/// `LEFT` or `RIGHT`.
fn end_arg(text: &[u8]) -> Result<End, Stop> {
    if text.eq_ignore_ascii_case(b"left") {
        Ok(End::Left)
    } else if text.eq_ignore_ascii_case(b"right") {
        Ok(End::Right)
    } else {
        Err(SYNTAX.into())
    }
}

// ---- pushing and popping ----

fn lpush(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    push(cx, args, End::Left)
}

fn rpush(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    push(cx, args, End::Right)
}

fn lpushx(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    push_existing(cx, args, End::Left)
}

fn rpushx(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    push_existing(cx, args, End::Right)
}

fn push_existing(cx: &mut Ctx<'_>, args: &[Bytes], end: End) -> CommandResult {
    if cx.get_mut::<List>(&args[1])?.is_none() {
        return Ok(Reply::ZERO);
    }
    push(cx, args, end)
}

fn push(cx: &mut Ctx<'_>, args: &[Bytes], end: End) -> CommandResult {
    let key = &args[1];
    let list = cx.get_or_create::<List>(key)?;
    for item in &args[2..] {
        list.push(end, Blob::new(item));
    }
    let len = list.len();
    cx.changed(key, class::LIST, push_event(end));
    cx.dirty(args.len() - 3);
    Ok(len.into())
}

/// Takes up to `count` items off a list that is not empty; events and the key's removal included.
fn take(cx: &mut Ctx<'_>, key: &[u8], end: End, count: usize) -> Result<Vec<Blob>, Stop> {
    let Some(list) = cx.get_mut::<List>(key)? else {
        return Ok(Vec::new());
    };
    let count = count.min(list.len());
    let items: Vec<Blob> = (0..count).filter_map(|_| list.pop(end)).collect();
    let emptied = list.is_empty();
    cx.changed(key, class::LIST, pop_event(end));
    cx.dirty(count.saturating_sub(1));
    if emptied {
        cx.delete_emptied(key);
    }
    Ok(items)
}

fn bulks(items: Vec<Blob>) -> Reply {
    Reply::Array(
        items
            .into_iter()
            .map(|item| Reply::Bulk(item.into_bytes()))
            .collect(),
    )
}

fn lpop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    pop(cx, args, End::Left, "lpop")
}

fn rpop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    pop(cx, args, End::Right, "rpop")
}

fn pop(cx: &mut Ctx<'_>, args: &[Bytes], end: End, command: &str) -> CommandResult {
    let key = &args[1];
    let count = match args {
        [_, _] => None,
        [_, _, count] => Some(positive_arg(count)? as usize),
        _ => return Err(Stop::wrong_arity(command)),
    };
    if cx.get_mut::<List>(key)?.is_none() {
        return Ok(if count.is_some() {
            Reply::NilArray
        } else {
            Reply::Nil
        });
    }
    match count {
        Some(0) => Ok(Reply::empty()),
        Some(count) => Ok(bulks(take(cx, key, end, count)?)),
        None => Ok(take(cx, key, end, 1)?.pop().map(Blob::into_bytes).into()),
    }
}

// ---- reading and editing ----

fn llen(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(cx.get::<List>(&args[1])?.map_or(0, List::len).into())
}

fn lindex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let Some(list) = cx.get::<List>(&args[1])? else {
        return Ok(Reply::Nil);
    };
    let index = int_arg(&args[2])?;
    let item = list.position(index).and_then(|at| list.get(at));
    Ok(item.map(Blob::to_bytes).into())
}

/// The positions `from..to` that a range of indexes means; `None` if it is empty.
pub(crate) fn range_of(start: i64, end: i64, len: usize) -> Option<(usize, usize)> {
    let len = len as i64;
    let start = if start < 0 {
        start.saturating_add(len).max(0)
    } else {
        start
    };
    let end = if end < 0 {
        end.saturating_add(len)
    } else {
        end
    }
    .min(len - 1);
    (start <= end && start < len).then(|| (start as usize, end as usize + 1))
}

fn lrange(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (start, end) = (int_arg(&args[2])?, int_arg(&args[3])?);
    let (list, answer) = cx.read::<List>(&args[1])?;
    let Some(list) = list else {
        return Ok(Reply::empty());
    };
    let Some((from, to)) = range_of(start, end, list.len()) else {
        return Ok(Reply::empty());
    };
    let mut items = answer.array(to - from);
    for item in list.range(from, to) {
        items.blob(item);
    }
    Ok(items.end())
}

fn ltrim(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let (start, end) = (int_arg(&args[2])?, int_arg(&args[3])?);
    let Some(list) = cx.get_mut::<List>(key)? else {
        return Ok(Reply::OK);
    };
    let len = list.len();
    let (from, to) = range_of(start, end, len).unwrap_or((0, 0));
    list.trim(from, to);
    cx.modified(key);
    cx.notify(class::LIST, "ltrim", key);
    cx.dirty(len - (to - from));
    if from == to {
        cx.delete_emptied(key);
    }
    Ok(Reply::OK)
}

fn lset(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let Some(list) = cx.get_mut::<List>(key)? else {
        return Err(NO_SUCH_KEY.into());
    };
    let index = int_arg(&args[2])?;
    let at = list
        .position(index)
        .ok_or(Stop::from("ERR index out of range"))?;
    list.set(at, Blob::new(&args[3]));
    cx.changed(key, class::LIST, "lset");
    Ok(Reply::OK)
}

fn linsert(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let after = if args[2].eq_ignore_ascii_case(b"after") {
        true
    } else if args[2].eq_ignore_ascii_case(b"before") {
        false
    } else {
        return Err(SYNTAX.into());
    };
    let Some(list) = cx.get_mut::<List>(key)? else {
        return Ok(Reply::ZERO);
    };
    let Some(at) = list
        .iter()
        .position(|item| item.as_slice() == args[3].as_ref())
    else {
        return Ok(Reply::Int(-1));
    };
    list.insert(at + usize::from(after), Blob::new(&args[4]));
    let len = list.len();
    cx.changed(key, class::LIST, "linsert");
    Ok(len.into())
}

fn lrem(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let count = int_arg(&args[2])?;
    let Some(list) = cx.get_mut::<List>(key)? else {
        return Ok(Reply::ZERO);
    };
    let from = if count < 0 { End::Right } else { End::Left };
    let limit = if count == 0 {
        usize::MAX
    } else {
        count.unsigned_abs() as usize
    };
    let removed = list.remove(&args[3], limit, from);
    let emptied = list.is_empty();
    if removed > 0 {
        cx.changed(key, class::LIST, "lrem");
        cx.dirty(removed - 1);
    }
    if emptied {
        cx.delete_emptied(key);
    }
    Ok(removed.into())
}

fn lpos(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (mut rank, mut count, mut max_len) = (1, None, 0);
    let mut rest = args[3..].iter();
    while let Some(arg) = rest.next() {
        let value = rest.next().ok_or(Stop::from(SYNTAX))?;
        if arg.eq_ignore_ascii_case(b"rank") {
            rank = int_arg(value)?;
            if rank == 0 {
                return Err(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from \
                            the second ... or use negative to start from the end of the list"
                        .into(),
                );
            }
        } else if arg.eq_ignore_ascii_case(b"count") {
            count = Some(range_arg(
                value,
                0,
                i64::MAX,
                "ERR COUNT can't be negative",
            )?);
        } else if arg.eq_ignore_ascii_case(b"maxlen") {
            max_len = range_arg(value, 0, i64::MAX, "ERR MAXLEN can't be negative")?;
        } else {
            return Err(SYNTAX.into());
        }
    }
    let none = if count.is_some() {
        Reply::empty()
    } else {
        Reply::Nil
    };
    let Some(list) = cx.get::<List>(&args[1])? else {
        return Ok(none);
    };
    let limit = match count {
        None => 1,
        Some(0) => usize::MAX,
        Some(count) => count as usize,
    };
    let compared = if max_len == 0 {
        usize::MAX
    } else {
        max_len as usize
    };
    // The smallest integer has no opposite: Redis then skips nothing.
    let skipped = rank.checked_abs().map_or(0, |rank| rank as usize - 1);
    let wanted = |(at, item): (usize, &Blob)| {
        (item.as_slice() == args[2].as_ref()).then_some(Reply::from(at))
    };
    let items = list.iter().enumerate();
    let mut found: Vec<Reply> = if rank < 0 {
        items
            .rev()
            .take(compared)
            .filter_map(wanted)
            .skip(skipped)
            .take(limit)
            .collect()
    } else {
        items
            .take(compared)
            .filter_map(wanted)
            .skip(skipped)
            .take(limit)
            .collect()
    };
    match count {
        Some(_) => Ok(Reply::Array(found)),
        None => Ok(found.pop().unwrap_or(none)),
    }
}

// ---- popping from several keys ----

impl Poppable for List {
    type End = End;
    type Item = Blob;

    fn take(cx: &mut Ctx<'_>, key: &[u8], end: End, count: usize) -> Result<Vec<Blob>, Stop> {
        take(cx, key, end, count)
    }

    fn effect(pop: &Pop<List>, key: &Bytes, items: &[Blob]) -> Vec<Bytes> {
        let mut effect = vec![pop_effect(pop.end), key.clone()];
        if pop.count.is_some() {
            effect.push(int_bytes(items.len() as i64));
        }
        effect
    }

    /// To the end that they came from.
    fn put_back(cx: &mut Ctx<'_>, key: &Bytes, end: End, items: Vec<Blob>) {
        let name: &'static [u8] = match end {
            End::Left => b"LPUSH",
            End::Right => b"RPUSH",
        };
        let mut effect = vec![Bytes::from_static(name), key.clone()];
        if let Ok(list) = cx.get_or_create::<List>(key) {
            for item in items.into_iter().rev() {
                effect.push(item.to_bytes());
                list.push(end, item);
            }
            cx.changed(key, class::LIST, push_event(end));
            cx.record(effect);
        }
    }
}

/// Several items of a list: LMPOP.
fn pop_many(end: End, limit: usize) -> Pop<List> {
    Pop {
        end,
        count: Some(limit),
        reply: |key, items| Reply::Array(vec![Reply::Bulk(key.clone()), bulks(items.to_vec())]),
    }
}

/// One item of a list: BLPOP.
fn pop_one(end: End) -> Pop<List> {
    Pop {
        end,
        count: None,
        reply: |key, items| {
            let items = items.iter().map(|item| Reply::Bulk(item.to_bytes()));
            Reply::Array(
                [Reply::Bulk(key.clone())]
                    .into_iter()
                    .chain(items)
                    .collect(),
            )
        },
    }
}

fn lmpop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (keys, end, limit) = mpop_args(&args[1..], end_arg)?;
    Ok(pop_many(end, limit)
        .run(cx, keys)?
        .unwrap_or(Reply::NilArray))
}

fn pop_effect(end: End) -> Bytes {
    Bytes::from_static(match end {
        End::Left => b"LPOP",
        End::Right => b"RPOP",
    })
}

// ---- blocking ----

fn blpop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    block_pop(cx, args, End::Left)
}

fn brpop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    block_pop(cx, args, End::Right)
}

fn block_pop(cx: &mut Ctx<'_>, args: &[Bytes], end: End) -> CommandResult {
    let (keys, timeout) = (&args[1..args.len() - 1], &args[args.len() - 1]);
    let deadline = timeout_arg(cx, timeout)?;
    pop_one(end).run_or_wait(cx, keys, deadline)
}

fn blmpop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let deadline = timeout_arg(cx, &args[1])?;
    let (keys, end, limit) = mpop_args(&args[2..], end_arg)?;
    pop_many(end, limit).run_or_wait(cx, keys, deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_clipped_as_redis_clips_them() {
        assert_eq!(range_of(0, -1, 3), Some((0, 3)));
        assert_eq!(range_of(-2, -1, 3), Some((1, 3)));
        assert_eq!(range_of(-100, 100, 3), Some((0, 3)));
        assert_eq!(range_of(3, 5, 3), None);
        assert_eq!(range_of(2, 1, 3), None);
        assert_eq!(range_of(0, -5, 3), None);
    }
}
