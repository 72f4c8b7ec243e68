//! Bloom filters, as Redis 8 has them built in.

use bytes::Bytes;

use crate::{
    context::Ctx,
    error::{CommandResult, Stop, WRONG_TYPE},
    keyspace::NEVER,
    number::{parse_double, parse_int},
    registry::{Spec, flag::*},
    reply::Reply,
    types::{
        Typed, Value,
        bloom::{Bloom, Refused},
    },
};

const DEFAULT_ERROR: f64 = 0.01;
const DEFAULT_CAPACITY: i64 = 100;
const DEFAULT_EXPANSION: i64 = 2;
/// Higher rates than this are taken as this.
const MAX_ERROR: f64 = 0.25;
const MAX_CAPACITY: i64 = 1 << 30;
const MAX_EXPANSION: i64 = 32_768;
/// The most that BF.SCANDUMP gives at once.
const CHUNK: usize = 16 << 20;

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("bf.reserve", -4, WRITE | DENYOOM, (1, 1, 1), reserve),
    Spec::new("bf.add", 3, WRITE | DENYOOM, (1, 1, 1), add),
    Spec::new("bf.madd", -3, WRITE | DENYOOM, (1, 1, 1), madd),
    Spec::new("bf.insert", -4, WRITE | DENYOOM, (1, 1, 1), insert),
    Spec::new("bf.exists", 3, READONLY | FAST, (1, 1, 1), exists),
    Spec::new("bf.mexists", -3, READONLY | FAST, (1, 1, 1), mexists),
    Spec::new("bf.info", -2, READONLY | FAST, (1, 1, 1), info),
    Spec::new("bf.card", 2, READONLY | FAST, (1, 1, 1), card),
    Spec::new("bf.scandump", 3, READONLY | FAST, (1, 1, 1), scandump),
    Spec::new("bf.loadchunk", 4, WRITE | DENYOOM, (1, 1, 1), loadchunk),
];

/// How a filter is made.
struct Plan {
    error: f64,
    capacity: i64,
    expansion: i64,
    fixed: bool,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            error: DEFAULT_ERROR,
            capacity: DEFAULT_CAPACITY,
            expansion: DEFAULT_EXPANSION,
            fixed: false,
        }
    }
}

impl Plan {
    fn build(&self) -> Result<Bloom, Stop> {
        Bloom::new(
            self.capacity as u64,
            self.error.min(MAX_ERROR),
            self.expansion as u32,
            self.fixed,
        )
        .ok_or("ERR could not create filter".into())
    }
}

fn reserve(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if args.len() > 7 {
        return Err(Stop::wrong_arity("bf.reserve"));
    }
    let key = &args[1];
    let mut plan = Plan {
        error: parse_double(&args[2]).ok_or(Stop::from("ERR bad error rate"))?,
        ..Plan::default()
    };
    if !(plan.error > 0.0 && plan.error < 1.0) {
        return Err("ERR (0 < error rate range < 1)".into());
    }
    plan.capacity = parse_int(&args[3]).ok_or(Stop::from("ERR bad capacity"))?;
    if plan.capacity <= 0 {
        return Err("ERR (capacity should be larger than 0)".into());
    }
    if plan.capacity > MAX_CAPACITY {
        return Err("ERR bad capacity".into());
    }
    let find = |word: &[u8]| {
        args[4..]
            .iter()
            .position(|arg| arg.eq_ignore_ascii_case(word))
            .map(|at| at + 4)
    };
    plan.fixed = find(b"nonscaling").is_some();
    if let Some(at) = find(b"expansion") {
        let Some(value) = args.get(at + 1) else {
            return Err("ERR no expansion".into());
        };
        if plan.fixed {
            return Err("ERR Nonscaling filters cannot expand".into());
        }
        plan.expansion = parse_int(value)
            .filter(|value| (0..=MAX_EXPANSION).contains(value))
            .ok_or(Stop::from("ERR bad expansion"))?;
    }
    if cx.get_mut::<Bloom>(key)?.is_some() {
        return Err("ERR item exists".into());
    }
    let bloom = plan.build()?;
    cx.add(key, bloom.wrap(), NEVER);
    cx.modified(key);
    cx.dirty(1);
    Ok(Reply::OK)
}

/// Adds items, one reply each; stops at the first that is refused.
fn add_items(
    cx: &mut Ctx<'_>,
    key: &[u8],
    items: &[Bytes],
    plan: Option<&Plan>,
) -> Result<Vec<Reply>, Stop> {
    let mut made = false;
    if cx.get_mut::<Bloom>(key)?.is_none() {
        let Some(plan) = plan else {
            return Err("ERR not found".into());
        };
        let bloom = plan.build()?;
        cx.add(key, bloom.wrap(), NEVER);
        made = true;
    }
    let mut replies = Vec::with_capacity(items.len());
    let mut changes = usize::from(made);
    if let Some(bloom) = cx.get_mut::<Bloom>(key)? {
        for item in items {
            match bloom.add(item) {
                Ok(new) => {
                    changes += usize::from(new);
                    replies.push(Reply::Bool(new));
                }
                Err(refused) => {
                    let text = match refused {
                        Refused::Full => "ERR non scaling filter is full",
                        Refused::TooLarge => "ERR problem inserting into filter",
                    };
                    replies.push(Reply::Error(text.into()));
                    break;
                }
            }
        }
    }
    if changes > 0 {
        cx.modified(key);
        cx.dirty(changes);
    }
    Ok(replies)
}

fn add(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let mut replies = add_items(cx, &args[1], &args[2..], Some(&Plan::default()))?;
    Ok(replies.pop().unwrap_or(Reply::Nil))
}

