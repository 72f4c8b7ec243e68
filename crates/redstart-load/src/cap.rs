//! What a run may do to a server, from the first key of its preparation on: its rate and its memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{Live, Settings};

/// Timers wake up a little late, so that an operation may be made up for that is later by this. A longer stall is not made up
/// for: what was not sent during it is not sent on top of the rate after it.
const BURST: Duration = Duration::from_millis(20);

/// The highest rate of a run: no stretch of time has more operations than the rate allows in that time and [`BURST`].
#[derive(Debug)]
pub(crate) struct RateCap {
    every: Duration,
    /// When the next operation may begin.
    next: Mutex<Option<Instant>>,
}

impl RateCap {
    pub(crate) fn new(rate: f64) -> Self {
        Self {
            // A rate so low that its period cannot be told is once in a day.
            every: Duration::try_from_secs_f64(1.0 / rate)
                .unwrap_or(Duration::MAX)
                .min(Duration::from_secs(86_400)),
            next: Mutex::new(None),
        }
    }

    /// When an operation that is ready now may begin. Every call is one operation.
    pub(crate) fn slot(&self, now: Instant) -> Instant {
        let mut next = self.next.lock();
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        // The first one has nothing to make up for.
        let slot = next.map_or(now, |next| next.max(earliest));
        *next = Some(slot + self.every);
        slot
    }

    /// Waits until an operation may begin.
    async fn wait(&self) {
        let now = Instant::now();
        let slot = self.slot(now);
        if slot > now {
            tokio::time::sleep_until(slot.into()).await;
        }
    }
}

/// The caps of a run while it is prepared: each write of the preparation passes here.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    rate: Option<Arc<RateCap>>,
    live: Arc<Live>,
    written: Arc<AtomicU64>,
    most: u64,
}

impl Gate {
    pub(crate) fn new(settings: &Settings, live: &Arc<Live>) -> Self {
        Self {
            rate: settings.max_rate.map(|rate| Arc::new(RateCap::new(rate))),
            live: live.clone(),
            written: Arc::default(),
            most: settings.max_written.unwrap_or(settings.max_memory),
        }
    }

    /// The cap on the rate, which the load shares with its preparation.
    pub(crate) fn rate(&self) -> Option<Arc<RateCap>> {
        self.rate.clone()
    }

    /// Waits until a value of this size may be written. Beyond the cap on memory the run is stopped and this never returns:
    /// a run drops its preparation when it is stopped. What is counted is what was sent, because a server is asked for its
    /// memory too rarely for large values.
    pub(crate) async fn pass(&self, bytes: usize) {
        let written = self.written.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if written > self.most {
            self.live.stop(MEMORY);
            std::future::pending::<()>().await;
        }
        if let Some(rate) = &self.rate {
            rate.wait().await;
        }
    }

    /// [`pass`](Self::pass) of something that must not be dropped half-way: waits for its turn only, and is false if the run is
    /// to end instead.
    pub(crate) async fn turn(&self) -> bool {
        tokio::select! {
            biased;
            () = self.live.ending() => false,
            () = self.pass(0) => true,
        }
    }
}

/// Why a run has ended.
pub(crate) const MEMORY: &str = "the cap on memory was reached";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_sent_during_a_stall_is_not_sent_on_top_of_the_rate() {
        let cap = RateCap::new(1000.0);
        let start = Instant::now();
        assert_eq!(cap.slot(start), start);
        // Five seconds later, five thousand operations are overdue and all ask at once.
        let now = start + Duration::from_secs(5);
        let slots: Vec<Instant> = (0..5000).map(|_| cap.slot(now)).collect();
        let within = |time: Duration| slots.iter().filter(|slot| **slot < now + time).count();
        assert_eq!(within(Duration::ZERO), 20);
        assert_eq!(within(Duration::from_secs(1)), 1020);
        assert_eq!(within(Duration::from_secs(4)), 4020);
    }

    #[test]
    fn a_late_timer_does_not_lower_the_rate() {
        let cap = RateCap::new(100.0);
        let start = Instant::now();
        // Each operation is ready five milliseconds after it might have begun.
        let mut slot = cap.slot(start);
        for _ in 0..100 {
            slot = cap.slot(slot + Duration::from_millis(5));
        }
        assert_eq!(slot, start + Duration::from_secs(1));
    }
}
