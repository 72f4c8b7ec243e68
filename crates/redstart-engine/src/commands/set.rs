//! Sets.

use bytes::Bytes;

use crate::{
    commands::hash::{draw_places, random_count},
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    notify::class,
    number::{positive_arg, range_arg},
    random::Draw,
    registry::{Spec, flag::*, keys_counted_first},
    reply::Reply,
    scan,
    types::{Typed, Value, blob::Blob, set::Set},
};

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("sadd", -3, WRITE | DENYOOM | FAST, (1, 1, 1), sadd),
    Spec::new("scard", 2, READONLY | FAST, (1, 1, 1), scard),
    Spec::new("sdiff", -2, READONLY, (1, -1, 1), sdiff),
    Spec::new("sdiffstore", -3, WRITE | DENYOOM, (1, -1, 1), sdiffstore),
    Spec::new("sinter", -2, READONLY, (1, -1, 1), sinter),
    Spec::new(
        "sintercard",
        -3,
        READONLY | MOVABLEKEYS,
        (0, 0, 0),
        sintercard,
    )
    .movable(keys_counted_first),
    Spec::new("sinterstore", -3, WRITE | DENYOOM, (1, -1, 1), sinterstore),
    Spec::new("sismember", 3, READONLY | FAST, (1, 1, 1), sismember),
    Spec::new("smembers", 2, READONLY, (1, 1, 1), smembers),
    Spec::new("smismember", -3, READONLY | FAST, (1, 1, 1), smismember),
    Spec::new("smove", 4, WRITE | FAST, (1, 2, 1), smove),
    Spec::new("spop", -2, WRITE | FAST, (1, 1, 1), spop),
    Spec::new("srandmember", -2, READONLY, (1, 1, 1), srandmember),
    Spec::new("srem", -3, WRITE | FAST, (1, 1, 1), srem),
    Spec::new("sscan", -3, READONLY, (1, 1, 1), sscan),
    Spec::new("sunion", -2, READONLY, (1, -1, 1), sunion),
    Spec::new("sunionstore", -3, WRITE | DENYOOM, (1, -1, 1), sunionstore),
];

fn bulk(member: Blob) -> Reply {
    Reply::Bulk(member.into_bytes())
}

/// Adds members to a set, made if need be; how many are new.
fn add_all<'a>(
    cx: &mut Ctx<'_>,
    key: &[u8],
    members: impl IntoIterator<Item = &'a [u8]>,
) -> Result<usize, Stop> {
    cx.edit_or_create(key, |set: &mut Set, config, _| {
        members
            .into_iter()
            .filter(|member| set.add(member, config))
            .count()
    })
}

fn sadd(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let added = add_all(cx, &args[1], args[2..].iter().map(AsRef::as_ref))?;
    if added > 0 {
        cx.changed(&args[1], class::SET, "sadd");
        cx.dirty(added - 1);
    }
    Ok(added.into())
}

fn srem(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let Some(set) = cx.get_mut::<Set>(key)? else {
        return Ok(Reply::ZERO);
    };
    let removed = args[2..].iter().filter(|member| set.remove(member)).count();
    let emptied = set.is_empty();
    if removed > 0 {
        cx.changed(key, class::SET, "srem");
        cx.dirty(removed - 1);
        if emptied {
            cx.delete_emptied(key);
        }
    }
    Ok(removed.into())
}

fn smove(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (source, target, member) = (&args[1], &args[2], &args[3]);
    let Some(set) = cx.get_mut::<Set>(source)? else {
        return Ok(Reply::ZERO);
    };
    let held = set.contains(member);
    cx.check_type::<Set>(target)?;
    if source == target || !held {
        return Ok(held.into());
    }
    let emptied = match cx.get_mut::<Set>(source)? {
        Some(set) => {
            set.remove(member);
            set.is_empty()
        }
        None => false,
    };
    cx.changed(source, class::SET, "srem");
    if emptied {
        cx.delete_emptied(source);
    }
    if add_all(cx, target, [member.as_ref()])? > 0 {
        cx.changed(target, class::SET, "sadd");
    }
    Ok(Reply::ONE)
}

