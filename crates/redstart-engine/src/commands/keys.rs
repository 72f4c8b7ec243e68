//! Keys and expiry.

use bytes::Bytes;

use crate::{
    blocking,
    commands::database::db_arg,
    compat::versions,
    context::Ctx,
    error::{CommandResult, NO_SUCH_KEY, SYNTAX, Stop},
    eviction, feed, glob,
    keyspace::NEVER,
    notify::class,
    number::{int_arg, int_bytes},
    registry::{Spec, flag::*, printable},
    reply::Reply,
    scan,
    types::{Value, string::Str},
};

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("copy", -3, WRITE | DENYOOM, (1, 2, 1), copy),
    Spec::new("del", -2, WRITE, (1, -1, 1), del),
    Spec::new("exists", -2, READONLY | FAST, (1, -1, 1), exists),
    Spec::new("expire", -3, WRITE | FAST, (1, 1, 1), expire),
    Spec::new("expireat", -3, WRITE | FAST, (1, 1, 1), expireat),
    Spec::new("expiretime", 2, READONLY | FAST, (1, 1, 1), expiretime),
    Spec::new("keys", 2, READONLY, (0, 0, 0), keys),
    Spec::new("move", 3, WRITE | FAST, (1, 1, 1), move_),
    Spec::container("object", -2, 0, OBJECT),
    Spec::new("persist", 2, WRITE | FAST, (1, 1, 1), persist),
    Spec::new("pexpire", -3, WRITE | FAST, (1, 1, 1), pexpire),
    Spec::new("pexpireat", -3, WRITE | FAST, (1, 1, 1), pexpireat),
    Spec::new("pexpiretime", 2, READONLY | FAST, (1, 1, 1), pexpiretime),
    Spec::new("pttl", 2, READONLY | FAST, (1, 1, 1), pttl),
    Spec::new("randomkey", 1, READONLY, (0, 0, 0), randomkey),
    Spec::new("rename", 3, WRITE, (1, 2, 1), rename),
    Spec::new("renamenx", 3, WRITE | FAST, (1, 2, 1), renamenx),
    Spec::new("scan", -2, READONLY, (0, 0, 0), scan),
    Spec::new("touch", -2, READONLY | FAST, (1, -1, 1), touch),
    Spec::new("ttl", 2, READONLY | FAST, (1, 1, 1), ttl),
    Spec::new("type", 2, READONLY | FAST, (1, 1, 1), type_),
    Spec::new("unlink", -2, WRITE | FAST, (1, -1, 1), del),
    Spec::new("wait", 3, NOSCRIPT, (0, 0, 0), wait),
];

static OBJECT: &[Spec] = &[
    Spec::sub(
        "encoding",
        "object|encoding",
        3,
        READONLY,
        (2, 2, 1),
        object_encoding,
    ),
    Spec::sub("freq", "object|freq", 3, READONLY, (2, 2, 1), object_freq),
    Spec::sub(
        "help",
        "object|help",
        2,
        LOADING | STALE,
        (0, 0, 0),
        object_help,
    ),
    Spec::sub(
        "idletime",
        "object|idletime",
        3,
        READONLY,
        (2, 2, 1),
        object_idletime,
    ),
    Spec::sub(
        "refcount",
        "object|refcount",
        3,
        READONLY,
        (2, 2, 1),
        object_refcount,
    ),
];

fn del(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let mut count = 0;
    for key in &args[1..] {
        if cx.delete(key) {
            cx.notify(class::GENERIC, "del", key);
            cx.dirty(1);
            count += 1;
        }
    }
    Ok(Reply::Int(count))
}

fn exists(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(args[1..]
        .iter()
        .filter(|key| cx.peek_read(key).is_some())
        .count()
        .into())
}

fn touch(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(args[1..]
        .iter()
        .filter(|key| cx.find_read(key).is_some())
        .count()
        .into())
}

fn type_(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let name = match cx.peek_read(&args[1]) {
        Some(slot) => cx.db().entry(slot).value.type_name(),
        None => "none",
    };
    Ok(Reply::status(name))
}

// ---- expiry ----

