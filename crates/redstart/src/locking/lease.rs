//! What a holder has: a lease that runs out by itself, is renewed while its guard lives, and says when it is
//! lost. All locks of the family share it.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    fence::{FenceToken, Fencing},
    keeper::{Keeper, Slot},
};
use crate::{
    error::{Error, Result},
    observe,
    store::Store,
};

/// The shortest lease: below it, the time that one answer takes would eat it up.
pub const MIN_TTL: Duration = Duration::from_millis(20);
/// The longest lease: a lock that is forgotten must come free within a human's patience.
pub const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// For how long a lease runs, and whether it is renewed while its guard lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) renewed: bool,
}

impl Terms {
    pub(crate) fn new(ttl: Duration, renewed: bool) -> Result<Self> {
        Ok(Self {
            ttl: checked(ttl)?,
            renewed,
        })
    }

    /// A place in line is kept by asking again in time; who is dead must not block the others for long.
    pub(crate) fn waiter(&self) -> Duration {
        self.ttl.min(Duration::from_secs(5))
    }
}

/// A lease within the limits, in the whole milliseconds that the server counts in.
pub(crate) fn checked(ttl: Duration) -> Result<Duration> {
    if ttl < MIN_TTL {
        return Err(Error::config(format!(
            "a lease runs for at least {MIN_TTL:?}, not {ttl:?}"
        )));
    }
    if ttl > MAX_TTL {
        return Err(Error::config(format!(
            "a lease runs for at most {} days",
            MAX_TTL.as_secs() / 86_400
        )));
    }
    Ok(Duration::from_millis(millis(ttl)))
}

pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// How much earlier than the server the holder takes its lease as ended: two clocks may run at rates that
/// differ by 1 %, and both count in whole milliseconds.
fn drift(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// Until when a lease is good that was asked for at `asked`: the server counts from later than that.
pub(crate) fn valid_until(asked: Instant, ttl: Duration) -> Instant {
    asked + ttl.saturating_sub(drift(ttl))
}

/// The names under which a pattern is observed.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) acquire: &'static str,
    pub(crate) extend: &'static str,
    pub(crate) release: &'static str,
    pub(crate) busy: &'static str,
    pub(crate) lost: &'static str,
}

/// `names!("mutex")` is `mutex.acquire`, `mutex.extend` and so on.
macro_rules! names {
    ($pattern:literal) => {
        $crate::locking::lease::Names {
            acquire: concat!($pattern, ".acquire"),
            extend: concat!($pattern, ".extend"),
            release: concat!($pattern, ".release"),
            busy: concat!($pattern, ".busy"),
            lost: concat!($pattern, ".lost"),
        }
    };
}
pub(crate) use names;

pub(crate) type Step<'a> = Pin<Box<dyn Future<Output = Result<bool>> + Send + 'a>>;

/// What was granted, on whatever it was granted. Both steps compare the owner's token and act in one script.
pub(crate) trait Claim: Send + Sync + 'static {
    /// Lets the lease run for at least `ttl` from now; `false` if it is not the owner's any more.
    fn renew(&self, ttl: Duration) -> Step<'_>;
    /// Gives it back; `false` if it was not the owner's any more.
    fn release(&self) -> Step<'_>;
    /// Whose runtime does what is left to do.
    fn store(&self) -> &Store;
    fn names(&self) -> &'static Names;
    fn namespace(&self) -> &Arc<str>;
}

#[derive(Clone, Copy, Debug)]
struct State {
    until: Instant,
    over: bool,
}

impl State {
    fn holds(&self) -> bool {
        !self.over && Instant::now() < self.until
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

/// What the work under a lock may know of it. Cheap to clone; it does not keep the lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, locking::Mutex};
/// let store = Store::connect("memory://").await?;
/// let mutex = Mutex::builder(&store, "shop", "order:5001").build()?;
/// let guard = mutex.try_lock().await?.expect("nobody else has it");
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
    /// The token to hand to whatever the lock protects; see [`FenceToken`].
    pub fn fence(&self) -> FenceToken {
        self.fence
    }
}

impl<F> Lease<F> {
    /// Until when the lease is good for certain, by this machine's monotonic clock. Renewals move it on.
    pub fn valid_until(&self) -> Instant {
        self.state().until
    }

    /// Whether the lease is good now. It reads the clock, so it is right even when this process was stopped
    /// for a while and nothing else has run since.
    pub fn is_valid(&self) -> bool {
        self.state().holds()
    }

    /// Waits until the lease is over: it ran out, the server said that it is another's, or it was released.
    ///
    /// It fires before the server lets anybody else in, unless the server itself lost the lock.
    ///
    /// # Cancel safety
    ///
    /// Waiting changes nothing.
    pub async fn lost(&self) {
        loop {
            // Made before the look, so that no change falls between the two.
            let changed = self.shared.changed.notified();
            let state = self.state();
            if !state.holds() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(state.until) => {}
                () = changed => {}
            }
        }
    }

