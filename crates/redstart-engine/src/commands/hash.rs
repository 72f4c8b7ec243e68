//! Hashes.

mod expiry;

pub(crate) use expiry::expire_effect;

use bytes::Bytes;

use crate::{
    compat::versions::{FROM_7_4, FROM_8_0},
    context::Ctx,
    error::{CommandResult, NOT_FLOAT, OUT_OF_RANGE, SYNTAX, Stop},
    long_double::LongDouble,
    notify::class,
    number::{int_arg, int_bytes, parse_int},
    random::{Draw, Random},
    registry::{Spec, flag::*},
    reply::Reply,
    scan,
    types::{blob::Blob, hash::Hash},
};

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("hdel", -3, WRITE | FAST, (1, 1, 1), hdel),
    Spec::new("hexists", 3, READONLY | FAST, (1, 1, 1), hexists),
    Spec::new("hexpire", -6, WRITE | FAST, (1, 1, 1), expiry::hexpire).only(FROM_7_4),
    Spec::new("hexpireat", -6, WRITE | FAST, (1, 1, 1), expiry::hexpireat).only(FROM_7_4),
    Spec::new(
        "hexpiretime",
        -5,
        READONLY | FAST,
        (1, 1, 1),
        expiry::hexpiretime,
    )
    .only(FROM_7_4),
    Spec::new("hget", 3, READONLY | FAST, (1, 1, 1), hget),
    Spec::new("hgetdel", -5, WRITE | FAST, (1, 1, 1), hgetdel).only(FROM_8_0),
    Spec::new("hgetex", -5, WRITE | FAST, (1, 1, 1), expiry::hgetex).only(FROM_8_0),
    Spec::new("hpersist", -5, WRITE | FAST, (1, 1, 1), expiry::hpersist).only(FROM_7_4),
    Spec::new("hpexpire", -6, WRITE | FAST, (1, 1, 1), expiry::hpexpire).only(FROM_7_4),
    Spec::new(
        "hpexpireat",
        -6,
        WRITE | FAST,
        (1, 1, 1),
        expiry::hpexpireat,
    )
    .only(FROM_7_4),
    Spec::new(
        "hpexpiretime",
        -5,
        READONLY | FAST,
        (1, 1, 1),
        expiry::hpexpiretime,
    )
    .only(FROM_7_4),
    Spec::new("hpttl", -5, READONLY | FAST, (1, 1, 1), expiry::hpttl).only(FROM_7_4),
    Spec::new(
        "hsetex",
        -6,
        WRITE | DENYOOM | FAST,
        (1, 1, 1),
        expiry::hsetex,
    )
    .only(FROM_8_0),
    Spec::new("httl", -5, READONLY | FAST, (1, 1, 1), expiry::httl).only(FROM_7_4),
    Spec::new("hgetall", 2, READONLY, (1, 1, 1), hgetall),
    Spec::new("hincrby", 4, WRITE | DENYOOM | FAST, (1, 1, 1), hincrby),
    Spec::new(
        "hincrbyfloat",
        4,
        WRITE | DENYOOM | FAST,
        (1, 1, 1),
        hincrbyfloat,
    ),
    Spec::new("hkeys", 2, READONLY, (1, 1, 1), hkeys),
    Spec::new("hlen", 2, READONLY | FAST, (1, 1, 1), hlen),
    Spec::new("hmget", -3, READONLY | FAST, (1, 1, 1), hmget),
    Spec::new("hmset", -4, WRITE | DENYOOM | FAST, (1, 1, 1), hmset),
    Spec::new("hrandfield", -2, READONLY, (1, 1, 1), hrandfield),
    Spec::new("hscan", -3, READONLY, (1, 1, 1), hscan),
    Spec::new("hset", -4, WRITE | DENYOOM | FAST, (1, 1, 1), hset),
    Spec::new("hsetnx", 4, WRITE | DENYOOM | FAST, (1, 1, 1), hsetnx),
    Spec::new("hstrlen", 3, READONLY | FAST, (1, 1, 1), hstrlen),
    Spec::new("hvals", 2, READONLY, (1, 1, 1), hvals),
];

/// Sets the value of one field, which keeps its deadline; whether it is new.
fn set_field(cx: &mut Ctx<'_>, key: &[u8], field: &[u8], value: &[u8]) -> Result<bool, Stop> {
    cx.edit_or_create(key, |hash: &mut Hash, config, _| {
        hash.set_value(field, value, config)
    })
}

fn set_pairs(cx: &mut Ctx<'_>, args: &[Bytes], command: &str) -> Result<usize, Stop> {
    if !args.len().is_multiple_of(2) {
        return Err(Stop::wrong_arity(command));
    }
    let key = &args[1];
    let added = cx.edit_or_create(key, |hash: &mut Hash, config, _| {
        hash.prepare(args[2..].iter().map(AsRef::as_ref), config);
        let pairs = args[2..].chunks_exact(2);
        pairs
            .filter(|pair| hash.set(&pair[0], &pair[1], config))
            .count()
    })?;
    cx.changed(key, class::HASH, "hset");
    cx.dirty((args.len() - 2) / 2 - 1);
    Ok(added)
}

