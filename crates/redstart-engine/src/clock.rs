//! The one clock: expiry, TIME, stream ids, idle times and blocking timeouts all read it.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

/// Where an engine's time comes from.
///
/// A live clock is tokio's plus an offset, so `tokio::time::pause` and `advance` move it, too. It
/// can be read outside a runtime. A manual clock stands still until [`crate::Engine::advance`].
#[derive(Debug)]
pub struct Clock {
    /// Unix time in microseconds when the clock was made.
    base: i64,
    /// `None` for a manual clock.
    started: Option<Instant>,
    /// What `advance` has added, in microseconds.
    offset: AtomicI64,
}

impl Clock {
    /// A clock that runs with tokio's, from the present on.
    pub fn live() -> Clock {
        Clock {
            base: unix_micros(),
            started: Some(Instant::now()),
            offset: AtomicI64::new(0),
        }
    }

    /// A clock that stands at the present until it is advanced.
    pub fn manual() -> Clock {
        Clock {
            base: unix_micros(),
            started: None,
            offset: AtomicI64::new(0),
        }
    }

    /// A clock that stands at the given unix time in microseconds until it is advanced.
    pub fn manual_at(unix_micros: i64) -> Clock {
        Clock {
            base: unix_micros,
            started: None,
            offset: AtomicI64::new(0),
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.started.is_some()
    }

    pub(crate) fn now_micros(&self) -> i64 {
        let elapsed = match self.started {
            // A paused runtime's clock may stand before the instant at which this one was made.
            Some(started) => Instant::now()
                .saturating_duration_since(started)
                .as_micros() as i64,
            None => 0,
        };
        self.base + elapsed + self.offset.load(Ordering::Relaxed)
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.offset
            .fetch_add(by.as_micros() as i64, Ordering::Relaxed);
    }
}

fn unix_micros() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as i64)
}
