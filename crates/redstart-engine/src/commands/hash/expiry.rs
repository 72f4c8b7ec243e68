//! Fields of hashes that expire: HEXPIRE and its relatives, HGETEX, HSETEX.

use std::collections::HashSet;

use bytes::Bytes;

use crate::{
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    notify::class,
    number::{int_arg, int_bytes},
    registry::printable,
    reply::Reply,
    types::{blob::Blob, hash::Hash},
};

const BAD_COUNT: &str =
    "ERR numfields should be greater than 0 and match the provided number of fields";

/// How a time is given or told.
#[derive(Clone, Copy)]
struct Unit {
    seconds: bool,
    /// Unix time, not a time from now on.
    absolute: bool,
}

const TTL: Unit = Unit {
    seconds: true,
    absolute: false,
};
const PTTL: Unit = Unit {
    seconds: false,
    absolute: false,
};
const TIME: Unit = Unit {
    seconds: true,
    absolute: true,
};
const PTIME: Unit = Unit {
    seconds: false,
    absolute: true,
};

impl Unit {
    /// EX, PX, EXAT or PXAT.
    fn of_option(word: &[u8]) -> Option<Unit> {
        match &word.to_ascii_lowercase()[..] {
            b"ex" => Some(TTL),
            b"px" => Some(PTTL),
            b"exat" => Some(TIME),
            b"pxat" => Some(PTIME),
            _ => None,
        }
    }

    /// The deadline in unix milliseconds; 0 is allowed, and has passed.
    fn deadline(self, cx: &Ctx<'_>, text: &[u8], command: &str) -> Result<i64, Stop> {
        let invalid = || Stop::from(format!("ERR invalid expire time in '{command}' command"));
        let value = int_arg(text)?;
        if value < 0 {
            return Err(invalid());
        }
        let scale = if self.seconds { 1000 } else { 1 };
        let base = if self.absolute { 0 } else { cx.now_ms() };
        value
            .checked_mul(scale)
            .and_then(|millis| millis.checked_add(base))
            .ok_or_else(invalid)
    }

    /// What HTTL and its relatives say of a deadline.
    fn told(self, cx: &Ctx<'_>, deadline: i64) -> i64 {
        let base = if self.absolute { 0 } else { cx.now_ms() };
        let millis = (deadline - base).max(0);
        if self.seconds {
            millis.saturating_add(500) / 1000
        } else {
            millis
        }
    }
}

/// What follows a `FIELDS` at `at`: a number, and that many groups of `size` words.
fn counted(args: &[Bytes], at: usize, size: usize) -> Result<&[Bytes], Stop> {
    let (count, fields) = args
        .get(at + 1..)
        .and_then(<[Bytes]>::split_first)
        .ok_or(Stop::from(BAD_COUNT))?;
    let count = usize::try_from(int_arg(count)?).unwrap_or(0);
    if count == 0 || count.checked_mul(size) != Some(fields.len()) {
        return Err(BAD_COUNT.into());
    }
    Ok(fields)
}

/// The fields of `CMD key FIELDS count field …`.
pub(super) fn fields(args: &[Bytes]) -> Result<&[Bytes], Stop> {
    if !args[2].eq_ignore_ascii_case(b"fields") {
        return Err(SYNTAX.into());
    }
    counted(args, 2, 1)
}

/// The command that gives fields a deadline again.
pub(crate) fn expire_effect(key: &Bytes, deadline: i64, fields: &[Bytes]) -> Vec<Bytes> {
    let mut args = vec![
        Bytes::from_static(b"HPEXPIREAT"),
        key.clone(),
        int_bytes(deadline),
        Bytes::from_static(b"FIELDS"),
        int_bytes(fields.len() as i64),
    ];
    args.extend_from_slice(fields);
    args
}

/// Ends a command that removed fields because their deadlines have passed.
fn expired(cx: &mut Ctx<'_>, key: &Bytes, fields: Vec<Bytes>) -> Result<(), Stop> {
    let emptied = cx.get_mut::<Hash>(key)?.is_some_and(|hash| hash.is_empty());
    cx.modified(key);
    cx.notify(class::HASH, "hexpired", key);
    cx.dirty(fields.len());
    let words = [Bytes::from_static(b"HDEL"), key.clone()];
    cx.propagate(words.into_iter().chain(fields));
    if emptied {
        cx.delete_emptied(key);
    }
    Ok(())
}

