//! Strings.

mod lcs;

use bytes::Bytes;

use crate::{
    compat::versions::VALKEY,
    context::Ctx,
    error::{CommandResult, NOT_FLOAT, NOT_INTEGER, STRING_TOO_LONG, SYNTAX, Stop},
    keyspace::NEVER,
    long_double::LongDouble,
    notify::class,
    number::{int_arg, int_bytes, parse_int},
    registry::{Spec, flag::*, keys_counted_with_values},
    reply::Reply,
    types::{Value, string::Str},
};

use lcs::lcs;

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("append", 3, WRITE | DENYOOM | FAST, (1, 1, 1), append),
    Spec::new("decr", 2, WRITE | DENYOOM | FAST, (1, 1, 1), decr),
    Spec::new("decrby", 3, WRITE | DENYOOM | FAST, (1, 1, 1), decrby),
    Spec::new("delifeq", 3, WRITE | FAST, (1, 1, 1), delifeq).only(VALKEY),
    Spec::new("get", 2, READONLY | FAST, (1, 1, 1), get),
    Spec::new("getdel", 2, WRITE | FAST, (1, 1, 1), getdel),
    Spec::new("getex", -2, WRITE | FAST, (1, 1, 1), getex),
    Spec::new("getrange", 4, READONLY, (1, 1, 1), getrange),
    Spec::new("getset", 3, WRITE | DENYOOM | FAST, (1, 1, 1), getset),
    Spec::new("incr", 2, WRITE | DENYOOM | FAST, (1, 1, 1), incr),
    Spec::new("incrby", 3, WRITE | DENYOOM | FAST, (1, 1, 1), incrby),
    Spec::new(
        "incrbyfloat",
        3,
        WRITE | DENYOOM | FAST,
        (1, 1, 1),
        incrbyfloat,
    ),
    Spec::new("lcs", -3, READONLY, (1, 2, 1), lcs),
    Spec::new("mget", -2, READONLY | FAST, (1, -1, 1), mget),
    Spec::new("mset", -3, WRITE | DENYOOM, (1, -1, 2), mset),
    Spec::new(
        "msetex",
        -4,
        WRITE | DENYOOM | MOVABLEKEYS,
        (0, 0, 0),
        msetex,
    )
    .movable(keys_counted_with_values)
    .only(VALKEY),
    Spec::new("msetnx", -3, WRITE | DENYOOM, (1, -1, 2), msetnx),
    Spec::new("psetex", 4, WRITE | DENYOOM, (1, 1, 1), psetex),
    Spec::new("set", -3, WRITE | DENYOOM, (1, 1, 1), set),
    Spec::new("setex", 4, WRITE | DENYOOM, (1, 1, 1), setex),
    Spec::new("setnx", 3, WRITE | DENYOOM | FAST, (1, 1, 1), setnx),
    Spec::new("setrange", 4, WRITE | DENYOOM, (1, 1, 1), setrange),
    Spec::new("strlen", 2, READONLY | FAST, (1, 1, 1), strlen),
    Spec::new("substr", 4, READONLY, (1, 1, 1), getrange),
];

fn get(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (value, answer) = cx.read::<Str>(&args[1])?;
    Ok(answer.string(value))
}

/// The value, for commands that go on to do something else.
fn current(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(cx.get::<Str>(&args[1])?.map(Str::to_bytes).into())
}

/// A time to live or a deadline as SET and GETEX are given it.
struct Expiry<'a> {
    value: &'a Bytes,
    seconds: bool,
    absolute: bool,
}

impl Expiry<'_> {
    /// The deadline in unix milliseconds.
    fn deadline(&self, cx: &Ctx<'_>, command: &str) -> Result<i64, Stop> {
        let invalid =
            || Stop::Error(format!("ERR invalid expire time in '{command}' command").into());
        let value = int_arg(self.value)?;
        if value <= 0 {
            return Err(invalid());
        }
        let millis = if self.seconds {
            value.checked_mul(1000)
        } else {
            Some(value)
        };
        let base = if self.absolute { 0 } else { cx.now_ms() };
        millis
            .and_then(|millis| millis.checked_add(base))
            .ok_or_else(invalid)
    }
}

