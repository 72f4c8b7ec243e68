//! A value that tasks can wait for changes of.
//!
//! As tokio's channel of that name, but those who wait are woken in the order in which they came. Tokio's wakes them in
//! random order, which makes a simulation impossible to repeat.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

struct Shared<T> {
    value: Mutex<T>,
    version: AtomicU64,
    closed: AtomicBool,
    changed: Notify,
}

/// Changes the value. Dropped, the receivers are told.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// Waits for changes.
pub(crate) struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The last version that was seen.
    seen: u64,
}

/// The sender is gone.
#[derive(Debug)]
pub(crate) struct Closed;

impl<T> Sender<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Arc::new(Shared {
            value: Mutex::new(value),
            version: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            changed: Notify::new(),
        }))
    }

    /// A receiver that has seen the present value.
    pub(crate) fn subscribe(&self) -> Receiver<T> {
        Receiver {
            seen: self.0.version.load(Ordering::Acquire),
            shared: self.0.clone(),
        }
    }

    pub(crate) fn borrow(&self) -> MutexGuard<'_, T> {
        self.0.value.lock()
    }

    /// Changes the value and wakes all who wait.
    pub(crate) fn send_modify(&self, change: impl FnOnce(&mut T)) {
        {
            let mut value = self.0.value.lock();
            change(&mut value);
            self.0.version.fetch_add(1, Ordering::Release);
        }
        self.0.changed.notify_waiters();
    }

    /// Replaces the value if it is another one; whether it was.
    #[cfg(feature = "resilience")]
    pub(crate) fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let changed = {
            let mut value = self.0.value.lock();
            let changed = change(&mut value);
            if changed {
                self.0.version.fetch_add(1, Ordering::Release);
            }
            changed
        };
        if changed {
            self.0.changed.notify_waiters();
        }
        changed
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

impl<T> Receiver<T> {
    /// Waits until there is a version that was not seen yet, and has seen it then.
    pub(crate) async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            // What happens from here on wakes it.
            changed.as_mut().enable();
            let version = self.shared.version.load(Ordering::Acquire);
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if self.shared.closed.load(Ordering::Acquire) {
                return Err(Closed);
            }
            changed.await;
        }
    }

    /// The value, which counts as seen from now on.
    pub(crate) fn borrow_and_update(&mut self) -> MutexGuard<'_, T> {
        let value = self.shared.value.lock();
        self.seen = self.shared.version.load(Ordering::Acquire);
        value
    }

    /// Waits for a value that is `wanted`. The present one is looked at first.
    pub(crate) async fn wait_for(
        &mut self,
        wanted: impl Fn(&T) -> bool,
    ) -> Result<MutexGuard<'_, T>, Closed> {
        loop {
            if wanted(&self.borrow_and_update()) {
                break;
            }
            if self.changed().await.is_err() {
                // The last value may have come together with the end.
                let found = wanted(&self.borrow_and_update());
                return match found {
                    true => Ok(self.shared.value.lock()),
                    false => Err(Closed),
                };
            }
        }
        Ok(self.shared.value.lock())
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.shared.value.lock();
        f.debug_tuple("Receiver").field(&*value).finish()
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            seen: self.seen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiters_hear_of_changes_in_order_and_of_the_end() {
        let sender = Sender::new(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..20 {
            let (mut receiver, order) = (sender.subscribe(), order.clone());
            tasks.push(tokio::spawn(async move {
                receiver.changed().await.unwrap();
                order.lock().push(number);
                assert_eq!(*receiver.wait_for(|value| *value == 2).await.unwrap(), 2);
                assert!(receiver.changed().await.is_err());
            }));
            tokio::task::yield_now().await;
        }
        sender.send_modify(|value| *value = 1);
        tokio::task::yield_now().await;
        assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>());
        sender.send_modify(|value| *value = 2);
        tokio::task::yield_now().await;
        drop(sender);
        for task in tasks {
            task.await.unwrap();
        }
    }
}