/// Whether fields with this deadline are to be removed at once. A log may have been written when it was
/// still to come, and a followed server says itself when they are gone.
fn has_passed(cx: &Ctx<'_>, deadline: i64) -> bool {
    deadline <= cx.now_ms() && !cx.state.loading && cx.state.replica.is_none()
}

/// Gives fields that are there a deadline in the future.
fn set_deadlines(
    cx: &mut Ctx<'_>,
    key: &Bytes,
    deadline: i64,
    fields: &[Bytes],
) -> Result<(), Stop> {
    let Some(hash) = cx.get_mut::<Hash>(key)? else {
        return Ok(());
    };
    let before = hash.next_deadline();
    for field in fields {
        // 0 would read as none.
        hash.set_deadline(field, deadline.max(1));
    }
    let next = hash.next_deadline();
    let sooner = before == crate::keyspace::NEVER || next < before;
    if sooner && let Some(slot) = cx.db().find(key) {
        cx.db().enter(slot);
    }
    Ok(())
}

/// When HEXPIRE sets a deadline.
#[derive(Default)]
struct Condition {
    none: bool,
    some: bool,
    later: bool,
    sooner: bool,
}

impl Condition {
    fn parse(words: &[Bytes]) -> Result<Condition, Stop> {
        let mut condition = Condition::default();
        for word in words {
            match &word.to_ascii_lowercase()[..] {
                b"nx" => condition.none = true,
                b"xx" => condition.some = true,
                b"gt" => condition.later = true,
                b"lt" => condition.sooner = true,
                _ => return Err(format!("ERR Unsupported option {}", printable(word)).into()),
            }
        }
        if condition.none && (condition.some || condition.later || condition.sooner) {
            return Err(
                "ERR NX and XX, GT or LT options at the same time are not compatible".into(),
            );
        }
        if condition.later && condition.sooner {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(condition)
    }

    /// Whether the deadline that a field has may be replaced by a new one.
    fn holds(&self, old: Option<i64>, new: i64) -> bool {
        match old {
            None => !self.some && !self.later,
            Some(old) => !(self.none || self.later && new <= old || self.sooner && new >= old),
        }
    }
}

pub(super) fn hexpire(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    expire(cx, args, TTL, "hexpire")
}

pub(super) fn hpexpire(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    expire(cx, args, PTTL, "hpexpire")
}

pub(super) fn hexpireat(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    expire(cx, args, TIME, "hexpireat")
}

pub(super) fn hpexpireat(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    expire(cx, args, PTIME, "hpexpireat")
}

fn expire(cx: &mut Ctx<'_>, args: &[Bytes], unit: Unit, command: &str) -> CommandResult {
    let key = &args[1];
    let at = args[3..]
        .iter()
        .position(|word| word.eq_ignore_ascii_case(b"fields"))
        .ok_or(Stop::from(BAD_COUNT))?
        + 3;
    let fields = counted(args, at, 1)?;
    let deadline = unit.deadline(cx, &args[2], command)?;
    let condition = Condition::parse(&args[3..at])?;
    let has_passed = has_passed(cx, deadline);
    let Some(hash) = cx.get_mut::<Hash>(key)? else {
        return Ok(Reply::Array(vec![Reply::Int(-2); fields.len()]));
    };
    let mut affected = Vec::new();
    let mut codes = Vec::with_capacity(fields.len());
    // A field that is named twice has its new deadline the second time.
    let mut changed = HashSet::new();
    for field in fields {
        let old = || match changed.contains(field) {
            true => Some(deadline),
            false => hash.deadline(field),
        };
        let code = if !hash.contains(field) {
            -2
        } else if !condition.holds(old(), deadline) {
            0
        } else {
            affected.push(field.clone());
            changed.insert(field);
            if has_passed {
                hash.remove(field);
                2
            } else {
                1
            }
        };
        codes.push(Reply::Int(code));
    }
    if affected.is_empty() {
        return Ok(Reply::Array(codes));
    }
    if has_passed {
        expired(cx, key, affected)?;
    } else {
        set_deadlines(cx, key, deadline, &affected)?;
        cx.changed(key, class::HASH, "hexpire");
        cx.propagate(expire_effect(key, deadline, &affected));
    }
    Ok(Reply::Array(codes))
}

pub(super) fn httl(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    tell(cx, args, TTL)
}

pub(super) fn hpttl(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    tell(cx, args, PTTL)
}

pub(super) fn hexpiretime(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    tell(cx, args, TIME)
}

pub(super) fn hpexpiretime(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    tell(cx, args, PTIME)
}

fn tell(cx: &mut Ctx<'_>, args: &[Bytes], unit: Unit) -> CommandResult {
    let count = args[2]
        .eq_ignore_ascii_case(b"fields")
        .then(|| int_arg(&args[3]))
        .ok_or(Stop::from(SYNTAX))??;
    let fields = &args[4..];
    if count <= 0 || count as u64 != fields.len() as u64 {
        return Err(SYNTAX.into());
    }
    let Some(hash) = cx.get::<Hash>(&args[1])? else {
        return Ok(Reply::Array(vec![Reply::Int(-2); fields.len()]));
    };
    let deadlines: Vec<Option<Option<i64>>> = fields
        .iter()
        .map(|field| hash.contains(field).then(|| hash.deadline(field)))
        .collect();
    let told = deadlines.into_iter().map(|deadline| match deadline {
        None => Reply::Int(-2),
        Some(None) => Reply::Int(-1),
        Some(Some(deadline)) => Reply::Int(unit.told(cx, deadline)),
    });
    Ok(Reply::Array(told.collect()))
}

pub(super) fn hpersist(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let fields = fields(args)?;
    let Some(hash) = cx.get_mut::<Hash>(key)? else {
        return Ok(Reply::Array(vec![Reply::Int(-2); fields.len()]));
    };
    let mut changed = 0;
    let codes = fields.iter().map(|field| {
        Reply::Int(match hash.contains(field) {
            false => -2,
            true if hash.persist(field) => {
                changed += 1;
                1
            }
            true => -1,
        })
    });
    let codes = Reply::Array(codes.collect());
    if changed > 0 {
        cx.changed(key, class::HASH, "hpersist");
        cx.dirty(changed - 1);
    }
    Ok(codes)
}

/// What the options of HGETEX and HSETEX say about deadlines.
enum Change {
    /// HSETEX takes them away, HGETEX leaves them.
    None,
    Keep,
    Persist,
    Until(i64),
}

pub(super) fn hgetex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let (mut change, mut expiry) = (Change::None, None);
    let mut at = 2;
    let fields = loop {
        let word = args.get(at).ok_or(Stop::from(SYNTAX))?;
        if word.eq_ignore_ascii_case(b"fields") {
            break counted(args, at, 1)?;
        }
        if !matches!(change, Change::None) || expiry.is_some() {
            return Err(SYNTAX.into());
        }
        if word.eq_ignore_ascii_case(b"persist") {
            change = Change::Persist;
        } else {
            let unit = Unit::of_option(word).ok_or(Stop::from(SYNTAX))?;
            at += 1;
            let time = args.get(at).ok_or(Stop::from(SYNTAX))?;
            if time.eq_ignore_ascii_case(b"fields") {
                return Err(SYNTAX.into());
            }
            expiry = Some((unit, time));
        }
        at += 1;
    };
    // As on the server, the key is looked at before the time.
    cx.get::<Hash>(key)?;
    if let Some((unit, time)) = expiry {
        change = Change::Until(unit.deadline(cx, time, "hgetex")?);
    }
    let passed = matches!(change, Change::Until(deadline) if has_passed(cx, deadline));
    let Some(hash) = cx.get_mut::<Hash>(key)? else {
        return Ok(Reply::Array(vec![Reply::Nil; fields.len()]));
    };
    let mut affected = Vec::new();
    let mut values = Vec::with_capacity(fields.len());
    for field in fields {
        let value = hash.get(field).map(Blob::to_bytes);
        if value.is_some() {
            let affects = match change {
                Change::None | Change::Keep => false,
                Change::Persist => hash.persist(field),
                Change::Until(_) if passed => hash.remove(field).is_some(),
                Change::Until(_) => true,
            };
            if affects {
                affected.push(field.clone());
            }
        }
        values.push(Reply::from(value));
    }
    match change {
        _ if affected.is_empty() => {}
        Change::Until(_) if passed => expired(cx, key, affected)?,
        Change::Until(deadline) => {
            set_deadlines(cx, key, deadline, &affected)?;
            cx.changed(key, class::HASH, "hexpire");
            cx.propagate(expire_effect(key, deadline, &affected));
        }
        _ => {
            cx.changed(key, class::HASH, "hpersist");
            let words = [Bytes::from_static(b"HPERSIST"), key.clone()];
            let count = int_bytes(affected.len() as i64);
            let words = words
                .into_iter()
                .chain([Bytes::from_static(b"FIELDS"), count]);
            cx.propagate(words.chain(affected));
        }
    }
    Ok(Reply::Array(values))
}

