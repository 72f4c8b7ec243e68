//! A lock that one holder at a time has.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use super::{
    fence::{FenceToken, Fencing},
    guard::{Guard, with_lock},
    hand_over::redeemed_by,
    kind::{Acquire, LockKind, Waiting, operations},
    lock::Lock,
    settings::{LockSettings, lock_label, lock_settings},
    ticket::held_by_ticket,
};
use crate::{
    error::{Error, Result},
    script::Script,
    store::Store,
};

mod many;

pub(super) static ACQUIRE: Script = Script::new(
    "mutex.acquire",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("mutex/acquire.lua")
    ),
);
pub(super) static EXTEND: Script = Script::new("mutex.extend", include_str!("mutex/extend.lua"));
pub(super) static RELEASE: Script = Script::new("mutex.release", include_str!("mutex/release.lua"));
pub(super) static REDEEM: Script = Script::new(
    "mutex.redeem",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("mutex/redeem.lua")
    ),
);
pub(super) static HOLDER: Script = Script::new("mutex.holder", include_str!("mutex/holder.lua"));
pub(super) static FORCE_RELEASE: Script = Script::new(
    "mutex.force_release",
    include_str!("mutex/force_release.lua"),
);

static FENCED: LockKind = LockKind {
    pattern: "mutex",
    operations: operations!("mutex"),
    parts: &["fence"],
    acquire: Acquire::Script(&ACQUIRE),
    extend: &EXTEND,
    release: &RELEASE,
    redeem: &REDEEM,
    plain: true,
    waiting: Waiting::Serial,
    poll: None,
};

static UNFENCED: LockKind = LockKind {
    pattern: "mutex",
    operations: operations!("mutex"),
    parts: &[],
    acquire: Acquire::SetNx(&ACQUIRE),
    extend: &EXTEND,
    release: &RELEASE,
    redeem: &REDEEM,
    plain: true,
    waiting: Waiting::Serial,
    poll: None,
};

/// A lock by name, which one holder at a time has, across all processes. Cheap to clone; clones share the subscription
/// of their waiters.
///
/// What it promises, and what no lock in a store can promise, is on the [family's page](super). In short: one owner as
/// the server sees it, a lease that ends without renewal, a holder that is told in time, waiters that are woken instead
/// of polling, and a [fence token](FenceToken) with each grant.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, locking::{LockedRun, Mutex}};
/// let store = Store::connect("memory://").await?;
/// let mutex = Mutex::builder(&store, "shop", "order:5001").ttl(Duration::from_secs(10)).build()?;
///
/// let run = mutex
///     .with(Duration::from_secs(1), |lease| async move {
///         // The token goes along with everything that is written.
///         lease.fence().get()
///     })
///     .await?;
/// match run {
///     LockedRun::Done(token) => assert!(token > 0),
///     LockedRun::Busy => println!("somebody else held it for a second; nothing was done"),
///     LockedRun::Lost(_) => println!("the lock was lost; only fenced writes are safe"),
/// }
/// # Ok(()) }
/// ```
///
/// # Keys
///
/// | key | type | TTL |
/// |---|---|---|
/// | `<namespace>:mutex:{<name>}` | string: the owner's token and [label](MutexBuilder::label), followed by `+` if there are waiters | the lease |
/// | `<namespace>:mutex:{<name>}:fence` | string: the last fence token | none: a token must never be issued twice |
/// | `<namespace>:mutex:{<name>}:wake` | sharded channel | |
///
/// Any client that locks by `SET key token NX PX ttl` uses the same key, so with a [layout](MutexBuilder::layout)
/// clients in other languages can take part. They ignore the fence counter and the wake-up: they have no token, and
/// waiters notice their release at the end of the lease, or as often as [`poll`](MutexBuilder::poll) says. Exclusion
/// holds. Their tokens are never changed.
///
/// # Round trips
///
/// | operation | round trips | on the server |
/// |---|---|---|
/// | `try_lock`, `lock` of a free lock | 1 | a script: SET NX, TIME, SET; [`unfenced`](MutexBuilder::unfenced): one SET |
/// | `release` | 1; 2 if there are waiters and the server has DELIFEQ or DELEX | DELIFEQ (Valkey 9) or DELEX (Redis 8.4); otherwise, and with waiters, a script: GET, DEL, SPUBLISH |
/// | renewal, every ttl / 3 | 1 | a script: GET, PTTL, PEXPIRE |
/// | `holder`, `force_release` | 1 | a script: GET, PTTL, PUBSUB SHARDNUMSUB; GET, DEL, SPUBLISH |
/// | `hand_over`, `redeem` | 1 | as a renewal; a script: GET, SET, PTTL, PEXPIRE, TIME, SET |
/// | waiting | 1 per request | asks when woken, when the holder's lease ends, and after a gap in the subscription |
///
/// The waiters of one handle and its clones share one subscription, which is open while one of them waits, and ask one
/// at a time in order of arrival. Between processes there is no order, but nobody starves: recent holders yield to
/// waiters that missed more releases. For strict order see [`FairMutex`](super::FairMutex).
///
/// # While the store is down
///
/// Nothing is granted. A holder keeps its lease until `valid_until` and is then told that it lost it.
pub struct Mutex<F: Fencing = FenceToken> {
    pub(super) lock: Arc<Lock>,
    fence: PhantomData<fn() -> F>,
}

