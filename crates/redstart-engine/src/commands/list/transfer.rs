//! Moving an item from a list to another one.

use bytes::Bytes;

use super::{end_arg, end_name, pop_event, push_event};
use crate::{
    blocking::{Served, Wait, timeout_arg},
    context::Ctx,
    error::{CommandResult, Stop, WRONG_TYPE},
    notify::class,
    reply::Reply,
    types::list::{End, List},
};

pub(super) fn lmove(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (from, to) = (end_arg(&args[3])?, end_arg(&args[4])?);
    Ok(move_item(cx, &args[1], &args[2], from, to)?.into())
}

pub(super) fn rpoplpush(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(move_item(cx, &args[1], &args[2], End::Right, End::Left)?.into())
}

fn move_item(
    cx: &mut Ctx<'_>,
    source: &Bytes,
    target: &Bytes,
    from: End,
    to: End,
) -> Result<Option<Bytes>, Stop> {
    if cx.get_mut::<List>(source)?.is_none() {
        return Ok(None);
    }
    cx.check_type::<List>(target)?;
    let Some(list) = cx.get_mut::<List>(source)? else {
        return Ok(None);
    };
    let Some(item) = list.pop(from) else {
        return Ok(None);
    };
    let bytes = item.to_bytes();
    cx.get_or_create::<List>(target)?.push(to, item);
    cx.modified(target);
    cx.notify(class::LIST, push_event(to), target);
    cx.changed(source, class::LIST, pop_event(from));
    if cx
        .get_mut::<List>(source)?
        .is_some_and(|list| list.is_empty())
    {
        cx.delete_emptied(source);
    }
    Ok(Some(bytes))
}

pub(super) fn blmove(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (from, to) = (end_arg(&args[3])?, end_arg(&args[4])?);
    block_move(cx, &args[1], &args[2], from, to, &args[5])
}

pub(super) fn brpoplpush(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    block_move(cx, &args[1], &args[2], End::Right, End::Left, &args[3])
}

fn block_move(
    cx: &mut Ctx<'_>,
    source: &Bytes,
    target: &Bytes,
    from: End,
    to: End,
    timeout: &[u8],
) -> CommandResult {
    let deadline = timeout_arg(cx, timeout)?;
    let effect = vec![
        Bytes::from_static(b"LMOVE"),
        source.clone(),
        target.clone(),
        end_name(from),
        end_name(to),
    ];
    if let Some(item) = move_item(cx, source, target, from, to)? {
        cx.propagate(effect);
        return Ok(Reply::Bulk(item));
    }
    if !cx.may_block() {
        return Ok(Reply::Nil);
    }
    let target = target.clone();
    cx.block(Wait {
        keys: vec![source.clone()],
        deadline,
        synced: None,
        hears_of_absence: false,
        on_timeout: Reply::NilArray,
        serve: Box::new(move |cx, source| {
            if !matches!(cx.get_mut::<List>(source), Ok(Some(_))) {
                return None;
            }
            match move_item(cx, source, &target, from, to) {
                Ok(item) => {
                    let item = item?;
                    cx.record(effect.clone());
                    Some(move_back(source, &target, from, to, item))
                }
                Err(_) => Some(Reply::Error(WRONG_TYPE.into()).into()),
            }
        }),
    })
}

/// A reply that, if it is not delivered, moves the item back if it is still where it was put.
fn move_back(source: &Bytes, target: &Bytes, from: End, to: End, item: Bytes) -> Served {
    let (source, target, reply) = (source.clone(), target.clone(), Reply::Bulk(item.clone()));
    let undo = move |cx: &mut Ctx<'_>| {
        let still_there = match cx.get_mut::<List>(&target) {
            Ok(Some(list)) => {
                let at = if to == End::Left { 0 } else { list.len() - 1 };
                list.get(at)
                    .is_some_and(|held| held.as_slice() == item.as_ref())
            }
            _ => false,
        };
        if still_there && let Ok(Some(_)) = move_item(cx, &target, &source, to, from) {
            let words = [Bytes::from_static(b"LMOVE"), target, source];
            cx.record(
                words
                    .into_iter()
                    .chain([end_name(to), end_name(from)])
                    .collect(),
            );
        }
    };
    Served {
        reply,
        undo: Some(Box::new(undo)),
    }
}
