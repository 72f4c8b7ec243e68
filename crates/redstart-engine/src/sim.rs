//! Chance by a seed, snapshots and disks, for this repository's simulation. Never enable the feature `sim` in a program.

#![allow(missing_docs)]

use std::cell::Cell;

use bytes::Bytes;

use crate::{Engine, Protocol, Reply, aof, resp};

pub use crate::aof::simulated::{Disk, keep_log, keep_log_by_thread, log_round, log_syncs};

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Engines that this thread makes from now on draw by this seed. The order of keys and members in replies is the same
/// in every process if this is called before the first engine is made.
pub fn seed(seed: Option<u64>) {
    SEED.set(seed);
}

pub(crate) fn is_seeded() -> bool {
    SEED.get().is_some()
}

pub(crate) fn next_seed() -> Option<u64> {
    let seed = SEED.get()?;
    SEED.set(Some(
        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1),
    ));
    Some(seed)
}

/// All data as commands in RESP, as a log's base file has them.
pub fn snapshot(engine: &Engine) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A vector takes everything.
    let _ = aof::write_all(&engine.inner.lock(), &mut bytes);
    bytes
}

/// Replaces all data by that of a snapshot, and forgets all scripts.
pub fn restore(engine: &Engine, snapshot: &[u8]) {
    let words = |text: &'static str| -> Vec<Bytes> {
        text.split(' ')
            .map(|word| Bytes::from_static(word.as_bytes()))
            .collect()
    };
    let mut session = engine.session();
    for command in ["FLUSHALL", "SCRIPT FLUSH", "FUNCTION FLUSH"] {
        drop(session.execute(&words(command)));
    }
    let mut parser = resp::Parser::default();
    parser.buffer().extend_from_slice(snapshot);
    let limits = resp::Limits {
        bulk: usize::MAX,
        authenticated: true,
    };
    while let Ok(Some(command)) = parser.next(limits) {
        drop(session.execute(&command));
    }
}

/// A reply as a client sees it on the wire.
pub fn encode(reply: &Reply, protocol: Protocol, out: &mut Vec<u8>) {
    resp::encode(reply, protocol, out);
}
