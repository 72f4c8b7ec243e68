//! How much memory is in use: data of all types, scripts, and messages that wait for clients.
//!
//! Sizes are estimates: a key's cell and its heap bytes, where those of a large collection are taken
//! from a few of its members. They are kept up to date only while there is a `maxmemory`.

use crate::{engine::State, types::blob::Blob};

/// What an engine takes up without data, so that a tiny `maxmemory` is too small from the start.
pub(crate) const BASE: u64 = 860 * 1024;

/// How many bytes are in use.
pub(crate) fn used(state: &State) -> u64 {
    let data: u64 = if state.config.maxmemory > 0 {
        state.dbs.iter().map(|db| db.bytes()).sum()
    } else {
        state.dbs.iter().map(|db| db.estimate()).sum()
    };
    let (scripts, functions) = state.scripts.memory();
    BASE + data + (scripts + functions) as u64 + state.buffered
}

/// Counts again what waits for clients; done now and then, since there may be many of them.
pub(crate) fn measure_buffers(state: &mut State) {
    let waiting = |profile: &std::sync::Arc<crate::client::Profile>| profile.outbox.waiting();
    state.buffered = state.clients.values().map(waiting).sum::<usize>() as u64;
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