    /// Waits until somebody ended it. That its time is up does not count: `extend` may have won.
    async fn ended(&self) {
        loop {
            let changed = self.shared.changed.notified();
            if self.state().over {
                return;
            }
            changed.await;
        }
    }

    fn state(&self) -> State {
        *self.shared.state.lock()
    }

    /// Moves the end on; never back.
    fn prolong(&self, until: Instant) {
        let mut state = self.shared.state.lock();
        state.until = state.until.max(until);
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// True for the one who ended it.
    fn end(&self) -> bool {
        let before = std::mem::replace(&mut self.shared.state.lock().over, true);
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

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It was ours until now.
    Released,
    /// The server had not kept it for us: the lease had run out, or the server lost it. Others may have been
    /// let in before the work ended; only a [fenced write](super::fence) is safe then.
    AlreadyLost,
}

/// What became of work that was to run under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It ran to its end while the lock was held.
    Done(T),
    /// The lock was taken for as long as the caller would wait. The work was not begun.
    Busy,
    /// The lock was lost. `None`: the work was dropped when that was noticed. `Some`: the work had ended, and
    /// the server said at the release that the lock was not kept for it.
    Lost(Option<T>),
}

/// A lock that is held. Give it back with [`release`](Guard::release); dropping it hands the release to the
/// store's background work, which [`Store::settle`] waits for.
///
/// While the guard lives the lease is renewed every third of its ttl, unless the lock was built with a fixed
/// lease. A guard that is leaked (`std::mem::forget`) is renewed until the process ends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, locking::{Mutex, Released}};
/// let store = Store::connect("memory://").await?;
/// let mutex = Mutex::builder(&store, "shop", "order:5001").build()?;
///
/// let guard = mutex.try_lock().await?.expect("nobody else has it");
/// assert!(mutex.try_lock().await?.is_none());
/// assert_eq!(guard.release().await?, Released::Released);
/// # Ok(()) }
/// ```
#[must_use = "a lock that is not kept is released at once"]
pub struct Guard<F: Fencing = FenceToken> {
    lease: Lease<F>,
    claim: Arc<dyn Claim>,
    /// Where its watchdog waits for the first renewal.
    slot: Option<(Arc<Keeper>, Slot)>,
    /// Whether dropping it has to give the lock back.
    armed: bool,
}

impl<F: Fencing> Guard<F> {
    /// A lease that was asked for at `asked` and granted.
    pub(crate) fn new(claim: Arc<dyn Claim>, fence: F, asked: Instant, terms: Terms) -> Self {
        let until = valid_until(asked, terms.ttl);
        let shared = Arc::new(Shared {
            state: Mutex::new(State { until, over: false }),
            changed: Notify::new(),
        });
        let watchdog = Watchdog {
            lease: Lease {
                shared: shared.clone(),
                fence: (),
            },
            claim: claim.clone(),
            terms,
            next: if terms.renewed {
                asked + terms.ttl / 3
            } else {
                until
            },
        };
        let slot = Keeper::of(claim.store()).map(|keeper| {
            let slot = keeper.put(watchdog.next, watchdog);
            (keeper, slot)
        });
        Self {
            lease: Lease { shared, fence },
            claim,
            slot,
            armed: true,
        }
    }

    /// The lease, to hand to the work.
    pub fn lease(&self) -> Lease<F> {
        self.lease.clone()
    }

    /// Until when the lease is good for certain: the time before it was last asked for, plus its ttl, minus
    /// an allowance for clocks that run at different rates (ttl / 100 + 2 ms).
    pub fn valid_until(&self) -> Instant {
        self.lease.valid_until()
    }

    /// Whether the lease is good now; see [`Lease::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.lease.is_valid()
    }

    /// Waits until the lease is lost; see [`Lease::lost`].
    ///
    /// # Cancel safety
    ///
    /// Waiting changes nothing.
    pub async fn lost(&self) {
        self.lease.lost().await;
    }

    /// Lets the lease run for at least `ttl` from now. Returns until when it is good, or `None` if it was
    /// lost.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a ttl out of the limits, and those of the [`Store`]. The lease
    /// then still has the end it had.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the server may have prolonged the lease; [`valid_until`](Self::valid_until)
    /// stays on the safe side.
    pub async fn extend(&self, ttl: Duration) -> Result<Option<Instant>> {
        let ttl = checked(ttl)?;
        let names = self.claim.names();
        observe::operation(names.extend, self.claim.namespace(), async {
            let asked = Instant::now();
            if !self.is_valid() {
                return Ok(None);
            }
            let renewed = tokio::select! {
                biased;
                () = self.lease.lost() => return Ok(None),
                renewed = self.claim.renew(ttl) => renewed?,
            };
            if renewed {
                self.lease.prolong(valid_until(asked, ttl));
                Ok(Some(self.valid_until()))
            } else {
                lose(&self.lease, names);
                Ok(None)
            }
        })
        .await
    }

