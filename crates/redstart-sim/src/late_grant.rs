//! Locks that a server grants once more, to a request that was answered before.
//!
//! A request whose connection broke is sent again with the same owner's token, so that it is carried out once while the
//! lock is held. Its first copy may still be on the way, and arrive after the release. Then nobody holds the lock until
//! the lease ends. That is the documented limit of a lease; the judge of the locks must know when it happened.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use redstart_engine::Reply;

/// What the servers of a world granted.
#[derive(Default)]
pub struct LateGrants(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// By lock and owner: the last fence token.
    tokens: HashMap<(Bytes, Bytes), Bytes>,
    late: Vec<(Bytes, Duration)>,
}

impl LateGrants {
    /// A server carried a command out.
    pub fn look(&self, command: &[Bytes], reply: &Reply, now: Duration) {
        let [name, _, keys, lock, fence, owner, ..] = command else {
            return;
        };
        let Reply::Bulk(token) = reply else {
            return;
        };
        let is_script = name.len() >= 4 && name[..4].eq_ignore_ascii_case(b"EVAL");
        if !is_script || keys != "2" || !fence.ends_with(b":fence") {
            return;
        }
        let mut inner = self.0.lock();
        let before = inner
            .tokens
            .insert((lock.clone(), owner.clone()), token.clone());
        if before.is_some_and(|before| before != *token) {
            inner.late.push((lock.clone(), now));
        }
    }

    /// When a lock was granted once more.
    pub fn of(&self, lock: &str) -> Vec<Duration> {
        let inner = self.0.lock();
        let of_lock = inner.late.iter().filter(|(name, _)| name == lock);
        of_lock.map(|(_, at)| *at).collect()
    }
}
