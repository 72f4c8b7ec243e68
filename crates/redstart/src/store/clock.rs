//! The clock that a client's own decisions follow.
//!
//! Time that decides anything for several processes comes from the server. What one process keeps for itself, such
//! as the end of a lease it holds, the age of a cached copy or the window of a breaker, follows the [`Clock`] of its
//! store. On a server that is tokio's clock. On the embedded engine it is the engine's, so that
//! [`Store::advance`](crate::Store::advance) moves the keys and everything that clients keep about them together.
//!
//! Patterns use `store.clock()`, keep a clone, and never call `Instant::now()` for such a decision. The deadline of
//! a request is not such a decision: it always follows tokio's clock.

#[cfg(feature = "engine")]
use std::sync::Arc;
use std::{fmt, time::Duration};

use tokio::time::Instant;

/// A source of instants that is cheap to clone and to read.
#[derive(Clone, Default)]
pub(crate) struct Clock {
    #[cfg(feature = "engine")]
    engine: Option<Arc<EngineClock>>,
}

/// The engine's clock as instants: the distance from the moment when it was first looked at.
#[cfg(feature = "engine")]
pub(super) struct EngineClock {
    engine: Arc<redstart_engine::Engine>,
    anchor: Instant,
    anchor_micros: i64,
    /// How far it was moved in all.
    advanced: crate::watch::Sender<Duration>,
}

#[cfg(feature = "engine")]
impl EngineClock {
    pub(super) fn new(engine: Arc<redstart_engine::Engine>) -> Self {
        Self {
            anchor: Instant::now(),
            anchor_micros: engine.now_micros(),
            engine,
            advanced: crate::watch::Sender::new(Duration::ZERO),
        }
    }

    pub(super) fn engine(&self) -> &redstart_engine::Engine {
        &self.engine
    }

    pub(super) fn advance(&self, by: Duration) {
        self.engine.advance(by);
        self.advanced
            .send_modify(|advanced| *advanced = advanced.saturating_add(by));
    }

    fn now(&self) -> Instant {
        let passed = self.engine.now_micros().saturating_sub(self.anchor_micros);
        let passed = Duration::from_micros(u64::try_from(passed).unwrap_or(0));
        self.anchor.checked_add(passed).unwrap_or(self.anchor)
    }
}

impl Clock {
    #[cfg(feature = "engine")]
    pub(super) fn of_engine(engine: Arc<EngineClock>) -> Self {
        Self {
            engine: Some(engine),
        }
    }

    /// The present.
    pub(crate) fn now(&self) -> Instant {
        #[cfg(feature = "engine")]
        if let Some(engine) = &self.engine {
            return engine.now();
        }
        #[cfg(feature = "sim")]
        if let Some(process) = crate::sim::with_own_clock() {
            return process.now();
        }
        Instant::now()
    }

    /// How far [`Store::advance`](crate::Store::advance) has moved this clock ahead of tokio's, in all.
    #[cfg(feature = "locking")]
    pub(crate) fn advanced(&self) -> Duration {
        #[cfg(feature = "engine")]
        if let Some(engine) = &self.engine {
            return *engine.advanced.borrow();
        }
        Duration::ZERO
    }

    /// Waits until this clock shows `at`, also if it gets there by [`Store::advance`](crate::Store::advance).
    ///
    /// # Cancel safety
    ///
    /// It only waits.
    pub(crate) async fn sleep_until(&self, at: Instant) {
        #[cfg(feature = "engine")]
        if let Some(engine) = &self.engine {
            let mut advanced = engine.advanced.subscribe();
            loop {
                let left = at.saturating_duration_since(engine.now());
                if left.is_zero() {
                    return;
                }
                tokio::select! {
                    biased;
                    () = tokio::time::sleep(left) => {}
                    _ = advanced.changed() => {}
                }
            }
        }
        #[cfg(feature = "sim")]
        if let Some(process) = crate::sim::with_own_clock() {
            return process.sleep_until(at).await;
        }
        tokio::time::sleep_until(at).await;
    }

    /// Waits for a time on this clock.
    ///
    /// # Cancel safety
    ///
    /// It only waits.
    pub(crate) async fn sleep(&self, time: Duration) {
        match self.now().checked_add(time) {
            Some(at) => self.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

/// Until when a lease that was requested at `asked` is valid for its holder: the server counts from a later time. The holder
/// treats it as ended a little earlier than the server does: two clocks may run at rates that differ by 1 %, and both count
/// in whole milliseconds.
#[cfg(any(feature = "locking", feature = "messaging"))]
pub(crate) fn valid_until(asked: Instant, lease: Duration) -> Instant {
    let allowance = match crate::mend::is_missing("leases allow for slow clocks") {
        true => Duration::ZERO,
        false => lease / 100 + Duration::from_millis(2),
    };
    asked + lease.saturating_sub(allowance)
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

#[cfg(all(test, feature = "engine"))]
mod tests {
    use crate::Store;

    use super::*;

    #[tokio::test]
    async fn an_advanced_store_moves_its_clock_and_wakes_those_who_sleep_on_it() {
        let store = Store::connect("memory://clock-test").await.unwrap();
        let other = Store::connect("memory://clock-test").await.unwrap();
        let day = Duration::from_secs(86_400);
        let before = store.clock().now();
        let sleeping = tokio::spawn({
            let clock = store.clock();
            async move { clock.sleep(day).await }
        });
        tokio::task::yield_now().await;
        // Both stores are on one engine, so on one clock.
        other.advance(day).unwrap();
        assert!(store.clock().now() >= before + day);
        sleeping.await.unwrap();
        store.clock().sleep_until(before).await;
    }

    #[tokio::test(start_paused = true)]
    async fn tokios_own_clock_moves_it_too() {
        let store = Store::connect("memory://").await.unwrap();
        let before = store.clock().now();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(store.clock().now() >= before + Duration::from_secs(60));
    }
}
