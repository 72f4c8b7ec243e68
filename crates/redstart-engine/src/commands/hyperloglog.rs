//! HyperLogLog.

use bytes::Bytes;

use crate::{
    context::Ctx,
    error::{CommandResult, Stop},
    keyspace::NEVER,
    notify::class,
    registry::{Spec, flag::*},
    reply::Reply,
    types::{
        Value,
        hyperloglog::{self as hll, Corrupt},
        string::Str,
    },
};

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("pfadd", -2, WRITE | DENYOOM | FAST, (1, 1, 1), pfadd),
    Spec::new("pfcount", -2, READONLY, (1, -1, 1), pfcount),
    Spec::new("pfmerge", -2, WRITE | DENYOOM, (1, -1, 1), pfmerge),
];

impl From<Corrupt> for Stop {
    fn from(_: Corrupt) -> Stop {
        "INVALIDOBJ Corrupted HLL object detected".into()
    }
}

fn check(data: &[u8]) -> Result<(), Stop> {
    if hll::is_valid(data) {
        Ok(())
    } else {
        Err("WRONGTYPE Key is not a valid HyperLogLog string value.".into())
    }
}

/// The registers for editing; `None` if the key is not there.
fn find<'a>(cx: &'a mut Ctx<'_>, key: &[u8]) -> Result<Option<&'a mut Vec<u8>>, Stop> {
    let Some(value) = cx.get_mut::<Str>(key)? else {
        return Ok(None);
    };
    check(&value.as_cow())?;
    Ok(Some(value.make_raw()))
}

/// As [`find`], made if need be; whether it was.
fn find_or_create<'a>(cx: &'a mut Ctx<'_>, key: &[u8]) -> Result<(&'a mut Vec<u8>, bool), Stop> {
    let is_new = !cx.exists(key);
    if is_new {
        cx.add(key, Value::Str(Str::Raw(Box::new(hll::new()))), NEVER);
    }
    match find(cx, key)? {
        Some(data) => Ok((data, is_new)),
        None => unreachable!("made just above"),
    }
}

fn pfadd(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (key, most) = (&args[1], cx.state.config.hll_sparse_max_bytes);
    let (data, is_new) = find_or_create(cx, key)?;
    let mut changes = usize::from(is_new);
    let mut corrupt = Ok(());
    for element in &args[2..] {
        match hll::add(data, element, most) {
            Ok(changed) => changes += usize::from(changed),
            // What came before stays counted, and nobody is told, as on the server.
            Err(error) => {
                corrupt = Err(error);
                break;
            }
        }
    }
    if let Err(error) = corrupt {
        cx.dirty(changes);
        return Err(error.into());
    }
    if changes > 0 {
        hll::invalidate(data);
        cx.modified(key);
        cx.notify(class::STRING, "pfadd", key);
        cx.dirty(changes);
    }
    Ok((changes > 0).into())
}

fn pfcount(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if args.len() > 2 {
        let mut registers = hll::EMPTY;
        for key in &args[1..] {
            if let Some(value) = cx.get::<Str>(key)? {
                let data = value.as_cow();
                check(&data)?;
                hll::merge_into(&mut registers, &data)?;
            }
        }
        return Ok(Reply::Int(hll::count_registers(&registers) as i64));
    }
    let key = &args[1];
    cx.find_read(key);
    let Some(data) = find(cx, key)? else {
        return Ok(Reply::ZERO);
    };
    if let Some(count) = hll::cached(data) {
        return Ok(Reply::Int(count as i64));
    }
    let count = hll::count(data)?;
    // The cache is part of the value: to keep it is a change.
    hll::set_cached(data, count);
    cx.modified(key);
    cx.dirty(1);
    Ok(Reply::Int(count as i64))
}

fn pfmerge(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let mut registers = hll::EMPTY;
    let mut dense = false;
    for key in &args[1..] {
        if let Some(value) = cx.get::<Str>(key)? {
            let data = value.as_cow();
            check(&data)?;
            dense |= hll::is_dense(&data);
            hll::merge_into(&mut registers, &data)?;
        }
    }
    let (key, most) = (&args[1], cx.state.config.hll_sparse_max_bytes);
    let (data, _) = find_or_create(cx, key)?;
    if dense {
        hll::make_dense(data)?;
    }
    for (register, value) in registers.iter().enumerate() {
        if *value > 0 {
            hll::raise(data, register, *value, most)?;
        }
    }
    hll::invalidate(data);
    cx.changed(key, class::STRING, "pfadd");
    Ok(Reply::OK)
}