fn expire(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let now = cx.now_ms();
    expire_generic(cx, args, now, true, "expire")
}

fn pexpire(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let now = cx.now_ms();
    expire_generic(cx, args, now, false, "pexpire")
}

fn expireat(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    expire_generic(cx, args, 0, true, "expireat")
}

fn pexpireat(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    expire_generic(cx, args, 0, false, "pexpireat")
}

/// When a new deadline is accepted.
#[derive(Default)]
struct Condition {
    none: bool,
    some: bool,
    later: bool,
    earlier: bool,
}

impl Condition {
    fn parse(args: &[Bytes]) -> Result<Condition, Stop> {
        let mut condition = Condition::default();
        for arg in args {
            if arg.eq_ignore_ascii_case(b"nx") {
                condition.none = true;
            } else if arg.eq_ignore_ascii_case(b"xx") {
                condition.some = true;
            } else if arg.eq_ignore_ascii_case(b"gt") {
                condition.later = true;
            } else if arg.eq_ignore_ascii_case(b"lt") {
                condition.earlier = true;
            } else {
                return Err(format!("ERR Unsupported option {}", printable(arg)).into());
            }
        }
        if condition.none && (condition.some || condition.later || condition.earlier) {
            return Err(
                "ERR NX and XX, GT or LT options at the same time are not compatible".into(),
            );
        }
        if condition.later && condition.earlier {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(condition)
    }

    fn admits(&self, old: i64, new: i64) -> bool {
        // A key without a deadline lives forever: no new deadline is later.
        let volatile = old != NEVER;
        !(self.none && volatile
            || self.some && !volatile
            || self.later && (!volatile || new <= old)
            || self.earlier && volatile && new >= old)
    }
}

fn expire_generic(
    cx: &mut Ctx<'_>,
    args: &[Bytes],
    base: i64,
    seconds: bool,
    command: &str,
) -> CommandResult {
    let key = &args[1];
    let condition = Condition::parse(&args[3..])?;
    let value = int_arg(&args[2])?;
    let deadline = if seconds {
        value.checked_mul(1000)
    } else {
        Some(value)
    };
    let Some(deadline) = deadline.and_then(|value| value.checked_add(base)) else {
        return Err(format!("ERR invalid expire time in '{command}' command").into());
    };
    let Some(slot) = cx.find(key) else {
        return Ok(Reply::ZERO);
    };
    if !condition.admits(cx.db().entry(slot).deadline, deadline) {
        return Ok(Reply::ZERO);
    }
    if deadline <= cx.now_ms() && !cx.state.loading && cx.state.replica.is_none() {
        cx.delete(key);
        cx.notify(class::GENERIC, "del", key);
        cx.dirty(1);
        cx.propagate([Bytes::from_static(b"DEL"), key.clone()]);
    } else {
        cx.db().set_deadline(slot, deadline);
        cx.changed(key, class::GENERIC, "expire");
        cx.propagate([
            Bytes::from_static(b"PEXPIREAT"),
            key.clone(),
            int_bytes(deadline),
        ]);
    }
    Ok(Reply::ONE)
}

/// A key's deadline as a reply, or Redis's -2 (no key) and -1 (no deadline).
fn deadline_reply(cx: &mut Ctx<'_>, key: &[u8], shape: impl Fn(i64, i64) -> i64) -> CommandResult {
    let now = cx.now_ms();
    let Some(slot) = cx.peek_read(key) else {
        return Ok(Reply::Int(-2));
    };
    Ok(Reply::Int(match cx.db().entry(slot).deadline {
        NEVER => -1,
        deadline => shape(deadline, now),
    }))
}

fn ttl(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    deadline_reply(cx, &args[1], |deadline, now| {
        ((deadline - now).max(0) + 500) / 1000
    })
}

fn pttl(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    deadline_reply(cx, &args[1], |deadline, now| (deadline - now).max(0))
}

fn expiretime(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    deadline_reply(cx, &args[1], |deadline, _| {
        deadline.saturating_add(500) / 1000
    })
}

fn pexpiretime(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    deadline_reply(cx, &args[1], |deadline, _| deadline)
}

fn persist(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let Some(slot) = cx.find(&args[1]) else {
        return Ok(Reply::ZERO);
    };
    if cx.db().entry(slot).deadline == NEVER {
        return Ok(Reply::ZERO);
    }
    cx.db().set_deadline(slot, NEVER);
    cx.changed(&args[1], class::GENERIC, "persist");
    Ok(Reply::ONE)
}

// ---- moving keys ----

fn rename(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    rename_generic(cx, args, false)
}

fn renamenx(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    rename_generic(cx, args, true)
}

fn rename_generic(cx: &mut Ctx<'_>, args: &[Bytes], only_new: bool) -> CommandResult {
    let (from, to) = (&args[1], &args[2]);
    if !cx.exists(from) {
        return Err(NO_SUCH_KEY.into());
    }
    let done = if only_new { Reply::ONE } else { Reply::OK };
    if from == to {
        return Ok(if only_new { Reply::ZERO } else { Reply::OK });
    }
    if cx.exists(to) {
        if only_new {
            return Ok(Reply::ZERO);
        }
        cx.delete(to);
    }
    if let Some(entry) = cx.take(from) {
        cx.add(to, entry.value, entry.deadline);
        cx.modified(to);
    }
    cx.notify(class::GENERIC, "rename_from", from);
    cx.notify(class::GENERIC, "rename_to", to);
    cx.dirty(1);
    Ok(done)
}

const SAME_OBJECT: &str = "ERR source and destination objects are the same";

/// Runs something in another database.
fn within<R>(cx: &mut Ctx<'_>, db: usize, work: impl FnOnce(&mut Ctx<'_>) -> R) -> R {
    let before = std::mem::replace(&mut cx.client.db, db);
    let result = work(cx);
    cx.client.db = before;
    result
}

