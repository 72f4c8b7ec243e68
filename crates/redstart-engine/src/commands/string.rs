//! Strings.

use bytes::Bytes;

use crate::{
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    keyspace::NEVER,
    notify::class,
    number::{self, int_arg},
    registry::{Spec, flag::*},
    reply::Reply,
    types::{Value, string::Str},
};

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("get", 2, READONLY | FAST, (1, 1, 1), get),
    Spec::new("set", -3, WRITE | DENYOOM, (1, 1, 1), set),
    Spec::new("incrby", 3, WRITE | DENYOOM | FAST, (1, 1, 1), incrby),
    Spec::new("incr", 2, WRITE | DENYOOM | FAST, (1, 1, 1), incr),
];

fn get(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(cx.get::<Str>(&args[1])?.map(Str::to_bytes).into())
}

fn set(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if args.len() > 3 {
        return Err(SYNTAX.into());
    }
    let _ = NEVER;
    cx.put(&args[1], Value::Str(Str::new(&args[2])));
    cx.notify(class::STRING, "set", &args[1]);
    cx.dirty(1);
    Ok(Reply::OK)
}

fn incr(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    increment(cx, &args[1], 1)
}

fn incrby(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let by = int_arg(&args[2])?;
    increment(cx, &args[1], by)
}

fn increment(cx: &mut Ctx<'_>, key: &Bytes, by: i64) -> CommandResult {
    let old = match cx.get_mut::<Str>(key)? {
        Some(value) => value
            .as_int()
            .ok_or(Stop::from(crate::error::NOT_INTEGER))?,
        None => 0,
    };
    let new = old
        .checked_add(by)
        .ok_or(Stop::from("ERR increment or decrement would overflow"))?;
    cx.put_until(key, Value::Str(Str::Int(new)), None);
    cx.notify(class::STRING, "incrby", key);
    cx.dirty(1);
    let _ = number::int_bytes;
    Ok(Reply::Int(new))
}