fn madd(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let replies = add_items(cx, &args[1], &args[2..], Some(&Plan::default()))?;
    Ok(Reply::Array(replies))
}

fn insert(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let arity = || Stop::wrong_arity("bf.insert");
    let mut plan = Plan::default();
    let mut create = true;
    let mut at = 2;
    let items = loop {
        let word = args.get(at).ok_or_else(arity)?;
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        let value = || args.get(at + 1).ok_or_else(arity);
        if is(b"items") {
            break &args[at + 1..];
        } else if is(b"error") {
            plan.error = parse_double(value()?).ok_or(Stop::from("ERR Bad error rate"))?;
            at += 1;
        } else if is(b"capacity") {
            plan.capacity = parse_int(value()?).ok_or(Stop::from("ERR Bad capacity"))?;
            at += 1;
        } else if is(b"expansion") {
            plan.expansion = parse_int(value()?).ok_or(Stop::from("ERR Bad expansion"))?;
            at += 1;
        } else if is(b"nocreate") {
            create = false;
        } else if is(b"nonscaling") {
            plan.fixed = true;
        } else {
            return Err("ERR Unknown argument received".into());
        }
        at += 1;
    };
    if items.is_empty() {
        return Err(arity());
    }
    let sane = plan.error > 0.0
        && plan.error < 1.0
        && (1..=MAX_CAPACITY).contains(&plan.capacity)
        && (0..=MAX_EXPANSION).contains(&plan.expansion);
    if !sane {
        return Err("ERR Bad argument received".into());
    }
    let plan = create.then_some(&plan);
    Ok(Reply::Array(add_items(cx, &args[1], items, plan)?))
}

/// Whether each of the items was added, as far as one can tell; a key of another type holds none.
fn check_items(cx: &mut Ctx<'_>, key: &[u8], items: &[Bytes]) -> Vec<Reply> {
    let bloom = match cx.value(key) {
        Some(Value::Bloom(bloom)) => Some(bloom),
        _ => None,
    };
    let known = |item: &Bytes| bloom.is_some_and(|bloom| bloom.contains(item));
    items.iter().map(|item| Reply::Bool(known(item))).collect()
}

fn exists(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let mut replies = check_items(cx, &args[1], &args[2..]);
    Ok(replies.pop().unwrap_or(Reply::Nil))
}

fn mexists(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(Reply::Array(check_items(cx, &args[1], &args[2..])))
}

fn found<'a>(cx: &'a mut Ctx<'_>, key: &[u8]) -> Result<&'a Bloom, Stop> {
    match cx.value(key) {
        Some(Value::Bloom(bloom)) => Ok(bloom),
        Some(_) => Err(WRONG_TYPE.into()),
        None => Err("ERR not found".into()),
    }
}

fn info(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if args.len() > 3 {
        return Err(Stop::wrong_arity("bf.info"));
    }
    let bloom = found(cx, &args[1])?;
    let int = |value: u64| Reply::Int(value as i64);
    let fields = [
        ("capacity", "Capacity", int(bloom.capacity())),
        ("size", "Size", int(bloom.size())),
        ("filters", "Number of filters", bloom.links().into()),
        ("items", "Number of items inserted", int(bloom.items())),
        (
            "expansion",
            "Expansion rate",
            bloom
                .expansion()
                .map_or(Reply::Nil, |rate| int(rate.into())),
        ),
    ];
    let Some(wanted) = args.get(2) else {
        let pairs = fields.map(|(_, name, value)| (Reply::status(name), value));
        return Ok(Reply::Map(pairs.into()));
    };
    fields
        .into_iter()
        .find(|(field, ..)| wanted.eq_ignore_ascii_case(field.as_bytes()))
        .map(|(_, _, value)| Reply::Array(vec![value]))
        .ok_or("ERR Invalid information value".into())
}

fn card(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(match cx.get::<Bloom>(&args[1])? {
        Some(bloom) => Reply::Int(bloom.items() as i64),
        None => Reply::ZERO,
    })
}

fn scandump(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let bloom = found(cx, &args[1])?;
    let Some(at) = parse_int(&args[2]) else {
        return Err("ERR Second argument must be numeric".into());
    };
    // The header comes first; after that an iterator is one more than the distance from the start.
    let (next, data) = match at {
        0 => (1, bloom.header()),
        _ => match at
            .checked_sub(1)
            .and_then(|start| u64::try_from(start).ok())
            .and_then(|start| bloom.chunk(start, CHUNK))
        {
            Some(chunk) => (at + chunk.len() as i64, chunk.to_vec()),
            None => (0, Vec::new()),
        },
    };
    Ok(Reply::Array(vec![
        Reply::Int(next),
        Reply::Bulk(data.into()),
    ]))
}

fn loadchunk(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (key, data) = (&args[1], &args[3]);
    let Some(at) = parse_int(&args[2]) else {
        return Err("ERR Second argument must be numeric".into());
    };
    let bad = || Stop::from("ERR received bad data");
    match cx.get_mut::<Bloom>(key)? {
        None if at == 1 => {
            let bloom = Bloom::from_header(data).ok_or_else(bad)?;
            cx.add(key, bloom.wrap(), NEVER);
        }
        None => return Err("ERR not found".into()),
        Some(bloom) => {
            // An iterator is one more than the distance at which the chunk ends.
            let start = at.checked_sub(1 + data.len() as i64);
            let start = start.and_then(|start| u64::try_from(start).ok());
            let start = start.ok_or_else(bad)?;
            bloom.load(start, data)?;
        }
    }
    cx.modified(key);
    cx.dirty(1);
    Ok(Reply::OK)
}
