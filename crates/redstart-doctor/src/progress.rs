//! What an examination is doing, and the way to end it early.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// One step of an examination, for a progress bar.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// What is being done.
    pub what: &'static str,
    /// How far it is.
    pub done: u64,
    /// How much there is to do; 0 if unknown.
    pub of: u64,
}

type Watch = Arc<dyn Fn(Step) + Send + Sync>;

/// Reports steps and carries the wish to stop. Clones share both.
#[derive(Clone, Default)]
pub struct Progress {
    stopped: Arc<AtomicBool>,
    watch: Option<Watch>,
}

impl Progress {
    /// Calls `watch` at each step.
    pub fn new(watch: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Self {
            stopped: Arc::default(),
            watch: Some(Arc::new(watch)),
        }
    }

    /// Ends the examination; its report holds what is known by then.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether it is to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Returns when it is to end, a twentieth of a second late at most.
    pub(crate) async fn stopped(&self) {
        while !self.is_stopped() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn step(&self, what: &'static str, done: u64, of: u64) {
        if let Some(watch) = &self.watch {
            watch(Step { what, done, of });
        }
    }

    pub(crate) fn walked(&self, done: u64, of: u64) {
        self.step("walking names", done, of);
    }

    pub(crate) fn looked(&self, done: u64, of: u64) {
        self.step("looking at keys", done, of);
    }

    /// Sleeps unless it is stopped; wakes within a tenth of a second.
    pub(crate) async fn sleep(&self, what: &'static str, time: std::time::Duration) {
        let begun = tokio::time::Instant::now();
        while !self.is_stopped() {
            let gone = begun.elapsed();
            self.step(what, gone.as_millis() as u64, time.as_millis() as u64);
            let Some(left) = time.checked_sub(gone).filter(|left| !left.is_zero()) else {
                return;
            };
            tokio::time::sleep(left.min(std::time::Duration::from_millis(100))).await;
        }
    }
}