fn copy(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (from, to) = (&args[1], &args[2]);
    let (mut db, mut replace) = (cx.client.db, false);
    let mut rest = args[3..].iter();
    while let Some(arg) = rest.next() {
        if arg.eq_ignore_ascii_case(b"replace") {
            replace = true;
        } else if arg.eq_ignore_ascii_case(b"db") {
            db = db_arg(cx, rest.next().ok_or(Stop::from(SYNTAX))?)?;
        } else {
            return Err(SYNTAX.into());
        }
    }
    if db == cx.client.db && from == to {
        return Err(SAME_OBJECT.into());
    }
    let Some(slot) = cx.find_read(from) else {
        return Ok(Reply::ZERO);
    };
    let entry = cx.db().entry(slot).clone();
    let copied = within(cx, db, |cx| {
        if cx.exists(to) {
            if !replace {
                return false;
            }
            cx.delete(to);
        }
        cx.add(to, entry.value, entry.deadline);
        cx.changed(to, class::GENERIC, "copy_to");
        true
    });
    Ok(copied.into())
}

fn move_(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if cx.state.config.cluster {
        return Err("ERR MOVE is not allowed in cluster mode".into());
    }
    let key = &args[1];
    let db = db_arg(cx, &args[2])?;
    if db == cx.client.db {
        return Err(SAME_OBJECT.into());
    }
    if !cx.exists(key) || within(cx, db, |cx| cx.exists(key)) {
        return Ok(Reply::ZERO);
    }
    if let Some(entry) = cx.take(key) {
        within(cx, db, |cx| {
            cx.add(key, entry.value, entry.deadline);
            cx.modified(key);
        });
    }
    cx.dirty(1);
    cx.notify(class::GENERIC, "move_from", key);
    within(cx, db, |cx| cx.notify(class::GENERIC, "move_to", key));
    Ok(Reply::ONE)
}

// ---- looking around ----

fn keys(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (pattern, now) = (&args[1], cx.now_ms());
    let found = cx
        .db()
        .iter()
        .filter(|(key, entry)| !entry.is_expired(now) && glob::matches(pattern, key))
        .map(|(key, _)| Reply::Bulk(key.to_bytes()))
        .collect();
    Ok(Reply::Array(found))
}

