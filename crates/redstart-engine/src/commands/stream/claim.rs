//! XCLAIM and XAUTOCLAIM: entries of a group change hands.

use bytes::Bytes;

use super::{
    claim_effect, create_consumer_effect, group::no_group, id_arg, one_entry, parse_id,
    set_id_effect, start_arg,
};
use crate::{
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    notify::class,
    number::{parse_int, range_arg},
    registry::printable,
    reply::Reply,
    types::{
        blob::Blob,
        stream::{Group, Id, Pending, Stream},
    },
};

/// What a claim gives to a consumer, and what to record and reply.
struct Claim<'a> {
    key: &'a Bytes,
    group: &'a Bytes,
    consumer: &'a Bytes,
    now: i64,
    /// Whether effects are recorded at all.
    logged: bool,
    /// The consumer's number: it is seen, and made, with the first entry that it gets.
    claimant: Option<u32>,
    created: bool,
    changes: usize,
    effects: Vec<Vec<Bytes>>,
}

impl<'a> Claim<'a> {
    fn new(
        key: &'a Bytes,
        group: &'a Bytes,
        consumer: &'a Bytes,
        now: i64,
        logged: bool,
    ) -> Claim<'a> {
        Claim {
            key,
            group,
            consumer,
            now,
            logged,
            claimant: None,
            created: false,
            changes: 0,
            effects: Vec::new(),
        }
    }

    /// Makes an entry pending for the consumer.
    fn assign(&mut self, group: &mut Group, id: Id, mut pending: Pending) {
        pending.consumer = match self.claimant {
            Some(claimant) => claimant,
            None => self.see(group),
        };
        group.assign(id, pending);
        self.record(group, id, pending);
    }

    fn see(&mut self, group: &mut Group) -> u32 {
        let (claimant, created) = group.see(self.consumer, self.now);
        if created {
            self.created = true;
            self.changes += 1;
            let effect = create_consumer_effect(self.key, self.group, self.consumer);
            self.effects.push(effect);
        }
        self.claimant = Some(claimant);
        claimant
    }

    /// Gives up an entry that was deleted from the stream: no consumer can work on it any more.
    fn release(&mut self, group: &mut Group, id: Id, pending: Pending) {
        self.record(group, id, pending);
        group.release(id);
    }

    fn record(&mut self, group: &Group, id: Id, pending: Pending) {
        if self.logged {
            let effect = claim_effect(self.key, self.group, group, id, pending);
            self.effects.push(effect);
        }
        self.changes += 1;
    }

    fn finish(self, cx: &mut Ctx<'_>) {
        if self.created {
            cx.notify(class::STREAM, "xgroup-createconsumer", self.key);
        }
        cx.dirty(self.changes);
        cx.propagate_nothing();
        for effect in self.effects {
            cx.propagate(effect);
        }
    }
}

struct ClaimOptions {
    /// When the entries count as delivered.
    time: i64,
    retries: Option<u64>,
    force: bool,
    just_id: bool,
    last_id: Id,
}

/// What stands behind the ids of XCLAIM.
fn claim_options(mut rest: &[Bytes], now: i64) -> Result<ClaimOptions, Stop> {
    let (mut time, mut retries, mut force, mut just_id) = (None, None, false, false);
    let mut last_id = Id::ZERO;
    while let [word, more @ ..] = rest {
        rest = more;
        let mut number = |error: &'static str| -> Result<i64, Stop> {
            let value = parse_int(&more[0]).ok_or(Stop::from(error))?;
            rest = &more[1..];
            Ok(value)
        };
        match word.to_ascii_lowercase().as_slice() {
            b"force" => force = true,
            b"justid" => just_id = true,
            b"idle" if !more.is_empty() => {
                let idle = number("ERR Invalid IDLE option argument for XCLAIM")?;
                time = Some(now.wrapping_sub(idle));
            }
            b"time" if !more.is_empty() => {
                time = Some(number("ERR Invalid TIME option argument for XCLAIM")?);
            }
            b"retrycount" if !more.is_empty() => {
                retries = Some(number("ERR Invalid RETRYCOUNT option argument for XCLAIM")?);
            }
            b"lastid" if !more.is_empty() => {
                last_id = id_arg(&more[0], 0)?;
                rest = &more[1..];
            }
            _ => {
                let word = printable(word);
                return Err(format!("ERR Unrecognized XCLAIM option '{word}'").into());
            }
        }
    }
    let time = time.filter(|time| (0..=now).contains(time)).unwrap_or(now);
    let retries = retries.and_then(|retries| u64::try_from(retries).ok());
    Ok(ClaimOptions {
        time,
        retries,
        force,
        just_id,
        last_id,
    })
}