fn scard(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(cx.get::<Set>(&args[1])?.map_or(0, Set::len).into())
}

fn sismember(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(cx
        .get::<Set>(&args[1])?
        .is_some_and(|set| set.contains(&args[2]))
        .into())
}

fn smismember(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let set = cx.get::<Set>(&args[1])?;
    let held = |member: &Bytes| set.is_some_and(|set| set.contains(member)).into();
    Ok(Reply::Array(args[2..].iter().map(held).collect()))
}

fn smembers(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (set, answer) = cx.read::<Set>(&args[1])?;
    let Some(set) = set else {
        return Ok(Reply::Set(Vec::new()));
    };
    let mut items = answer.set(set.len());
    set.iter().for_each(|member| items.blob(&member));
    Ok(items.end())
}

fn srandmember(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let count = match args {
        [_, _] => None,
        [_, _, count] => Some(random_count(count)?),
        _ => return Err(SYNTAX.into()),
    };
    let drawn = cx.edit_read(&args[1], |set: &mut Set, _, random| match count {
        None => set
            .draw(random)
            .and_then(|place| set.at(place))
            .map_or(Reply::Nil, bulk),
        Some(count) => {
            let places = draw_places(set, random, count).into_iter();
            Reply::Array(places.filter_map(|place| set.at(place)).map(bulk).collect())
        }
    })?;
    let none = if count.is_some() {
        Reply::empty()
    } else {
        Reply::Nil
    };
    Ok(drawn.unwrap_or(none))
}

fn spop(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let count = match args {
        [_, _] => None,
        [_, _, count] => Some(positive_arg(count)? as usize),
        _ => return Err(SYNTAX.into()),
    };
    let popped = cx.edit(key, |set: &mut Set, _, random| {
        let places = set.sample(random, count.unwrap_or(1)).into_iter();
        let members: Vec<Blob> = places.filter_map(|place| set.at(place)).collect();
        for member in &members {
            set.remove(member);
        }
        (members, set.is_empty())
    })?;
    let Some((members, emptied)) = popped else {
        return Ok(if count.is_some() {
            Reply::Set(Vec::new())
        } else {
            Reply::Nil
        });
    };
    if members.is_empty() {
        return Ok(Reply::Set(Vec::new()));
    }
    cx.changed(key, class::SET, "spop");
    cx.dirty(members.len().saturating_sub(1));
    if cx.state.effects.enabled() {
        let words = [Bytes::from_static(b"SREM"), key.clone()];
        cx.propagate(words.into_iter().chain(members.iter().map(Blob::to_bytes)));
    }
    if emptied {
        cx.delete_emptied(key);
    }
    let mut replies = members.into_iter().map(bulk);
    match count {
        None => Ok(replies.next().unwrap_or(Reply::Nil)),
        Some(_) => Ok(Reply::Set(replies.collect())),
    }
}

fn sscan(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let cursor = scan::cursor_arg(&args[2])?;
    let Some(set) = cx.get::<Set>(&args[1])? else {
        return Ok(scan::reply(0, Vec::new()));
    };
    let options = scan::Options::parse(&args[3..], false)?;
    let mut items = Vec::new();
    let next = set.scan(cursor, options.count, |member| {
        if options.admits(member) {
            items.push(Reply::bulk(member));
        }
    });
    Ok(scan::reply(next, items))
}

// ---- algebra ----

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

/// Checks the types of all keys, and resolves them to places in the table.
fn places(cx: &mut Ctx<'_>, keys: &[Bytes]) -> Result<Vec<Option<u32>>, Stop> {
    let mut places = Vec::with_capacity(keys.len());
    for key in keys {
        cx.get::<Set>(key)?;
    }
    // In a second round, so that no key expires between being resolved and being read.
    for key in keys {
        places.push(cx.find(key));
    }
    Ok(places)
}