/// Whose options are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    Set,
    /// SET of a server that has IFEQ.
    SetIfEq,
    GetEx,
    MSetEx,
}

/// The options that SET, GETEX and MSETEX share, by name.
#[derive(Default)]
struct Options<'a> {
    only_new: bool,
    only_existing: bool,
    /// The value that the key must have.
    only_equal: Option<&'a Bytes>,
    get: bool,
    keep_ttl: bool,
    persist: bool,
    expiry: Option<Expiry<'a>>,
}

impl<'a> Options<'a> {
    fn parse(args: &'a [Bytes], command: For) -> Result<Options<'a>, Stop> {
        let for_set = command != For::GetEx;
        let mut options = Options::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let is = |name: &[u8]| arg.eq_ignore_ascii_case(name);
            let timed = options.expiry.is_some() || options.keep_ttl || options.persist;
            let conditional = options.only_equal.is_some();
            if for_set && is(b"nx") && !options.only_existing && !conditional {
                options.only_new = true;
            } else if for_set && is(b"xx") && !options.only_new && !conditional {
                options.only_existing = true;
            } else if command == For::SetIfEq
                && is(b"ifeq")
                && !options.only_new
                && !options.only_existing
                && !conditional
            {
                options.only_equal = Some(rest.next().ok_or(Stop::from(SYNTAX))?);
            } else if for_set && command != For::MSetEx && is(b"get") {
                options.get = true;
            } else if for_set && is(b"keepttl") && options.expiry.is_none() {
                options.keep_ttl = true;
            } else if !for_set && is(b"persist") && options.expiry.is_none() {
                options.persist = true;
            } else if !timed && (is(b"ex") || is(b"px") || is(b"exat") || is(b"pxat")) {
                let value = rest.next().ok_or(Stop::from(SYNTAX))?;
                let seconds = is(b"ex") || is(b"exat");
                let absolute = is(b"exat") || is(b"pxat");
                options.expiry = Some(Expiry {
                    value,
                    seconds,
                    absolute,
                });
            } else {
                return Err(SYNTAX.into());
            }
        }
        Ok(options)
    }
}

fn set(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (key, value) = (&args[1], &args[2]);
    if args.len() == 3 {
        store(cx, key, value, Some(NEVER));
        return Ok(Reply::OK);
    }
    let command = match cx.state.config.compat.is_in(VALKEY) {
        true => For::SetIfEq,
        false => For::Set,
    };
    let options = Options::parse(&args[3..], command)?;
    let deadline = match &options.expiry {
        Some(expiry) => Some(expiry.deadline(cx, "set")?),
        None => None,
    };
    let old = if options.get {
        let old = current(cx, args)?;
        cx.use_again();
        Some(old)
    } else {
        None
    };
    if options.only_new || options.only_existing {
        let found = cx.exists(key);
        if (options.only_new && found) || (options.only_existing && !found) {
            return Ok(old.unwrap_or(Reply::Nil));
        }
    }
    if let Some(wanted) = options.only_equal
        && !is_equal(cx, key, wanted)?
    {
        return Ok(old.unwrap_or(Reply::Nil));
    }
    let until = if options.keep_ttl {
        None
    } else {
        Some(deadline.unwrap_or(NEVER))
    };
    store(cx, key, value, until);
    if let Some(deadline) = deadline {
        cx.notify(class::GENERIC, "expire", key);
        propagate_set_until(cx, key, value, deadline);
    } else if options.only_equal.is_some() {
        // What came of the comparison is recorded, not the comparison.
        let words = [Bytes::from_static(b"SET"), key.clone(), value.clone()];
        let keep = options.keep_ttl.then(|| Bytes::from_static(b"KEEPTTL"));
        cx.propagate(words.into_iter().chain(keep));
    } else if options.get {
        let kept = args
            .iter()
            .filter(|arg| !arg.eq_ignore_ascii_case(b"get"))
            .cloned();
        // The key and the value stay even if they read "get".
        let kept = args[..3].iter().cloned().chain(
            kept.skip(
                args[..3]
                    .iter()
                    .filter(|arg| !arg.eq_ignore_ascii_case(b"get"))
                    .count(),
            ),
        );
        cx.propagate(kept.collect::<Vec<_>>());
    }
    Ok(old.unwrap_or(Reply::OK))
}