pub(super) fn xclaim(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let (key, name, now) = (&args[1], &args[2], cx.now_ms());
    let logged = cx.state.effects.enabled();
    let known = cx
        .get::<Stream>(key)?
        .is_some_and(|stream| stream.groups.contains_key(name.as_ref()));
    if !known {
        return Err(no_group(key, name));
    }
    let min_idle =
        parse_int(&args[4]).ok_or(Stop::from("ERR Invalid min-idle-time argument for XCLAIM"))?;
    let ids: Vec<Id> = args[5..]
        .iter()
        .map_while(|text| parse_id(text, 0))
        .collect();
    let ClaimOptions {
        time,
        retries,
        force,
        just_id,
        last_id,
    } = claim_options(&args[5 + ids.len()..], now)?;
    let Some(stream) = cx.get_mut::<Stream>(key)? else {
        return Err(no_group(key, name));
    };
    let Some(mut group) = stream.groups.remove(name.as_ref()) else {
        return Err(no_group(key, name));
    };
    let mut claim = Claim::new(key, name, &args[3], now, logged);
    let moved = last_id > group.last_id;
    if moved {
        group.last_id = last_id;
    }
    let mut replies = Vec::new();
    for id in ids {
        let before = group.pending.get(&id).copied();
        let entry = one_entry(stream, id);
        let Some(entry) = entry else {
            if let Some(before) = before {
                claim.release(&mut group, id, before);
            }
            continue;
        };
        let mut pending = match before {
            Some(before) if min_idle > 0 && now - before.time < min_idle => continue,
            Some(before) => before,
            None if force => Pending {
                consumer: 0,
                time,
                count: 1,
            },
            None => continue,
        };
        pending.time = time;
        match retries {
            Some(retries) => pending.count = retries,
            None if !just_id => pending.count += 1,
            None => {}
        }
        claim.assign(&mut group, id, pending);
        replies.push(if just_id {
            Reply::Bulk(id.to_bytes())
        } else {
            entry
        });
    }
    if moved && claim.changes == 0 {
        claim.effects.push(set_id_effect(key, name, &group));
        claim.changes += 1;
    }
    stream.groups.insert(Blob::new(name), group);
    claim.finish(cx);
    Ok(Reply::Array(replies))
}

pub(super) fn xautoclaim(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    // Redis looks it up before it reads the options.
    cx.find_read(&args[1]);
    let min_idle = parse_int(&args[4]).ok_or(Stop::from(
        "ERR Invalid min-idle-time argument for XAUTOCLAIM",
    ))?;
    let start = start_arg(&args[5])?;
    let (mut count, mut just_id) = (100, false);
    let mut rest = &args[6..];
    while let [word, more @ ..] = rest {
        match more {
            [value, more @ ..] if word.eq_ignore_ascii_case(b"COUNT") => {
                count = range_arg(value, 1, i64::MAX / 16, "ERR COUNT must be > 0")?;
                rest = more;
            }
            _ if word.eq_ignore_ascii_case(b"JUSTID") => {
                just_id = true;
                rest = more;
            }
            _ => return Err(SYNTAX.into()),
        }
    }
    let (key, name, now) = (&args[1], &args[2], cx.now_ms());
    let logged = cx.state.effects.enabled();
    let Some(stream) = cx.get_mut::<Stream>(key)? else {
        return Err(no_group(key, name));
    };
    let Some(mut group) = stream.groups.remove(name.as_ref()) else {
        return Err(no_group(key, name));
    };
    let mut claim = Claim::new(key, name, &args[3], now, logged);
    let (mut replies, mut deleted) = (Vec::new(), Vec::new());
    // Ten entries are examined for each one requested.
    let mut attempts = count.saturating_mul(10);
    let mut next = Some(start);
    let mut cursor = None;
    while let Some(from) = next {
        let Some((&id, &before)) = group.pending.range(from..).next() else {
            break;
        };
        if attempts == 0 || count == 0 {
            cursor = Some(id);
            break;
        }
        attempts -= 1;
        next = id.next();
        let Some(entry) = one_entry(stream, id) else {
            claim.release(&mut group, id, before);
            deleted.push(Reply::Bulk(id.to_bytes()));
            count -= 1;
            continue;
        };
        if min_idle > 0 && now - before.time < min_idle {
            continue;
        }
        let pending = Pending {
            time: now,
            count: before.count + u64::from(!just_id),
            ..before
        };
        claim.assign(&mut group, id, pending);
        replies.push(if just_id {
            Reply::Bulk(id.to_bytes())
        } else {
            entry
        });
        count -= 1;
    }
    stream.groups.insert(Blob::new(name), group);
    claim.finish(cx);
    Ok(Reply::Array(vec![
        Reply::Bulk(cursor.unwrap_or_default().to_bytes()),
        Reply::Array(replies),
        Reply::Array(deleted),
    ]))
}
