//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;

use crate::{
    acl,
    client::{Client, Watch},
    context::{Ctx, Origin},
    dispatch::check_slots,
    engine::State,
    error::{CommandResult, Stop},
    keyspace::Watcher,
    registry::{Spec, flag::*},
    reply::Reply,
    types::blob::Blob,
};

const ANYTIME: u32 = NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY;

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("multi", 1, ANYTIME | UNQUEUED, (0, 0, 0), multi),
    Spec::new(
        "exec",
        1,
        NOSCRIPT | LOADING | STALE | SKIP_SLOWLOG | UNQUEUED,
        (0, 0, 0),
        exec,
    ),
    Spec::new("discard", 1, ANYTIME | UNQUEUED, (0, 0, 0), discard),
    Spec::new("watch", -2, ANYTIME | UNQUEUED, (1, -1, 1), watch),
    Spec::new("unwatch", 1, ANYTIME, (0, 0, 0), unwatch),
];

fn multi(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    if cx.client.multi.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    cx.client.multi = Some(Box::default());
    Ok(Reply::OK)
}

fn discard(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    if cx.client.multi.take().is_none() {
        return Err("ERR DISCARD without MULTI".into());
    }
    unwatch_all(cx.state, cx.client);
    Ok(Reply::OK)
}

fn exec(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let Some(multi) = cx.client.multi.take() else {
        return Err("ERR EXEC without MULTI".into());
    };
    let touched = watch_is_broken(cx);
    if touched && let Some(watch) = &cx.client.watch {
        // That one of them was changed is told.
        for (db, key) in &watch.keys {
            cx.state.effects.depend_on(*db, key);
        }
    }
    unwatch_all(cx.state, cx.client);
    if multi.broken {
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    if touched {
        return Ok(Reply::NilArray);
    }
    if cx.state.config.checks_slots() {
        let mut slot = None;
        for (spec, args) in &multi.queue {
            check_slots(spec, args, &mut slot)?;
        }
    }
    let before = std::mem::replace(&mut cx.origin, Origin::Exec);
    let mut replies = Vec::with_capacity(multi.queue.len());
    for (spec, args) in &multi.queue {
        let checked = match cx.client.account.is_unlimited() {
            true => Ok(()),
            false => acl::check_queued(cx, spec, args),
        };
        replies.push(match checked.and_then(|()| cx.call(spec, args)) {
            Ok(reply) => reply,
            Err(Stop::Error(text)) => Reply::Error(text.into_owned()),
            Err(Stop::Block(wait)) => wait.on_timeout,
        });
    }
    cx.origin = before;
    Ok(Reply::Array(replies))
}

/// Whether a watched key was changed since WATCH, or has expired since then.
fn watch_is_broken(cx: &mut Ctx<'_>) -> bool {
    let Some(watch) = &cx.client.watch else {
        return false;
    };
    if watch.touched.load(Ordering::Relaxed) {
        return true;
    }
    let (client, now) = (cx.client.id, cx.now_ms());
    watch.keys.iter().any(|(db, key)| {
        let db = &cx.state.dbs[*db];
        let was_expired = db
            .watched
            .get(key)
            .and_then(|watchers| watchers.iter().find(|watcher| watcher.client == client))
            .is_some_and(|watcher| watcher.was_expired);
        let is_expired = db
            .find(key)
            .is_some_and(|slot| db.entry(slot).is_expired(now));
        is_expired && !was_expired
    })
}

fn watch(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    if cx.client.multi.is_some() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    let (client, db, now) = (cx.client.id, cx.client.db, cx.now_ms());
    let watch = cx.client.watch.get_or_insert_with(|| {
        Box::new(Watch {
            keys: Vec::new(),
            touched: Arc::new(AtomicBool::new(false)),
        })
    });
    for key in &args[1..] {
        let key = Blob::new(key);
        if watch
            .keys
            .iter()
            .any(|(other_db, other)| *other_db == db && *other == key)
        {
            continue;
        }
        let space = &mut cx.state.dbs[db];
        let was_expired = space
            .find(&key)
            .is_some_and(|slot| space.entry(slot).is_expired(now));
        let touched = watch.touched.clone();
        space.watched.entry(key.clone()).or_default().push(Watcher {
            client,
            touched,
            was_expired,
        });
        watch.keys.push((db, key));
    }
    Ok(Reply::OK)
}

fn unwatch(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    unwatch_all(cx.state, cx.client);
    Ok(Reply::OK)
}

/// Ends all watching of a client.
pub(crate) fn unwatch_all(state: &mut State, client: &mut Client) {
    if let Some(watch) = client.watch.take() {
        end_watch(state, client.id, *watch);
    }
}

/// Removes a client from the watchers of the keys that it watched.
pub(crate) fn end_watch(state: &mut State, client: u64, watch: Watch) {
    for (db, key) in watch.keys {
        let watched = &mut state.dbs[db].watched;
        if let Some(watchers) = watched.get_mut(&key) {
            watchers.retain(|watcher| watcher.client != client);
            if watchers.is_empty() {
                watched.remove(&key);
            }
        }
    }
}