/// Whether a key holds this string.
fn is_equal(cx: &mut Ctx<'_>, key: &[u8], wanted: &[u8]) -> Result<bool, Stop> {
    let value = cx.get_mut::<Str>(key)?;
    Ok(value.is_some_and(|value| value.to_bytes() == wanted))
}

fn delifeq(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    if !is_equal(cx, key, &args[2])? {
        return Ok(Reply::ZERO);
    }
    cx.delete(key);
    cx.notify(class::GENERIC, "del", key);
    cx.dirty(1);
    cx.propagate([Bytes::from_static(b"DEL"), key.clone()]);
    Ok(Reply::ONE)
}

fn msetex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let count = parse_int(&args[1])
        .and_then(|count| usize::try_from(count).ok())
        .filter(|count| (1..=i32::MAX as usize).contains(count))
        .ok_or(Stop::from("ERR invalid numkeys value or out of range"))?;
    let words = &args[2..];
    if words.len() / 2 < count {
        return Err(SYNTAX.into());
    }
    let (pairs, rest) = words.split_at(2 * count);
    let options = Options::parse(rest, For::MSetEx)?;
    let deadline = match &options.expiry {
        Some(expiry) => Some(expiry.deadline(cx, "msetex")?),
        None => None,
    };
    if options.only_new || options.only_existing {
        for pair in pairs.chunks_exact(2) {
            if cx.exists(&pair[0]) != options.only_existing {
                return Ok(Reply::ZERO);
            }
        }
    }
    for pair in pairs.chunks_exact(2) {
        let (key, value) = (&pair[0], &pair[1]);
        let until = match options.keep_ttl {
            true => None,
            false => Some(deadline.unwrap_or(NEVER)),
        };
        store(cx, key, value, until);
        match deadline {
            Some(deadline) => {
                cx.notify(class::GENERIC, "expire", key);
                propagate_set_until(cx, key, value, deadline);
            }
            None => {
                let words = [Bytes::from_static(b"SET"), key.clone(), value.clone()];
                let keep = options.keep_ttl.then(|| Bytes::from_static(b"KEEPTTL"));
                cx.propagate(words.into_iter().chain(keep));
            }
        }
    }
    Ok(Reply::ONE)
}

fn propagate_set_until(cx: &mut Ctx<'_>, key: &Bytes, value: &Bytes, deadline: i64) {
    if cx.state.effects.enabled() {
        let words = [Bytes::from_static(b"SET"), key.clone(), value.clone()];
        let until = [Bytes::from_static(b"PXAT"), int_bytes(deadline)];
        cx.propagate(words.into_iter().chain(until));
    }
}

fn store(cx: &mut Ctx<'_>, key: &Bytes, value: &Bytes, deadline: Option<i64>) {
    cx.put_until(key, Value::Str(Str::new(value)), deadline);
    cx.notify(class::STRING, "set", key);
    cx.dirty(1);
}

fn setnx(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if cx.exists(&args[1]) {
        return Ok(Reply::ZERO);
    }
    store(cx, &args[1], &args[2], Some(NEVER));
    Ok(Reply::ONE)
}

fn setex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    set_for(cx, args, true, "setex")
}

fn psetex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    set_for(cx, args, false, "psetex")
}

fn set_for(cx: &mut Ctx<'_>, args: &[Bytes], seconds: bool, command: &str) -> CommandResult {
    let (key, value) = (&args[1], &args[3]);
    let expiry = Expiry {
        value: &args[2],
        seconds,
        absolute: false,
    };
    let deadline = expiry.deadline(cx, command)?;
    store(cx, key, value, Some(deadline));
    cx.notify(class::GENERIC, "expire", key);
    propagate_set_until(cx, key, value, deadline);
    Ok(Reply::OK)
}