/// The options of HSETEX.
struct Setting<'a> {
    /// Whether the key has to exist, if that matters.
    key_exists: Option<bool>,
    /// Whether all fields have to exist, or none of them, if that matters.
    fields_exist: Option<bool>,
    change: Change,
    pairs: &'a [Bytes],
}

impl Setting<'_> {
    fn parse<'a>(cx: &Ctx<'_>, args: &'a [Bytes]) -> Result<Setting<'a>, Stop> {
        let mut setting = Setting {
            key_exists: None,
            fields_exist: None,
            change: Change::None,
            pairs: &[],
        };
        let mut at = 2;
        loop {
            let word = args.get(at).ok_or(Stop::from(SYNTAX))?;
            let condition = match &word.to_ascii_lowercase()[..] {
                b"fields" => {
                    setting.pairs = counted(args, at, 2)?;
                    return Ok(setting);
                }
                b"nx" => Some((&mut setting.key_exists, false)),
                b"xx" => Some((&mut setting.key_exists, true)),
                b"fnx" => Some((&mut setting.fields_exist, false)),
                b"fxx" => Some((&mut setting.fields_exist, true)),
                _ => None,
            };
            if let Some((condition, wanted)) = condition {
                if condition.is_some_and(|other| other != wanted) {
                    return Err(SYNTAX.into());
                }
                *condition = Some(wanted);
            } else if !matches!(setting.change, Change::None) {
                return Err(SYNTAX.into());
            } else if word.eq_ignore_ascii_case(b"keepttl") {
                setting.change = Change::Keep;
            } else {
                let unit = Unit::of_option(word).ok_or(Stop::from(SYNTAX))?;
                at += 1;
                let time = args.get(at).ok_or(Stop::from(SYNTAX))?;
                setting.change = Change::Until(unit.deadline(cx, time, "hsetex")?);
            }
            at += 1;
        }
    }

    /// Whether the conditions hold.
    fn holds(&self, hash: Option<&Hash>) -> bool {
        if self
            .key_exists
            .is_some_and(|wanted| wanted != hash.is_some())
        {
            return false;
        }
        let exists = |pair: &[Bytes]| hash.is_some_and(|hash| hash.contains(&pair[0]));
        let mut pairs = self.pairs.chunks_exact(2);
        match self.fields_exist {
            None => true,
            Some(true) => pairs.all(exists),
            Some(false) => !pairs.any(exists),
        }
    }
}

