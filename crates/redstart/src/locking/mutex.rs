//! A lock that one holder at a time has, over all processes.
//!
//! What it promises, and what no lock in a store can promise, is on the [family's page](super). In short: one
//! owner by the server's word, a lease that ends by itself, a holder that is told in time, waiters that are
//! woken instead of polling, and a [fence token](super::fence) with each grant.
//!
//! # Keys
//!
//! | key | type | TTL |
//! |---|---|---|
//! | `<namespace>:mutex:{<name>}` | string: the owner's token, with a `+` after it while somebody waits | the lease |
//! | `<namespace>:mutex:{<name>}:fence` | string: the last fence token | none: a token must never come again |
//! | `<namespace>:mutex:{<name>}:wake` | sharded channel | |
//!
//! The key is what any client that locks by `SET key token NX PX ttl` uses, so with a
//! [layout](MutexBuilder::layout) clients of other languages can take part. They leave the fence counter and
//! the wake-up alone, which costs them the token and the waiters some time, but no exclusion. Their tokens are
//! never marked.
//!
//! # Round trips
//!
//! | operation | round trips | on the server |
//! |---|---|---|
//! | `try_lock`, `lock` of a free lock | 1 | a script: SET NX, TIME, SET; [`unfenced`](MutexBuilder::unfenced): one SET |
//! | `release` | 1; 2 if somebody waits and the server has DELIFEQ or DELEX | DELIFEQ (Valkey 9) or DELEX (Redis 8.4); elsewhere, and for waiters, a script: GET, DEL, SPUBLISH |
//! | renewal, every ttl / 3 | 1 | a script: GET, PTTL, PEXPIRE |
//! | a waiter | 1 for each question | asked when woken, at the holder's PTTL, after a gap in the subscription |
//!
//! The waiters of one handle (and its clones) share one subscription, which stands while one of them waits,
//! and ask one at a time in the order they came. Between processes there is no order, but nobody starves: among
//! many, whoever had the lock lately lets those ask first who have waited through more releases. For an order
//! see [`FairMutex`](super::FairMutex).
//!
//! # While the store is down
//!
//! Nothing is granted; a holder keeps its lease until `valid_until` and is then told that it lost it.

use std::{fmt, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use super::{
    fence::{FenceToken, Fencing},
    lease::{Guard, Lease, Outcome, names},
    place::{Acquire, Kind, Line, Place, Settings, lease_settings},
};
use crate::{error::Result, script::Script, store::Store};

static ACQUIRE: Script = Script::new(
    "mutex.acquire",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("mutex/acquire.lua")
    ),
);
pub(super) static RENEW: Script = Script::new("mutex.renew", include_str!("mutex/renew.lua"));
pub(super) static RELEASE: Script = Script::new("mutex.release", include_str!("mutex/release.lua"));

static FENCED: Kind = Kind {
    pattern: "mutex",
    names: names!("mutex"),
    parts: &["fence"],
    acquire: Acquire::Script(&ACQUIRE),
    renew: &RENEW,
    release: &RELEASE,
    plain: true,
    line: Line::Turns,
    poll: None,
};

static UNFENCED: Kind = Kind {
    pattern: "mutex",
    names: names!("mutex"),
    parts: &[],
    acquire: Acquire::SetNx(&ACQUIRE),
    renew: &RENEW,
    release: &RELEASE,
    plain: true,
    line: Line::Turns,
    poll: None,
};

/// A lock by name. Cheap to clone; clones share their waiters' subscription. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, locking::{Mutex, Outcome}};
/// let store = Store::connect("memory://").await?;
/// let mutex = Mutex::builder(&store, "shop", "order:5001").ttl(Duration::from_secs(10)).build()?;
///
/// let outcome = mutex
///     .with(Duration::from_secs(1), |lease| async move {
///         // The token goes along with whatever is written.
///         lease.fence().get()
///     })
///     .await?;
/// assert!(matches!(outcome, Outcome::Done(token) if token > 0));
/// # Ok(()) }
/// ```
pub struct Mutex<F: Fencing = FenceToken> {
    place: Arc<Place>,
    fence: PhantomData<fn() -> F>,
}

/// The settings of a [`Mutex`].
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct MutexBuilder<F: Fencing = FenceToken> {
    settings: Settings,
    kind: &'static Kind,
    fence: PhantomData<fn() -> F>,
}

impl Mutex {
    /// Starts with the lock `name` in `namespace`, with a lease of 30 s.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> MutexBuilder {
        MutexBuilder {
            settings: Settings::new(store, namespace, name),
            kind: &FENCED,
            fence: PhantomData,
        }
    }
}

impl MutexBuilder<FenceToken> {
    /// Without fence tokens: cheaper, for work that needs no protection against a holder that was stopped
    /// beyond its lease (sparing double work, say). It is the same lock as the fenced one of that name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, locking::Mutex};
    /// let store = Store::connect("memory://").await?;
    /// let fenced = Mutex::builder(&store, "shop", "report").build()?;
    /// let cheap = Mutex::builder(&store, "shop", "report").unfenced().build()?;
    ///
    /// let guard = cheap.try_lock().await?.expect("nobody else has it");
    /// assert!(fenced.try_lock().await?.is_none());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn unfenced(self) -> MutexBuilder<()> {
        MutexBuilder {
            settings: self.settings,
            kind: &UNFENCED,
            fence: PhantomData,
        }
    }
}

impl<F: Fencing> MutexBuilder<F> {
    lease_settings!();

    /// Makes the lock. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a ttl out of the [limits](super::MIN_TTL), and for a
    /// namespace or name that breaks the [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<Mutex<F>> {
        Ok(Mutex {
            place: self.settings.place(self.kind, Vec::new())?,
            fence: PhantomData,
        })
    }
}

impl<F: Fencing> Mutex<F> {
    /// Takes the lock if it is free; `None` if it is taken.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. Should the lock have been granted all the same, it is given back.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, a lock that was granted is given back in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard<F>>> {
        self.place.try_lock().await
    }

    /// Takes the lock as soon as it is free; `None` if it was still taken after `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached it is asked again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, a lock that was granted is given back in the background.
    pub async fn lock(&self, wait: Duration) -> Result<Option<Guard<F>>> {
        self.place.lock(wait).await
    }

    /// Runs `work` under the lock and gives it back. When the lock is lost the work is dropped where it is.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock): the work was not begun.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the work is dropped and the lock is given back in the background.
    pub async fn with<T, W>(
        &self,
        wait: Duration,
        work: impl FnOnce(Lease<F>) -> W,
    ) -> Result<Outcome<T>>
    where
        W: Future<Output = T>,
    {
        Ok(match self.lock(wait).await? {
            Some(guard) => guard.run(work).await,
            None => Outcome::Busy,
        })
    }
}

impl<F: Fencing> Clone for Mutex<F> {
    fn clone(&self) -> Self {
        Self {
            place: self.place.clone(),
            fence: PhantomData,
        }
    }
}

impl<F: Fencing> fmt::Debug for MutexBuilder<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MutexBuilder").field(&self.settings).finish()
    }
}

impl<F: Fencing> fmt::Debug for Mutex<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mutex")
            .field(self.place.entity.key())
            .finish()
    }
}
