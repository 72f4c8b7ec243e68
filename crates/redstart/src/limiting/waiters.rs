//! Callers of one process that wait for the same subject wait in line.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// One line per subject. Only the head of a line asks the store, so that a thousand waiters make one request at a time
/// and are admitted in the order in which they came.
///
/// A line is removed by the last one that leaves it: joining and leaving look at one line, whatever their number.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<HashMap<Box<str>, SubjectLine, foldhash::fast::RandomState>>);

#[derive(Debug, Default)]
struct SubjectLine {
    head: Arc<AsyncMutex<()>>,
    waiting: usize,
}

impl Waiters {
    /// Joins the subject's line.
    pub(super) fn join<'a>(&'a self, subject: &'a str) -> InLine<'a> {
        let mut lines = self.0.lock();
        if !lines.contains_key(subject) {
            lines.insert(subject.into(), SubjectLine::default());
        }
        let line = lines.get_mut(subject).expect("inserted above");
        line.waiting += 1;
        InLine {
            waiters: self,
            subject,
            line: line.head.clone(),
            head: None,
        }
    }
}

/// A place in line; dropped, the next one moves up.
pub(super) struct InLine<'a> {
    waiters: &'a Waiters,
    subject: &'a str,
    line: Arc<AsyncMutex<()>>,
    head: Option<OwnedMutexGuard<()>>,
}

impl InLine<'_> {
    /// Waits until everybody in front has left.
    pub(super) async fn reach_head(&mut self) {
        self.head = Some(self.line.clone().lock_owned().await);
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.head = None;
        let mut lines = self.waiters.0.lock();
        if let Some(line) = lines.get_mut(self.subject) {
            line.waiting -= 1;
            if line.waiting == 0 {
                lines.remove(self.subject);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_is_gone_with_its_last_waiter() {
        let waiters = Waiters::default();
        let names: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        let places: Vec<_> = names.iter().map(|name| waiters.join(name)).collect();
        assert_eq!(waiters.0.lock().len(), 1000);
        drop(places);
        assert_eq!(waiters.0.lock().len(), 0);

        let mut first = waiters.join("u");
        first.reach_head().await;
        let mut second = waiters.join("u");
        let waits = tokio::time::timeout(std::time::Duration::ZERO, second.reach_head());
        assert!(waits.await.is_err());
        drop(first);
        second.reach_head().await;
        assert_eq!(waiters.0.lock().len(), 1);
        drop(second);
        assert_eq!(waiters.0.lock().len(), 0);
    }
}