fn hset(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(set_pairs(cx, args, "hset")?.into())
}

fn hmset(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    set_pairs(cx, args, "hmset")?;
    Ok(Reply::OK)
}

fn hsetnx(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if cx
        .get_mut::<Hash>(&args[1])?
        .is_some_and(|hash| hash.contains(&args[2]))
    {
        return Ok(Reply::ZERO);
    }
    set_field(cx, &args[1], &args[2], &args[3])?;
    cx.changed(&args[1], class::HASH, "hset");
    Ok(Reply::ONE)
}

fn hget(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (hash, answer) = cx.read::<Hash>(&args[1])?;
    Ok(answer.blob(hash.and_then(|hash| hash.get(&args[2]))))
}

fn hmget(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (hash, answer) = cx.read::<Hash>(&args[1])?;
    let mut items = answer.array(args.len() - 2);
    for field in &args[2..] {
        match hash.and_then(|hash| hash.get(field)) {
            Some(value) => items.blob(value),
            None => items.reply(Reply::Nil),
        }
    }
    Ok(items.end())
}

fn hdel(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let Some(hash) = cx.get_mut::<Hash>(key)? else {
        return Ok(Reply::ZERO);
    };
    let mut removed = 0;
    for field in &args[2..] {
        removed += usize::from(hash.remove(field).is_some());
        if hash.is_empty() {
            break;
        }
    }
    let emptied = hash.is_empty();
    if removed > 0 {
        cx.changed(key, class::HASH, "hdel");
        cx.dirty(removed - 1);
        if emptied {
            cx.delete_emptied(key);
        }
    }
    Ok(removed.into())
}

fn hgetdel(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let fields = expiry::fields(args)?;
    let Some(hash) = cx.get_mut::<Hash>(key)? else {
        return Ok(Reply::Array(vec![Reply::Nil; fields.len()]));
    };
    let mut removed = Vec::new();
    let mut values = Vec::with_capacity(fields.len());
    for field in fields {
        let value = hash.remove(field);
        if value.is_some() {
            removed.push(field.clone());
        }
        values.push(Reply::from(value.map(|value| value.to_bytes())));
    }
    let emptied = hash.is_empty();
    if !removed.is_empty() {
        cx.changed(key, class::HASH, "hdel");
        cx.dirty(removed.len() - 1);
        let effect = [Bytes::from_static(b"HDEL"), key.clone()];
        cx.propagate(effect.into_iter().chain(removed));
        if emptied {
            cx.delete_emptied(key);
        }
    }
    Ok(Reply::Array(values))
}

fn hlen(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(cx.get::<Hash>(&args[1])?.map_or(0, Hash::len).into())
}

fn hstrlen(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let hash = cx.get::<Hash>(&args[1])?;
    Ok(hash
        .and_then(|hash| hash.get(&args[2]))
        .map_or(0, |value| value.len())
        .into())
}

fn hexists(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(cx
        .get::<Hash>(&args[1])?
        .is_some_and(|hash| hash.contains(&args[2]))
        .into())
}

fn bulk(blob: &Blob) -> Reply {
    Reply::Bulk(blob.to_bytes())
}

fn hgetall(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (hash, answer) = cx.read::<Hash>(&args[1])?;
    let Some(hash) = hash else {
        return Ok(Reply::Map(Vec::new()));
    };
    Ok(answer.map(hash.len(), hash.iter()))
}

fn hkeys(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (hash, answer) = cx.read::<Hash>(&args[1])?;
    let Some(hash) = hash else {
        return Ok(Reply::empty());
    };
    let mut items = answer.array(hash.len());
    hash.iter().for_each(|(field, _)| items.blob(field));
    Ok(items.end())
}

fn hvals(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (hash, answer) = cx.read::<Hash>(&args[1])?;
    let Some(hash) = hash else {
        return Ok(Reply::empty());
    };
    let mut items = answer.array(hash.len());
    hash.iter().for_each(|(_, value)| items.blob(value));
    Ok(items.end())
}

fn hincrby(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (key, field) = (&args[1], &args[2]);
    let by = int_arg(&args[3])?;
    let old = match cx.get_mut::<Hash>(key)?.and_then(|hash| hash.get(field)) {
        Some(value) => parse_int(value).ok_or(Stop::from("ERR hash value is not an integer"))?,
        None => 0,
    };
    let new = old
        .checked_add(by)
        .ok_or(Stop::from("ERR increment or decrement would overflow"))?;
    set_field(cx, key, field, &int_bytes(new))?;
    cx.changed(key, class::HASH, "hincrby");
    Ok(Reply::Int(new))
}

