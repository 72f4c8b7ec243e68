//! Locks that a server grants to a request whose caller has gone on.
//!
//! A request whose connection broke is sent again with the same owner's token, so that it is carried out once while the
//! lock is held. Its first copy may still be on the way, and arrive after the release, or after its caller was told that
//! the lock is busy; and a caller whose first request timed out asks again as another owner. Then nobody holds the lock until the lease ends. That is the documented limit of a lease; the judge of
//! the locks must know when it happened.

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
    /// The first grant to each owner, with its token.
    first: Vec<(Bytes, Duration, u64)>,
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
        let asked = (lock.clone(), owner.clone());
        match inner.tokens.insert(asked, token.clone()) {
            Some(before) if before != *token => inner.late.push((lock.clone(), now)),
            None => {
                let token = std::str::from_utf8(token).ok();
                let token = token.and_then(|token| token.parse().ok());
                let grant = (lock.clone(), now, token.unwrap_or_default());
                inner.first.push(grant);
            }
            _ => {}
        }
    }

    /// When a lock was granted once more.
    pub fn of(&self, lock: &str) -> Vec<Duration> {
        let inner = self.0.lock();
        let of_lock = inner.late.iter().filter(|(name, _)| name == lock);
        of_lock.map(|(_, at)| *at).collect()
    }

    /// When a lock was granted to an owner for the first time, and with which token.
    pub fn first(&self, lock: &str) -> Vec<(Duration, u64)> {
        let inner = self.0.lock();
        let of_lock = inner.first.iter().filter(|(name, ..)| name == lock);
        of_lock.map(|(_, at, token)| (*at, *token)).collect()
    }
}
