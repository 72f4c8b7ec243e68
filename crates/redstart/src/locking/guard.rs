//! A held lock, and running work under it.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use super::{
    fence::{FenceToken, Fencing},
    lease::{Lease, Terms, checked_ttl, valid_until},
    owner::Ownership,
    renewal::{Renewal, lose},
    schedule::Scheduled,
};
use crate::{
    error::{Error, Result},
    observe,
};

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lock was held until the release. If the reply to a first request was lost and the second finds the lock gone,
    /// that is said as well while the lease is valid: only the first can have released it, unless the server lost its data.
    Released,
    /// The server no longer held the lock for this owner: the lease had run out, or the server lost it. Others may have
    /// held the lock before the work ended; only a [fenced write](super::FencedValues) is safe then.
    AlreadyLost,
}

/// What became of work that was to run under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the work did not run if the lock was busy, and may be incomplete if it was lost"]
pub enum LockedRun<T> {
    /// The work ended while the lock was held.
    Done(T),
    /// Others held the lock for as long as the caller was willing to wait. The work was not started.
    Busy,
    /// The lock was lost. `None`: the work was dropped when the loss was noticed. `Some`: the work had ended, and the
    /// release found that the lock was no longer held.
    Lost(Option<T>),
}

/// A lock that is held. Release it with [`release`](Guard::release); dropping it leaves the release to the store's
/// background work, which [`Store::settle`](crate::Store::settle) waits for.
///
/// While the guard lives, its lease is renewed every third of its ttl, unless the lock was built `without_renewal`. A
/// guard that is leaked (`std::mem::forget`) is renewed until the runtime ends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, locking::{Mutex, Released}};
/// let store = Store::connect("memory://").await?;
/// let mutex = Mutex::new(&store, "shop", "order:5001")?;
///
/// let guard = mutex.try_lock().await?.expect("nobody else holds it");
/// assert!(mutex.try_lock().await?.is_none());
/// assert_eq!(guard.release().await?, Released::Released);
/// # Ok(()) }
/// ```
#[must_use = "a lock that is not kept is released at once"]
pub struct Guard<F: Fencing = FenceToken> {
    lease: Lease<F>,
    owner: Arc<dyn Ownership>,
    /// The entry of its first renewal in the schedule.
    renewal: Option<Scheduled>,
    /// Whether dropping it has to release the lock.
    armed: bool,
}

impl<F: Fencing> Guard<F> {
    /// The guard of a lock that was requested at `asked` and granted.
    pub(crate) fn new(owner: Arc<dyn Ownership>, fence: F, asked: Instant, terms: Terms) -> Self {
        let clock = owner.store().clock();
        let lease = Lease::new(clock, valid_until(asked, terms.ttl), fence);
        let renewal = Renewal::new(lease.unfenced(), owner.clone(), asked, terms);
        Self {
            renewal: Scheduled::new(renewal),
            lease,
            owner,
            armed: true,
        }
    }

    /// The lease, to pass to the work.
    pub fn lease(&self) -> Lease<F> {
        self.lease.clone()
    }

    /// Until when the lease is certainly valid; see [`Lease::valid_until`].
    pub fn valid_until(&self) -> Instant {
        self.lease.valid_until()
    }

    /// Whether the lease is valid now; see [`Lease::is_valid`].
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

    /// Makes the lease run for at least `ttl` from now. Returns until when it is valid, or `None` if it was lost.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a ttl out of the [limits](super::MIN_TTL), and those of the
    /// [`Store`](crate::Store). The lease then keeps the end it had.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may have extended the lease; [`valid_until`](Self::valid_until) keeps the
    /// earlier end.
    pub async fn extend(&self, ttl: Duration) -> Result<Option<Instant>> {
        let operations = self.owner.operations();
        observe::operation(operations.extend, self.owner.namespace(), async {
            let ttl = granted_ttl(&*self.owner, ttl)?;
            let asked = self.lease.clock().now();
            if !self.is_valid() {
                return Ok(None);
            }
            let extended = tokio::select! {
                biased;
                () = self.lease.lost() => return Ok(None),
                extended = self.owner.extend(ttl) => extended?,
            };
            if extended && self.lease.prolong(valid_until(asked, ttl)) {
                Ok(Some(self.valid_until()))
            } else {
                lose(&self.lease, operations);
                Ok(None)
            }
        })
        .await
    }

    /// Releases the lock and wakes the waiters.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`](crate::Store). The release is then tried once more in the background; at the latest the
    /// lock becomes free when its lease ends. It is not renewed any more in any case.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release continues in the background.
    pub async fn release(mut self) -> Result<Released> {
        let was_valid = self.stop();
        let owner = self.owner.clone();
        observe::operation(owner.operations().release, owner.namespace(), async {
            // One deadline for all that a release may need: it is one call.
            let release = async {
                let released = owner.release().await;
                if !released.as_ref().is_err_and(Error::is_in_doubt) {
                    return released;
                }
                match owner.release().await {
                    // The first request may have released it; while the lease was valid nobody else could.
                    Ok(false) => Ok(was_valid),
                    other => other,
                }
            };
            let released = match timeout(owner.store().deadline(), release).await {
                Ok(released) => released,
                Err(_) => Err(Error::timeout("the release was not confirmed in time").doubt(true)),
            };
            let released = match released? {
                true => Released::Released,
                false => Released::AlreadyLost,
            };
            self.armed = false;
            Ok(released)
        })
        .await
    }