fn hincrbyfloat(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (key, field) = (&args[1], &args[2]);
    let by = LongDouble::parse(&args[3]).ok_or(Stop::from(NOT_FLOAT))?;
    if by.is_infinite() {
        return Err("ERR value is NaN or Infinity".into());
    }
    let old = match cx.get_mut::<Hash>(key)?.and_then(|hash| hash.get(field)) {
        Some(value) => {
            LongDouble::parse(value).ok_or(Stop::from("ERR hash value is not a float"))?
        }
        None => LongDouble::from_int(0),
    };
    let new = old
        .add(by)
        .filter(|sum| !sum.is_infinite())
        .ok_or(Stop::from("ERR increment would produce NaN or Infinity"))?;
    let text = Bytes::from(new.to_text());
    set_field(cx, key, field, &text)?;
    cx.changed(key, class::HASH, "hincrbyfloat");
    cx.propagate([
        Bytes::from_static(b"HSET"),
        key.clone(),
        field.clone(),
        text.clone(),
    ]);
    // HSET would take the field's deadline away.
    let hash = cx.get_mut::<Hash>(key)?;
    if let Some(deadline) = hash.and_then(|hash| hash.deadline(field)) {
        cx.propagate(expire_effect(key, deadline, std::slice::from_ref(field)));
    }
    Ok(Reply::Bulk(text))
}

/// How many repeats can be drawn at once.
const MOST_REPEATS: i64 = 1 << 27;

/// The count of HRANDFIELD, ZRANDMEMBER and SRANDMEMBER.
pub(crate) fn random_count(text: &[u8]) -> Result<i64, Stop> {
    let count = int_arg(text)?;
    if count == i64::MIN {
        return Err(
            "ERR value is out of range, value must between -9223372036854775807 and \
                    9223372036854775807"
                .into(),
        );
    }
    // Redis would try to answer with that many repeats, until the memory ends.
    if count < -MOST_REPEATS {
        return Err(OUT_OF_RANGE.into());
    }
    Ok(count)
}

/// The count of HRANDFIELD or ZRANDMEMBER, and whether `word` follows it.
pub(crate) fn random_args(args: &[Bytes], word: &[u8]) -> Result<(i64, bool), Stop> {
    let count = random_count(&args[2])?;
    match &args[3..] {
        [] => Ok((count, false)),
        [with] if with.eq_ignore_ascii_case(word) => {
            if count.abs() > i64::MAX / 2 {
                return Err(OUT_OF_RANGE.into());
            }
            Ok((count, true))
        }
        _ => Err(SYNTAX.into()),
    }
}

/// Places drawn as a count says: different ones, or with repeats if it is negative.
pub(crate) fn draw_places(from: &impl Draw, random: &mut Random, count: i64) -> Vec<u32> {
    if count >= 0 {
        from.sample(random, count as usize)
    } else {
        from.sample_with_repeats(random, count.unsigned_abs() as usize)
    }
}

fn hrandfield(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (count, with_values) = match args.len() {
        2 => (None, false),
        _ => {
            let (count, with_values) = random_args(args, b"withvalues")?;
            (Some(count), with_values)
        }
    };
    let resp3 = cx.is_resp3();
    let drawn = cx.edit_read(&args[1], |hash: &mut Hash, _, random| {
        let Some(count) = count else {
            let place = hash.draw(random);
            return place
                .and_then(|at| hash.at(at))
                .map_or(Reply::Nil, |(field, _)| bulk(field));
        };
        let mut items = Vec::new();
        for place in draw_places(hash, random, count) {
            let Some((field, value)) = hash.at(place) else {
                continue;
            };
            match (with_values, resp3) {
                (false, _) => items.push(bulk(field)),
                (true, true) => items.push(Reply::Array(vec![bulk(field), bulk(value)])),
                (true, false) => items.extend([bulk(field), bulk(value)]),
            }
        }
        Reply::Array(items)
    })?;
    let none = if count.is_some() {
        Reply::empty()
    } else {
        Reply::Nil
    };
    Ok(drawn.unwrap_or(none))
}

fn hscan(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let cursor = scan::cursor_arg(&args[2])?;
    let may_omit = cx.state.config.compat.is_in(FROM_7_4);
    let Some(hash) = cx.get::<Hash>(&args[1])? else {
        return Ok(scan::reply(0, Vec::new()));
    };
    let word = args[3..]
        .iter()
        .position(|arg| may_omit && arg.eq_ignore_ascii_case(b"novalues"));
    let mut rest = args[3..].to_vec();
    if let Some(at) = word {
        rest.remove(at);
    }
    let options = scan::Options::parse(&rest, false)?;
    let mut items = Vec::new();
    let next = hash.scan(cursor, options.count, |field, value| {
        if options.admits(field) {
            items.push(bulk(field));
            if word.is_none() {
                items.push(bulk(value));
            }
        }
    });
    Ok(scan::reply(next, items))
}