    /// Gives the lock back and wakes who waits for it.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. The release is then tried once more in the background; at the latest the lock
    /// comes free when its lease ends. It is not renewed any more in any case.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the release goes on in the background.
    pub async fn release(mut self) -> Result<Released> {
        let was_valid = self.stop();
        let claim = self.claim.clone();
        observe::operation(claim.names().release, claim.namespace(), async {
            let mut given_back = claim.release().await;
            if given_back.as_ref().is_err_and(Error::is_in_doubt) {
                given_back = match claim.release().await {
                    // The first one may have done it; nobody else could while the lease was good.
                    Ok(false) => Ok(was_valid),
                    other => other,
                };
            }
            let released = match given_back? {
                true => Released::Released,
                false => Released::AlreadyLost,
            };
            self.armed = false;
            Ok(released)
        })
        .await
    }

    /// Runs work for as long as the lease is good, then gives the lock back.
    pub(crate) async fn run<T, W>(self, work: impl FnOnce(Lease<F>) -> W) -> Outcome<T>
    where
        W: Future<Output = T>,
    {
        let lease = self.lease();
        let done = tokio::select! {
            // The loss first: after a long stop of the process both may be ready.
            biased;
            () = lease.lost() => None,
            done = work(lease.clone()) => Some(done),
        };
        let Some(done) = done else {
            return Outcome::Lost(None);
        };
        match self.release().await {
            Ok(Released::AlreadyLost) => Outcome::Lost(Some(done)),
            // A store that is away now changes nothing about the work: it was done within the lease.
            Ok(Released::Released) | Err(_) => Outcome::Done(done),
        }
    }

    /// Ends the renewals and says whether the lease was good until now.
    fn stop(&mut self) -> bool {
        let valid = self.lease.is_valid();
        // A watchdog that is loose already sees the end of the lease.
        self.lease.end();
        if let Some((keeper, slot)) = self.slot.take() {
            keeper.take(slot);
        }
        valid
    }
}

impl Guard<FenceToken> {
    /// The token to hand to whatever the lock protects; see [`FenceToken`].
    pub fn fence(&self) -> FenceToken {
        self.lease.fence
    }
}

impl<F: Fencing> Drop for Guard<F> {
    fn drop(&mut self) {
        self.stop();
        if self.armed {
            give_back(self.claim.clone());
        }
    }
}

impl<F: Fencing> fmt::Debug for Guard<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

/// Leaves the release to the store's background work.
pub(crate) fn give_back(claim: Arc<dyn Claim>) {
    let store = claim.store().clone();
    store.defer(async move {
        if let Err(error) = claim.release().await {
            tracing::debug!(%error, "a lock could not be given back; it ends with its lease");
        }
    });
}

fn lose<F>(lease: &Lease<F>, names: &'static Names) {
    if lease.end() {
        observe::event(names.lost);
        tracing::warn!(pattern = names.lost, "a lease was lost");
    }
}

/// Renews a lease until it is over. A renewal is given no more time than the lease still has: what it would
/// gain does not count before the answer is there.
pub(crate) struct Watchdog {
    lease: Lease<()>,
    claim: Arc<dyn Claim>,
    terms: Terms,
    /// When to renew next.
    next: Instant,
}

impl Watchdog {
    pub(crate) async fn watch(self) {
        let lease = self.lease.clone();
        tokio::select! {
            biased;
            () = lease.ended() => {}
            () = self.renew() => {}
        }
    }

    async fn renew(self) {
        let Self {
            lease,
            claim,
            terms,
            mut next,
        } = self;
        let every = terms.ttl / 3;
        let mut pause = every / 8;
        loop {
            let until = lease.valid_until();
            if !terms.renewed || next >= until {
                tokio::time::sleep_until(until).await;
            } else {
                tokio::time::sleep_until(next).await;
            }
            if !lease.is_valid() {
                lose(&lease, claim.names());
                return;
            }
            let asked = Instant::now();
            if !terms.renewed || asked < next {
                continue;
            }
            match tokio::time::timeout_at(lease.valid_until(), claim.renew(terms.ttl)).await {
                Ok(Ok(true)) => {
                    lease.prolong(valid_until(asked, terms.ttl));
                    next = asked + every;
                    pause = every / 8;
                }
                Ok(Ok(false)) => {
                    lose(&lease, claim.names());
                    return;
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a lease could not be renewed; trying again");
                    next = Instant::now() + pause.mul_f64(rand::random_range(0.5..=1.0));
                    pause = (pause * 2).min(every);
                }
                // Its time is up; the head of the loop sees whether `extend` gave it more.
                Err(_) => {}
            }
        }
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
            assert!(checked(bad).unwrap_err().is_config(), "{bad:?}");
        }
        assert_eq!(
            checked(Duration::from_micros(30_999)).unwrap(),
            Duration::from_millis(30)
        );
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