pub(super) fn hsetex(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let key = &args[1];
    let setting = Setting::parse(cx, args)?;
    let hash = cx.get_mut::<Hash>(key)?;
    if !setting.holds(hash.map(|hash| &*hash)) {
        return Ok(Reply::ZERO);
    }
    let keep = matches!(setting.change, Change::Keep);
    let pairs = setting.pairs;
    let kept = cx.edit_or_create(key, |hash: &mut Hash, config, _| {
        hash.prepare(pairs.iter().map(AsRef::as_ref), config);
        let mut kept = Vec::new();
        for pair in pairs.chunks_exact(2) {
            if keep {
                hash.set_value(&pair[0], &pair[1], config);
                kept.extend(hash.deadline(&pair[0]).map(|at| (at, pair[0].clone())));
            } else {
                hash.set(&pair[0], &pair[1], config);
            }
        }
        kept
    })?;
    cx.changed(key, class::HASH, "hset");
    cx.dirty(pairs.len() / 2 - 1);
    let words = [Bytes::from_static(b"HSET"), key.clone()];
    cx.propagate(words.into_iter().chain(pairs.iter().cloned()));
    for (deadline, field) in kept {
        cx.propagate(expire_effect(key, deadline, &[field]));
    }
    if let Change::Until(deadline) = setting.change {
        let fields: Vec<Bytes> = pairs.chunks_exact(2).map(|pair| pair[0].clone()).collect();
        cx.notify(class::HASH, "hexpire", key);
        if !has_passed(cx, deadline) {
            set_deadlines(cx, key, deadline, &fields)?;
            cx.propagate(expire_effect(key, deadline, &fields));
        } else {
            if let Some(hash) = cx.get_mut::<Hash>(key)? {
                for field in &fields {
                    hash.remove(field);
                }
            }
            expired(cx, key, fields)?;
        }
    }
    Ok(Reply::ONE)
}