fn scan(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let cursor = scan::cursor_arg(&args[1])?;
    let options = scan::Options::parse(&args[2..], true)?;
    let now = cx.now_ms();
    let (mut found, mut expired) = (Vec::new(), Vec::new());
    let next = cx.db().scan(cursor, options.count, |key, entry| {
        if entry.is_expired(now) {
            expired.push(key.clone());
            return;
        }
        let of_type = options
            .type_name
            .as_ref()
            .is_none_or(|name| name.eq_ignore_ascii_case(entry.value.type_name().as_bytes()));
        if of_type && options.admits(key) {
            found.push(Reply::Bulk(key.to_bytes()));
        }
    });
    for key in expired {
        cx.expire(&key);
    }
    Ok(scan::reply(next, found))
}

fn randomkey(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    /// Where expired keys are kept for the followed server, all of them may be such.
    const TRIES: usize = 100;
    let now = cx.now_ms();
    let mut tries = 0;
    loop {
        let db = &cx.state.dbs[cx.client.db];
        let Some(slot) = db.random(&mut cx.state.random) else {
            return Ok(Reply::Nil);
        };
        let key = db.key(slot).clone();
        tries += 1;
        let enough = cx.state.replica.is_some() && tries >= TRIES;
        if !db.entry(slot).is_expired(now) || enough {
            return Ok(Reply::Bulk(key.to_bytes()));
        }
        cx.expire(&key);
    }
}

// ---- OBJECT ----

fn object_encoding(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let Some(slot) = cx.peek(&args[2]) else {
        return Ok(Reply::Nil);
    };
    Ok(Reply::bulk(cx.db().entry(slot).value.encoding()))
}

fn object_refcount(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let Some(slot) = cx.peek(&args[2]) else {
        return Ok(Reply::Nil);
    };
    let is_valkey = cx.state.config.compat.is_in(versions::VALKEY);
    Ok(Reply::Int(match &cx.db().entry(slot).value {
        // Redis shares the objects of small numbers; Valkey keeps a string beside its key.
        Value::Str(Str::Int(0..10_000)) if !is_valkey => i64::from(i32::MAX),
        _ => 1,
    }))
}

fn object_idletime(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let now = (cx.now_micros / 1_000_000) as u32;
    let Some(slot) = cx.peek(&args[2]) else {
        return Ok(Reply::Nil);
    };
    if cx.state.config.policy.counts_uses() {
        return Err(
            "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when \
             switching between policies at runtime LRU and LFU data will take some time to adjust."
                .into(),
        );
    }
    Ok(Reply::Int(eviction::idle(cx.db().entry(slot), now).into()))
}

fn object_freq(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let now = (cx.now_micros / 1_000_000) as u32;
    let Some(slot) = cx.peek(&args[2]) else {
        return Ok(Reply::Nil);
    };
    if cx.state.config.policy.counts_uses() {
        let used = cx.db().entry(slot).used;
        let frequency = eviction::frequency(used, &cx.state.config, now);
        return Ok(Reply::Int(frequency.into()));
    }
    Err(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note \
         that when switching between policies at runtime LRU and LFU data will take some time to \
         adjust."
            .into(),
    )
}

fn object_help(_: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(help(&[
        "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "ENCODING <key>",
        "    Return the kind of internal representation used in order to store the value",
        "    associated with a <key>.",
        "FREQ <key>",
        "    Return the access frequency index of the <key>. The returned integer is",
        "    proportional to the logarithm of the recent access frequency of the key.",
        "IDLETIME <key>",
        "    Return the idle time of the <key>, that is the approximated number of",
        "    seconds elapsed since the last access to the key.",
        "REFCOUNT <key>",
        "    Return the number of references of the value associated with the specified",
        "    <key>.",
        "HELP",
        "    Prints this help.",
    ]))
}

/// The reply of a HELP subcommand.
pub(crate) fn help(lines: &[&'static str]) -> Reply {
    Reply::Array(lines.iter().map(|line| Reply::status(line)).collect())
}

// ---- WAIT ----

fn wait(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let replicas = int_arg(&args[1])?;
    let deadline = blocking::timeout_ms_arg(cx, &args[2])?;
    feed::wait(cx, replicas, deadline)
}
