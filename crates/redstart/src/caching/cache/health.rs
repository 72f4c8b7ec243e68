//! Which servers do not answer.
//!
//! While a server is down, every read would wait for the store's whole deadline. After a few failures in a row the
//! cache leaves that server alone for a moment, and answers as its builder says. Other servers of a Cluster are not
//! affected, and a single late answer has no effect.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Failures in a row after which a server is left alone.
const THRESHOLD: u32 = 3;
/// For how long. Then one more failure is enough.
const REST: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
struct Node {
    failures: u32,
    rests_until: Option<Instant>,
}

/// The failures of each server.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Whether any server failed recently, so that a healthy read takes no lock.
    trouble: AtomicBool,
    nodes: Mutex<HashMap<u64, Node>>,
}

impl Health {
    /// Whether to leave the server alone now.
    pub(crate) fn rests(&self, node: impl FnOnce() -> u64) -> bool {
        if !self.trouble.load(Ordering::Acquire) {
            return false;
        }
        let nodes = self.nodes.lock();
        let until = nodes.get(&node()).and_then(|node| node.rests_until);
        until.is_some_and(|until| Instant::now() < until)
    }

    pub(crate) fn answered(&self, node: impl FnOnce() -> u64) {
        if !self.trouble.load(Ordering::Acquire) {
            return;
        }
        let mut nodes = self.nodes.lock();
        nodes.remove(&node());
        if nodes.is_empty() {
            self.trouble.store(false, Ordering::Release);
        }
    }

    pub(crate) fn failed(&self, node: u64) {
        let mut nodes = self.nodes.lock();
        self.trouble.store(true, Ordering::Release);
        let node = nodes.entry(node).or_default();
        node.failures = (node.failures + 1).min(THRESHOLD);
        if node.failures >= THRESHOLD {
            node.rests_until = Some(Instant::now() + REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_rests_after_failures_in_a_row_and_others_do_not() {
        let health = Health::default();
        for _ in 0..THRESHOLD - 1 {
            health.failed(1);
            assert!(!health.rests(|| 1));
        }
        health.answered(|| 1);
        for _ in 0..THRESHOLD - 1 {
            health.failed(1);
        }
        assert!(!health.rests(|| 1), "an answer starts the count again");
        health.failed(1);
        assert!(health.rests(|| 1) && !health.rests(|| 2));
        tokio::time::advance(REST).await;
        assert!(!health.rests(|| 1), "it is asked again");
        health.failed(1);
        assert!(health.rests(|| 1), "and one more failure is enough");
        health.answered(|| 1);
        assert!(!health.rests(|| 1));
        assert!(!health.trouble.load(Ordering::Acquire));
    }
}