    /// Runs work while the lease is valid, then releases the lock.
    pub(crate) async fn run<T, W>(self, work: impl FnOnce(Lease<F>) -> W) -> LockedRun<T>
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
            return LockedRun::Lost(None);
        };
        match self.release().await {
            Ok(Released::AlreadyLost) => LockedRun::Lost(Some(done)),
            // If the store is down now, the work was still done within the lease.
            Ok(Released::Released) | Err(_) => LockedRun::Done(done),
        }
    }

    pub(super) fn owner(&self) -> Arc<dyn Ownership> {
        self.owner.clone()
    }

    /// Leaves the lock to its lease when the guard is dropped.
    pub(super) fn forget(&mut self) {
        self.armed = false;
    }

    /// Ends the renewals and returns whether the lease was valid until now.
    pub(super) fn stop(&mut self) -> bool {
        let valid = self.lease.is_valid();
        // A renewal that already runs sees the end of the lease.
        self.lease.end();
        drop(self.renewal.take());
        valid
    }
}

impl Guard<FenceToken> {
    /// The token to pass to whatever the lock protects; see [`FenceToken`].
    pub fn fence(&self) -> FenceToken {
        self.lease.fence()
    }
}

impl<F: Fencing> Drop for Guard<F> {
    fn drop(&mut self) {
        self.stop();
        if self.armed {
            release_in_background(self.owner.clone());
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

/// A ttl within the limits of the family and of this lock.
pub(super) fn granted_ttl(owner: &dyn Ownership, ttl: Duration) -> Result<Duration> {
    let (ttl, longest) = (checked_ttl(ttl)?, owner.longest_lease());
    if ttl > longest {
        return Err(Error::config(format!(
            "the longest lease of this lock is {longest:?}, not {ttl:?}"
        )));
    }
    Ok(ttl)
}

/// Leaves the release to the store's background work.
pub(crate) fn release_in_background(owner: Arc<dyn Ownership>) {
    let store = owner.store().clone();
    store.defer(async move {
        if let Err(error) = owner.release().await {
            tracing::debug!(%error, "a lock could not be released; it ends with its lease");
        }
    });
}

/// The method `with` of a lock, and its documentation: acquires by `$acquire` and runs the work under the guard.
macro_rules! with_lock {
    ($with:ident, $acquire:ident, $fence:ty) => {
        /// Runs `work` under the lock and releases it. If the lock is lost, the work is dropped at its current await
        /// point.
        ///
        /// # Errors
        ///
        #[doc = concat!("Those of [`", stringify!($acquire), "`](Self::", stringify!($acquire), "): the work was not started.")]
        ///
        /// # Cancel safety
        ///
        /// If the future is dropped, the work is dropped and the lock is released in the background.
        pub async fn $with<T, W>(
            &self,
            wait: std::time::Duration,
            work: impl FnOnce($crate::locking::Lease<$fence>) -> W,
        ) -> $crate::Result<$crate::locking::LockedRun<T>>
        where
            W: std::future::Future<Output = T>,
        {
            Ok(match self.$acquire(wait).await? {
                Some(guard) => guard.run(work).await,
                None => $crate::locking::LockedRun::Busy,
            })
        }
    };
}
pub(crate) use with_lock;

#[cfg(all(test, feature = "engine"))]
mod tests {
    use super::*;
    use crate::{
        locking::{kind::Operations, owner::StillOwned},
        store::Store,
    };

    /// Every request of it takes long, and its reply is lost.
    struct Slow {
        store: Store,
        namespace: Arc<str>,
    }

    static OPERATIONS: Operations = crate::locking::kind::operations!("slow");

    impl Slow {
        fn request(&self) -> StillOwned<'_> {
            Box::pin(async {
                tokio::time::sleep(self.store.deadline() * 4 / 5).await;
                Err(Error::timeout("no reply").doubt(true))
            })
        }
    }

    impl Ownership for Slow {
        fn extend(&self, _: Duration) -> StillOwned<'_> {
            self.request()
        }

        fn release(&self) -> StillOwned<'_> {
            self.request()
        }

        fn store(&self) -> &Store {
            &self.store
        }

        fn operations(&self) -> &'static Operations {
            &OPERATIONS
        }

        fn token(&self) -> &str {
            "rs-slow"
        }

        fn namespace(&self) -> &Arc<str> {
            &self.namespace
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_that_asks_twice_ends_by_one_deadline() -> Result<()> {
        let store = Store::connect("memory://").await?;
        let owner = Arc::new(Slow {
            store: store.clone(),
            namespace: "test".into(),
        });
        let terms = Terms::new(Duration::from_secs(60), false)?;
        let guard: Guard<()> = Guard::new(owner, (), Instant::now(), terms);
        let begun = Instant::now();
        let error = guard.release().await.expect_err("no reply came");
        assert!(error.is_timeout() && error.is_in_doubt());
        assert!(begun.elapsed() <= store.deadline());
        Ok(())
    }
}
