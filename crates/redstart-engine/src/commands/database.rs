//! Databases as a whole, and the commands that touch none: SELECT, SWAPDB, FLUSHALL, TIME, PING …

use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::{
    context::Ctx,
    engine::State,
    error::{CommandResult, SYNTAX, Stop},
    free,
    keyspace::Db,
    number::{i32_arg, int_bytes, parse_int},
    registry::{Spec, flag::*},
    reply::Reply,
    tracking,
};

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("echo", 2, LOADING | STALE | FAST, (0, 0, 0), echo),
    Spec::new("flushall", -1, WRITE, (0, 0, 0), flushall),
    Spec::new("flushdb", -1, WRITE, (0, 0, 0), flushdb),
    Spec::new("ping", -1, FAST, (0, 0, 0), ping),
    Spec::new("select", 2, LOADING | STALE | FAST, (0, 0, 0), select),
    Spec::new("swapdb", 3, WRITE | FAST, (0, 0, 0), swapdb),
    Spec::new("time", 1, LOADING | STALE | FAST, (0, 0, 0), time),
];

const NO_SUCH_DB: &str = "ERR DB index is out of range";

/// The number of a database that exists.
pub(crate) fn db_arg(cx: &Ctx<'_>, text: &[u8]) -> Result<usize, Stop> {
    let index = i32_arg(text)?;
    usize::try_from(index)
        .ok()
        .filter(|&index| index < cx.state.dbs.len())
        .ok_or(Stop::Error(NO_SUCH_DB.into()))
}

fn echo(_: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    Ok(Reply::Bulk(args[1].clone()))
}

fn ping(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    // A RESP2 subscriber tells replies and messages apart by their shape.
    let as_message = cx.client.is_subscribed() && !cx.is_resp3();
    match args {
        [_] | [_, _] if as_message => {
            let text = args.get(1).cloned().unwrap_or_default();
            Ok(Reply::Array(vec![Reply::bulk("pong"), Reply::Bulk(text)]))
        }
        [_] => Ok(Reply::status("PONG")),
        [_, message] => Ok(Reply::Bulk(message.clone())),
        _ => Err(Stop::wrong_arity("ping")),
    }
}

fn time(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let now = cx.now_micros;
    let parts = [now / 1_000_000, now % 1_000_000];
    Ok(Reply::Array(
        parts.map(|part| Reply::Bulk(int_bytes(part))).into(),
    ))
}

fn select(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if cx.state.config.cluster && i32_arg(&args[1])? != 0 {
        return Err("ERR SELECT is not allowed in cluster mode".into());
    }
    cx.client.db = db_arg(cx, &args[1])?;
    Ok(Reply::OK)
}

fn check_flush_args(args: &[Bytes]) -> Result<(), Stop> {
    match args {
        [_] => Ok(()),
        [_, mode] if mode.eq_ignore_ascii_case(b"async") || mode.eq_ignore_ascii_case(b"sync") => {
            Ok(())
        }
        _ => Err(SYNTAX.into()),
    }
}

fn flushdb(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check_flush_args(args)?;
    let removed = empty(cx.state, cx.client.db);
    tracking::flushed(cx.state);
    cx.state.effects.touch_all();
    cx.dirty(removed.max(1));
    Ok(Reply::OK)
}

fn flushall(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    check_flush_args(args)?;
    let removed = empty_all(cx.state);
    cx.state.effects.touch_all();
    cx.dirty(removed.max(1));
    Ok(Reply::OK)
}

/// Removes all keys of all databases; how many there were.
pub(crate) fn empty_all(state: &mut State) -> usize {
    let removed = (0..state.dbs.len()).map(|db| empty(state, db)).sum();
    tracking::flushed(state);
    removed
}

/// Removes all keys of a database; how many there were.
fn empty(state: &mut State, db: usize) -> usize {
    touch_existing(state, db, None);
    let keys = state.dbs[db].take_keys();
    signal_all(state, db);
    let count = keys.len();
    if count > 0 {
        // Even a few keys may hold much.
        free::later(usize::MAX, keys);
    }
    count
}

/// Puts these databases in the place of all.
pub(crate) fn replace_all(state: &mut State, dbs: Vec<Db>) {
    let mut incoming = dbs.into_iter();
    for db in 0..state.dbs.len() {
        let mut fresh = incoming.next().unwrap_or_default();
        touch_existing(state, db, None);
        for (key, watchers) in &state.dbs[db].watched {
            if fresh.find(key).is_some() {
                let touched = watchers.iter().map(|watcher| &watcher.touched);
                touched.for_each(|touched| touched.store(true, Ordering::Relaxed));
            }
        }
        let old = state.dbs[db].take_keys();
        if old.len() > 0 {
            free::later(usize::MAX, old);
        }
        state.dbs[db].put_keys(fresh.take_keys());
        if state.config.maxmemory > 0 {
            state.dbs[db].measure_all();
        }
        signal_all(state, db);
    }
    tracking::flushed(state);
    state.effects.touch_all();
}

/// Marks the watched keys of a database that exist in it or in the one that takes its place.
fn touch_existing(state: &State, db: usize, replacement: Option<usize>) {
    for (key, watchers) in &state.dbs[db].watched {
        let exists = state.dbs[db].find(key).is_some()
            || replacement.is_some_and(|other| state.dbs[other].find(key).is_some());
        if exists {
            watchers
                .iter()
                .for_each(|watcher| watcher.touched.store(true, Ordering::Relaxed));
        }
    }
}

/// Lets all clients that block in a database look again.
fn signal_all(state: &mut State, db: usize) {
    let keys = state.dbs[db].blocked.keys().map(|key| (db, key.to_bytes()));
    state.ready.extend(keys);
}

fn swapdb(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if cx.state.config.cluster {
        return Err("ERR SWAPDB is not allowed in cluster mode".into());
    }
    let index = |text: &[u8], error: &'static str| {
        parse_int(text)
            .and_then(|index| i32::try_from(index).ok())
            .ok_or(Stop::from(error))
    };
    let first = index(&args[1], "ERR invalid first DB index")?;
    let second = index(&args[2], "ERR invalid second DB index")?;
    let count = cx.state.dbs.len();
    let exists = |index: i32| usize::try_from(index).ok().filter(|&index| index < count);
    let (Some(first), Some(second)) = (exists(first), exists(second)) else {
        return Err(NO_SUCH_DB.into());
    };
    if first != second {
        touch_existing(cx.state, first, Some(second));
        touch_existing(cx.state, second, Some(first));
        let (a, b) = (
            cx.state.dbs[first].take_keys(),
            cx.state.dbs[second].take_keys(),
        );
        cx.state.dbs[first].put_keys(b);
        cx.state.dbs[second].put_keys(a);
        signal_all(cx.state, first);
        signal_all(cx.state, second);
        cx.state.effects.touch_all();
    }
    cx.dirty(1);
    Ok(Reply::OK)
}
