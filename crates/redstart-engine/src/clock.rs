//! The one clock: expiry, TIME, stream ids, idle times and blocking timeouts all read it.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

/// Where an engine's time comes from.
///
/// A live clock is tokio's plus an offset, so `tokio::time::pause` and `advance` move it, too. It
/// can be read outside a runtime. It follows the system's clock through steps and suspends: keys
/// expire at their unix time, as in Redis. A manual clock moves only by
/// [`crate::Engine::advance`].
#[derive(Debug)]
pub struct Clock {
    /// Unix time in microseconds when the clock was made.
    base: i64,
    /// `None` for a manual clock.
    started: Option<Started>,
    /// What `advance` has added, in microseconds.
    offset: AtomicI64,
}

/// How a live clock runs. All times are in microseconds.
#[derive(Debug)]
struct Started {
    tokio: Instant,
    /// The same moment on the system's monotonic clock, which no runtime pauses. `None` if the system's clock does
    /// not matter.
    steady: Option<std::time::Instant>,
    /// By how much the system's clock was set since then.
    step: AtomicI64,
    /// How old the clock was when it last looked for a step.
    looked: AtomicI64,
    #[cfg(test)]
    faked: AtomicI64,
}

/// How often a live clock looks for steps of the system's clock.
const LOOK_EVERY: i64 = 100_000;
/// What is less than this is the drift between two clocks and no step.
const SMALLEST_STEP: i64 = 10_000;

impl Started {
    fn now() -> Started {
        Started {
            tokio: Instant::now(),
            steady: Some(std::time::Instant::now()),
            step: AtomicI64::new(0),
            looked: AtomicI64::new(0),
            #[cfg(test)]
            faked: AtomicI64::new(0),
        }
    }

    /// In nanoseconds.
    fn elapsed(&self, base: i64) -> i64 {
        // A paused runtime's clock may stand before the instant at which this one was made.
        let elapsed = Instant::now().saturating_duration_since(self.tokio);
        let nanos = elapsed.as_nanos() as i64;
        if nanos / 1000 - self.looked.load(Ordering::Relaxed) >= LOOK_EVERY {
            self.looked.store(nanos / 1000, Ordering::Relaxed);
            self.look_for_step(base);
        }
        nanos + self.step.load(Ordering::Relaxed) * 1000
    }

    fn look_for_step(&self, base: i64) {
        let Some(steady) = self.steady else {
            return;
        };
        let unix = unix_micros();
        #[cfg(test)]
        let unix = unix + self.faked.load(Ordering::Relaxed);
        let step = unix - base - steady.elapsed().as_micros() as i64;
        if (step - self.step.load(Ordering::Relaxed)).abs() >= SMALLEST_STEP {
            self.step.store(step, Ordering::Relaxed);
        }
    }
}

impl Clock {
    /// A clock that runs with tokio's, from the present on.
    pub fn live() -> Clock {
        Clock {
            base: unix_micros(),
            started: Some(Started::now()),
            offset: AtomicI64::new(0),
        }
    }

    /// A clock that starts at this unix time in microseconds and runs with tokio's, whatever the system's clock says.
    pub fn live_at(unix_micros: i64) -> Clock {
        Clock {
            base: unix_micros,
            started: Some(Started {
                steady: None,
                ..Started::now()
            }),
            offset: AtomicI64::new(0),
        }
    }

    /// A clock that starts at the present and moves only when it is advanced.
    pub fn manual() -> Clock {
        Clock {
            base: unix_micros(),
            started: None,
            offset: AtomicI64::new(0),
        }
    }

    /// A clock that starts at this unix time in microseconds and moves only when it is advanced.
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
        let started = self.started.as_ref();
        let elapsed = started.map_or(0, |started| started.elapsed(self.base));
        self.base + elapsed.div_euclid(1000) + self.offset.load(Ordering::Relaxed)
    }

    /// As [`Clock::now_micros`], rounded up: what waits from this time on never waits too short.
    pub(crate) fn now_micros_up(&self) -> i64 {
        let started = self.started.as_ref();
        let elapsed = started.map_or(0, |started| started.elapsed(self.base) + 999);
        self.base + elapsed.div_euclid(1000) + self.offset.load(Ordering::Relaxed)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_rounded_up_is_not_before_the_present() {
        let clock = Clock::live();
        let started = clock.started.as_ref().unwrap();
        for _ in 0..10_000 {
            let present = started.tokio.elapsed();
            let up = clock.now_micros_up() - clock.base;
            let step = started.step.load(Ordering::Relaxed);
            assert!((up - step) as u128 * 1000 >= present.as_nanos());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_live_clock_follows_steps_of_the_systems_clock() {
        const HOUR: i64 = 3_600_000_000;
        let clock = Clock::live();
        let before = clock.now_micros();
        let step = |by: i64| {
            let started = clock.started.as_ref().unwrap();
            started.faked.store(by, Ordering::Relaxed);
        };
        for by in [HOUR, -HOUR, 0] {
            step(by);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        step(HOUR);
        tokio::time::advance(Duration::from_secs(1)).await;
        let after = clock.now_micros();
        let off = (after - before - HOUR - 4_000_000).abs();
        assert!(off < 1_000_000, "off by {off} microseconds");
        // Without a step it stands still with the runtime's clock.
        assert_eq!(clock.now_micros(), after);
    }
}