fn combine(cx: &mut Ctx<'_>, keys: &[Bytes], operation: Operation) -> Result<Set, Stop> {
    let places = places(cx, keys)?;
    let db = &cx.state.dbs[cx.client.db];
    let config = &cx.state.config;
    let sets: Vec<Option<&Set>> = places
        .into_iter()
        .map(|place| place.and_then(|slot| Set::of(&db.entry(slot).value)))
        .collect();
    let mut result = Set::default();
    match operation {
        Operation::Union => {
            for set in sets.into_iter().flatten() {
                set.iter().for_each(|member| {
                    result.add(&member, config);
                });
            }
        }
        Operation::Difference => {
            let Some((Some(first), others)) = sets.split_first() else {
                return Ok(result);
            };
            for member in first.iter() {
                if !others.iter().flatten().any(|other| other.contains(&member)) {
                    result.add(&member, config);
                }
            }
        }
        Operation::Intersection => {
            if let Some(sets) = sets.into_iter().collect::<Option<Vec<_>>>() {
                intersect(sets, |member| {
                    result.add(&member, config);
                    true
                });
            }
        }
    }
    Ok(result)
}

/// Visits the members that all sets have, until told to stop.
fn intersect(mut sets: Vec<&Set>, mut visit: impl FnMut(Blob) -> bool) {
    sets.sort_by_key(|set| set.len());
    let Some((smallest, others)) = sets.split_first() else {
        return;
    };
    for member in smallest.iter() {
        if others.iter().all(|other| other.contains(&member)) && !visit(member) {
            return;
        }
    }
}

fn reply_with(cx: &mut Ctx<'_>, args: &[Bytes], operation: Operation) -> CommandResult {
    let result = combine(cx, &args[1..], operation)?;
    Ok(Reply::Set(result.iter().map(bulk).collect()))
}

fn store(cx: &mut Ctx<'_>, args: &[Bytes], operation: Operation, event: &str) -> CommandResult {
    let target = &args[1];
    let result = combine(cx, &args[2..], operation)?;
    let len = result.len();
    if len == 0 {
        if cx.delete(target) {
            cx.notify(class::GENERIC, "del", target);
            cx.dirty(1);
        }
        return Ok(Reply::ZERO);
    }
    cx.put(target, Value::Set(Box::new(result)));
    cx.notify(class::SET, event, target);
    cx.dirty(1);
    Ok(len.into())
}

fn sunion(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    reply_with(cx, args, Operation::Union)
}

fn sinter(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    reply_with(cx, args, Operation::Intersection)
}

fn sdiff(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    reply_with(cx, args, Operation::Difference)
}

fn sunionstore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    store(cx, args, Operation::Union, "sunionstore")
}

fn sinterstore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    store(cx, args, Operation::Intersection, "sinterstore")
}

fn sdiffstore(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    store(cx, args, Operation::Difference, "sdiffstore")
}

fn sintercard(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (keys, limit) = intercard_args(args)?;
    let places = places(cx, keys)?;
    let db = &cx.state.dbs[cx.client.db];
    let sets: Option<Vec<&Set>> = places
        .into_iter()
        .map(|place| Set::of(&db.entry(place?).value))
        .collect();
    let mut count = 0;
    if let Some(sets) = sets {
        intersect(sets, |_| {
            count += 1;
            count != limit
        });
    }
    Ok(count.into())
}

/// The keys and the limit (0 for no limit) of SINTERCARD and ZINTERCARD.
pub(crate) fn intercard_args(args: &[Bytes]) -> Result<(&[Bytes], usize), Stop> {
    let count = range_arg(
        &args[1],
        1,
        i64::MAX,
        "ERR numkeys should be greater than 0",
    )?;
    if count as u64 > args.len() as u64 - 2 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    let (keys, rest) = args[2..].split_at(count as usize);
    let mut limit = 0;
    for pair in rest.chunks(2) {
        match pair {
            [word, value] if word.eq_ignore_ascii_case(b"limit") => {
                limit = range_arg(value, 0, i64::MAX, "ERR LIMIT can't be negative")? as usize;
            }
            _ => return Err(SYNTAX.into()),
        }
    }
    Ok((keys, limit))
}
