//! Who waits for the same subject in this process waits in line.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// One line a subject. Only the head of a line asks the store, so a thousand waiters make one request at a time,
/// and are admitted in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Box<str>, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    pub(super) async fn wait(&self, subject: &str) -> OwnedMutexGuard<()> {
        let line = {
            let mut lines = self.0.lock();
            match lines.get(subject).and_then(Weak::upgrade) {
                Some(line) => line,
                None => {
                    lines.retain(|_, line| line.strong_count() > 0);
                    let line = Arc::new(tokio::sync::Mutex::new(()));
                    lines.insert(subject.into(), Arc::downgrade(&line));
                    line
                }
            }
        };
        line.lock_owned().await
    }
}
