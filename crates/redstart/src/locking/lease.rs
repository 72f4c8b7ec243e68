//! What a holder knows of its lock: until when it is valid, and when it is lost.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

pub(crate) use crate::store::valid_until;

use super::fence::{FenceToken, Fencing};
use crate::{
    duration,
    error::{Error, Result},
    store::Clock,
};

/// The shortest lease. In a shorter one, a single reply could take longer than the lease.
pub const MIN_TTL: Duration = Duration::from_millis(20);
/// The longest lease: a lock whose holder died must become free in a reasonable time.
pub const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How long a lease runs, and whether it is renewed while its guard lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) renewed: bool,
}

impl Terms {
    pub(crate) fn new(ttl: Duration, renewed: bool) -> Result<Self> {
        Ok(Self {
            ttl: checked_ttl(ttl)?,
            renewed,
        })
    }

    /// The lease of a place in line, which a waiter keeps by asking again in time: a dead waiter must not block the
    /// others for long.
    pub(crate) fn waiter(&self) -> Duration {
        self.ttl.min(Duration::from_secs(5))
    }
}

/// A ttl within the limits, in the whole milliseconds that the server counts in.
pub(crate) fn checked_ttl(ttl: Duration) -> Result<Duration> {
    if ttl < MIN_TTL {
        return Err(Error::config(format!(
            "a lease must last at least {MIN_TTL:?}, not {ttl:?}"
        )));
    }
    if ttl > MAX_TTL {
        return Err(Error::config(format!(
            "a lease must last at most {} days",
            MAX_TTL.as_secs() / 86_400
        )));
    }
    Ok(Duration::from_millis(duration::millis(ttl)))
}

/// The end of a wait. A wait without an end is one of thirty years, as with tokio's own timers.
pub(crate) fn deadline(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait)
        .unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 24 * 60 * 60))
}

#[derive(Clone, Copy, Debug)]
struct State {
    until: Instant,
    ended: bool,
}

struct Shared {
    /// On this clock, which is the server's own on the embedded engine.
    clock: Clock,
    state: Mutex<State>,
    changed: Notify,
}

impl Shared {
    fn is_valid(&self, state: State) -> bool {
        !state.ended && self.clock.now() < state.until
    }
}

/// What the work under a lock can know about the lock. Cheap to clone; it does not keep the lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, locking::Mutex};
/// let store = Store::connect("memory://").await?;
/// let mutex = Mutex::new(&store, "shop", "order:5001")?;
/// let guard = mutex.try_lock().await?.expect("nobody else holds it");
/// let lease = guard.lease();
/// assert!(lease.is_valid());
/// guard.release().await?;
/// assert!(!lease.is_valid());
/// # Ok(()) }
/// ```
pub struct Lease<F = FenceToken> {
    shared: Arc<Shared>,
    fence: F,
}

impl<F: Fencing> Clone for Lease<F> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            fence: self.fence,
        }
    }
}

impl Lease<FenceToken> {
    /// The token to pass to whatever the lock protects; see [`FenceToken`].
    pub fn fence(&self) -> FenceToken {
        self.fence
    }
}

impl<F> Lease<F> {
    /// A lease that is valid until `until` on this clock.
    pub(crate) fn new(clock: Clock, until: Instant, fence: F) -> Self {
        Self {
            shared: Arc::new(Shared {
                clock,
                state: Mutex::new(State {
                    until,
                    ended: false,
                }),
                changed: Notify::new(),
            }),
            fence,
        }
    }

    /// The same lease without its fence token.
    pub(crate) fn unfenced(&self) -> Lease<()> {
        Lease {
            shared: self.shared.clone(),
            fence: (),
        }
    }

    /// Until when the lease is certainly valid, by this machine's monotonic clock: the time before it was last
    /// requested, plus its ttl, minus an allowance for clocks that run at different rates (ttl / 100 + 2 ms). Renewals
    /// move it forward; on `memory://`, [`Store::advance`](crate::Store::advance) moves it back.
    pub fn valid_until(&self) -> Instant {
        let (until, advanced) = (self.state().until, self.shared.clock.advanced());
        until.checked_sub(advanced).unwrap_or_else(Instant::now)
    }

    /// Until when the lease is valid, on the [clock](Self::clock).
    pub(crate) fn until(&self) -> Instant {
        self.state().until
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Whether the lease is valid now. It reads the clock, so the answer is right even if this process was stopped for a
    /// while and nothing else has run since.
    pub fn is_valid(&self) -> bool {
        self.shared.is_valid(self.state())
    }

    /// Waits until the lease has ended: its time passed, the server said that the lock is another owner's, or it was
    /// released.
    ///
    /// It returns before the server grants the lock to anybody else, unless the server itself lost the lock.
    ///
    /// # Cancel safety
    ///
    /// Waiting changes nothing.
    pub async fn lost(&self) {
        loop {
            // Made before the look, so that no change falls between the two.
            let changed = self.shared.changed.notified();
            let state = self.state();
            if !self.shared.is_valid(state) {
                return;
            }
            tokio::select! {
                biased;
                () = self.shared.clock.sleep_until(state.until) => {}
                () = changed => {}
            }
        }
    }

    /// Waits until [`end`](Self::end) was called. That its time has passed does not count: `extend` may have moved it.
    pub(crate) async fn ended(&self) {
        loop {
            let changed = self.shared.changed.notified();
            if self.state().ended {
                return;
            }
            changed.await;
        }
    }

    fn state(&self) -> State {
        *self.shared.state.lock()
    }

    /// Moves the end forward, never back. False if the lease has ended before the answer was read: whoever was told so must
    /// not find it valid again.
    #[must_use = "a lease that has ended stays so"]
    pub(crate) fn prolong(&self, until: Instant) -> bool {
        let mut state = self.shared.state.lock();
        if !self.shared.is_valid(*state)
            && !crate::mend::is_missing("a lease that has ended stays so")
        {
            return false;
        }
        state.until = state.until.max(until);
        drop(state);
        self.shared.changed.notify_waiters();
        true
    }

    /// Ends the lease; true for the first caller.
    pub(crate) fn end(&self) -> bool {
        let before = std::mem::replace(&mut self.shared.state.lock().ended, true);
        self.shared.changed.notify_waiters();
        !before
    }
}

impl<F> fmt::Debug for Lease<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_out_of_the_limits_are_refused() {
        for bad in [
            Duration::ZERO,
            Duration::from_millis(19),
            MAX_TTL + Duration::from_millis(1),
            Duration::MAX,
        ] {
            assert!(checked_ttl(bad).unwrap_err().is_config(), "{bad:?}");
        }
        assert_eq!(
            checked_ttl(Duration::from_micros(30_001)).unwrap(),
            Duration::from_millis(31)
        );
    }

    #[test]
    fn an_answer_that_is_read_after_the_end_does_not_prolong_a_lease() {
        let now = Instant::now();
        let lease = Lease::new(Clock::default(), now, ());
        assert!(!lease.is_valid());
        assert!(!lease.prolong(now + MAX_TTL));
        assert!(!lease.is_valid());
        let lease = Lease::new(Clock::default(), now + MAX_TTL, ());
        assert!(lease.prolong(now + MAX_TTL * 2) && lease.is_valid());
    }

    #[test]
    fn a_lease_ends_for_its_holder_before_it_ends_for_the_server() {
        let asked = Instant::now();
        for ms in [20, 21, 99, 1_000, 30_000] {
            let ttl = Duration::from_millis(ms);
            assert!(valid_until(asked, ttl) + Duration::from_millis(2) <= asked + ttl);
            assert!(valid_until(asked, ttl) > asked);
        }
    }
}