fn getset(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let old = current(cx, args)?;
    cx.use_again();
    store(cx, &args[1], &args[2], Some(NEVER));
    cx.propagate([Bytes::from_static(b"SET"), args[1].clone(), args[2].clone()]);
    Ok(old)
}

fn getdel(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let old = current(cx, args)?;
    if old != Reply::Nil {
        cx.delete(&args[1]);
        cx.notify(class::GENERIC, "del", &args[1]);
        cx.dirty(1);
        cx.propagate([Bytes::from_static(b"DEL"), args[1].clone()]);
    }
    Ok(old)
}

fn getex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let options = Options::parse(&args[2..], For::GetEx)?;
    let value = current(cx, args)?;
    if value == Reply::Nil {
        return Ok(value);
    }
    if let Some(expiry) = &options.expiry {
        let deadline = expiry.deadline(cx, "getex")?;
        if expiry.absolute && deadline <= cx.now_ms() {
            cx.delete(key);
            cx.notify(class::GENERIC, "del", key);
            cx.propagate([Bytes::from_static(b"DEL"), key.clone()]);
        } else {
            if let Some(slot) = cx.find(key) {
                cx.db().set_deadline(slot, deadline);
            }
            cx.modified(key);
            cx.notify(class::GENERIC, "expire", key);
            cx.propagate([
                Bytes::from_static(b"PEXPIREAT"),
                key.clone(),
                int_bytes(deadline),
            ]);
        }
        cx.dirty(1);
    } else if options.persist
        && let Some(slot) = cx.find(key)
        && cx.db().entry(slot).deadline != NEVER
    {
        cx.db().set_deadline(slot, NEVER);
        cx.changed(key, class::GENERIC, "persist");
        cx.propagate([Bytes::from_static(b"PERSIST"), key.clone()]);
    }
    Ok(value)
}

fn mget(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (values, answer) = cx.read_all::<Str>(args[1..].iter().map(AsRef::as_ref));
    let mut items = answer.array(values.len());
    for value in values {
        match value {
            Some(value) => items.string(value),
            None => items.reply(Reply::Nil),
        }
    }
    Ok(items.end())
}

fn mset(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if args.len().is_multiple_of(2) {
        return Err(Stop::wrong_arity("mset"));
    }
    for pair in args[1..].chunks_exact(2) {
        store(cx, &pair[0], &pair[1], Some(NEVER));
    }
    Ok(Reply::OK)
}

fn msetnx(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if args.len().is_multiple_of(2) {
        return Err(Stop::wrong_arity("msetnx"));
    }
    if args[1..].iter().step_by(2).any(|key| cx.exists(key)) {
        return Ok(Reply::ZERO);
    }
    for pair in args[1..].chunks_exact(2) {
        store(cx, &pair[0], &pair[1], Some(NEVER));
    }
    Ok(Reply::ONE)
}

fn incr(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    increment(cx, &args[1], 1)
}

fn decr(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    increment(cx, &args[1], -1)
}

fn incrby(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let by = int_arg(&args[2])?;
    increment(cx, &args[1], by)
}

fn decrby(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let by = int_arg(&args[2])?;
    let by = by
        .checked_neg()
        .ok_or(Stop::from("ERR decrement would overflow"))?;
    increment(cx, &args[1], by)
}

fn increment(cx: &mut Ctx<'_>, key: &Bytes, by: i64) -> CommandResult {
    const OVERFLOW: &str = "ERR increment or decrement would overflow";
    let new = match cx.get_mut::<Str>(key)? {
        Some(value) => {
            let old = value.as_int().ok_or(Stop::from(NOT_INTEGER))?;
            let new = old.checked_add(by).ok_or(Stop::from(OVERFLOW))?;
            *value = Str::Int(new);
            new
        }
        None => {
            cx.add(key, Value::Str(Str::Int(by)), NEVER);
            by
        }
    };
    cx.changed(key, class::STRING, "incrby");
    Ok(Reply::Int(new))
}

