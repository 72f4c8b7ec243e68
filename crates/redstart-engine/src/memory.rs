//! How much memory is in use: data of all types, scripts, and what clients have sent and are sent.
//!
//! Sizes are estimates: a key's cell and its heap bytes, where those of a large collection are taken
//! from a few of its members. They are kept up to date only while there is a `maxmemory`.

use crate::{engine::State, free, types::blob::Blob};

/// What an engine takes up without data, so that a tiny `maxmemory` is too small from the start.
pub(crate) const BASE: u64 = 860 * 1024;

/// How many bytes are in use.
pub(crate) fn used(state: &State) -> u64 {
    let data: u64 = if state.config.maxmemory > 0 {
        state.dbs.iter().map(|db| db.bytes()).sum()
    } else {
        state.dbs.iter().map(|db| db.estimate()).sum()
    };
    BASE + data + state.scripts.counted() as u64 + state.buffered
}

/// Counts again what clients have sent and not yet had answered, and what waits to be sent to them;
/// done now and then, since there may be many clients.
pub(crate) fn measure_buffers(state: &mut State) {
    let buffers = state.clients.values().map(|profile| profile.buffered());
    state.buffered = buffers.sum::<usize>() as u64;
}

/// Gives memory back to the system when much less is used than before.
pub(crate) fn give_back_if_much(state: &mut State, used: u64) {
    /// Less than this is kept for later.
    const MUCH: u64 = 32 * 1024 * 1024;
    state.high_water = state.high_water.max(used);
    if state.high_water - used > MUCH.max(state.high_water / 4) {
        give_back(state, used);
    }
}

/// Gives memory back to the system, as far as the program can.
pub(crate) fn give_back(state: &mut State, used: u64) {
    state.high_water = used;
    if let Some(give_back) = state.config.give_back {
        // Behind what is being freed.
        free::then(give_back);
    }
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