/// The settings of a [`Mutex`].
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct MutexBuilder<F: Fencing = FenceToken> {
    settings: LockSettings,
    kind: &'static LockKind,
    fence: PhantomData<fn() -> F>,
}

impl Mutex {
    /// Starts with the lock `name` in `namespace`, with a lease of 30 s.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> MutexBuilder {
        MutexBuilder {
            settings: LockSettings::new(store, namespace, name),
            kind: &FENCED,
            fence: PhantomData,
        }
    }

    /// The lock `name` in `namespace`, with all defaults.
    ///
    /// # Errors
    ///
    /// Those of [`MutexBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }
}

impl MutexBuilder<FenceToken> {
    /// Without fence tokens: cheaper, for work that needs no protection against a holder that was stopped beyond its
    /// lease, such as avoiding duplicate work. It is the same lock as the fenced one of that name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, locking::Mutex};
    /// let store = Store::connect("memory://").await?;
    /// let fenced = Mutex::new(&store, "shop", "report")?;
    /// let cheap = Mutex::builder(&store, "shop", "report").unfenced().build()?;
    ///
    /// let guard = cheap.try_lock().await?.expect("nobody else holds it");
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
    lock_settings!();

    lock_label!();

    /// Asks again at least this often while waiting. For a [layout](Self::layout) under which other libraries lock the same
    /// key: they send no wake-up when they release it. Without it, such a release is noticed when the lease of its
    /// holder would have ended.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use std::time::Duration;
    /// use redstart::{Store, key::Layout, locking::Mutex};
    /// let store = Store::connect("memory://").await?;
    /// let mutex = Mutex::builder(&store, "shop", "lock:order:5001")
    ///     .layout(Layout::new(str::to_owned))
    ///     .poll(Duration::from_millis(50))
    ///     .build()?;
    ///
    /// // Another library holds the lock, without a TTL.
    /// store.query::<()>(redis::cmd("SET").arg("lock:order:5001").arg("token").arg("NX")).await?;
    /// assert!(mutex.try_lock().await?.is_none());
    /// assert_eq!(mutex.holder().await?.expect("it is held").remaining, None);
    /// # Ok(()) }
    /// ```
    pub fn poll(mut self, every: Duration) -> Self {
        self.settings.poll = Some(every);
        self
    }

    /// Makes the lock. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a ttl out of the [limits](super::MIN_TTL), a poll interval under a
    /// millisecond, a label that is empty, over 128 bytes or has a `+` or control characters, and for a namespace or name that breaks the
    /// [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<Mutex<F>> {
        if self
            .settings
            .poll
            .is_some_and(|every| every < Duration::from_millis(1))
        {
            return Err(Error::config(
                "a waiter must not ask more often than once per millisecond",
            ));
        }
        Ok(Mutex {
            lock: self.settings.lock(self.kind, Vec::new())?,
            fence: PhantomData,
        })
    }
}

impl<F: Fencing> Mutex<F> {
    /// Takes the lock if it is free; `None` if it is held.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. If the lock was granted anyway, it is released.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lock that was granted is released in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard<F>>> {
        self.lock.try_lock().await
    }

    /// Takes the lock as soon as it is free; `None` if it was still held after `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached, the lock is requested again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lock that was granted is released in the background.
    pub async fn lock(&self, wait: Duration) -> Result<Option<Guard<F>>> {
        self.lock.lock(wait).await
    }

    with_lock!(with, lock, F);

    held_by_ticket!();

    redeemed_by!(redeem, lock, F);
}

impl<F: Fencing> Clone for Mutex<F> {
    fn clone(&self) -> Self {
        Self {
            lock: self.lock.clone(),
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
            .field(self.lock.entity.key())
            .finish()
    }
}
