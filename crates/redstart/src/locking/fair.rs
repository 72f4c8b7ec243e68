//! A lock that is granted in order of arrival.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    fence::FenceToken,
    guard::{Guard, with_lock},
    hand_over::redeemed_by,
    kind::{Acquire, LockKind, Waiting, operations},
    lock::Lock,
    settings::{LockSettings, lock_label, lock_settings},
    ticket::held_by_ticket,
};
use crate::{error::Result, script::Script, store::Store};

pub(super) static ACQUIRE: Script = Script::new(
    "fair.acquire",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("fence/next.lua"),
        include_str!("fair/line.lua"),
        include_str!("fair/acquire.lua")
    ),
);
pub(super) static EXTEND: Script = Script::new("fair.extend", include_str!("mutex/extend.lua"));
pub(super) static RELEASE: Script = Script::new(
    "fair.release",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("fair/line.lua"),
        include_str!("fair/release.lua")
    ),
);

pub(super) static FORCE_RELEASE: Script = Script::new(
    "fair.force_release",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("fair/line.lua"),
        include_str!("fair/release.lua")
    ),
);
pub(super) static HOLDER: Script = Script::new(
    "fair.holder",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("../script/leased_set.lua"),
        include_str!("fair/holder.lua")
    ),
);
pub(super) static REDEEM: Script = Script::new(
    "fair.redeem",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("mutex/redeem.lua")
    ),
);

static FAIR: LockKind = LockKind {
    pattern: "fair",
    operations: operations!("fair"),
    parts: &["queue", "places", "fence"],
    acquire: Acquire::Script(&ACQUIRE),
    extend: &EXTEND,
    release: &RELEASE,
    redeem: &REDEEM,
    plain: false,
    waiting: Waiting::Queued,
    poll: None,
};

/// A first-come, first-served lock by name, across all processes. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, locking::FairMutex};
/// let store = Store::connect("memory://").await?;
/// let checkout = FairMutex::new(&store, "shop", "checkout")?;
///
/// let first = checkout.lock(Duration::from_secs(1)).await?.expect("nobody else is in line");
/// assert!(checkout.try_lock().await?.is_none());
/// first.release().await?;
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// What all locks promise is on the [family's page](super). This one adds a line on the server:
///
/// - Each waiter has a place in line; the lock goes to the first. A release wakes only that one.
/// - A place is leased (the lock's ttl, at most 5 s) and kept by asking again every third of it. A waiter that died
///   loses its place when that lease ends.
/// - [`try_lock`](FairMutex::try_lock) does not pass waiters: it gets the lock only if the line is empty.
/// - The order is that in which the requests reached the server.
///
/// # Limits
///
/// A stalled waiter at the head blocks the others until the lease of its place expires. So does a request that reaches the
/// server after its caller has given up.
///
/// # Keys
///
/// | key | type | TTL |
/// |---|---|---|
/// | `<namespace>:fair:{<name>}` | string: the owner's token | the lease |
/// | `…:queue` | sorted set: waiter → its number | the last place's lease |
/// | `…:places` | sorted set: waiter → end of its lease | the last place's lease |
/// | `…:fence` | string: the last fence token | none |
/// | `…:wake` | sharded channel; the message names the waiter | |
///
/// # Round trips
///
/// One for each acquisition, release and renewal, each a script of 5 to 10 commands: O(log n) in the number of waiters.
/// A waiter asks again every third of its place's lease.
///
/// # While the store is down
///
/// Nothing is granted, and places expire.
#[derive(Clone)]
pub struct FairMutex {
    pub(super) lock: Arc<Lock>,
}

/// The settings of a [`FairMutex`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct FairMutexBuilder {
    settings: LockSettings,
}

impl FairMutexBuilder {
    lock_settings!();

    lock_label!();

    /// Makes the lock. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a ttl out of the [limits](super::MIN_TTL), and for a namespace or
    /// name that breaks the [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<FairMutex> {
        Ok(FairMutex {
            lock: self.settings.lock(&FAIR, Vec::new())?,
        })
    }
}

impl FairMutex {
    /// Starts with the lock `name` in `namespace`, with a lease of 30 s.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> FairMutexBuilder {
        FairMutexBuilder {
            settings: LockSettings::new(store, namespace, name),
        }
    }

    /// The lock `name` in `namespace`, with all defaults.
    ///
    /// # Errors
    ///
    /// Those of [`FairMutexBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Takes the lock if it is free and nobody waits for it.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lock that was granted is released in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.lock.try_lock().await
    }

    /// Waits in line for the lock; `None` if it was not granted within `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached, the lock is requested again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the place in line or the lock is released in the background.
    pub async fn lock(&self, wait: Duration) -> Result<Option<Guard>> {
        self.lock.lock(wait).await
    }

    with_lock!(with, lock, FenceToken);

    held_by_ticket!();

    redeemed_by!(redeem, lock, FenceToken);
}

impl fmt::Debug for FairMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FairMutex")
            .field(self.lock.entity.key())
            .finish()
    }
}
