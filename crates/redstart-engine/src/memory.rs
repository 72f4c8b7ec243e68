//! How much memory the data takes up, and what goes when that is too much.
//!
//! Sizes are estimates: a key's cell and its heap bytes, where those of a large collection are taken
//! from a few of its members. They are kept up to date only while there is a `maxmemory`.

use bytes::Bytes;

use crate::{
    client::Client,
    config::MemoryPolicy,
    context::{Ctx, Origin},
    engine::State,
    notify::class,
    reply::Protocol,
    types::blob::Blob,
};

/// What an engine takes up without data, so that a tiny `maxmemory` is too small from the start.
pub(crate) const BASE: u64 = 860 * 1024;
/// How many keys of a database are compared to find one that was not used for long.
const SAMPLES: usize = 8;

/// How many bytes are in use.
pub(crate) fn used(state: &State) -> u64 {
    let data: u64 = if state.config.maxmemory > 0 {
        state.dbs.iter().map(|db| db.bytes()).sum()
    } else {
        state.dbs.iter().map(|db| db.estimate()).sum()
    };
    BASE + data
}

/// Drops keys until the data fits, if the policy allows it; whether it does.
pub(crate) fn make_room(state: &mut State, now_micros: i64) -> bool {
    while used(state) > state.config.maxmemory {
        if state.config.policy == MemoryPolicy::NoEviction {
            return false;
        }
        let Some((db, key)) = oldest(state) else {
            return false;
        };
        evict(state, db, &key, now_micros);
    }
    true
}

/// A key that was not used for long.
fn oldest(state: &mut State) -> Option<(usize, Blob)> {
    let mut best: Option<(u32, usize, Blob)> = None;
    for (number, db) in state.dbs.iter().enumerate() {
        for _ in 0..SAMPLES {
            let Some(slot) = db.random(&mut state.random) else {
                break;
            };
            let used = db.entry(slot).used;
            if best.as_ref().is_none_or(|(oldest, ..)| used < *oldest) {
                best = Some((used, number, db.key(slot).clone()));
            }
        }
    }
    best.map(|(_, db, key)| (db, key))
}

fn evict(state: &mut State, db: usize, key: &Blob, now_micros: i64) {
    let mut client = Client::internal(0, db, Protocol::Resp2);
    let mut cx = Ctx::new(state, &mut client, now_micros, Origin::Engine);
    if cx.db().remove(key).is_none() {
        return;
    }
    cx.state.stats.evicted += 1;
    cx.signal_ready(key);
    cx.notify(class::EVICTED, "evicted", key);
    cx.modified(key);
    let args = vec![Bytes::from_static(b"DEL"), key.to_bytes()];
    cx.state.effects.record_aside(db, args);
    cx.state.effects.flush();
}

/// Measures all keys; needed when `maxmemory` is set for the first time.
pub(crate) fn measure_all(state: &mut State) {
    for db in &mut state.dbs {
        db.measure_all();
    }
}

/// The bytes of `count` strings, as far as they lie on the heap, judged by a few of them.
pub(crate) fn sampled<'a>(count: usize, items: impl Iterator<Item = &'a Blob>) -> usize {
    const FEW: usize = 8;
    let (mut seen, mut bytes) = (0, 0);
    for item in items.take(FEW) {
        seen += 1;
        bytes += item.heap_size();
    }
    (bytes * count).checked_div(seen).unwrap_or(0)
}