fn incrbyfloat(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let old = match cx.get_mut::<Str>(key)? {
        Some(Str::Int(value)) => LongDouble::from_int(*value),
        Some(value) => LongDouble::parse(&value.as_cow()).ok_or(Stop::from(NOT_FLOAT))?,
        None => LongDouble::from_int(0),
    };
    let by = LongDouble::parse(&args[2]).ok_or(Stop::from(NOT_FLOAT))?;
    let new = old
        .add(by)
        .filter(|sum| !sum.is_infinite())
        .ok_or(Stop::from("ERR increment would produce NaN or Infinity"))?;
    let text = Bytes::from(new.to_text());
    cx.put_until(key, Value::Str(Str::from(text.to_vec())), None);
    cx.notify(class::STRING, "incrbyfloat", key);
    cx.dirty(1);
    let [set, keep] = [&b"SET"[..], b"KEEPTTL"].map(Bytes::from_static);
    cx.propagate([set, key.clone(), text.clone(), keep]);
    Ok(Reply::Bulk(text))
}

fn check_length(cx: &Ctx<'_>, size: usize, more: usize) -> Result<(), Stop> {
    match size.checked_add(more) {
        // What is in the log was allowed when it was written.
        Some(total) if cx.state.loading || total <= cx.state.config.proto_max_bulk_len => Ok(()),
        _ => Err(STRING_TOO_LONG.into()),
    }
}

fn append(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (key, tail) = (&args[1], &args[2]);
    let len = match cx.get_mut::<Str>(key)? {
        Some(value) => {
            let len = value.len();
            check_length(cx, len, tail.len())?;
            if let Some(value) = cx.get_mut::<Str>(key)? {
                value.make_raw().extend_from_slice(tail);
            }
            len + tail.len()
        }
        None => {
            cx.add(key, Value::Str(Str::new(tail)), NEVER);
            tail.len()
        }
    };
    cx.changed(key, class::STRING, "append");
    Ok(len.into())
}

fn strlen(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(cx.get::<Str>(&args[1])?.map_or(0, Str::len).into())
}

fn setrange(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (key, part) = (&args[1], &args[3]);
    let offset = int_arg(&args[2])?;
    let Ok(offset) = usize::try_from(offset) else {
        return Err("ERR offset is out of range".into());
    };
    let old = cx.get_mut::<Str>(key)?.map(|value| value.len());
    if part.is_empty() {
        return Ok(old.unwrap_or(0).into());
    }
    check_length(cx, offset, part.len())?;
    if old.is_none() {
        cx.add(key, Value::Str(Str::Raw(Box::default())), NEVER);
    }
    let mut len = 0;
    if let Some(value) = cx.get_mut::<Str>(key)? {
        let data = value.make_raw();
        if data.len() < offset + part.len() {
            data.resize(offset + part.len(), 0);
        }
        data[offset..offset + part.len()].copy_from_slice(part);
        len = data.len();
    }
    cx.changed(key, class::STRING, "setrange");
    Ok(len.into())
}

fn getrange(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (mut start, mut end) = (int_arg(&args[2])?, int_arg(&args[3])?);
    let Some(value) = cx.get::<Str>(&args[1])? else {
        return Ok(Reply::Bulk(Bytes::new()));
    };
    let value = value.as_cow();
    let len = value.len() as i64;
    if start < 0 && end < 0 && start > end {
        return Ok(Reply::Bulk(Bytes::new()));
    }
    if start < 0 {
        start = start.saturating_add(len).max(0);
    }
    if end < 0 {
        end = end.saturating_add(len).max(0);
    }
    end = end.min(len - 1);
    if start > end || len == 0 {
        return Ok(Reply::Bulk(Bytes::new()));
    }
    Ok(Reply::bulk(&value[start as usize..=end as usize]))
}
